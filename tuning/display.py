"""Progress of trials: one bar, the best trial so far, a line for each trial that ends (none in a notebook)."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import IO, Any, Self, cast

import ray
from ray.tune import Callback
from ray.tune.experiment import Trial

from flray.engine.progress import Cell
from flray.log import LOGGER, in_notebook
from flray.streams import is_terminal, stderr

LINE_EVERY_S = 10.0
WAIT_S = 30.0  # a trial starts within seconds where its share of the cluster is free


class Show(Callback):
    """`with Show("sweep", 12, {"val/acc": "max"}) as show`; then a callback for Ray Tune. `enabled=False` prints
    nothing."""

    def __init__(self, label: str, total: int, done: int, objectives: Mapping[str, str], enabled: bool = True) -> None:
        self.label, self.total, self.done = label, total, done
        self.enabled = enabled and LOGGER.isEnabledFor(logging.INFO)
        self.objectives = dict(objectives)
        self.ended: list[str] = []  # STATUS of the trials that ended
        self._rounds: dict[str, tuple[int, int]] = {}
        self._best: tuple[float, str] | None = None
        self._bar: Any = None
        self._cell: Cell | None = None  # what a notebook displays
        self._task: Any = None
        self._line_at = self._ran_at = time.monotonic()
        self._waiting = False

    def __enter__(self) -> Self:
        if self.enabled and in_notebook():
            self._cell = Cell(self.done, self.total, f"{self.label}: starting")
        elif self.enabled and is_terminal(sys.stderr):
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (
                TextColumn("[bold]{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"),
            )
            self._bar = Progress(*columns, TimeElapsedColumn(), console=Console(file=cast("IO[str]", stderr())))
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=self.total, completed=self.done, facts="starting")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bar": None, "_cell": None, "_task": None}  # Ray Tune pickles its callbacks

    # Ray Tune calls these
    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Says for what the trials wait when none has run for a while: others hold the cluster."""
        if not trials or any(trial.status != Trial.PENDING for trial in trials if not trial.is_finished()):
            self._ran_at, self._waiting = time.monotonic(), False
        elif not self._waiting and time.monotonic() - self._ran_at > WAIT_S:
            self._waiting = True
            free, have = ray.available_resources(), ray.cluster_resources()
            names = [name for name in ("CPU", "GPU") if name in have]
            share = ", ".join(f"{free.get(name, 0):g} of {have[name]:g} {name}s" for name in names)
            words = f"no trial has started for {WAIT_S:g} s: others hold the cluster ({share} are free)"
            self._print(f"{self.label}  {words}")

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if "round" not in result:
            return
        self._rounds[result["key"]] = (int(result["round"]), int(result["rounds"]))
        self._draw()

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        result = trial.last_result or {}
        key = trial.config["key"]
        self._rounds.pop(key, None)
        self.done += 1
        status = str(result.get("status", ""))
        self.ended.append(status)
        stopped = result.get("round", 0) < result.get("rounds", 0) and not status.startswith(("failed", "diverged"))
        word = f"stopped in round {result.get('round')} of {result.get('rounds')}" if stopped else status
        if status.startswith("diverged"):
            word = status.partition(":")[0]
        values = "  ".join(f"{name} {result[name]:.4g}" for name in self.objectives if name in result)
        name, mode = next(iter(self.objectives.items()), ("", "max"))
        if name in result and not stopped and not status.startswith("diverged"):
            rank = result[name] if mode == "max" else -result[name]
            if self._best is None or rank > self._best[0]:
                self._best = (rank, f"best {name} {result[name]:.4g} (trial {key})")
        self._print("  ".join(filter(None, [self.label, f"trial {key}", word, values])))
        self._draw()

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.done += 1
        self._rounds.pop(trial.config["key"], None)
        reason = (
            [line for line in str(trial.get_error()).splitlines() if line.strip()][-1]
            .strip()
            .removeprefix("flray.core.schema.errors.")
        )
        self.ended.append(f"failed: its processes were lost too often, the last time with {reason}")
        self._print(f"{self.label}  trial {trial.config['key']}  {self.ended[-1]}")
        self._draw()

    def reused(self, key: str, number: int) -> None:
        """A trial that has the value of trial `number`, which has its parameters."""
        self.done += 1
        self._print(f"{self.label}  trial {key}  reused trial {number:04d}, which has its parameters")
        self._draw()

    def _draw(self) -> None:
        running = ", ".join(f"{key} {at}/{rounds}" for key, (at, rounds) in sorted(self._rounds.items()))
        facts = "  ".join(filter(None, [self._best[1] if self._best else "", f"rounds: {running}" if running else ""]))
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, facts=facts)
        elif self._cell is not None:
            words = f"{self.label}: {self.done} of {self.total} done"
            self._cell.show(self.done, self.total, "  ".join(filter(None, [words, facts])))
        elif self.enabled and time.monotonic() - self._line_at > LINE_EVERY_S:
            self._print(f"{self.label}  {self.done}/{self.total}  {facts}")

    def _print(self, text: str) -> None:
        self._line_at = time.monotonic()
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        elif self._cell is None and self.enabled:
            LOGGER.info(text)
