"""`Drifting`: the samples that a drift leaves to each client in a round, as a table too, and its fingerprint."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from flray.data.cache import Array
from flray.files import checksum
from flray.scenario.drift import Drift, Now, World

if TYPE_CHECKING:
    import pandas

    from flray.scenario.scenario import Scenario


class DriftWarning(UserWarning):
    """A drift that removes no sample, or all of a cohort's samples."""


class Moment(Protocol):
    """The fields of `flray.core.protocol.clock.Clock` that decide which samples a client holds."""

    @property
    def task(self) -> int: ...

    @property
    def round(self) -> int: ...

    @property
    def done(self) -> int: ...

    @property
    def phase(self) -> str: ...


# draws the cohort of a round from the clients that hold samples in its task
Draw = Callable[[Moment, range | Array], Array]


def round_of(clock: Moment) -> int:
    """The round (from 1, over all tasks) whose data a clock sees: at a task's beginning the next, at its end the
    last."""
    return clock.done + 1 if clock.phase in ("round", "task_begin") else max(clock.done, 1)


class Drifting:
    """Applies a drift to the samples of a data set with `labels` [n] and `population` clients."""

    def __init__(
        self,
        drift: Drift,
        labels: Array,
        num_classes: int,
        population: int,
        seed: int,
        draw: Draw,
        groups: Sequence[Array] = (),
    ) -> None:
        """`seed` is the run's. `groups`: the classes of each source, if no two sources share a class (a union of text).

        Raises `ConfigError` if the drift does not fit the data.
        """
        drift = drift.of(groups)
        drift.check(num_classes, population)
        self.drift, self.labels, self.draw = drift, labels, draw
        self.world = World(seed, population, num_classes)

    def remaining(
        self, clock: Moment, members: range | Array, clients: Sequence[int], samples: Sequence[Array]
    ) -> list[Array]:
        """The `samples` of each client (each [n_k], of the stage's partition) that the drift leaves, in their order.

        `members`: the clients that have samples in the task.
        """
        round = round_of(clock)
        if not self.drift.active(round):
            return list(samples)
        draw = functools.partial(self.draw, clock, members) if clock.phase == "round" else None
        now = Now(round, self.world, draw or (lambda: np.asarray(members)))
        return [self._of(now, clock.task, *pair) for pair in zip(clients, samples, strict=True)]

    def _of(self, now: Now, task: int, client: int, samples: Array) -> Array:
        stays = np.ones(len(samples), bool)
        labels = self.labels[samples]
        for label, share in self.drift.gone(now, client).items():
            places = np.flatnonzero(labels == label)
            stays[places[self.order(client, label, task, len(places))[: vanished(share, len(places))]]] = False
        return samples if stays.all() else samples[stays]

    def order(self, client: int, label: int, task: int, count: int) -> Array:
        """The order in which a client's `count` samples of a class vanish: places among them, int64 `[count]`."""
        return self.world.rng(client, label, *([task] if task else [])).permutation(count)

    @property
    def fingerprint(self) -> str:
        """Checksum of the schedule: the section, the table that it names, the seed."""
        written = json.dumps([type(self.drift).__name__, self.drift.written(), self.world.seed], sort_keys=True)
        return checksum(written.encode())


def vanished(share: float, count: int) -> int:
    """How many of `count` samples are gone: floor(share count + 1e-9)."""
    return int(share * count + 1e-9)


def drift_table(scenario: Scenario, clocks: Iterable[Moment]) -> pandas.DataFrame:
    """The samples that the drift leaves to each cohort, for the clocks at which it is active.

    A row for each round, client of the cohort and class of its samples. Columns: `round` (from 1, over all tasks),
    `task`, `client`, `class`, `kept` (samples that are left) and `of` (samples without the drift).
    """
    import pandas

    parts, drifting = [np.zeros((6, 0), np.int64)], scenario.drift
    for clock in clocks if drifting is not None else ():
        assert drifting is not None
        if not drifting.drift.active(clock.done + 1):
            continue
        members = scenario.members(clock.task)
        cohort = np.sort(drifting.draw(clock, members)).tolist()
        before_drift = [scenario.partitions[clock.task].client(k) for k in cohort]
        left = drifting.remaining(clock, members, cohort, before_drift)
        for client, before, after in zip(cohort, before_drift, left, strict=True):
            counts = [
                np.bincount(drifting.labels[own], minlength=drifting.world.num_classes) for own in (after, before)
            ]
            kept, of = (count[counts[1] > 0] for count in counts)
            same = [np.full(len(of), value) for value in (clock.done + 1, clock.task, client)]
            parts.append(np.stack([*same, np.flatnonzero(counts[1]), kept, of]))
    return pandas.DataFrame(np.concatenate(parts, axis=1).T, columns=["round", "task", "client", "class", "kept", "of"])
