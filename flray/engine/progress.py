"""The live display of a run: stages before the first round, then round, accuracy, loss, clients/s, bytes, time left.

On a terminal rich draws a bar; in a notebook IPython shows one below the cell; elsewhere a line is printed every ten
seconds. The module imports nothing slow, because its first line precedes all slow imports.
"""

from __future__ import annotations

import contextlib
import html
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import IO, Any, Self, TypeVar, cast

from flray.core.schema.errors import described, warn
from flray.log import LOGGER, in_notebook
from flray.streams import is_terminal, stderr

LINE_EVERY_S = 10.0
CELL_EVERY_S = 0.3  # between two changes of what a notebook shows
ASK_EVERY_S = 1.0  # between two calls of `long_work`
SLOW_S = 1.0  # a longer stage prints its time

Item = TypeVar("Item")


@contextlib.contextmanager
def stage(text: str, enabled: bool = True) -> Iterator[None]:
    """Log a line before a stage ("reading data"), and another with its seconds if it took long."""
    line(text, enabled)
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    if enabled:
        LOGGER.log(logging.INFO if took > SLOW_S else logging.DEBUG, f"{text}: {took:.1f} s")


def line(text: str, enabled: bool = True) -> None:
    """Log a line: on stderr, in a notebook on stdout."""
    if enabled:
        LOGGER.info(text)


class Cell:
    """A bar below a notebook's cell, updated in place at most every `CELL_EVERY_S`."""

    def __init__(self, done: int, total: int, text: str) -> None:
        from IPython.display import HTML, display

        self._at = 0.0
        self._handle = display(HTML(bar(done, total, text)), display_id=True)

    def show(self, done: int, total: int, text: str, now: bool = False) -> None:
        """`now`: update even if the last update is recent."""
        from IPython.display import HTML

        if now or done == total or time.monotonic() - self._at > CELL_EVERY_S:
            self._at = time.monotonic()
            self._handle.update(HTML(bar(done, total, text)))


def bar(done: int, total: int, text: str) -> str:
    return f'<progress value="{done}" max="{total}"></progress> {html.escape(text)}'


def terminal_bar(label: str, total: int, done: int, left: bool = True) -> tuple[Any, Any]:
    """(rich's bar on stderr, which has begun; its task, with a field `facts`); `left`: with the time that is left."""
    from flray.core.protocol.seeding import preserved

    with preserved():  # rich draws from Python's generator as it is imported
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress as Bar,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

    bar = Bar(
        TextColumn("{task.description}", style="bold", markup=False), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}", markup=False),
        TimeElapsedColumn(), *([TextColumn("left"), TimeRemainingColumn()] if left else []),
        console=Console(file=cast("IO[str]", stderr()), emoji=False),
    )  # fmt: skip
    bar.start()
    return bar, bar.add_task(label, total=total, completed=done, facts="starting")


class Progress:
    """`with Progress(label, total) as show: show(row)`; shows nothing if `enabled` is false."""

    def __init__(
        self,
        label: str,
        total: int,
        done: int = 0,
        enabled: bool = True,
        long_work: Callable[[], str] | None = None,
        unit: str = "round",
        facts: Callable[[Mapping[str, Any]], str] | None = None,
    ) -> None:
        """`long_work()` returns a line about long work in another process, else ""; it is called every second.

        `unit`: the name of what is counted. `facts(row)`: a row as text, by default :func:`describe`.
        """
        self._unit, self._describe = unit, facts or describe
        self.label, self.total, self.done = label, total, done
        self.enabled = enabled and LOGGER.isEnabledFor(logging.INFO)
        self._bar: Any = None
        self._cell: Cell | None = None  # what a notebook displays
        self._task: Any = None
        self._line_at = 0.0
        self._started, self._first = time.monotonic(), done
        self._long_work, self._ended = long_work, threading.Event()
        self._follower: threading.Thread | None = None

    def __enter__(self) -> Self:
        with self._harmless():
            self._begin()
        if self.enabled and self._long_work is not None:
            self._follower = threading.Thread(target=self._follow, args=(self._long_work,), daemon=True)
            self._follower.start()
        return self

    def _begin(self) -> None:
        if self.enabled and in_notebook():
            self._cell = Cell(self.done, self.total, self._facts("starting"))
        elif self.enabled and is_terminal(sys.stderr):
            self._bar, self._task = terminal_bar(self.label, self.total, self.done)

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[None]:
        """A display that fails (a notebook's kernel is gone) is one warning; the run goes on without it."""
        try:
            yield
        except Exception as error:
            bar, self.enabled, self._bar, self._cell = self._bar, False, None, None
            with contextlib.suppress(Exception):
                if bar is not None:
                    bar.stop()  # its thread, and the terminal without a cursor
            warn(f"the progress display failed ({described(error)}); the run goes on without it")

    def _follow(self, long_work: Callable[[], str]) -> None:
        """A thread that shows the server's long work, because no round calls the display meanwhile."""
        shown = ""
        while not self._ended.wait(ASK_EVERY_S):
            text = long_work()
            if text and text != shown:
                shown = text
                self._long(text)

    def note(self, text: str) -> None:
        with self._harmless():
            if self._bar is not None:
                self._bar.update(self._task, facts=text)
            elif self._cell is not None:
                self._cell.show(self.done, self.total, self._facts(text), now=True)

    def _long(self, text: str) -> None:
        self.note(text)
        if self._bar is None and self._cell is None and time.monotonic() - self._line_at > LINE_EVERY_S:
            self._line_at = time.monotonic()
            line(f"{self.label}  {text}")

    def __call__(self, row: Mapping[str, Any]) -> None:
        self.done += 1
        if self.enabled:
            with self._harmless():
                self._show(row)

    def _show(self, row: Mapping[str, Any]) -> None:
        facts = self._describe(row)
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, facts=facts)
            return
        now = time.monotonic()
        left = (now - self._started) / max(self.done - self._first, 1) * (self.total - self.done)
        if self._cell is not None:
            text = self._facts(f"{facts}  {left:.0f} s left" if self.done < self.total else facts)
            self._cell.show(self.done, self.total, text)
        elif now - self._line_at > LINE_EVERY_S or self.done == self.total:
            self._line_at = now
            line(f"{self.label}  {self._unit} {self.done}/{self.total}  {facts}  {left:.0f} s left")

    def _facts(self, facts: str) -> str:
        return f"{self.label}, {self._unit} {self.done} of {self.total}: {facts}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._follower is not None:
            self._follower.join()
        with self._harmless():
            if self._bar is not None:
                self._bar.stop()


def tracked(items: Sequence[Item], label: str, unit: str) -> Iterator[Item]:
    """The items; a terminal or a notebook shows how many are done."""
    shown = is_terminal(sys.stderr) or in_notebook()
    with Progress(label, len(items), enabled=shown, unit=unit, facts=lambda _: "") as show:
        for item in items:
            yield item
            show({})


def describe(row: Mapping[str, Any]) -> str:
    """A round's row in one line: accuracy, loss, clients/s, bytes."""
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


def size(count: float, unit: str = "B") -> str:
    """A number of bytes, or of another unit, in three digits: `999 kB`, `1 MB`, which 999,600 bytes are too."""
    power = next((i for i in range(6) if float(f"{count / 1000**i:.3g}") < 1000), 6)
    return f"{count / 1000**power:.3g} {' kMGTPE'[power]}{unit}" if power else f"{count:.0f} {unit}".rstrip()
