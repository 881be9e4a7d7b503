"""Combiners: neighbouring chunks complete subtrees of the fixed tree before their sums reach the server.

First one call on each node, then pairs of neighbours between nodes, until one message is left: the server receives the
complete subtrees of the whole cohort, at most log2(cohort) + 1 vectors, however many actors there are. `ops/average.py`
says why the bits do not change.

A client actor that has done its chunk is the combiner. A Ray task would need a process of its own that imports torch,
and Ray ends such a process when it has had nothing to do for a second: each round would start another.

Fields declared `each()` and the clients' states are not added. They go from the chunk to the server, each once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flray.core.messages import nbytes
from flray.engine.client import Chunk, Delivery
from flray.engine.ray.processes import this_node
from flray.ops.pooling import PartialUpdates, merged

if TYPE_CHECKING:
    from flray.engine.ray.pool import ActorPool

Sums = tuple[Any, "Part"]  # a reference to them, and where they are
LIGHT_BYTES = 2**14  # of what is a chunk's own: it travels with the driver's call instead of as an object
MIN_SAVED_BYTES = 2**25  # that the server would receive: what takes it as long to read as combiners' calls take


class Part(NamedTuple):
    """A report of where partial sums are: the node, their number and bytes."""

    node: str
    vectors: int
    bytes: int


class ChunkReport(NamedTuple):
    """Its clients' rows, where its sums are, and its delivery without sums (None: that is an object of its own)."""

    rows: list[dict[str, Any]]
    part: Part
    own: Delivery | None


class ChunkResult(NamedTuple):
    """References to a chunk's sums and to the rest of its delivery, and the report."""

    sums: Any
    own: Any
    report: ChunkReport


# in a client actor ------------------------------------------------------------------------------
def apart(delivery: Delivery, rows: list[dict[str, Any]]) -> tuple[Delivery, Delivery | None, ChunkReport]:
    """(the delivery's sums, the rest of it if it is heavy, the report)."""
    sent = delivery.sent
    sums = _sums(sent._replace(each=[]))
    own = delivery._replace(sent=PartialUpdates([], sent.each, {}))
    heavy = nbytes(tuple(values for _, values in sent.each)) + nbytes(tuple(delivery.states)) > LIGHT_BYTES
    return sums, own if heavy else None, ChunkReport(rows, _part(sums), None if heavy else own)


def combine(*runs: Delivery) -> tuple[Delivery, Part]:
    """(the sums of neighbouring chunks, or of several such groups, as one; where they are)."""
    sums = _sums(merged([run.sent for run in runs]))
    return sums, _part(sums)


def _sums(sent: PartialUpdates) -> Delivery:
    return Delivery(sent, [], [])


def _part(sums: Delivery) -> Part:
    values = [node.value for node in sums.sent.nodes if node.value is not None]
    return Part(this_node(), len(values), nbytes(tuple(values)))


# in the driver ----------------------------------------------------------------------------------
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


def combined(pool: ActorPool, results: Sequence[ChunkResult], options: dict[str, Any]) -> list[Any]:
    """What the server gets: a reference to the sums of all chunks, then each chunk's own delivery (or a reference)."""
    groups = [(result.sums, result.report.part) for result in results]
    if sum(part.bytes for _, part in groups):
        by_node = [list(group) for _, group in itertools.groupby(groups, key=lambda group: group[1].node)]
        groups = _merge(pool, by_node, options)
        while len(groups) > 1:
            groups = _merge(pool, [groups[i : i + 2] for i in range(0, len(groups), 2)], options)
    own = [result.own if result.report.own is None else result.report.own for result in results]
    return [*(ref for ref, _ in groups), *own]


def lost(done: Mapping[int, Any]) -> set[int]:
    """The chunks whose results were on nodes that are gone; `done`: (references, report) by chunk."""
    import ray

    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    return {chunk for chunk, (_, report) in done.items() if report.part.node not in alive}


def _merge(pool: ActorPool, groups: Sequence[list[Sums]], options: dict[str, Any]) -> list[Sums]:
    """Each group's sums as one, by an actor of the node that has most of them; a group of one stays as it is."""

    def call(group: list[Sums]) -> Callable[[Any], Any]:
        refs = [ref for ref, _ in group]
        return lambda actor: actor.combine.options(num_returns=2, **options).remote(*refs)

    several = [group for group in groups if len(group) > 1]
    nodes = [max((part for _, part in group), key=lambda part: part.bytes).node for group in several]
    done = iter(pool.execute([call(group) for group in several], nodes))
    return [group[0] if len(group) == 1 else next(done) for group in groups]
