"""The configuration and the fingerprints that a run began with, so a resume continues the same experiment or names the
difference.

`environment.json` contains the complete configuration and a fingerprint of everything outside the run folder that
determines the bits: data, partition, proxy data, starting weights, the initial model, and the source of the user's
modules.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from flray.config.experiment import Experiment
from flray.config.grid import config_changes
from flray.core.schema.errors import CheckpointError, ConfigError, DataError
from flray.data import SOURCES
from flray.files import checksum, read_checksummed
from flray.models import MODELS
from flray.models.libraries import LIBRARIES
from flray.rundir import checkpoint
from flray.scenario import PARTITIONS

FINGERPRINTS = ("data", "partition", "proxy", "weights", "initial_weights")
LOST = "environment"  # the name to accept if the record itself is lost
Changes = dict[str, tuple[Any, Any]]  # name -> (what it was, what it is)


def module_fingerprints(experiment: Experiment) -> dict[str, str]:
    """`modules.NAME` -> hash of the source, for every module of the user's that the experiment uses.

    These are the modules that the configuration names (`imports`, `module:Name`), those that define the algorithm's
    class and its bases, and the modules that these import from their own folder or package.
    """
    fingerprints: dict[str, str] = {}
    left = list(_named(experiment))
    while left:
        module = left.pop()
        key = f"modules.{module.__name__}"
        path = _source_file(module)
        if key in fingerprints or path is None:
            continue
        source = path.read_bytes()
        fingerprints[key] = checksum(source)
        left += [
            other
            for name in _imports(source, module)
            if (other := sys.modules.get(name)) and _beside(other, module, path)
        ]
    return dict(sorted(fingerprints.items()))


class Origin:
    """The configuration and the fingerprints that a run began with, and the changes that its resumes accepted."""

    def __init__(self, before: Mapping[str, Any] | None, folder: Path | None, accept: Sequence[str]) -> None:
        """`before`: the record of the run that is resumed, None for a new run."""
        self._before, self._folder, self._accept = before, folder, tuple(accept)
        self._fingerprints: dict[str, Any] = {}
        self._accepted: list[dict[str, Any]] = list(before.get("accepted", [])) if before else []

    @classmethod
    def of(cls, experiment: Experiment, folder: Path | None, accept: Sequence[str] = ()) -> Origin:
        """The origin of a new run (`folder` None), or of the run in `folder` that `experiment` resumes.

        Raises `ConfigError` and `CheckpointError` if the resume would make it another experiment, unless the change is
        accepted by name.
        """
        origin = cls(None if folder is None else _read(folder, accept), folder, accept)
        if folder is not None:
            done = max(map(checkpoint.rounds_done, checkpoint.checkpoints(folder)), default=0)
            known = (origin._before or {}).get("experiment")
            if experiment.num_tasks > 1 and known and known["rounds"] != experiment.rounds:
                raise ConfigError(
                    f"resume: rounds are those of each of {experiment.num_tasks} tasks, which would begin elsewhere; "
                    f"leave them at {known['rounds']}"
                )
            if experiment.total_rounds < done:
                raise ConfigError(f"resume: rounds is {experiment.rounds} and {folder} has {done}; give {done} or more")
            if known:
                origin._refuse(config_changes(known, experiment.dump()))
        origin.compare(module_fingerprints(experiment))
        return origin

    def compare(self, fingerprints: Mapping[str, Any]) -> None:
        """Add these fingerprints to the record. Raises `DataError` or `ConfigError` for one that has changed."""
        self._fingerprints |= fingerprints
        known = self._before.get("fingerprints") if self._before else None
        if known is not None:
            unknown = {"initial_weights"} - known.keys()  # the run failed before it had a model
            changed = {n: (known.get(n), now) for n, now in fingerprints.items() if known.get(n) != now}
            self._refuse({name: change for name, change in changed.items() if name not in unknown})

    def record(self, experiment: Experiment) -> dict[str, Any]:
        """For environment.json: the complete configuration, all fingerprints, and every change that was accepted."""
        return {"experiment": experiment.dump(), "fingerprints": self._fingerprints, "accepted": self._accepted}

    def _refuse(self, changes: Changes) -> None:
        """Raises for the first change that is not accepted by name: `DataError` for data, else `ConfigError`."""
        refused = [name for name in changes if name not in self._accept]
        if not refused:
            known = [(entry["what"], entry["is"]) for entry in self._accepted]
            self._accepted += [
                {"what": name, "was": was, "is": now}
                for name, (was, now) in changes.items()
                if (name, now) not in known
            ]
            return
        name, also = refused[0], f" (changed as well: {', '.join(refused[1:4])})" if len(refused) > 1 else ""
        was, now = changes[name]
        if name.startswith("modules."):
            what = f"the source of module {name.removeprefix('modules.')} changed since the run began"
        elif name in FINGERPRINTS:
            what = f"the {name.replace('_', ' ')} changed since the run began (fingerprint {now}, was {was})"
        else:
            what = f"{name} is {now} in config.yaml and was {was} when the run began"
        flags = " ".join(f"--accept {name}" for name in refused)
        raise (DataError if name in ("data", "partition", "proxy") else ConfigError)(
            f"{self._folder}: {what}{also}; restore it, start again with another --out, or continue and record the "
            f"change: flray resume {self._folder} {flags}"
        )


def _read(folder: Path, accept: Sequence[str]) -> dict[str, Any]:
    """The record in `environment.json`; an empty one if it is lost and `environment` is accepted."""
    try:
        record = read_checksummed(folder / "environment.json")
        if (
            isinstance(record["experiment"], dict)
            and isinstance(record["fingerprints"], dict)
            and isinstance(record["accepted"], list)
        ):
            return record
        problem = "is damaged"
    except FileNotFoundError:
        problem = "is missing"
    except (OSError, ValueError, KeyError, TypeError):
        problem = "is damaged, or of another version of flray"
    if LOST in accept:
        return {"accepted": [{"what": LOST, "was": None, "is": problem}]}
    raise CheckpointError(
        f"{folder / 'environment.json'} {problem}: it is unknown whether data and configuration have changed since the "
        f"run began; restore it, or continue and record that: flray resume {folder} --accept {LOST}"
    )


def _named(experiment: Experiment) -> Iterator[ModuleType]:
    """The modules that the configuration names, and those of the algorithm's class and its bases."""
    path, colon, _ = experiment.model.name.partition(":")
    paths = [path] if colon and path not in LIBRARIES else []
    names = [*experiment.imports, *paths, *(base.__module__ for base in type(experiment.algorithm).__mro__)]
    for table, name in (
        (MODELS, experiment.model.name),
        (SOURCES, experiment.data.source),
        (PARTITIONS, experiment.partition.name),
    ):
        if name in table.names():
            names.append(table.get(name).__module__)
    names += [base.__module__ for base in type(experiment.drift).__mro__] if experiment.drift is not None else []
    for name in dict.fromkeys(names):
        if name in sys.modules:
            yield sys.modules[name]


def _source_file(module: ModuleType) -> Path | None:
    """The file of a module that is neither flray's, nor the standard library's, nor one of flray's requirements."""
    path = getattr(module, "__file__", None)
    top = module.__name__.partition(".")[0]
    if (
        path is None
        or not path.endswith(".py")
        or top in (*sys.stdlib_module_names, "flray", "pydantic", "torch", "numpy")
    ):
        return None
    return Path(path)


def _imports(source: bytes, module: ModuleType) -> Iterator[str]:
    """Full names of the modules that a source text may import."""
    package = module.__name__ if hasattr(module, "__path__") else module.__name__.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _beside(other: ModuleType, module: ModuleType, path: Path) -> bool:
    """Whether `other` is in the same package as `module`, or in the same folder outside site-packages."""
    source = _source_file(other)
    if source is None:
        return False
    same_package = other.__name__.partition(".")[0] == module.__name__.partition(".")[0]
    return same_package or ("site-packages" not in path.parts and source.parent == path.parent)
