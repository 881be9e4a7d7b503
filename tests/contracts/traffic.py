"""What travels between a device and the host while an algorithm trains, counted on the second device.

    python -m tests.contracts.traffic             # compare with the table in flray/engine/DEVICES.md
    python -m tests.contracts.traffic --write     # write the table
    python -m tests.contracts.traffic NAME ...    # of these algorithms: each place in flray, with its count

A copy is a tensor, a number or a size that the host reads: a GPU has finished all its work before. An upload is a
tensor from the host, for which nothing waits.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from flray.engine import client as clients
from flray.engine.local_loop import ClientResult
from tests.contracts.table import TABLE, experiment
from tests.support import second_device
from tests.support.continual import SCENARIOS, config
from tests.support.devices import using
from tests.support.inprocess import Local

FILE = Path(__file__).parents[2] / "flray" / "engine" / "DEVICES.md"
BEGIN, END = "<!-- table -->\n", "<!-- end -->\n"
STEP = ("step", "gradient")


class Traffic(NamedTuple):
    """Copies to the host a local step, a client's training, and a client's other work (at a task's end); uploads a
    step, of a chunk's training as a whole. None: there is no such work."""

    step: float
    training: float
    work: float | None
    uploads: float


class Counted(clients.Client):
    """Clients that tell the second device for what they work: `training`, or `work` of an exchange of its own."""

    def __init__(self, bench: Any) -> None:
        super().__init__(bench)
        self.runs, self.steps = Counter[str](), 0

    def exchange(self, *arguments: Any) -> ClientResult:
        self.runs[second_device.half] += 1
        done = super().exchange(*arguments)
        self.steps += done.steps
        return done

    def run_client(self, chunk: Any, i: int, exchange: Any, *arguments: Any) -> Any:
        second_device.half = "training" if exchange.client is None else "work"
        return super().run_client(chunk, i, exchange, *arguments)

    def work(self, *arguments: Any) -> Any:
        second_device.half = "chunk"
        try:
            return super().work(*arguments)
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
        local.executor.client = counted = Counted(local.server.bench)
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


def _of(traffic: Counter[tuple[str, str, str]], counted: Counted) -> Traffic:
    def total(half: str, *, step: bool | None = None, upload: bool = False) -> int:
        return sum(
            count
            for (where, method, what), count in traffic.items()
            if where == half
            and (what == "upload") == upload
            and (step is None or (method.rpartition(".")[2] in STEP) == step)
        )

    runs, steps = counted.runs, max(counted.steps, 1)
    work = total("work") / runs["work"] if runs["work"] else None
    training = total("training", step=False) / runs["training"]
    uploads = total("training", upload=True) + total("chunk", upload=True)
    return Traffic(total("training", step=True) / steps, training, work, uploads / steps)


def table() -> str:
    """A row of Markdown for every algorithm."""
    lines = [
        "| algorithm | copies a step | copies a client's training | of its other work | uploads a step |",
        "|---|---|---|---|---|",
    ]
    for name, row in TABLE.items():
        if row.imports:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = measured(short(name), Path(folder))
        cells = ("none" if value is None else f"{value:.3g}" for value in found)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> int:
    if names and names != ["--write"]:
        second_device.places = Counter()
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                print(name, measured(short(name), Path(folder)))
            for (half, what, where), count in second_device.places.most_common():
                print(f"  {count:5} {half:9} {what:6} {where}")
        return 0
    page, found = FILE.read_text(), table()
    before, _, rest = page.partition(BEGIN)
    written, _, after = rest.partition(END)
    if names:
        FILE.write_text(before + BEGIN + found + END + after)
        return 0
    print(found)
    return int(written != found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
