"""The live display of a run: what happens before its first round, then round, accuracy, loss, clients/s, bytes, time
left.

One line now and then where there is no terminal. Imports nothing that is slow: the first line comes before everything
that takes seconds.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

LINE_EVERY_S = 10.0
SLOW_S = 1.0  # a stage that took longer says how long


@contextlib.contextmanager
def stage(text: str, enabled: bool = True) -> Iterator[None]:
    """A line on stderr before something that may take long ("reading data"), and another with its time when it did."""
    line(text, enabled)
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    line(f"{text}: {took:.1f} s", enabled and took > SLOW_S)


def line(text: str, enabled: bool = True) -> None:
    """A line on stderr."""
    if enabled:
        print(text, file=sys.stderr, flush=True)


class Progress:
    """`with Progress(total) as show: show(row)`; does nothing when `enabled` is false."""

    def __init__(self, label: str, total: int, done: int = 0, enabled: bool = True) -> None:
        self.label, self.total, self.done, self.enabled = label, total, done, enabled
        self._bar: Any = None
        self._task: Any = None
        self._line_at = 0.0
        self._started, self._first = time.monotonic(), done

    def __enter__(self) -> Self:
        if self.enabled and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"),
                TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=Console(stderr=True),
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=self.total, completed=self.done, facts="starting")
        return self

    def note(self, text: str) -> None:
        """What happens before the first round."""
        if self._bar is not None:
            self._bar.update(self._task, facts=text)

    def __call__(self, row: Mapping[str, Any]) -> None:
        self.done += 1
        if not self.enabled:
            return
        facts = describe(row)
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, facts=facts)
            return
        now = time.monotonic()
        if now - self._line_at > LINE_EVERY_S or self.done == self.total:
            self._line_at = now
            left = (now - self._started) / max(self.done - self._first, 1) * (self.total - self.done)
            print(
                f"{self.label}  round {self.done}/{self.total}  {facts}  {left:.0f} s left", file=sys.stderr, flush=True
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def describe(row: Mapping[str, Any]) -> str:
    """One row in a line: accuracy, loss, clients/s, bytes."""
    parts = []
    for name in ("test/acc", "val/acc"):
        if row.get(name) is not None:
            parts.append(f"{name.removeprefix('test/')} {row[name]:.2%}")
    if row.get("train/loss") is not None:
        parts.append(f"loss {row['train/loss']:.3f}")
    if row.get("time/round_s"):
        parts.append(f"{row['cohort_size'] / row['time/round_s']:.1f} clients/s")
    parts.append(f"{size(row.get('comm/up_bytes', 0) + row.get('comm/down_bytes', 0))}/round")
    if row.get("clients_skipped"):
        parts.append(f"{row['clients_skipped']} skipped")
    return "  ".join(parts)


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
