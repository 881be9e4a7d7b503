"""Progress of work that takes minutes, for a display. No result depends on it."""

from __future__ import annotations

from collections.abc import Callable

StepProgress = Callable[[int, int], None]  # (steps done, steps in total)
StageProgress = Callable[[str, int, int], None]  # (name of the work, steps done, steps in total)


def no_step_progress(done: int, total: int) -> None:
    """A `StepProgress` that shows nothing."""


def no_progress(work: str, done: int, total: int) -> None:
    """A `StageProgress` that shows nothing."""
