"""`environment.json`: versions, commit and hardware for readers, and what a run began with, so that a resume continues
the same experiment or names the difference.

What it began with is the complete configuration, and a fingerprint of everything outside the run folder that determines
the bits: data, partition, proxy data, starting weights, the initial model and the names in it, and the source of the
user's modules.
"""

from __future__ import annotations

import contextlib
import dis
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import accumulate, chain
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from flray.config.experiment import Experiment
from flray.config.grid import config_changes
from flray.config.launch_context import launch_context
from flray.config.objects import check_given
from flray.core.schema.errors import CheckpointError, ConfigError, DataError, warn
from flray.core.schema.own import computed
from flray.core.schema.registry import MAIN, Registry, module_name
from flray.data import SOURCES
from flray.files import checksum, quoted, read_checksummed, with_checksum, write_text
from flray.models import MODELS
from flray.models.libraries import LIBRARIES
from flray.rundir import checkpoint
from flray.rundir.main_code import main_fingerprints
from flray.scenario import PARTITIONS

FILES = ("data", "partition", "proxy", "cohorts", "batch_order", "devices")  # a change of these is a `DataError`
OF_MODEL = ("initial_weights", "fixed_tensors", "tensor_names")
FINGERPRINTS = (*FILES, "weights", *OF_MODEL)
LOST = "environment"  # the name to accept if the record itself is lost
ImportStatement = tuple[int, tuple[str, ...] | None, str]  # leading dots, names after "import", module
Changes = dict[str, tuple[Any, Any]]  # name -> (what it was, what it is)


def module_fingerprints(experiment: Experiment, loaded: bool = True) -> dict[str, str]:
    """`modules.NAME` -> hash of the source, for every module of the user's that the experiment uses.

    These are the modules that the configuration names (`imports`, `module:Name`), those that define the classes of its
    sections and their bases, and the modules that these import from their own folder or package. Of a script or a
    notebook each class and function that the configuration names has one of its own, `modules.__main__:NAME`; the
    modules that it reads count if they are not installed. `loaded`: they are to run, see :func:`_check_loaded`.
    """
    fingerprints, read = main_fingerprints(experiment)
    for key, module, source, code in _walk(_used(experiment, read), fingerprints):
        if loaded:
            _check_loaded(module, code)
        fingerprints[key] = checksum(source)
    return dict(sorted(fingerprints.items()))


def imported_sources(experiment: Experiment) -> dict[str, str]:
    """`modules.NAME` -> hash of its source when a run of this process first used it, anew after a reload, for every
    module of the user's that the experiment uses, in whatever folder it is; not for a script, which goes to actors by
    value."""
    found: dict[str, str] = {}
    left = _used(experiment, main_fingerprints(experiment)[1])
    for key, module, path in _reached(left, ()):
        if key not in _imported or _imported[key].spec is not module.__spec__:  # it is new, or was reloaded
            source, statements = path.read_bytes(), tuple[ImportStatement, ...]()
            with contextlib.suppress(SyntaxError, ValueError):  # it is half written now
                statements = _compiled(source, module.__name__)[1]
            _imported[key] = _Imported(module.__spec__, checksum(source), statements)
        if not key.startswith(SCRIPT):
            found[key] = _imported[key].checksum
        left += _own(_imports(_imported[key].statements, module), module)
    return found


class _Imported(NamedTuple):
    """A module's spec, and what its file had when a run of this process first used it."""

    spec: Any
    checksum: str
    statements: tuple[ImportStatement, ...]


def _used(experiment: Experiment, read: Iterable[ModuleType]) -> list[ModuleType]:
    """The modules that the configuration names, and those of `read`, from a script, that are not installed."""
    return [*_named(experiment), *(module for module in read if not _is_installed(module))]


def _reached(left: list[ModuleType], known: Iterable[str]) -> Iterator[tuple[str, ModuleType, Path]]:
    """(`modules.NAME`, module, file) of each of these modules, but for the `known` names; what the caller adds to
    `left` comes, too."""
    seen = set(known)
    while left:
        module = left.pop()
        key, path = f"modules.{module_name(module.__name__)}", _source_file(module)
        if key not in seen and path is not None:
            seen.add(key)
            yield key, module, path


def _walk(modules: Iterable[ModuleType], known: Iterable[str]) -> Iterator[tuple[str, ModuleType, bytes, CodeType]]:
    """(`modules.NAME`, module, source, code) of these modules, but for the `known` names, and of those near them
    that each may import. Raises `ConfigError` for a file that is no Python any more."""
    left = [*modules]
    for key, module, path in _reached(left, known):
        source = path.read_bytes()
        try:
            code, statements = _compiled(source, module.__name__)
        except SyntaxError as error:
            raise ConfigError(
                f"{path} has changed since it was imported here, and is no Python: {error}; mend it and reload it "
                "(importlib.reload), or restart Python"
            ) from None
        yield key, module, source, code
        left += _near(_imports(statements, module), module)


def _near(names: Iterable[str], module: ModuleType) -> list[ModuleType]:
    """Of these modules those in the folder or the package of `module`."""
    return [other for name in names if (other := sys.modules.get(name)) and _beside(other, module)]


def _own(names: Iterable[str], module: ModuleType) -> list[ModuleType]:
    """Of these modules, and of the packages that they and `module` are in, those of :func:`_near` and all that are not
    installed."""
    parts = [accumulate(name.split("."), "{}.{}".format) for name in [module.__name__, *names]]
    found = [sys.modules.get(name) for name in chain(*parts)]
    return [other for other in found if other and (not _is_installed(other) or _beside(other, module))]


_imported: dict[str, _Imported] = {}
_loaded: dict[str, tuple[Any, Any]] = {}  # by name: a module's spec, and the code in its file when it was first seen


def _check_loaded(module: ModuleType, code: CodeType) -> None:
    """Raises `ConfigError` if the file of a module has other code than when a run of this process first used it: the
    process has the old code, and its actors would import the new one. A reload gives a module another spec."""
    spec, now = module.__spec__, computed(code)
    known, before = _loaded.get(module.__name__, (spec, now))
    if known is spec and before != now:
        raise ConfigError(
            f"{module.__file__} has changed since it was imported here; reload it (importlib.reload) or restart Python"
        )
    _loaded[module.__name__] = (spec, now)


def changed_sources(experiment: Experiment, folder: Path) -> dict[str, str]:
    """The modules of the user's, and what a script or a notebook defines and the experiment names, that have changed
    since the run in `folder`: `modules.NAME` -> a sentence. Empty for a run without a record; of a script whose record
    has no class or function, any line counts."""
    try:
        known = read_checksummed(folder / "environment.json")["fingerprints"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    changed = [n for n, now in module_fingerprints(experiment, False).items() if known.get(n, now) != now]
    if any(name.startswith(f"{SCRIPT}:") for name in known):
        changed = [name for name in changed if name != SCRIPT]
    return {name: f"{folder}: {SOURCE_CHANGED.format(_shown(name))}" for name in changed}


def check_sources(experiment: Experiment, folder: Path) -> None:
    """Raises `CheckpointError` for the first of :func:`changed_sources`, of a finished run. Warns of a script whose
    record has no class or function."""
    what = changed_sources(experiment, folder)
    refused = [name for name in what if name != SCRIPT]
    if refused:
        keep = f"flray resume {quoted(folder)} {' '.join(f'--accept {name}' for name in what)}"
        if any(name.startswith(SCRIPT) for name in what):  # whose classes the command does not have
            keep = f"flray.resume({str(folder)!r}, accept={[SCRIPT, *what]})"
        raise CheckpointError(f"{what[refused[0]]}; give another --out, add --overwrite, or keep it: {keep}")
    for text in what.values():
        warn(f"{text}; it is kept; --overwrite runs it again")


def _shown(name: str) -> str:
    """`Net of __main__` of the fingerprint `modules.__main__:Net`, `module mine` of `modules.mine`."""
    own = name.removeprefix("modules.")
    return f"{own.removeprefix(MAIN)} of __main__" if own.startswith(MAIN) else f"module {own}"


SCRIPT = "modules.__main__"
SOURCE_CHANGED = "the source of {} changed since the run began"


class Origin:
    """The configuration and the fingerprints that a run began with, and the changes that its resumes accepted."""

    def __init__(self, before: Mapping[str, Any] | None, folder: Path | None, accept: Sequence[str]) -> None:
        """`before`: the record of the run that is resumed, None for a new run."""
        self._before, self._folder, self._accept = before, folder, tuple(accept)
        self._fingerprints: dict[str, Any] = {}
        self._done = 0  # rounds before this resume
        self._accepted: list[dict[str, Any]] = list(before.get("accepted", [])) if before else []

    @classmethod
    def of(cls, experiment: Experiment, folder: Path | None, accept: Sequence[str] = ()) -> Origin:
        """The origin of a new run (`folder` None), or of the run in `folder` that `experiment` resumes. Raises
        `ConfigError` and `CheckpointError` for a change that makes it another experiment and is not accepted."""
        origin = cls(None if folder is None else _read(folder, accept), folder, accept)
        if folder is not None:
            done = origin._done = max(map(checkpoint.rounds_done, checkpoint.checkpoints(folder)), default=0)
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
            check_given(experiment.yaml())
        origin.compare(module_fingerprints(experiment))
        return origin

    def compare(self, fingerprints: Mapping[str, Any]) -> None:
        """Add these fingerprints to the record. Raises `DataError` or `ConfigError` for one that has changed. The
        record may lack modules, which a run imports after it has begun: their importers are in it."""
        self._fingerprints |= fingerprints
        known = self._before.get("fingerprints") if self._before else None
        if known is not None:
            # the run failed before it had a model
            unknown = set(OF_MODEL) - known.keys()
            changed = {n: (known.get(n), now) for n, now in fingerprints.items() if known.get(n) != now}
            unknown |= {name for name in changed if name.startswith("modules.") and name not in {*known, SCRIPT}}
            self._refuse({name: change for name, change in changed.items() if name not in unknown})

    def follow(self, fingerprints: Mapping[str, str]) -> None:
        """Add fingerprints of the machine to the record. One that has changed is said: a resume elsewhere is no other
        experiment."""
        known = {**((self._before or {}).get("fingerprints") or {}), **self._fingerprints}
        self._fingerprints |= fingerprints
        changed = {name: (known[name], now) for name, now in fingerprints.items() if known.get(name, now) != now}
        for was, now in dict.fromkeys(changed.values()):  # server and clients as a rule change together
            warn(f"the run computed with {was} and goes on with {now}: from here on its bits are those of neither")
        self._accepted += [{"what": name, "was": was, "is": now} for name, (was, now) in changed.items()]

    def record(self, experiment: Experiment) -> dict[str, Any]:
        """For environment.json: the complete configuration, all fingerprints, and every change that was accepted."""
        return {"experiment": experiment.dump(), "fingerprints": self._fingerprints, "accepted": self._accepted}

    def _refuse(self, changes: Changes) -> None:
        """Raises for the first change that is not accepted by name: `DataError` for data, else `ConfigError`."""
        refused = [name for name in changes if name not in self._accept]
        if not refused:
            # one of before the first round is no change of a run's numbers, and may come again
            known = {entry["what"]: entry["is"] for entry in self._accepted if entry.get("done", 1)}
            self._accepted += [
                {"what": name, "was": was, "is": now, "done": self._done}
                for name, (was, now) in changes.items()
                if (name, now) not in known.items()
            ]
            return
        name, also = refused[0], f" (changed as well: {', '.join(refused[1:4])})" if len(refused) > 1 else ""
        was, now = changes[name]
        if name.startswith("modules."):
            what = SOURCE_CHANGED.format(_shown(name))
        elif name in FINGERPRINTS:
            drift = ((self._before or {}).get("experiment") or {}).get("drift") or {}
            # one fingerprint is of both, and of a drift all but its file is in the configuration
            other = f" or drift.file {drift['file']}" if name == "partition" and drift.get("file") else ""
            what = f"the {name.replace('_', ' ')}{other} changed since the run began (fingerprint {now}, was {was})"
        else:
            what = f"{name} is {now} in config.yaml and was {was} when the run began"
        again = " ".join([f"flray resume {quoted(self._folder)}", *(f"--accept {name}" for name in refused)])
        if any(name.startswith(SCRIPT) for name in refused):  # whose classes the command does not have
            again = f"in it, flray.resume({str(self._folder)!r}, accept={refused})"
        raise (DataError if name in FILES else ConfigError)(
            f"{self._folder}: {what}{also}; restore it, start again with another --out, or continue and record the "
            f"change: {again}"
        )


def _read(folder: Path, accept: Sequence[str]) -> dict[str, Any]:
    """The record in `environment.json`; an empty one if it is lost and `environment` is accepted."""
    try:
        record = read_checksummed(folder / "environment.json")
        kinds = {"experiment": dict, "fingerprints": dict, "accepted": list}
        if all(isinstance(record[name], kind) for name, kind in kinds.items()):
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
        f"run began; restore it, or continue and record that: flray resume {quoted(folder)} --accept {LOST}"
    )


def _named(experiment: Experiment) -> Iterator[ModuleType]:
    """The modules that the configuration names, and those of the classes of its sections and their bases."""
    path, colon, _ = experiment.model.name.partition(":")
    paths = [path] if colon and path not in LIBRARIES else []
    sections = [experiment.algorithm, experiment.aggregation, experiment.drift, *experiment.uplink]
    kinds = [type(section) for section in [*sections, *experiment.probes().values()] if section is not None]
    names = [*experiment.imports, *paths, *(base.__module__ for kind in kinds for base in kind.__mro__)]
    names += _of_entries((MODELS, experiment.model.name), (PARTITIONS, experiment.partition.name))
    # a source that is named by its import path counts once it has been read, which is after a new run has begun
    read = [experiment.data, *([experiment.proxy] if experiment.proxy else [])]
    names += _of_entries(*((SOURCES, section.source) for section in read))
    for name in dict.fromkeys(names):
        if name in sys.modules:
            yield sys.modules[name]


def _of_entries(*entries: tuple[Registry, str]) -> list[str]:
    """The names of the modules that define these entries of tables."""
    return [table.get(name).__module__ for table, name in entries if table.has(name)]


def _source_file(module: ModuleType) -> Path | None:
    """The file of a module that is neither flray's, nor the standard library's, nor one of flray's requirements."""
    path = getattr(module, "__file__", None)
    top = module.__name__.partition(".")[0]
    if (
        path is None
        or not path.endswith(".py")
        or not Path(path).is_file()  # removed since it was imported
        or top in (*sys.stdlib_module_names, "flray", "pydantic", "torch", "numpy")
    ):
        return None
    return Path(path)


def _is_installed(module: ModuleType) -> bool:
    return bool({"site-packages", "dist-packages"} & {*Path(getattr(module, "__file__", None) or "").parts})


@lru_cache(maxsize=1024)  # of a module that has not changed, each run of this process asks again
def _compiled(source: bytes, name: str) -> tuple[CodeType, tuple[ImportStatement, ...]]:
    """Code without docstrings and assertions, and its import statements, which are read from the bytecode: in CPython
    3.11 two threads that make syntax trees at once can fail (`ast.parse`: SystemError)."""
    code = compile(source, name, "exec", dont_inherit=True, optimize=2)
    return code, tuple(_import_statements(code))


def _imports(statements: Iterable[ImportStatement], module: ModuleType) -> Iterator[str]:
    """Full names of the modules that these statements of a module may import."""
    package = module.__name__ if hasattr(module, "__path__") else module.__name__.rpartition(".")[0]
    parts = package.split(".")
    for level, names, base in statements:
        if level:
            base = ".".join([*parts[: len(parts) - level + 1], *([base] if base else [])])
        yield base
        yield from (f"{base}.{name}" for name in names or ())


def _import_statements(code: CodeType) -> Iterator[ImportStatement]:
    """Every import statement, in functions and classes too."""
    instructions = [one for one in dis.get_instructions(code) if one.opname != "EXTENDED_ARG"]
    for number, instruction in enumerate(instructions):
        if instruction.opname == "IMPORT_NAME":
            level, names = (one.argval for one in instructions[number - 2 : number])
            yield level, names, instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _import_statements(constant)


def _beside(other: ModuleType, module: ModuleType) -> bool:
    """Whether `other` is in the same package as `module`, or in the same folder outside site-packages."""
    source, path = _source_file(other), _source_file(module)
    if source is None or path is None:
        return False
    same_package = other.__name__.partition(".")[0] == module.__name__.partition(".")[0]
    return same_package or ("site-packages" not in path.parts and source.parent == path.parent)


# environment.json ----------------------------------------------------------------------------------
def environment(**more: Any) -> dict[str, Any]:
    """Versions, commit, hardware, and the values that the engine adds."""
    return {
        "python": sys.version.split()[0],
        "packages": dict(packages()),
        "git": _git(),
        "machine": {
            "platform": platform.platform(),
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
        },
        "command": sys.argv,
        "started": launch_context(),
        "ray_auth_mode": os.environ.get("RAY_AUTH_MODE"),
        **more,
    }


# Once a process: they name the code that it has imported, and take 0.1 s, in which a small run trains.
@cache
def packages() -> Mapping[str, str | None]:
    from importlib.metadata import PackageNotFoundError, version

    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    names = ("flray", "torch", "ray", "numpy", "pyarrow", "torchvision", "scikit-learn", "pandas", "pydantic")
    return {name: installed(name) for name in names}


@cache
def _git() -> dict[str, Any] | None:
    def ask(*words: str) -> str:
        return subprocess.run(
            ["git", *words], capture_output=True, text=True, check=True, timeout=5, cwd=Path(__file__).parent
        ).stdout.strip()

    try:
        return {
            "commit": ask("rev-parse", "HEAD"),
            "changed": bool(ask("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.SubprocessError):
        return None


def write_environment(folder: Path, values: Mapping[str, Any]) -> None:
    write_text(folder / "environment.json", with_checksum(values))
