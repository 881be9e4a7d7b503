"""Names in the configuration -> Python objects, imported at their first use.

A package adds to a table with an entry point (group `flray.algorithms`, `flray.models`,
`flray.sources`, `flray.partitions`, `flray.trackers`), a script with `--import my_module`, whose import calls
`TABLE.add(...)`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from importlib.metadata import entry_points
from pathlib import PurePath
from types import ModuleType
from typing import Any, ClassVar

from flray.core.schema.errors import ConfigError, FlrayError, kind_of, shown, unknown
from flray.core.schema.own import check_hooks

MAIN = "__main__:"  # the import path of what a script or a notebook defines begins with it
SPAWNED = "__mp_main__"  # its module in a process that multiprocessing has spawned, where it is `__main__` as well
BY_VALUE = f"{MAIN}by_value."  # the name of what no import finds, such as a lambda, begins with it
GIVEN: dict[str, Any] = {}  # these, by their names
OWN = "a module of your own is imported with --import MODULE"
IMPORT_PATH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_stand_ins: ContextVar[Mapping[str, Any] | None] = ContextVar("stand_ins", default=None)


@contextlib.contextmanager
def standing_in(objects: Mapping[str, Any]) -> Iterator[None]:
    """In this block every table returns these objects, by `"module:attribute"`, and imports nothing.

    Importing a user's module ends this, because the module may use all of flray.
    """
    token = _stand_ins.set(objects)
    try:
        yield
    finally:
        _stand_ins.reset(token)


class Registry:
    """A table of names. Values are objects, or `"module:attribute"` paths imported on demand, which are names, too.

    `beside`: in words, where other names come from; lists and the error for an unknown name end with it. `base`: the
    path of the class that the table's entries inherit from; "": its entries are called.
    """

    tables: ClassVar[list[Registry]] = []  # of this process

    def __init__(self, kind: str, table: dict[str, str], beside: str = OWN, base: str = "") -> None:
        self.tables.append(self)
        self.kind, self.beside, self.base = kind, beside, base
        self._table: dict[str, Any] = dict(table)
        self._by_path: dict[str, Any] = {}  # what import paths in configurations have given
        self._scanned = False
        self._installed: dict[str, str] = {}  # the paths of entry points, by name

    def add(self, name: str, target: Any) -> Any:
        """Register `target`, an object or a `"module:attribute"` path, under `name`.

        Raises `ConfigError` for a name that is taken or is no text, and for an object that no entry can be.
        """
        if not isinstance(name, str):
            raise ConfigError(f"{self.kind} {shown(name)}: a name is text; write add('mine', ...)")
        if not isinstance(target, str):
            self._check_target(name, target)
        known = self._table.get(name)
        if known is not None and known is not target and _path(known) != _path(target):
            raise ConfigError(
                f"{self.kind} {name!r} is registered twice: {_path(known)} and {_path(target)}; rename one"
            )
        self._table[name] = target
        return target

    def replace(self, name: str, target: Any) -> None:
        """Register an object that another process has checked, in place of one that may be there."""
        self._table[name] = target

    def of_main(self) -> list[tuple[str, Any]]:
        """The names and objects that a script or a notebook has registered."""
        return [
            (name, target)
            for name, target in self._table.items()
            if not isinstance(target, str) and _path(target).startswith(MAIN)
        ]

    def own_entries(self, names: Collection[str], imports: Iterable[str]) -> list[tuple[str, str]]:
        """Those of `names` that modules of the user's have registered, other than `imports`, with their import paths.
        Left out are what no import finds, and entry points, which every process finds itself."""
        listed = {name for module in imports for name in self.names_of(module)}
        paths = {name: _path(target) for name, target in self._table.items() if name in names and name not in listed}
        return [
            (name, path)
            for name, path in paths.items()
            if not path.startswith(("flray.", MAIN))
            and self._installed.get(name) != path
            and self._table[name] in (path, _imported_object(path))
        ]

    def names(self) -> list[str]:
        self._scan()
        return list(self._table)

    def own_paths(self) -> dict[str, str]:
        """The import paths of flray's own entries, by name."""
        return {name: path for name, path in self._table.items() if isinstance(path, str) and path.startswith("flray.")}

    def names_of(self, module: str) -> list[str]:
        """The names whose objects are defined in a module or below it; of a path that no one has read nothing is
        imported."""
        homes = {name: _path(target).partition(":")[0] for name, target in self._table.items()}
        return [name for name, home in homes.items() if home == module or home.startswith(f"{module}.")]

    def check(self, name: Any) -> None:
        """Raises `ConfigError`, with the most similar valid name, if `name` is not in this table."""
        if not isinstance(name, str):
            raise ConfigError(f"{self.kind}: {shown(name)} is not a name; see flray list")
        if name not in self._table:
            self._scan()
        if name not in self._table and not IMPORT_PATH.fullmatch(name):
            more = f"; {self.beside}" if self.beside else ""
            raise ConfigError(f"{unknown(self.kind, name, self._table)}{more}")

    def get(self, name: str) -> Any:
        """The object of `name`. Raises `ConfigError` as :meth:`check` does."""
        self.check(name)
        target = self._table.get(name, name)
        stand_ins = _stand_ins.get()
        if stand_ins is not None and isinstance(target, str) and target in stand_ins:
            return stand_ins[target]
        if not isinstance(target, str):
            return target
        found = load(target, f"{self.kind} {name!r}")
        if not target.startswith("flray."):
            self._check_target(name, found)
        if name == target:
            self._by_path[name] = found
        return found

    def _check_target(self, name: str, target: Any) -> None:
        """Raises `ConfigError` unless a user's object can be an entry of this table."""
        what = f"{self.kind} {name!r}"
        if not self.base:
            if not callable(target):
                raise ConfigError(f"{what} is {shown(target)}, which cannot be called; give a function or a class")
            return
        kinds = [f"{kind.__module__}:{kind.__qualname__}" for kind in getattr(target, "__mro__", ())]
        if self.base not in kinds:
            module, _, base = self.base.partition(":")
            given = f"the class {target.__name__}" if kinds else kind_of(target)
            raise ConfigError(f"{what} is {given}; give a class that inherits from {base} of {module}")
        check_hooks(target)
        if inspect.isabstract(target):
            left = ", ".join(sorted(target.__abstractmethods__))
            raise ConfigError(f"{what}: {target.__name__} does not define {left}; write it (see {self.base})")

    def name_of(self, target: Any) -> str | None:
        """The name of a class or function; None: it is not in this table."""
        own = (target, _path(target))
        known = next((name for name in self.names() if self._table[name] in own), None)
        if known is None:
            known = next((path for path, found in self._by_path.items() if found is target), None)
        if known is not None:
            return known
        return next((name for name in self.names() if self.get(name) is target), None)  # by another module's name

    def has(self, name: str) -> bool:
        """Whether this is a name of the table, or an import path that has been read."""
        return name in self.names() or name in self._by_path

    def _scan(self) -> None:
        if not self._scanned:
            for point in entry_points(group=f"flray.{self.kind}s"):
                self._table.setdefault(point.name, point.value)
                self._installed[point.name] = point.value
            self._scanned = True  # not before: another thread may ask meanwhile


def module_name(name: str) -> str:
    """The name of a module in a configuration and in fingerprints, where a spawned process has the script's as well."""
    return "__main__" if name == SPAWNED else name


def _path(target: Any) -> str:
    """`"module:attribute"`; of an object without a name (a `functools.partial`) a text that no other one has."""
    if isinstance(target, str):
        return target
    name = getattr(target, "__qualname__", None)
    return f"{module_name(target.__module__)}:{name}" if isinstance(name, str) else f"an object {id(target)}"


def _imported_object(path: str) -> Any:
    """What a module that is imported has at an import path; None: nothing."""
    module, _, name = path.partition(":")
    return attribute(sys.modules.get(module), name)


def address_of(name: str) -> str:
    """The address of what is drawn for an object of this name: `__main__:halves` of what `BY_VALUE` names, whatever its
    content is; else the name itself."""
    return f"{MAIN}{name.removeprefix(BY_VALUE).rpartition('.')[0]}" if name.startswith(BY_VALUE) else name


def readable(name: str) -> str:
    """A name in tables, figures and folders: the own name of what a script or a notebook defines, with four digits of
    the content where it has no import path."""
    if name.startswith(BY_VALUE):
        own, _, content = name.removeprefix(BY_VALUE).rpartition(".x")
        return f"{own}.{content[:4]}"
    return name.removeprefix(MAIN)


def load(path: str, what: str) -> Any:
    """Import `"module:attribute"`; raises `ConfigError` naming the part that does not exist."""
    module_name, _, name = path.partition(":")
    if not name:
        raise ConfigError(f"{what}: {path!r} is not an import path; write 'module:Name'")
    if path in GIVEN:
        return GIVEN[path]
    if path.startswith(BY_VALUE):
        raise ConfigError(
            f"{what} was given itself, without an import path: only the process that ran it has it; start the run "
            "again there, or put it into a module"
        )
    if module_name in ("name", "source") and importlib.util.find_spec(module_name) is None:
        raise ConfigError(f"{what}: write a space after the colon: {module_name}: {name}")
    module = imported(module_name, what)
    found = attribute(module, name)
    if found is None and module_name == "__main__":
        raise ConfigError(
            f"{what}: {name} was defined in a script or a notebook; define it again, or move it into a module"
        )
    if found is None:
        raise unknown("name", name, [n for n in vars(module) if not n.startswith("_")], f"module {module_name!r}")
    return found


def attribute(module: Any, name: str) -> Any:
    """The object of a dotted `name` in a module: `"Net"`, `"Networks.Net"`; None: there is none."""
    return functools.reduce(lambda inside, part: getattr(inside, part, None), name.split("."), module)


def imported(name: str, what: str) -> ModuleType:
    """The module of that name. Raises `ConfigError` if it does not exist, and for its own error, with the place."""
    if not name.startswith("flray."):
        _stand_ins.set(None)
    if name.endswith(".py"):
        raise ConfigError(f"{what}: {name!r} is a file; write the name of its module: {PurePath(name).stem}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{what}: cannot import {name!r} ({error}); is it installed and on PYTHONPATH?") from error
    except FlrayError:  # it names class and line
        raise
    except (Exception, SystemExit) as error:  # it is the user's code that runs here
        raise ConfigError(
            f"{what}: {name!r} cannot be imported ({type(error).__name__}: {error}{_place(error)})"
        ) from error


def _place(error: BaseException) -> str:
    """The file and line in the user's code where an import failed; "" for a syntax error, which names them."""
    machinery = (__file__, importlib.__file__)
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if f.filename not in machinery and not f.filename.startswith("<")
    ]
    home = str(PurePath(__file__).parents[2])
    own = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith(home)] or frames
    return f", {own[-1].filename}, line {own[-1].lineno}" if own and not isinstance(error, SyntaxError) else ""
