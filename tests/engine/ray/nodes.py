"""Three nodes on this machine, in a process of its own:
`python -m tests.engine.ray.nodes OUT stay|working|delivered|combining [KEY=VALUE ...]`.

A node goes away (SIGKILL) in round 3: when a client actor on it has got its work (`working`), when its results lie
there and nobody has fetched them (`delivered`), or when a combiner on it has got its call (`combining`: there all sums
are combined).
Prints what happened, as JSON.
"""

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from flray.config.loader import load_config
from flray.engine.ray.calls import CallsExecutor
from flray.engine.ray.cluster import ray
from flray.engine.ray.leases import newest
from flray.engine.ray.pool import ActorPool
from flray.running import play
from tests.support.combining import sums_combined
from tests.support.commands import QUICK

SETTINGS = (
    "rounds=6",
    "model.hidden=[400]",
    "algorithm.local_epochs=40",
    "evaluate.clients=false",
    "checkpoint.every=0",
)
ROUND = 2  # from 0


def node_of(actor: Any) -> str:
    found: str = ray.get(actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()))
    return found


def main(out: Path, mode: str, overrides: list[str]) -> None:
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, connect=False, head_node_args={**small, "include_dashboard": False})
    # the head's is the driver's
    others = {node.node_id: node for node in (cluster.add_node(**small) for _ in range(2))}
    gone: list[str] = []
    training, execute = CallsExecutor._work, ActorPool.execute

    def leave(where: str | None) -> None:
        if where in others and not gone:
            gone.append(where)
            cluster.remove_node(others[where], allow_graceful=False)

    def train_and_leave(self: CallsExecutor, job: Any, plan: Any, broadcast: Any, actor: Any, *rest: Any) -> Any:
        # asked first: the actor does one thing after the other
        where = node_of(actor) if job[0].clock.round == ROUND else None
        refs = training(self, job, plan, broadcast, actor, *rest)
        leave(where)
        return refs

    def execute_and_leave(self: ActorPool, work: Any, nodes: Any = None, **options: Any) -> Any:
        results = execute(self, work, nodes, **options)
        if len(rows) == ROUND:
            leave(next(where for where in map(node_of, self.clients) if where in others) if not gone else None)
        return results

    def train_and_note(self: CallsExecutor, job: Any, plan: Any, broadcast: Any, *rest: Any) -> Any:
        trained.append(job[0].clock.round)
        return training(self, job, plan, broadcast, *rest)

    def combine_and_leave(self: ActorPool, work: Any, nodes: Any = None, **options: Any) -> Any:
        def leaving(call: Any) -> Any:
            def submit(actor: Any) -> Any:
                where = node_of(actor) if len(rows) == ROUND else None
                refs = call(actor)
                leave(where if where in others or where is None else next(iter(others)))  # one that sums come from
                return refs

            return submit

        return execute(self, [leaving(call) for call in work] if nodes else work, nodes, **options)

    faults = {
        "stay": patch.object(CallsExecutor, "_work", training),
        "working": patch.object(CallsExecutor, "_work", train_and_leave),
        "delivered": patch.object(ActorPool, "execute", execute_and_leave),
        "combining": patch.object(ActorPool, "execute", combine_and_leave),
    }
    spread: list[str] = []
    rows: list[dict[str, Any]] = []
    trained: list[int] = []  # the round of each chunk that was sent to an actor
    experiment = load_config(QUICK, [*SETTINGS, f"address={cluster.address}", *overrides])[0]
    try:
        with ExitStack() as stack:
            stack.enter_context(faults[mode])
            if mode == "combining":
                stack.enter_context(sums_combined(always=True))
                stack.enter_context(patch.object(CallsExecutor, "_work", train_and_note))
            for row in play(experiment, out):
                pool = newest()
                assert pool is not None
                spread = spread or [node_of(actor) for actor in (pool.server, *pool.clients)]
                rows.append({"round": row["round"], "seconds": row["time/round_s"], "actors": len(pool.clients)})
        here = ray.get_runtime_context().get_node_id()
        print(
            json.dumps(
                {
                    "server_here": spread[0] == here,
                    "nodes": len(set(spread[1:])),
                    "gone": gone,
                    "rounds": rows,
                    "trained": trained.count(ROUND),
                }
            ),
            flush=True,
        )
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
