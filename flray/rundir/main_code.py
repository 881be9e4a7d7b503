"""Fingerprints of what a script or a notebook defines (module `__main__`) and an experiment names.

They are of the bytecode of an object, of its bases, and of what it calls and the constants it reads there, not of the
text: a notebook has no file, and another process, which has the object by value, no text. Other lines of the script,
comments and line numbers do not count.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

from flray.config.experiment import Experiment
from flray.core.schema.plain import words
from flray.core.schema.registry import BY_VALUE, MAIN, Registry, attribute
from flray.files import checksum

PLAIN = bool | int | float | complex | str | bytes | None


def main_fingerprints(experiment: Experiment) -> dict[str, str]:
    """`modules.__main__:NAME` -> hash of the code, for every class and function of `__main__` that the configuration
    names. One that was given itself has its hash in its name."""
    named = set(words(experiment.dump()))
    main = sys.modules["__main__"]
    paths = {name: name.removeprefix(MAIN) for name in named if name.startswith(MAIN)}
    found = {name: attribute(main, path) for name, path in paths.items() if not name.startswith(BY_VALUE)}
    for table in Registry.tables:
        found |= {f"{MAIN}{target.__qualname__}": target for name, target in table.of_main() if name in named}
    return {f"modules.{name}": code_hash(target) for name, target in found.items() if target is not None}


def code_hash(target: Any) -> str:
    """The hash of the code of a function, or of a class and its bases in `__main__`, and of what these call there."""
    return checksum("\n".join(_parts(target, set())).encode())


def _parts(target: Any, seen: set[int]) -> Iterator[str]:
    """What is hashed of a class or a function of `__main__`, each of them once."""
    if not inspect.isclass(target):
        yield from _function(target, seen)
        return
    for kind in target.__mro__:
        if kind.__module__ == "__main__" and id(kind) not in seen:
            seen.add(id(kind))
            for name, value in sorted(vars(kind).items()):
                special = name.startswith("__") and name.endswith("__")
                if parts := [*_function(value, seen)] or ([] if special else [*_values(value)]):
                    yield name
                    yield from parts


def _function(value: Any, seen: set[int]) -> Iterator[str]:
    """The code and the defaults of a function of `__main__`, and the functions and classes there that it reads; of a
    method or property that of the functions in it."""
    if isinstance(value, property):
        for part in (value.fget, value.fset, value.fdel):
            yield from _function(part, seen)
        return
    function = inspect.unwrap(getattr(value, "__func__", getattr(value, "func", value)))
    if inspect.isfunction(function) and function.__module__ == "__main__" and id(function) not in seen:
        seen.add(id(function))
        yield from _code(function.__code__)
        yield from _values(function.__defaults__)
        yield from _values(function.__kwdefaults__)
        for name in dict.fromkeys(_globals(function.__code__)):
            read = function.__globals__.get(name)
            if inspect.isclass(read) or inspect.isfunction(read):
                yield from _parts(read, seen)
            elif isinstance(read, PLAIN | tuple):  # a constant; a list or a dict may be one that a run fills
                yield f"{name} {[*_values(read)]}"


def _globals(code: CodeType) -> Iterator[str]:
    """The names that a code object reads in its module."""
    for one in dis.get_instructions(code):
        if one.opname == "LOAD_GLOBAL":
            yield one.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals(constant)


def _code(code: CodeType) -> Iterator[str]:
    """What a code object computes, without the file and the lines where it is written."""
    yield f"{code.co_name} {code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars}"
    for constant in code.co_consts:
        yield from _code(constant) if isinstance(constant, CodeType) else _values(constant)


def _values(value: Any) -> Iterator[str]:
    """A plain value as text that is the same in every process; of another object nothing."""
    if isinstance(value, PLAIN):
        yield repr(value)
    elif isinstance(value, tuple | list):
        yield f"{type(value).__name__} {[[*_values(part)] for part in value]}"
    elif isinstance(value, dict):
        yield f"dict {[[*_values(part)] for part in value.items()]}"
    elif isinstance(value, set | frozenset):
        yield f"set {sorted(str([*_values(part)]) for part in value)}"
