"""Where in an experiment a moment lies, and how randomness is addressed by it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Literal, NamedTuple

from flray.core.protocol.seeding import Address

Phase = Literal["task_begin", "round", "task_end", "personal"]
# that change the state, in the order in which they come at one `done`
PHASES: tuple[Phase, ...] = ("round", "task_end", "task_begin")


def task_name(task: int) -> str:
    """A task in a message: "task 0", "task 2 (0 is the first)"."""
    return f"task {task} (0 is the first)" if task else "task 0"


class Clock(NamedTuple):
    """A moment of an experiment; everything counts from 0.

    `task`: the stage; `round`: within the task; `phase`: a round, the beginning or the end of a task, or the test of
    every client's own model; `exchange`: within the phase; `turn`: the client's place in a sequential exchange. `done`
    counts the rounds over all tasks that were complete before this moment: the time axis of schedulers, plots,
    checkpoints and resume.
    """

    task: int = 0
    round: int = 0
    phase: Phase = "round"
    exchange: int = 0
    turn: int = 0
    done: int = 0

    @property
    def address(self) -> tuple[Address, ...]:
        """What stands for this moment in the address of a draw; not `done`: a task's draws do not depend on the others'
        length."""
        phase = () if self.phase == "round" else (self.phase,)
        turn = ("hop", self.turn) if self.turn else ()
        return (self.task, self.round, *phase, self.exchange, *turn)

    @property
    def transaction(self) -> Clock:
        """The first moment of the same round, or of the same beginning or end of a task: what is committed as one."""
        return self._replace(exchange=0, turn=0)

    @property
    def complete(self) -> Position:
        """How far the experiment is once this moment's transaction is committed."""
        if self.phase == "round":
            return Position(self.task, self.round + 1, self.done + 1, "round")
        return Position(self.task, self.round, self.done, self.phase)

    @property
    def stage_before(self) -> Clock | None:
        """The end of the stage before, at the beginning of a task and in its first round; None later and in task 0."""
        if self.task == 0 or self.round > 0 or self.phase not in ("task_begin", "round"):
            return None
        return Clock(self.task - 1, self.done // self.task, "task_end", done=self.done)  # tasks are of one length

    def __str__(self) -> str:
        what = f"round {self.round + 1}" if self.phase == "round" else self.phase.replace("_", " ")
        return f"{task_name(self.task)}, {what}"


class Position(NamedTuple):
    """How far an experiment is: `round` rounds of task `task`, `done` over all tasks, and the phase that was committed
    last."""

    task: int
    round: int
    done: int
    phase: Phase

    @property
    def order(self) -> int:
        """A number that grows from one commit to the next."""
        return len(PHASES) * self.done + PHASES.index(self.phase)

    @property
    def name(self) -> str:
        """`round-000020`, `round-000020-task-end`, ...: of a checkpoint."""
        return f"round-{self.done:06d}" + ("" if self.phase == "round" else "-" + self.phase.replace("_", "-"))


START = Position(0, 0, 0, "round")  # nothing is committed yet; a task's beginning at `done` 0 comes after it


def schedule(position: Position, rounds: int, tasks: int) -> Iterator[Clock]:
    """The transactions that come after `position` in an experiment of `tasks` tasks of `rounds` rounds each."""
    for task in range(tasks):
        began = Clock(task, done=task * rounds)
        each = (began._replace(round=round, done=began.done + round) for round in range(rounds))
        end = began._replace(round=rounds, phase="task_end", done=began.done + rounds)
        for clock in itertools.chain((began._replace(phase="task_begin"),), each, (end,)):
            if clock.complete.order > position.order:
                yield clock
