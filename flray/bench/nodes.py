"""`flray bench --only nodes`: what the server receives, and a round's time, on 1 to 8 simulated nodes.

`python -m flray.bench.nodes NODES ACTORS ROUNDS [no]` measures one cluster in a process of its own and prints it as
JSON; `no`: without combiners. Clients have next to no work: one step on one sample.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

from flray.api import play
from flray.bench.bare import WARM_UP, Workload
from flray.core.messages import nbytes
from flray.core.schema.errors import FlrayError

NODES = (1, 2, 4, 8)
ACTORS = 16  # in all; each takes 300 MB for torch
COHORT = 100
HIDDEN = 640  # 508,810 parameters, 2 MB
STORE_BYTES = 600 * 2**20  # of a node


class Received(NamedTuple):
    """What reached the server in a round: vectors, their bytes, messages; the seconds of the round, and of them those
    after the last client."""

    vectors: float
    bytes: float
    messages: float
    round_s: float
    server_s: float


def measure(nodes: int, actors: int, rounds: int, combining: bool = True) -> Received:
    """Medians over the rounds of a run on so many nodes; starts and ends their Ray."""
    from flray.engine.ray import combiners
    from flray.engine.ray.cluster import ray
    from flray.engine.ray.pool import ActorPool
    from flray.engine.ray.simulated import simulated_nodes

    workload = Workload(COHORT, 1, (28, 28, 1), COHORT, 1, {"name": "mlp", "hidden": [HIDDEN]}, executor="calls")
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="flray-bench-"))
        cluster = stack.enter_context(simulated_nodes(nodes, -(-actors // nodes), STORE_BYTES))
        if not combining:
            stack.enter_context(patch.object(combiners, "worth_it", lambda chunks, size: False))
        resources = {"executor": "calls", "client_actors": actors}
        experiment = workload.experiment(rounds + WARM_UP, resources=resources, address=cluster.address)
        rows = []
        for row in play(experiment, Path(home) / "run"):
            rows.append(row)
            assert ActorPool.current is not None
            server = ActorPool.current.server
            if len(rows) == WARM_UP:
                ray.get(server.__ray_call__.remote(_count))
            if len(rows) == WARM_UP + rounds:
                counts = ray.get(server.__ray_call__.remote(lambda actor: actor.counts))
        medians = [median(column) for column in zip(*counts, strict=True)]
        times = [median(row[name] for row in rows[WARM_UP:]) for name in ("time/round_s", "time/server_s")]
    return Received(*medians, *times)


def _count(actor: Any) -> None:
    """From now on the server's process counts what its rounds receive: (vectors, bytes, messages with any)."""
    from flray.engine.server import Server

    original, counts = Server.finish, list[tuple[int, int, int]]()
    actor.counts = counts

    def finish(self: Server, plan: Any, cohort: Any, *deliveries: Any) -> Any:
        sums = [[node.value for node in d.sent.nodes if node.value is not None] for d in deliveries]
        own = [(*(values for _, values in d.sent.each), *d.states) for d in deliveries]
        sizes = [nbytes((tuple(values), others)) for values, others in zip(sums, own, strict=True)]
        counts.append((sum(map(len, sums)), sum(sizes), sum(size > 0 for size in sizes)))
        return original(self, plan, cohort, *deliveries)

    Server.finish = finish  # type: ignore[method-assign]


def growth(repeats: int, rounds: int | None, actors: int = ACTORS) -> tuple[float, str]:
    """(bytes into the server on the most nodes over those on one, what was measured on each)."""
    found = {nodes: _in_a_process(nodes, actors, rounds or 10, repeats) for nodes in NODES}
    plain = _in_a_process(NODES[-1], actors, rounds or 10, 1, "no")
    lines = [f"{nodes}: {_described(received)}" for nodes, received in found.items()]
    detail = f"{actors} actors, cohort {COHORT}; nodes " + "; ".join(lines)
    return found[NODES[-1]].bytes / found[NODES[0]].bytes, f"{detail}; without combiners {_described(plain)}"


def _described(received: Received) -> str:
    vectors, size, messages, round_s, server_s = received
    sent = f"{vectors:.0f} vectors, {size / 1e6:.1f} MB, {messages:.0f} messages"
    return f"{sent}, round {round_s:.2f} s, {server_s * 1e3:.0f} ms of it after the clients"


def _in_a_process(nodes: int, actors: int, rounds: int, repeats: int, *more: str) -> Received:
    """The run of `repeats` with the shortest round."""
    from flray.engine.ray.simulated import environment

    known = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_AUTH_MODE")}
    command = [sys.executable, "-m", "flray.bench.nodes", str(nodes), str(actors), str(rounds), *more]
    results = []
    for _ in range(repeats):
        done = subprocess.run(command, env={**known, **environment()}, capture_output=True, text=True)
        if done.returncode:
            raise FlrayError(f"bench nodes: {nodes} nodes: {done.stderr.strip().splitlines()[-1]}")
        results.append(Received(*json.loads(done.stdout.splitlines()[-1])))
    return min(results, key=lambda received: received.round_s)


if __name__ == "__main__":
    nodes, actors, rounds, *more = sys.argv[1:]
    print(json.dumps(measure(int(nodes), int(actors), int(rounds), "no" not in more)))
