"""A message in a file: its arrays, and its structure as JSON. Reading it needs the classes, but no template.

The structure names a record's class as `module:qualname`, and contains numbers, booleans, texts and None as they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import json
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CellType, FunctionType
from typing import Any

import numpy as np

from flray.core.messages import Record, children, equal, leaves, to_numpy
from flray.core.schema.errors import AlgorithmError, CheckpointError
from flray.core.schema.own import computed

STRUCTURE = "flray.structure"  # in a file's metadata


@dataclass(frozen=True)
class Packed:
    """`structure`: JSON values, with the names of the arrays; `arrays`: by name."""

    structure: Any
    arrays: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, message: Any) -> Packed:
        """Pack a message.

        Raises `AlgorithmError` for a value that no message may contain, and for a record whose class would come back
        as a later one of the same name with other code.
        """
        message = to_numpy(message)
        arrays: dict[str, np.ndarray] = {}
        for name, leaf in leaves(message):
            if isinstance(leaf, np.ndarray):
                arrays[_unused_name(name, arrays)] = leaf
        kinds: set[type[Record]] = set()
        structure = _structure(message, iter(arrays), kinds)
        _check_names(kinds)
        return cls(structure, arrays)

    def message(self) -> Any:
        """The message, of NumPy arrays, with the same types and bits.

        Raises `CheckpointError` for a class that is not loaded, a field that a class no longer has or now needs, and a
        missing array.
        """
        return _message(self.structure, self.arrays, _classes())

    def write(self, path: Path) -> None:
        """Write a safetensors file with the structure in its metadata. Raises `OSError` and `SafetensorError`."""
        from safetensors.numpy import save_file

        arrays = {name: np.asarray(array, order="C") for name, array in self.arrays.items()}
        save_file(arrays, path, {STRUCTURE: json.dumps(self.structure)})

    @classmethod
    def read(cls, path: Path) -> Packed:
        """Read the file of :meth:`write`. Raises `OSError`, `SafetensorError`, and `ValueError` for any other file."""
        from safetensors import safe_open

        with safe_open(path, framework="numpy") as file:
            structure = (file.metadata() or {}).get(STRUCTURE)
            if structure is None:
                raise ValueError("it does not say what its arrays are")
            return cls(json.loads(structure), {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118


def _unused_name(name: str, taken: Mapping[str, Any]) -> str:
    """`name`, made longer until it is unused: a dict's keys may look like fields."""
    while name in taken:
        name += "'"
    return name


def _structure(message: Any, names: Iterator[str], kinds: set[type[Record]]) -> Any:
    """The structure, with the next of `names` for each array; adds the classes of its records to `kinds`."""
    if isinstance(message, np.ndarray):
        return {"array": next(names)}
    parts = children(message)
    if parts is None:
        return message
    inner = {key: _structure(part, names, kinds) for key, part in parts.items()}
    if isinstance(message, Record):
        kinds.add(type(message))
        return {"record": _name(type(message)), "fields": inner}
    return {"dict": inner} if isinstance(message, dict) else {"tuple": list(inner.values())}


def _message(structure: Any, arrays: Mapping[str, np.ndarray], classes: dict[str, type[Record]]) -> Any:
    match structure:
        case {"array": name}:
            if name not in arrays:
                raise CheckpointError(f"array {name} is missing")
            return arrays[name]
        case {"record": name, "fields": fields}:
            return _record(name, {key: _message(part, arrays, classes) for key, part in fields.items()}, classes)
        case {"dict": parts}:
            return {key: _message(part, arrays, classes) for key, part in parts.items()}
        case {"tuple": parts}:
            return tuple(_message(part, arrays, classes) for part in parts)
    return structure


def _record(name: str, values: dict[str, Any], classes: dict[str, type[Record]]) -> Record:
    module, _, own = name.partition(":")
    if name not in classes and module.startswith("flray."):  # algorithms are imported at their first use
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
        classes.update(_classes())
    if name not in classes:
        remedy = f"import what defines it (--import {module})"
        if module.startswith("flray."):
            remedy = "another version of flray wrote it: resume the run with that one, or run its config.yaml anew"
        raise CheckpointError(f"the class {own} of the module {module} is not loaded; {remedy}")
    kind = classes[name]
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(values.keys() - fields.keys())
    if unknown:
        raise CheckpointError(f"{name} has no field {unknown[0]} any more (its fields: {', '.join(fields)})")
    needed = [n for n, f in fields.items() if n not in values and f.default is f.default_factory is dataclasses.MISSING]
    if needed:
        raise CheckpointError(f"{name} has a field {needed[0]} now, of which nothing was saved; give it a default")
    return kind(**values)


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _check_names(kinds: Iterable[type[Record]]) -> None:
    """Raises `AlgorithmError` for a user's class whose name stands for one with other code."""
    own = [kind for kind in kinds if not kind.__module__.startswith("flray.")]
    classes = _classes() if own else {}
    for kind in own:
        if not _is_same(kind, classes[_name(kind)], {}):
            raise AlgorithmError(
                f"{kind.__qualname__} of the module {kind.__module__}: another message class of this name has other "
                "code, and a stored message names its class; give each a name of its own, such as "
                f'{kind.__name__}.__qualname__ = f"{kind.__name__}{{number}}" below it'
            )


def _is_same(one: Any, other: Any, seen: dict[tuple[int, int], tuple[Any, Any]]) -> bool:
    """Whether two classes, or two parts of them, compute the same, as far as Python can compare them.

    `seen`: the pairs that are being compared, or were, by their ids. It keeps them alive: the id of an object that is
    gone is used again.
    """
    pair = (id(one), id(other))
    if one is other or pair in seen:
        return True
    seen[pair] = (one, other)
    if type(one) is not type(other) and not _is_same(type(one), type(other), seen):  # a nested class has twins as well
        return False
    mine, others = _parts(one), _parts(other)
    if mine is not None and others is not None:
        return mine.keys() == others.keys() and all(_is_same(part, others[name], seen) for name, part in mine.items())
    try:
        return equal(one, other)
    except Exception:  # the `==` of a library's or a user's class
        return True


def _parts(value: Any) -> dict[Any, Any] | None:
    """Of a class its name, its methods and data, with those of its bases; of a function its code, its defaults and what
    it reads of the functions around it; of a container its values; of an object that knows no `==` what pickle would
    write, which is nothing where it refuses; None: anything else."""
    if isinstance(value, type):
        every = {name: part for base in reversed(value.__mro__) for name, part in vars(base).items()}
        every |= getattr(value, "__members__", {})  # of an Enum, whose own entries do not contain the values
        every = {name: getattr(part, "__func__", getattr(part, "fget", part)) for name, part in every.items()}
        read = {n: part for n, part in every.items() if isinstance(part, FunctionType) or not n.startswith("_")}
        return {"class": _name(value), **read}
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        around = {name: cell.cell_contents for name, cell in cells if cell != CellType()}
        return {**around, "def": computed(value.__code__), "=": (value.__defaults__, value.__kwdefaults__)}
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if isinstance(value, dict):
        return value
    compares: Any = type(value).__eq__
    if compares is not object.__eq__:
        return children(value)
    if hasattr(value, "__wrapped__"):  # functools.cache
        return {"def": value.__wrapped__}
    try:
        return {"pickled": value.__reduce_ex__(2)}
    except Exception:  # a lock, a file
        return {}


_known_duplicates: weakref.WeakSet[type] = weakref.WeakSet()  # classes of the same name that are both in use


def _classes() -> dict[str, type[Record]]:
    """Every record class by name; of two classes of one name (a notebook's cell that ran twice) the later one.

    When a class arrives by value again, cloudpickle creates an empty class of its name and drops it for the known one.
    The empty class is in the list of subclasses until it is collected, so this function collects it.
    """
    by_name = _by_name()
    twice = {kind for kinds in by_name.values() if len(kinds) > 1 for kind in kinds}
    if not twice <= set(_known_duplicates):
        del twice
        by_name.clear()
        gc.collect()
        by_name = _by_name()
        _known_duplicates.update(kind for kinds in by_name.values() if len(kinds) > 1 for kind in kinds)
    return {name: kinds[-1] for name, kinds in by_name.items()}


def _by_name() -> dict[str, list[type[Record]]]:
    by_name: dict[str, list[type[Record]]] = {}
    parents: list[type[Record]] = [Record]
    while parents:
        parents = [kind for parent in parents for kind in parent.__subclasses__()]
        for kind in parents:
            by_name.setdefault(_name(kind), []).append(kind)
    return by_name
