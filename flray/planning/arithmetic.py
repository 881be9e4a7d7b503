"""The arithmetic of a plan: bytes and seconds of an exchange from sizes, rates and chunks. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """Positions `first` to `first + size - 1` of the cohort."""

    first: int
    size: int


def num_subtrees(span: Span) -> int:
    """Vectors that the positions of a span send: complete subtrees of the fixed tree.

    >>> [num_subtrees(Span(0, n)) for n in (1, 2, 3, 100)]  # the ones of n in binary: 100 = 64 + 32 + 4
    [1, 1, 2, 3]
    >>> num_subtrees(Span(5, 6))  # 5, 6-7, 8-9, 10
    4
    """
    from flray.engine.ray.combiners import num_subtrees as count  # it imports Ray

    return count(*span)


class Links(NamedTuple):
    """Of an exchange: bytes that leave the server's node; that go from node to node between combiners; that reach the
    server from other nodes; vectors that reach the server from anywhere; and seconds on the network, down and up."""

    down: int
    between: int
    up: int
    vectors: int
    down_s: float
    up_s: float


def links(
    nodes: Sequence[Sequence[Span]], broadcast: int, summed: int, single: int, combined: bool, network: float
) -> Links:
    """Bytes and seconds on the network. `nodes[i]`: the chunks of node i, neighbours side by side; the server is on
    node 0. `single`: bytes of a client that go to the server unsummed, its new state with them. `network`: bytes a
    second.

    The broadcast goes to a node once, all copies out of the server's node. With combiners each node adds its chunks,
    then pairs of neighbours; the right one sends. Two nodes, two clients each, vectors of 100 bytes, 100 bytes a
    second:

    >>> links([[Span(0, 1), Span(1, 1)], [Span(2, 1), Span(3, 1)]], 50, 100, 0, True, 100.0)
    Links(down=50, between=100, up=100, vectors=1, down_s=0.5, up_s=2.0)
    >>> links([[Span(0, 1), Span(1, 1)], [Span(2, 1), Span(3, 1)]], 50, 100, 10, False, 100.0)
    Links(down=50, between=0, up=220, vectors=4, down_s=0.5, up_s=2.2)
    >>> links([[Span(0, 100)]], 50, 100, 10, True, 100.0)  # one node: nothing on the network
    Links(down=0, between=0, up=0, vectors=3, down_s=0.0, up_s=0.0)
    """
    used = [list(spans) for spans in nodes if spans]
    away = used[1:]
    down = broadcast * len(away)
    own = single * sum(span.size for spans in away for span in spans)
    if not combined:
        vectors = [sum(map(num_subtrees, spans)) for spans in used]
        up = summed * sum(vectors[1:]) + own
        return Links(down, 0, up, sum(vectors), down / network, up / network)
    groups = [Span(spans[0].first, sum(span.size for span in spans)) for spans in used]
    between, seconds = 0, 0.0
    while len(groups) > 1:
        sent = [num_subtrees(right) * summed for right in groups[1::2]]
        between += sum(sent)
        seconds += max(sent) / network
        groups = [
            Span(groups[i].first, sum(group.size for group in groups[i : i + 2])) for i in range(0, len(groups), 2)
        ]
    vectors_in = num_subtrees(groups[0])
    up = vectors_in * summed + own if away else 0
    return Links(down, between, up, vectors_in, down / network, seconds + up / network)


def clients_seconds(nodes: Sequence[Sequence[float]], threads: float, cores: float) -> float:
    """Seconds until the slowest node is ready. `nodes[i]`: the seconds of each actor's clients alone, `threads` of
    which each uses; a node has so many `cores` (GPUs: 1 thread each).

    Four actors on two cores: two at a time. A node with one slow actor waits for it:

    >>> clients_seconds([[1.0, 1.0, 1.0, 1.0]], 1, 2)
    2.0
    >>> clients_seconds([[1.0, 5.0], [1.0]], 1, 2)
    5.0
    """
    return max((max(max(times), sum(times) * threads / cores) for times in nodes if times), default=0.0)


def spread_over(actors: int, nodes: int) -> list[int]:
    """Actors on each node, as even as possible.

    >>> spread_over(10, 4)
    [3, 3, 2, 2]
    """
    return [actors // nodes + (i < actors % nodes) for i in range(nodes)]


def server_bytes(vector: int, single: int, cohort: int, states: int) -> int:
    """Bytes of the server's arrays: four vectors, what it receives of every client, and the states it stores.

    >>> server_bytes(100, 7, 10, 30)
    500
    """
    return 4 * vector + single * cohort + states


def store_bytes(broadcast: int, summed: int, single: int, spans: Sequence[Span]) -> int:
    """Bytes in the object store of a node with these chunks: the broadcast once, each chunk's vectors and the clients'
    own parts.

    >>> store_bytes(50, 100, 10, [Span(0, 3), Span(3, 1)])  # 2 and 1 vectors, 4 clients
    390
    """
    vectors = sum(map(num_subtrees, spans))
    return broadcast + summed * vectors + single * sum(span.size for span in spans)
