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


class Network(NamedTuple):
    """Bytes a second out of a node; seconds of an object from another node besides its bytes. `one_machine`: nodes are
    processes of one machine, where objects wait for each other; else nodes fetch side by side."""

    rate: float
    fetch_s: float = 0.0
    one_machine: bool = False

    def seconds(self, objects: int, size: float) -> float:
        """Of so many objects that are fetched at the same time, and the bytes that the busiest link carries."""
        if not objects:
            return 0.0
        return size / self.rate + self.fetch_s * (objects if self.one_machine else 1)


class Links(NamedTuple):
    """Of an exchange: bytes that leave the server's node; that go from node to node between combiners; that reach the
    server from other nodes; vectors that reach the server from anywhere; seconds on the network, down and up; levels of
    combiners; bytes that the busiest combiner of each level adds, summed; bytes from combiners to one on the server's
    node."""

    down: int
    between: int
    up: int
    vectors: int
    down_s: float
    up_s: float
    levels: int = 0
    added: int = 0
    arrived: int = 0


def links(
    nodes: Sequence[Sequence[Span]], broadcast: int, summed: int, single: int, combined: bool, network: Network
) -> Links:
    """Bytes and seconds on the network. `nodes[i]`: the chunks of node i, neighbours side by side; the server is on
    node 0. `single`: bytes of a client that go to the server unsummed, its new state with them.

    The broadcast goes to a node once, all copies out of the server's node. With combiners each node adds its chunks,
    then pairs of neighbours; the one with fewer vectors sends, with as many the right one. Two nodes, two clients each,
    vectors of 100 bytes, 100 bytes a second: node 1 sends its vector to node 0, where the server is.

    >>> slow = Network(100.0)
    >>> links([[Span(0, 1), Span(1, 1)], [Span(2, 1), Span(3, 1)]], 50, 100, 0, True, slow)
    Links(down=50, between=100, up=0, vectors=1, down_s=0.5, up_s=1.0, levels=2, added=400, arrived=100)
    >>> links([[Span(0, 1), Span(1, 1)], [Span(2, 1), Span(3, 1)]], 50, 100, 10, False, slow)
    Links(down=50, between=0, up=220, vectors=4, down_s=0.5, up_s=2.2, levels=0, added=0, arrived=0)
    >>> links([[Span(0, 1)], [Span(1, 3)]], 50, 100, 0, True, slow)  # node 1 has 2 vectors, adds, and sends the sum
    Links(down=50, between=100, up=100, vectors=1, down_s=0.5, up_s=2.0, levels=1, added=300, arrived=0)
    >>> links([[Span(0, 100)]], 50, 100, 10, True, slow)  # one node: nothing on the network
    Links(down=0, between=0, up=0, vectors=3, down_s=0.0, up_s=0.0, levels=0, added=0, arrived=0)
    """
    used = [list(spans) for spans in nodes]
    away = [spans for spans in used[1:] if spans]
    down = broadcast * len(away)
    down_s = network.seconds(len(away), down)
    own = single * sum(span.size for spans in away for span in spans)
    if not combined:
        vectors = [sum(map(num_subtrees, spans)) for spans in used]
        up = summed * sum(vectors[1:]) + own
        return Links(down, 0, up, sum(vectors), down_s, network.seconds(sum(map(len, away)), up))
    groups = [(i, Span(spans[0].first, sum(span.size for span in spans))) for i, spans in enumerate(used) if spans]
    adding = [sum(map(num_subtrees, spans)) for spans in used if len(spans) > 1]
    levels, added, between, arrived, seconds = int(bool(adding)), max(adding, default=0) * summed, 0, 0, 0.0
    while len(groups) > 1:
        merged, sent, adding = [], [], []
        for pair in [groups[i : i + 2] for i in range(0, len(groups), 2)]:
            counts = [num_subtrees(span) for _, span in pair]
            home = pair[counts.index(max(counts))][0]
            if len(pair) > 1:
                sent.append(min(counts) * summed)
                adding.append(sum(counts) * summed)
                arrived += 0 if home else sent[-1]
            merged.append((home, Span(pair[0][1].first, sum(span.size for _, span in pair))))
        between += sum(sent)
        seconds += network.seconds(len(sent), sum(sent) if network.one_machine else max(sent))
        levels, added, groups = levels + 1, added + max(adding), merged
    ((home, whole),) = groups
    vectors_in = num_subtrees(whole)
    up = (vectors_in * summed if home else 0) + own
    up_s = seconds + network.seconds(int(home > 0) + (sum(map(len, away)) if own else 0), up)
    return Links(down, between, up, vectors_in, down_s, up_s, levels, added, arrived)


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


def spread_over(actors: int, nodes: int, first: int | None = None) -> list[int]:
    """Actors on each node, as even as possible; the `first` node holds at most so many.

    >>> spread_over(10, 4), spread_over(10, 4, first=1)
    ([3, 3, 2, 2], [1, 3, 3, 3])
    """
    if nodes > 1 and first is not None and first < -(-actors // nodes):
        return [first, *spread_over(actors - first, nodes - 1)]
    return [actors // nodes + (i < actors % nodes) for i in range(nodes)]


def slowed(slowdown: float, together: int, actors: float) -> float:
    """How much longer a step takes beside the other actors of its node, of which `actors` compute at a time: in
    between, in proportion, where `together` of them were measured to take `slowdown` times as long as one alone.

    >>> slowed(1.75, 4, 1), slowed(1.75, 4, 3), slowed(1.75, 4, 16)
    (1.0, 1.5, 1.75)
    """
    if together < 2:
        return 1.0
    return 1.0 + (slowdown - 1.0) * (min(max(actors, 1.0), together) - 1.0) / (together - 1)


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
