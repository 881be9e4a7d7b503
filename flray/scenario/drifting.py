"""`Drifting`: the samples that a drift leaves to each client in a round, and its fingerprint."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Sequence

import numpy as np

from flray.core.protocol.clock import Clock
from flray.core.protocol.seeding import process_wide
from flray.data.cache import Array
from flray.files import checksum
from flray.scenario.drift import Drift, Now, World


class DriftWarning(UserWarning):
    """A drift that removes no sample, or all of a cohort's samples."""


# draws the cohort of a round from the clients that hold samples in its task
Draw = Callable[[Clock, range | Array], Array]


def round_of(clock: Clock) -> int:
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
        self, clock: Clock, members: range | Array, clients: Sequence[int], samples: Sequence[Array]
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
        with self._generators(now, client):
            gone = self.drift.gone(now, client)
        for label, share in gone.items():
            places = np.flatnonzero(labels == label)
            stays[places[self.order(client, label, task, len(places))[: vanished(share, len(places))]]] = False
        return samples if stays.all() else samples[stays]

    def _generators(self, now: Now, client: int) -> contextlib.AbstractContextManager[None]:
        """Addresses for the process's own generators, from which a user's drift may draw."""
        own = not type(self.drift).__module__.startswith("flray.")
        return process_wide(self.world.seed, "drift", now.round, client) if own else contextlib.nullcontext()

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
