"""Progress of trials: one bar, the best trial so far, a line for each trial that ends (none in a notebook)."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any, Self

from flray.engine.progress import LINE_EVERY_S, Cell, terminal_bar
from flray.log import LOGGER, in_notebook
from flray.streams import is_terminal


class Display:
    """`with Display("sweep", 12, {"val/acc": "max"}) as display`; `enabled=False` prints nothing."""

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
        self._line_at = time.monotonic()

    def __enter__(self) -> Self:
        if self.enabled and in_notebook():
            self._cell = Cell(self.done, self.total, f"{self.label}: starting")
        elif self.enabled and is_terminal(sys.stderr):
            self._bar, self._task = terminal_bar(self.label, self.total, self.done, left=False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def progressed(self, key: str, round: int, rounds: int) -> None:
        """Trial `key` has done so many of its rounds."""
        self._rounds[key] = (round, rounds)
        self._draw()

    def ended_with(self, key: str, result: Mapping[str, Any]) -> None:
        """Trial `key` has ended with its `status`, and perhaps objectives."""
        self._rounds.pop(key, None)
        self.done += 1
        status = str(result.get("status", ""))
        self.ended.append(status)
        stopped = result.get("round", 0) < result.get("rounds", 0) and not status.startswith(
            ("failed", "diverged", "finished")
        )
        word = f"stopped in round {result.get('round')} of {result.get('rounds')}" if stopped else status
        if status.startswith("diverged"):
            word = status.partition(":")[0]
        values = "  ".join(f"{name} {result[name]:.4g}" for name in self.objectives if name in result)
        name, mode = next(iter(self.objectives.items()), ("", "max"))
        if name in result and not stopped and not status.startswith("diverged"):
            rank = result[name] if mode == "max" else -result[name]
            if self._best is None or rank > self._best[0]:
                self._best = (rank, f"best {name} {result[name]:.4g} (trial {key})")
        self.say("  ".join(filter(None, [self.label, f"trial {key}", word, values])))
        self._draw()

    def lost(self, key: str, error: str) -> None:
        """The processes of trial `key` were lost too often, the last time with this error of several lines."""
        reason = [line for line in error.splitlines() if line.strip()][-1].strip()
        reason = reason.removeprefix("flray.core.schema.errors.")
        self.ended_with(key, {"status": f"failed: its processes were lost too often, the last time with {reason}"})

    def reused(self, key: str, number: int) -> None:
        """A trial that has the value of trial `number`, which has its parameters."""
        self.done += 1
        self.say(f"{self.label}  trial {key}  reused trial {number:04d}, which has its parameters")
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
            self.say(f"{self.label}  {self.done}/{self.total}  {facts}")

    def say(self, text: str) -> None:
        self._line_at = time.monotonic()
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        elif self._cell is None and self.enabled:
            LOGGER.info(text)
