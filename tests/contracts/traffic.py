"""What travels between a device and the host while an algorithm trains, counted on the second device.

    python -m tests.contracts.traffic             # a row for every algorithm
    python -m tests.contracts.traffic NAME ...    # of these algorithms: each place in flray, with its count

A copy is a tensor, a number or a size that the host reads: a GPU has finished all its work before. An upload is a
tensor from the host, for which nothing waits.
"""

import contextlib
import functools
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from flray.contracts.played import Local, ObservedClient
from flray.engine import client as clients
from flray.engine.client import ClientResult
from tests.contracts.table import TABLE, experiment
from tests.support import second_device
from tests.support.continual import SCENARIOS, config
from tests.support.devices import using


class Traffic(NamedTuple):
    """Copies to the host a local step, a client's training, and a client's other work (at a task's end); uploads a
    step, of a chunk's training as a whole. None: there is no such work."""

    step: float
    training: float
    work: float | None
    uploads: float


class Counted(ObservedClient):
    """Clients that tell the second device for what they work: `training`, or `work` of an exchange of its own."""

    def __init__(self, runtime: Any) -> None:
        super().__init__(runtime)
        self.runs, self.steps = Counter[str](), 0

    def exchange(self, work: Any, *arguments: Any) -> ClientResult:
        self.runs[second_device.half] += 1
        done = super().exchange(work, *arguments)
        self.steps += done.steps
        return done

    def train(self, algorithm: Any, *arguments: Any) -> ClientResult:
        kind, step = type(algorithm), type(algorithm).step

        @functools.wraps(step)
        def counted(*given: Any) -> Any:
            before, second_device.half = second_device.half, "step"
            try:
                return step(*given)
            finally:
                second_device.half = before

        with mock.patch.object(kind, "step", counted):
            return super().train(algorithm, *arguments)

    def run_client(self, chunk: Any, i: int, exchange: Any, *arguments: Any) -> Any:
        second_device.half = "training" if exchange.client is None else "work"
        return super().run_client(chunk, i, exchange, *arguments)

    def work_neighbours(self, *arguments: Any) -> Any:
        second_device.half = "chunk"
        try:
            return super().work_neighbours(*arguments)
        finally:
            second_device.half = "server"


class Collected(clients.Collector):
    """A chunk's updates, which are sent once a chunk and not for each client."""

    def sent(self) -> Any:
        second_device.half = "chunk"
        return super().sent()


@contextlib.contextmanager
def _collecting() -> Iterator[None]:
    before = clients.Collector
    clients.Collector = Collected  # type: ignore[misc]
    try:
        yield
    finally:
        clients.Collector = before  # type: ignore[misc]


def short(name: str, **sections: Any) -> Any:
    """The tiny experiment of an algorithm; of a continual one over two tasks of a round."""
    own = TABLE[name].sections
    if "tasks" not in own:
        return experiment(name, **sections)
    return config(name, **{**SCENARIOS["tasks"], **own, "rounds": 1, **sections})


def measured(experiment: Any, folder: Path) -> Traffic:
    """Of two rounds after the first one, or of a second task: what is compared once in a process has been compared."""
    with using("strict") as device, _collecting():
        local = Local(experiment, folder, device=device)
        local.executor.client = counted = Counted(local.server.runtime)
        if experiment.tasks is None:
            local.play(1)
        else:
            _first_task(local)
        second_device.traffic.clear()
        if second_device.places is not None:
            second_device.places.clear()
        counted.runs.clear()
        counted.steps = 0
        if experiment.tasks is None:
            local.play(2)
        else:
            while (clock := next(local.schedule(), None)) is not None:
                local.exchanges(clock)
    return _of(second_device.traffic, counted)


def _first_task(local: Local) -> None:
    while (clock := next(local.schedule())).task == 0:
        local.exchanges(clock)


def _of(traffic: Counter[tuple[str, str]], counted: Counted) -> Traffic:
    def total(*halves: str, upload: bool = False) -> int:
        return sum(count for (half, what), count in traffic.items() if half in halves and (what == "upload") == upload)

    runs, steps = counted.runs, max(counted.steps, 1)
    work = total("work") / runs["work"] if runs["work"] else None
    uploads = total("step", "training", "chunk", upload=True)
    return Traffic(total("step") / steps, total("training") / runs["training"], work, uploads / steps)


def main(names: list[str]) -> None:
    second_device.places = Counter() if names else None
    for name in names or TABLE:
        with tempfile.TemporaryDirectory() as folder:
            print(name, measured(short(name), Path(folder)))
        for (half, what, where), count in second_device.places.most_common() if second_device.places else ():
            print(f"  {count:5} {half:9} {what:6} {where}")


if __name__ == "__main__":
    main(sys.argv[1:])
