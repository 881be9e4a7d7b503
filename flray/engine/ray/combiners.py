"""Combiners: neighbouring chunks complete subtrees of the fixed tree before their sums reach the server.

First one call on each node, then pairs of neighbours between nodes, until one message is left: the server receives the
complete subtrees of the whole cohort, at most log2(cohort) + 1 vectors, however many actors there are. `ops/average.py`
says why the bits do not change.

A client actor that has done its chunk is the combiner. A Ray task would need a process of its own that imports torch,
and Ray ends such a process when it has had nothing to do for a second: each round would start another.

`calls.py` says which actor combines what. Fields declared `each()` and the clients' states are not added. They go from
the chunk to the server, each once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from flray.core.messages import nbytes
from flray.engine.exchanges import Chunk, ChunkResult, ClientReport
from flray.engine.ray.this_node import this_node
from flray.ops.pooling import PartialUpdates, merged

LIGHT_BYTES = 2**14  # of what is a chunk's own: it travels with the driver's call instead of as an object
MIN_SAVED_BYTES = 2**25  # that the server would receive: what takes it as long to read as combiners' calls take


class Part(NamedTuple):
    """A report of where partial sums are: the node, their number and bytes."""

    node: str
    vectors: int
    bytes: int


class ChunkReport(NamedTuple):
    """Its clients' reports, where its sums are, and its result without sums (None: that is an object of its own)."""

    clients: list[ClientReport]
    part: Part
    own: ChunkResult | None


# in a client actor ------------------------------------------------------------------------------
def apart(result: ChunkResult, clients: list[ClientReport]) -> tuple[ChunkResult, ChunkResult | None, ChunkReport]:
    """(the result's sums, the rest of it if it is heavy, the report)."""
    sent = result.sent
    sums = _sums(sent._replace(each=[]))
    own = result._replace(sent=PartialUpdates([], sent.each, {}))
    heavy = nbytes(tuple(values for _, values in sent.each)) + nbytes(tuple(result.states)) > LIGHT_BYTES
    return sums, own if heavy else None, ChunkReport(clients, _part(sums), None if heavy else own)


def combine(*runs: ChunkResult) -> tuple[ChunkResult, Part]:
    """(the sums of neighbouring chunks, or of several such groups, as one; where they are)."""
    sums = _sums(merged([run.sent for run in runs]))
    return sums, _part(sums)


def _sums(sent: PartialUpdates) -> ChunkResult:
    return ChunkResult(sent, [], [])


def _part(sums: ChunkResult) -> Part:
    values = [node.value for node in sums.sent.nodes if node.value is not None]
    return Part(this_node(), len(values), nbytes(tuple(values)))


# in the driver: what it saves --------------------------------------------------------------------
def worth_it(chunks: Sequence[Chunk], model_bytes: int) -> bool:
    """Whether combining the sums of these chunks of one cohort saves the server enough vectors of so many bytes."""
    if len(chunks) < 3:  # two send at most 2 log2(cohort) vectors
        return False
    sizes = [len(chunk.weights) for chunk in chunks]
    sent = sum(num_subtrees(chunk.first, size) for chunk, size in zip(chunks, sizes, strict=True))
    size = sum(sizes)
    return sent > 2 * math.log2(size) and (sent - num_subtrees(0, size)) * model_bytes >= MIN_SAVED_BYTES


def most_bytes(cohort: int, update_bytes: int) -> int:
    """The bytes of sums that the server receives at most in an exchange of so many clients, however many actors."""
    few = max(1, int(2 * math.log2(cohort)))
    return min(cohort * update_bytes, few * update_bytes + MIN_SAVED_BYTES)


def num_subtrees(first: int, size: int) -> int:
    """The number of complete subtrees of the fixed tree that positions `first` to `first + size - 1` make up."""
    count, stop = 0, first + size
    while first < stop:
        largest = 1 << (stop - first).bit_length() - 1
        first += min(first & -first or largest, largest)
        count += 1
    return count
