"""What a sweep began with. A resume compares itself with that, and not with a file that may have been edited since.

The record is in the folder (`beginning.json`) and in every study of the sweep (its user attribute `flray`). Both have
one random `id`, so a folder, a journal and a database that do not belong together are told apart. Imports no torch, Ray
or Optuna.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flray.config.experiment import LENGTH, RESUMABLE, Experiment
from flray.config.grid import dotted
from flray.core.schema.errors import CheckpointError, ConfigError, DataError
from flray.files import read_checksummed, with_checksum, write_text
from flray.log import LOGGER
from flray.rundir.provenance import packages
from flray.tuning.config import Sweep
from flray.tuning.domain import Choice, show

NAME = "beginning.json"
ATTRIBUTE = "flray"  # of a study
# what a resume may change: keys of the sweep, and sections of its experiment. A study has a record of its own.
FREE = ("trials", "hours", "client_steps", "concurrency", "final", "study")
FREE_OF_RUNS = tuple(section for section in RESUMABLE if section not in LENGTH)
MAY_CHANGE = f"{', '.join(FREE)}, experiment.{{{','.join(FREE_OF_RUNS)}}}"


class Beginning(NamedTuple):
    """The values of a sweep when it began, and the fingerprints of what else determines the bits of its trials.

    `sweep` is its file, `experiment` the first trial's with all defaults, whose values another version may change, and
    the sections that only other trials have.
    """

    id: str
    flray: str  # the version
    sweep: dict[str, Any]
    experiment: dict[str, Any]
    fingerprints: dict[str, Any]

    @classmethod
    def of(cls, sweep: Sweep, fingerprints: Mapping[str, Any]) -> Beginning:
        """A sweep that begins now."""
        return cls(secrets.token_hex(8), str(packages()["flray"]), sweep.dump(), _resolved(sweep), dict(fingerprints))

    @classmethod
    def read(cls, values: Any) -> Beginning:
        """From the values of :meth:`dump`. Raises `ValueError` if they are something else."""
        kinds = {"id": str, "flray": str, "sweep": dict, "experiment": dict, "fingerprints": dict}
        if not isinstance(values, Mapping) or not all(isinstance(values.get(name), kinds[name]) for name in kinds):
            raise ValueError("it is no record of a sweep")
        return cls(**{name: values[name] for name in kinds})

    def difference(self, sweep: Sweep) -> str:
        """The first key in which a sweep is another one than this, with both values; "": none."""
        before, now = _values(self.sweep, self.experiment), _values(sweep.dump(), _resolved(sweep))
        return next(
            (
                f"{key} is {before.get(key, 'missing')} there, {now.get(key, 'missing')} here"
                for key in dict.fromkeys([*now, *before])
                if before.get(key) != now.get(key) and not _free(key)
            ),
            "",
        )

    def check(self, sweep: Sweep, where: str) -> None:
        """Raises `CheckpointError` if `sweep` is another one; `where`: what holds this record."""
        if difference := self.difference(sweep):
            back = "set it back, or give another --out"
            if " is missing there" in difference:  # a key that nobody gave has the default of this version
                back = "take it out, or, if another version of flray began it, start again with another --out"
            raise CheckpointError(
                f"{where} holds another sweep: {difference}; {back} (a resume may change {MAY_CHANGE})"
            )

    def check_fingerprints(self, fingerprints: Mapping[str, Any], folder: Path) -> None:
        """Raises `DataError` or `ConfigError` if data, partition, weights or the user's modules have changed."""
        for name in dict.fromkeys([*self.fingerprints, *fingerprints]):
            was, now = self.fingerprints.get(name), fingerprints.get(name)
            if was == now or name not in self.fingerprints:  # a module that was not loaded then
                continue
            if " of " in name and name not in fingerprints:  # a value that cannot be read now, which its trials say
                continue
            module = name.startswith("modules.")
            what = f"the source of module {name.removeprefix('modules.')}" if module else f"the {name}"
            raise (ConfigError if module or name.startswith("weights") else DataError)(
                f"{folder}: {what} changed since the sweep began (fingerprint {now}, was {was}); its trials would not "
                "be comparable: restore it, or start again with another --out"
            )
        ours = str(packages()["flray"])
        if self.flray != ours:
            LOGGER.warning(f"{folder} began with flray {self.flray}, and goes on with {ours}")


def write_beginning(folder: Path, beginning: Beginning) -> None:
    """Raises `CheckpointError` if the file cannot be written."""
    write_text(folder / NAME, with_checksum(beginning._asdict()))


def read_beginning(folder: Path) -> Beginning | None:
    """The record in a folder; None: it is missing or damaged, and the study's holds."""
    try:
        return Beginning.read(read_checksummed(folder / NAME))
    except (OSError, ValueError):
        return None


def alternatives(sweep: Sweep) -> Iterator[tuple[str, str, Experiment]]:
    """(a key, `NAME=VALUE`, its experiment) for each value but the first of the lists that are no numbers.

    Such a value can bring a section with options that no other trial has: `partition: [iid, dirichlet]` has `alpha`.
    """
    space, seen = sweep.search_space, set[str]()
    for algorithm in space.algorithms:
        for name, key, domain in space.parameters[algorithm]:
            if not isinstance(domain, Choice) or domain.numbers() is not None or name in seen:
                continue
            seen.add(name)
            for value in domain.probes()[1:]:
                yield key, f"{name}={show(value)}", sweep.experiment({**space.example(algorithm), key: value})


def _resolved(sweep: Sweep) -> dict[str, Any]:
    """The first trial's experiment, what the other algorithms have of their own, and the sections of the values that
    the first trial does not have, as `partition=dirichlet`."""
    first, *others = sweep.search_space.algorithms
    dumps = {name: sweep.experiment(sweep.search_space.example(name)).dump() for name in (first, *others)}
    sections = {}
    for key, label, experiment in alternatives(sweep):
        section: Any = experiment.dump()
        for part in key.split("."):
            section = section.get(part) if isinstance(section, Mapping) else None
        if isinstance(section, Mapping | list) and key.partition(".")[0] not in FREE_OF_RUNS:
            sections[label] = section
    return {**dumps[first], "algorithms": {name: dumps[name]["algorithm"] for name in others}, **sections}


def _values(sweep: Mapping[str, Any], experiment: Mapping[str, Any]) -> dict[str, Any]:
    """By dotted key; those of the sweep come first."""
    own = {key: value for key, value in sweep.items() if key != "experiment"}
    return dotted(own) | {f"experiment.{key}": value for key, value in dotted(experiment).items()}


def _free(key: str) -> bool:
    section, _, inner = key.partition(".")
    if section != "experiment":
        return section in FREE
    return inner.partition(".")[0] in FREE_OF_RUNS and inner != "resources.store"
