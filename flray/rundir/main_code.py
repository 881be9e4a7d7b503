"""Fingerprints of what a script or a notebook defines (module `__main__`) and an experiment names.

They are of the bytecode of an object, of its bases, and of what it calls and the values it reads there, not of the
text: a notebook has no file, and another process, which has the object by value, no text. Other lines of the script,
comments and line numbers do not count. Nor does a value that the code itself changes, such as a list of losses.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import dis
import inspect
import itertools
import sys
from collections.abc import Iterator
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from flray.config.experiment import Experiment
from flray.core.schema.plain import words
from flray.core.schema.registry import BY_VALUE, MAIN, Registry, attribute, module_name
from flray.files import array_checksum, checksum

PLAIN = bool | int | float | complex | str | bytes | None
CONTAINERS = (dict, set, frozenset, tuple, list)
OUTER = ("LOAD_GLOBAL", "LOAD_DEREF")
STORED = {"STORE_SUBSCR": 2, "DELETE_SUBSCR": 2, "STORE_ATTR": 1}  # the values of the stack that name the target
FILLING = {"append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "remove", "discard", "clear"}


def main_fingerprints(experiment: Experiment) -> tuple[dict[str, str], list[ModuleType]]:
    """(`modules.__main__:NAME` -> hash of the code, for every class and function of `__main__` that the configuration
    names; the modules whose functions and classes this code reads). One that was given itself has its hash in its
    name."""
    named = set(words(experiment.dump()))
    main = sys.modules["__main__"]
    paths = {name: name.removeprefix(MAIN) for name in named if name.startswith(MAIN)}
    found = {name: attribute(main, path) for name, path in paths.items() if not name.startswith(BY_VALUE)}
    for table in Registry.tables:
        found |= {f"{MAIN}{target.__qualname__}": target for name, target in table.of_main() if name in named}
    codes = {f"modules.{name}": MainCode(target) for name, target in found.items() if target is not None}
    modules = {name for code in codes.values() for name in code.modules}
    return (
        {name: code.hash for name, code in codes.items()},
        [sys.modules[name] for name in sorted(modules) if name in sys.modules],
    )


class MainCode:
    """The code of a function, or of a class and its bases in `__main__`, with what it reads there.

    `hash`: of all of it. `modules`: the names of other modules whose functions and classes it reads.
    """

    def __init__(self, target: Any) -> None:
        self.modules: set[str] = set()
        self._seen: set[int] = set()  # classes and functions
        self._open: set[int] = set()  # containers whose values are being read
        self._filled: set[int] = set()  # what any of the code changes
        for _ in self._content(target):  # a first time to know what the code changes
            pass
        self._seen.clear()
        self.hash = checksum("\n".join(self._content(target)).encode())

    def _content(self, value: Any) -> Iterator[str]:
        """What is hashed of a value, the same in every process; nothing of an object of another kind."""
        if id(value) in self._filled:
            return
        if isinstance(value, PLAIN | np.generic):
            yield repr(value)
        elif isinstance(value, ModuleType):
            self.modules.add(value.__name__)
        elif isinstance(value, np.ndarray) and value.dtype.kind != "O":
            yield array_checksum(value)
        elif type(value).__module__ == "torch" and hasattr(value, "detach"):
            with contextlib.suppress(TypeError, RuntimeError):  # without storage of its own
                plain = value.detach().cpu().reshape(-1).view(sys.modules["torch"].uint8)
                yield f"{value.dtype} {tuple(value.shape)} {array_checksum(plain.numpy())}"
        elif isinstance(value, CONTAINERS) or _is_record(value):
            if id(value) not in self._open:  # it does not contain itself
                self._open.add(id(value))
                yield self._parts(value)
                self._open.discard(id(value))
        elif isinstance(value, property):
            for part in (value.fget, value.fset, value.fdel):
                yield from self._content(part)
        elif inspect.isclass(value):
            yield from self._class(value)
        else:
            function = inspect.unwrap(getattr(value, "__func__", getattr(value, "func", value)))
            if inspect.isfunction(function):
                yield from self._function(function)

    def _class(self, kind: type) -> Iterator[str]:
        """The attributes of a class and of its bases in `__main__`, of each once."""
        for base in kind.__mro__:
            if module_name(base.__module__) != "__main__":
                self.modules.add(base.__module__)
                continue
            if id(base) in self._seen:
                continue
            self._seen.add(id(base))
            for name, value in sorted(vars(base).items()):
                special = name.startswith("__") and name.endswith("__")
                if not special or callable(getattr(value, "__func__", value)):
                    yield name
                    yield from self._content(value)

    def _parts(self, value: Any) -> str:
        """The values in a container, the fields of a record."""
        if dataclasses.is_dataclass(value):  # which may have slots
            value = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
        elif not isinstance(value, CONTAINERS):
            value = vars(value)
        parts = [[*self._content(part)] for part in (value.items() if isinstance(value, dict) else value)]
        return f"{type(value).__name__} {sorted(map(str, parts)) if isinstance(value, set | frozenset) else parts}"

    def _function(self, function: Any) -> Iterator[str]:
        """The code and the defaults of a function of `__main__`, and what it reads there and in the functions around
        it."""
        if module_name(function.__module__) != "__main__":
            self.modules.add(function.__module__)
            return
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        yield from self._code(function.__code__)
        yield from self._content((function.__defaults__, function.__kwdefaults__))
        read = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # an empty cell
                read[name] = cell.cell_contents
        self._filled |= {id(read[name]) for name in _filled(function.__code__) if _may_change(read.get(name))}
        for name, value in read.items():
            yield name
            yield from self._content(value)

    def _code(self, code: CodeType) -> Iterator[str]:
        """What a code object computes, without the file and the lines where it is written."""
        yield f"{code.co_name} {code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars}"
        for constant in code.co_consts:
            yield from self._code(constant) if isinstance(constant, CodeType) else self._content(constant)


def _is_record(value: Any) -> bool:
    """Whether a value is nothing but its fields."""
    record = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return record or isinstance(value, SimpleNamespace | argparse.Namespace)


def _opcodes(code: CodeType) -> Iterator[dis.Instruction]:
    """The instructions of a code object and of those in it."""
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _opcodes(constant)


def _names(code: CodeType) -> dict[str, None]:
    """The names that a code object reads in its module and does not set there."""
    read = {one.argval: None for one in _opcodes(code) if one.opname == "LOAD_GLOBAL"}
    for one in _opcodes(code):
        if one.opname == "STORE_GLOBAL":
            read.pop(one.argval, None)
    return read


def _may_change(value: Any) -> bool:
    """Whether a value can be filled: by items, by a method of `FILLING`, or by attributes."""
    return isinstance(value, dict | list | set | np.ndarray) or hasattr(value, "detach") or _is_record(value)


def _filled(code: CodeType) -> Iterator[str]:
    """The names of its module, or of the functions around it, whose objects a code object changes: by a method of
    `FILLING`, also by another name (`mine = LOSSES`), or where they stand in the target of an assignment."""
    known, alias, targets = list(dis.get_instructions(code)), dict[str, str](), list[dis.Instruction]()
    for before, one in itertools.pairwise(known):
        if one.opname == "STORE_FAST" and before.opname in OUTER:
            alias[one.argval] = before.argval
        elif one.opname in ("LOAD_METHOD", "LOAD_ATTR") and one.argval in FILLING:
            targets.append(before)
    for place, one in enumerate(known):
        if one.opname in STORED:
            targets += _target(known[:place], STORED[one.opname])
    for one in targets:
        if one.opname in OUTER:
            yield one.argval
        elif one.opname.startswith("LOAD_FAST") and one.argval in alias:
            yield alias[one.argval]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _filled(constant)


def _target(before: list[dis.Instruction], depth: int) -> Iterator[dis.Instruction]:
    """The instructions of this statement that load the upper `depth` values of the stack."""
    for one in reversed(before):
        if one.opname.startswith(("STORE_", "DELETE_")) or one.opname == "POP_TOP":
            return  # the end of the statement before
        depth += one.opname == "COPY"  # x[i] += 1 has x and i from further below
        yield one
        depth -= dis.stack_effect(one.opcode, one.arg)
        if depth <= 0:
            return
