"""`Scenario`: the stages of an experiment and their partitions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flray.core.protocol.clock import Clock
from flray.core.schema.errors import DataError, message_of
from flray.data.cache import Array
from flray.files import array_checksum, checksum, read_checksummed, release_pages
from flray.scenario.devices import Devices
from flray.scenario.drift import Drifting
from flray.scenario.partition import Partition, from_lists, load_partition, write
from flray.scenario.partition_config import PartitionConfig
from flray.scenario.tables import BatchOrders, ListedCohorts
from flray.scenario.tasks import Stage, TestSet, together

if TYPE_CHECKING:
    import pandas

STAGES = "scenario.json"  # stored unless the scenario is one stage of all classes


class Shares(NamedTuple):
    """The samples of a cohort: client `clients[i]` holds `indices[offsets[i] : offsets[i + 1]]` of the train split.

    `clients` (int64 `[K]`) are in the order of the draw. `empty`: the number of clients left out, which hold no sample
    at this moment.
    """

    clients: Array
    indices: Array
    offsets: Array
    empty: int

    @property
    def sizes(self) -> Array:
        """n_k of every client, int64 `[K]`."""
        sizes: Array = np.diff(self.offsets)
        return sizes

    def of(self, place: int) -> Array:
        """Sample numbers of the client at a place in `clients`."""
        numbers: Array = self.indices[self.offsets[place] : self.offsets[place + 1]]
        return numbers

    def cut(self, first: int, stop: int) -> Shares:
        """The shares of the clients at the places `first ... stop - 1`."""
        bounds = self.offsets[first : stop + 1]
        return Shares(self.clients[first:stop], self.indices[bounds[0] : bounds[-1]], bounds - bounds[0], 0)


class Scenario:
    """The stages of an experiment, each with its partition over the same `population` of clients, an optional drift,
    the `cohorts` and `batch_orders` that files list (None: drawn), and the clients' `devices` (None: no virtual clock).

    Memory and time of all methods but `fingerprint` and `save` grow with the cohort, not with the population, after the
    first call of `members` for a stage.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        partitions: Sequence[Partition],
        drift: Drifting | None = None,
        cohorts: ListedCohorts | None = None,
        batch_orders: BatchOrders | None = None,
        devices: Devices | None = None,
    ) -> None:
        """Raises `ValueError` if stages and partitions do not fit each other."""
        self.drift, self.cohorts, self.batch_orders, self.devices = drift, cohorts, batch_orders, devices
        self.stages, self.partitions = tuple(stages), tuple(partitions)
        if not stages or len(stages) != len(partitions):
            raise ValueError(f"{len(stages)} stages and {len(partitions)} partitions; give one partition a stage")
        if len({partition.num_clients for partition in partitions}) > 1:
            raise ValueError("every stage's partition must be over the same clients; those without samples are empty")
        self.population = partitions[0].num_clients
        self._members: dict[int, range | Array] = {}

    @classmethod
    def ordinary(cls, partition: Partition, num_classes: int) -> Scenario:
        """One stage of all classes, tested on the partition's validation split, or without one on the test set."""
        classes = np.arange(num_classes)
        validation = partition.held_out
        tests = (
            {"test": TestSet("test")}
            if validation is None
            else {"val": TestSet("train", np.array(validation, np.int64))}
        )
        return cls([Stage(0, "all classes", classes, classes, tests)], [partition])

    # clients and samples --------------------------------------------------------------------------
    def members(self, task: int) -> range | Array:
        """The clients with a sample in a stage's partition, ascending; `range(population)` if all have one.

        A cohort is drawn from them. The first call for a stage reads all offsets.
        """
        if task not in self._members:
            offsets = self.partitions[task].offsets
            there = np.flatnonzero(offsets[1:] != offsets[:-1])
            self._members[task] = range(self.population) if len(there) == self.population else there
        return self._members[task]

    def shares(self, clock: Clock, clients: Array, *, everyone: bool = False) -> Shares:
        """The samples of the clients (int64 `[K]`, as drawn) at a clock, without clients that hold none.

        `everyone`: clients without samples stay in, for exchanges that read a client's state and do not train.
        """
        partition = self.partitions[clock.task]
        asked = np.asarray(clients, np.int64)
        samples = [partition.client(k) for k in asked.tolist()]
        if self.drift is not None:
            samples = self.drift.remaining(clock, self.members(clock.task), asked.tolist(), samples)
        stays = np.array([everyone or len(share) > 0 for share in samples], bool)
        nonempty = [share for share in samples if len(share)]
        indices = np.concatenate(nonempty) if nonempty else np.zeros(0, partition.indices.dtype)
        offsets = np.cumsum(
            [0, *(len(share) for share, stay in zip(samples, stays, strict=True) if stay)], dtype=np.int64
        )
        release_pages(partition.indices, partition.offsets)  # a round reads a page a client, and the kernel maps 2 MB
        return Shares(asked[stays], indices, offsets, int((~stays).sum()))

    def drifting(self, drift: Drifting | None) -> Scenario:
        """The same scenario under a drift; None: without one."""
        return type(self)(self.stages, self.partitions, drift, self.cohorts, self.batch_orders, self.devices)

    def following(
        self, cohorts: ListedCohorts | None, batch_orders: BatchOrders | None, devices: Devices | None = None
    ) -> Scenario:
        """The same scenario with the cohorts and batches that files list (None: drawn), and with devices."""
        return type(self)(self.stages, self.partitions, self.drift, cohorts, batch_orders, devices)

    def sizes(self, clock: Clock, clients: Array) -> Array:
        """The numbers of samples of the clients at a clock, int64 `[K]`; 0 for one without a sample."""
        if self.drift is None:
            offsets = self.partitions[clock.task].offsets
            sizes: Array = offsets[clients + 1] - offsets[clients]
            return sizes
        return self.shares(clock, clients, everyone=True).sizes

    def total_examples(self, task: int) -> int:
        """Training samples of the whole population in a stage (n of the papers)."""
        return len(self.partitions[task].indices)

    def union(self, most: int) -> Partition:
        """The samples of the first `most` clients over all stages, as one partition: for tables and figures."""
        clients = range(min(most, self.population))
        return from_lists([np.concatenate([part.client(k) for part in self.partitions]) for k in clients])

    # on disk --------------------------------------------------------------------------------------
    @property
    def fingerprint(self) -> str:
        """Checksum of the stages, partitions, test sets and drift; of one ordinary stage, of its partition alone."""
        digest = self.partitions[0].hash
        if not self._is_ordinary:
            notes = json.dumps(self._notes(), sort_keys=True)
            digest = checksum(notes.encode(), *(part.hash.encode() for part in self.partitions))
        return digest if self.drift is None else checksum(digest.encode(), self.drift.fingerprint.encode())

    @property
    def _is_ordinary(self) -> bool:
        first, partition = self.stages[0], self.partitions[0]
        usual = Scenario.ordinary(partition, len(first.classes)).stages[0]
        return len(self.stages) == 1 and self._note(first) == self._note(usual)

    def _notes(self) -> list[dict[str, Any]]:
        return [self._note(stage) for stage in self.stages]

    @staticmethod
    def _note(stage: Stage) -> dict[str, Any]:
        """A stage as JSON, its test samples by their checksum."""
        tests = {
            name: {
                "split": test.split,
                "samples": None if test.samples is None or test.parts else array_checksum(test.samples),
                "task": test.task,
                **({"parts": test.parts} if test.parts else {}),
            }
            for name, test in stage.tests.items()
        }
        return {
            "name": stage.name,
            "classes": stage.classes.tolist(),
            "outputs": stage.outputs.tolist(),
            "tests": tests,
            **({"source": stage.source} if stage.source >= 0 else {}),
        }

    def folders(self, folder: Path | str) -> list[Path]:
        """The folders of the partitions: `folder` itself for one ordinary stage, else `task-0000` ... in it."""
        if self._is_ordinary:
            return [Path(folder)]
        return [_folder(Path(folder), task) for task in range(len(self.stages))]

    def save(self, folder: Path | str, config: PartitionConfig | None = None) -> None:
        """Write all files below `folder`, each one atomically. Raises `DataError` if that fails."""
        for partition, place in zip(self.partitions, self.folders(folder), strict=True):
            partition.save(place, config)
        if not self._is_ordinary:
            samples = {
                _samples(array_checksum(test.samples)): test.samples
                for stage in self.stages
                for test in stage.tests.values()
                if test.samples is not None and not test.parts
            }
            write(Path(folder) / STAGES, {"stages": self._notes()}, samples)

    @classmethod
    def load(cls, folder: Path | str, num_classes: int, verify: bool = True) -> Scenario:
        """The saved scenario of a data set of `num_classes` classes, its partitions memory-mapped.

        It has no drift; :meth:`drifting` adds the configuration's. `verify` reads all of it once to compare checksums;
        a worker whose driver has verified it passes False. Raises `DataError` for missing and changed files.
        """
        folder = Path(folder)
        if not (folder / STAGES).exists():
            return cls.ordinary(load_partition(folder, verify), num_classes)
        try:
            notes = read_checksummed(folder / STAGES)["stages"]
            stages = [_stage(folder, task, note, verify) for task, note in enumerate(notes)]
        except (OSError, ValueError, EOFError, KeyError) as error:
            raise DataError(
                f"scenario in {folder} is damaged ({message_of(error)}); resume the run, which writes it again"
            ) from error
        return cls(stages, [load_partition(_folder(folder, task), verify) for task in range(len(stages))])


def clients_at(members: range | Array, places: Array) -> Array:
    """The members at these places (int64 `[K]`); a range is not expanded."""
    if isinstance(members, range):
        return places
    clients: Array = members[places]
    return clients


def _folder(folder: Path, task: int) -> Path:
    return folder / f"task-{task:04d}"


def _samples(checksum: str) -> str:
    """The file of test samples with this checksum, without its suffix. Stages with equal test sets share it."""
    return f"test_{checksum}"


def _stage(folder: Path, index: int, note: dict[str, Any], verify: bool) -> Stage:
    tests = {}
    for name, test in note["tests"].items():
        samples, file = None, f"{_samples(test['samples'])}.npy"
        if test["samples"] is not None:
            samples = np.load(folder / file, allow_pickle=False)
            if verify and array_checksum(samples) != test["samples"]:
                raise ValueError(f"{file} was changed")
        tests[name] = TestSet(test["split"], samples, test["task"], tuple(test.get("parts", ())))
    for name, test in tests.items():
        if test.parts:
            tests[name] = together(test.split, {part: tests[part] for part in test.parts})
    classes, outputs = (np.array(note[key], np.int64) for key in ("classes", "outputs"))
    return Stage(index, note["name"], classes, outputs, tests, note.get("source", -1))


def drift_table(scenario: Scenario, clocks: Iterable[Clock]) -> pandas.DataFrame:
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
