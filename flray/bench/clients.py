"""`python -m flray.bench.clients [ROUNDS]`: W2's clients beside the bare loop's, in one process and without Ray.

They take turns. Times are CPU time of the thread, on which other load on the machine has little influence.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from flray.bench import W2
from flray.bench.bare import Bare, Way, Workload
from flray.core.messages import to_numpy
from flray.core.protocol.clock import Clock
from flray.engine import cohort as cohorts
from flray.engine.client import Client
from flray.engine.workbench import TaskSummary, Workbench


def measure(workload: Workload, rounds: int) -> dict[str, float]:
    """CPU milliseconds of a client by side: the best of `rounds` cohorts, of flray's and of the bare loop's."""
    experiment = workload.experiment(rounds)
    scenario, algorithm = workload.scenario(experiment), experiment.algorithm
    client = Client(Workbench(experiment, TaskSummary.of(scenario)))
    ctx = client.bench.context(Clock())
    state = algorithm.init_server(ctx, *client.bench.objective.initial())
    broadcast = to_numpy(algorithm.training.broadcast(ctx, state))
    bare = {f"bare{' fused' * fused}": Bare(experiment, scenario, Way(1, 1, fused)) for fused in (False, True)}
    weights = [parameter.detach().clone() for parameter in bare["bare"].parameters]
    share, best = [1 / workload.cohort] * workload.cohort, dict.fromkeys(("flray", *bare), float("inf"))

    def took(side: str, work: Callable[[], object]) -> None:
        began = time.thread_time()
        work()
        best[side] = min(best[side], (time.thread_time() - began) / workload.cohort * 1e3)

    for round in range(rounds):
        clock = Clock(0, round, done=round)
        _, drawn = cohorts.draw_cohort(experiment, clock, scenario.members(0))
        (turn,), _ = cohorts.turns(scenario, algorithm, drawn, clock, algorithm.training)
        took("flray", lambda turn=turn: client.work(turn.chunks[0], algorithm.training, broadcast, None))  # type: ignore[misc]
        at = round, drawn.tolist()
        for side, loop in bare.items():
            took(side, lambda loop=loop, at=at: loop.train(weights, *at, share))  # type: ignore[misc]
    return best


def main(rounds: int = 60) -> None:
    from flray.core.network.threads import threads

    with threads(1):
        best = measure(W2, rounds)
    sides = ", ".join(f"{side} {ms:.3f}" for side, ms in best.items())
    print(f"CPU ms a client: {sides}; flray / the better bare loop {best.pop('flray') / min(best.values()):.3f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
