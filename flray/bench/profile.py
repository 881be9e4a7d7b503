"""`flray bench --profile`: the time of each part of a round, in a real run with Ray's actors.

After warm-up the driver and every actor put clocks around their parts. The time of a part does not include parts inside
it. The driver's waiting time while no actor works counts as messages.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from flray.bench.bare import WARM_UP, Workload
from flray.config.experiment import algorithm_name
from flray.core.schema.errors import ConfigError, unknown

PARTS = {
    "client begin": "`begin`: copies of the broadcast",
    "client batches": "samples gathered and normalised",
    "client step": "`step`: forward and backward pass, optimiser",
    "client end": "`end` and `report`: update and metrics",
    "client tree": "updates added up along the fixed tree",
    "client around": "contexts, generators, checks, rows",
    "server finish": "the tree completed, the server half, the next broadcast",
    "evaluate": "the test of the global model",
    "messages": "the driver waits, and no actor works on it",
    "driver": "cohort, jobs, rows, progress, TensorBoard, files",
}
WAIT = "wait"  # of the driver, for actors
ROUND = "round"

Spent = dict[tuple[str, int], float]  # (part, `done` of the round) -> seconds


class Clocks:
    """The clocks of one process, from their creation to :meth:`stop`."""

    def __init__(self) -> None:
        self.spent: Spent = defaultdict(float)
        self.now = time.perf_counter
        self.round = -1
        self._inside: list[float] = []  # by part that runs now: the seconds of parts inside it
        self._patches: list[tuple[type, str, Any]] = []

    def time_method(self, kind: type, method: str, name: str, done: Callable[..., int] | None = None) -> None:
        """Puts a clock around a method. `done` reads the round from its arguments; default: the round of the call
        before."""
        owner = next(base for base in kind.__mro__ if method in vars(base))
        original = vars(owner)[method]

        @functools.wraps(original)
        def clocked(*args: Any, **named: Any) -> Any:
            if done is not None:
                self.round = done(*args)
            result = self.timed(name, lambda: original(*args, **named))
            return self._drawn(name, result) if method == "batches" else result

        self._patches.append((owner, method, original))
        setattr(owner, method, clocked)

    def timed(self, part: str, work: Callable[[], Any]) -> Any:
        """Runs `work` on the clock of a part; returns its result."""
        self._inside.append(0.0)
        began = self.now()
        try:
            return work()
        finally:
            took = self.now() - began
            self.spent[part, self.round] += took - self._inside.pop()
            if self._inside:
                self._inside[-1] += took

    def _drawn(self, part: str, batches: Any) -> Iterator[Any]:
        over, drawn = object(), iter(batches)
        while (batch := self.timed(part, lambda: next(drawn, over))) is not over:
            yield batch

    def stop(self) -> Spent:
        """Restores the methods; returns the times."""
        for owner, method, original in reversed(self._patches):
            setattr(owner, method, original)
        return dict(self.spent)


_clocks: Clocks | None = None  # of this process


def in_client(actor: Any) -> None:
    """Starts the clocks of a client actor's process."""
    from flray.engine.client import Client
    from flray.engine.workbench import Workbench
    from flray.ops.pooling import Collector

    global _clocks
    _clocks, algorithm = Clocks(), type(actor.client.algorithm)
    _clocks.time_method(Client, "work", "client around", lambda self, job, *rest: job.clock.done)
    _clocks.time_method(Workbench, "evaluate", "evaluate", lambda self, published, ctx, *rest: ctx.clock.done)
    for method in ("begin", "batches", "step", "end"):
        _clocks.time_method(algorithm, method, f"client {method}")
    _clocks.time_method(algorithm, "report", "client end")
    for method in ("add", "sent"):
        _clocks.time_method(Collector, method, "client tree")


def in_server(actor: Any) -> None:
    """Starts the clocks of the server actor's process."""
    from flray.engine.server import Server

    global _clocks
    _clocks = Clocks()
    _clocks.time_method(Server, "finish", "server finish", lambda self, plan, *rest: plan.clock.done)
    for method in ("plan", "broadcast", "published", "commit"):  # after the round that was finished last
        _clocks.time_method(Server, method, "server finish")


def in_driver() -> None:
    """Starts the clocks of this process, around its waits."""
    from flray.engine.ray.calls import CallsExecutor
    from flray.engine.ray.graph import GraphExecutor
    from flray.engine.simulation import Simulation

    global _clocks
    _clocks = Clocks()
    _clocks.time_method(Simulation, "_round", ROUND, lambda self, run, clock, ahead: clock.done)
    for kind in (CallsExecutor, GraphExecutor):
        for method in {"plan", "run", "test"} & vars(kind).keys():
            _clocks.time_method(kind, method, WAIT)


def stop(_: Any = None) -> Spent:
    """Stops this process's clocks; returns their times."""
    assert _clocks is not None
    return _clocks.stop()


def profiles(workloads: Sequence[str], rounds: int | None = None) -> list[dict[str, Any]]:
    """The time of each part of an evaluated round of these workloads: rows of workload, part, ms, share,
    description."""
    from flray.bench import TESTED, W1, W2, W3, close, folder_or_new

    known = {"W1": (W1, 5), "W2": (W2, 50), "W3": (W3, 50)}
    for name in workloads:
        if name not in known:
            raise unknown("workload", name, known)
    if rounds is not None and rounds < 1:
        raise ConfigError(f"bench: rounds={rounds} must be at least 1")
    with folder_or_new(None) as home:
        try:
            return [
                {"workload": name, **row}
                for name in workloads
                for row in profile(known[name][0]._replace(tested=TESTED), rounds or known[name][1], home)
            ]
        finally:
            close()


def profile(workload: Workload, rounds: int, home: Path, **resources: Any) -> list[dict[str, Any]]:
    """A row for each part of a round of `workload`: milliseconds, share of the round, description.

    Medians over `rounds`; the last row is the whole round, from the end of one round to the end of the next. The
    clients' parts are those of the slowest actor of that round; the others wait for it.
    """
    from flray.api import play
    from flray.engine.ray.cluster import ray
    from flray.engine.ray.pool import ActorPool

    experiment = workload.experiment(WARM_UP + rounds + 2, resources=resources)
    ends: dict[int, float] = {}
    for row in play(experiment, home / "profile", scenario=workload.scenario(experiment), overwrite=True):
        ends[row["done"]] = time.perf_counter()
        pool = ActorPool.current
        assert pool is not None
        if row["done"] == WARM_UP:
            started = [actor.__ray_call__.remote(in_client) for actor in pool.clients]
            ray.get([*started, pool.server.__ray_call__.remote(in_server)])
            in_driver()
        if row["done"] == WARM_UP + 1 + rounds:
            driver, server = stop(), ray.get(pool.server.__ray_call__.remote(stop))
            clients = ray.get([actor.__ray_call__.remote(stop) for actor in pool.clients])
    # the round before them paid for starting the clocks; the test of the last one is every run's
    counted = range(WARM_UP + 1, WARM_UP + 1 + rounds)
    parts = [_parts(done, ends[done + 1] - ends[done], driver, server, clients) for done in counted]
    total = median(sum(part.values()) for part in parts)
    times = {name: median(part[name] for part in parts) for name in PARTS}
    rows = [
        {"part": name, "ms": value * 1e3, "share": value / total, "what": PARTS[name]} for name, value in times.items()
    ]
    what = f"{algorithm_name(experiment.algorithm)}, {len(clients)} client actors, medians over {rounds} rounds"
    return [*rows, {"part": "round", "ms": total * 1e3, "share": 1.0, "what": what}]


def _parts(done: int, wall: float, driver: Spent, server: Spent, clients: list[Spent]) -> dict[str, float]:
    """Seconds of a round's parts; their sum is `wall`."""

    def work(spent: Spent) -> dict[str, float]:
        return {name: spent.get((name, done), 0.0) for name in PARTS if name.startswith("client")}

    slowest = max(map(work, clients), key=lambda parts: sum(parts.values()))
    finish = server.get(("server finish", done), 0.0)
    tested = max(spent.get(("evaluate", done), 0.0) for spent in clients)
    waited = driver[WAIT, done]
    busy = sum(slowest.values()) + finish + tested
    return {
        **slowest,
        "server finish": finish,
        "evaluate": tested,
        "messages": waited - busy,
        "driver": wall - waited,
    }
