"""What algorithms, models and diagnostics declare, as a table: configurations are checked without torch.

A wheel contains the table; in a checkout the first command writes it into `FLRAY_CACHE` (:mod:`without_torch`). It
names the fingerprint of its sources; a table of other sources is not read. Inside :func:`declared_only` the
registries give stand-ins: pydantic classes (of models: signatures) with the same fields, bounds and bases, and
without methods. A check that needs the class's own code runs later, with the class: a stand-in may accept too much,
never too little.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import NoneType, UnionType, new_class
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from flray.algorithms import ALGORITHMS
from flray.core.protocol.algorithm_section import AlgorithmSection
from flray.core.schema.hp import SearchDomain
from flray.core.schema.registry import Registry, standing_in
from flray.core.schema.section import Section
from flray.files import atomic_write, cache_root, checksum
from flray.metrics.probes import PROBES
from flray.models import MODELS

TABLES: tuple[Registry, ...] = (ALGORITHMS, MODELS, PROBES)
PACKAGE = Path(__file__).parents[1]
PACKAGED = PACKAGE / "config" / "declared.json"  # in a wheel; see setup.py
SOURCES = ("algorithms", "config", "core", "metrics", "models", "ops")  # what the classes of the tables are made of
ROOTS = {_class: f"{_class.__module__}:{_class.__qualname__}" for _class in (AlgorithmSection, Section, BaseModel)}
PLAIN = {"int": int, "float": float, "str": str, "bool": bool, "None": NoneType, "Any": Any, "dict": dict}
GENERIC = {"tuple": tuple, "list": list, "dict": dict, "frozenset": frozenset}
BOUNDS = ("Ge", "Gt", "Le", "Lt", "MinLen", "MaxLen", "MultipleOf")


class NotPlain(Exception):
    """A type or a value that the table cannot hold."""


@contextlib.contextmanager
def declared_only() -> Iterator[bool]:
    """Inside, the registries give stand-ins of flray's own classes. Yields whether they do.

    They do not if torch is imported already (the classes are as fast), or if no table can be written.
    """
    table = None if "torch" in sys.modules else read_table() or _table_of_another_process()
    if table is None:
        yield False
        return
    with standing_in(StandIns(table)):
        yield True


def check_declared(check: Callable[[], object]) -> None:
    """Call `check` with stand-ins, if there are any: it raises the error of a wrong configuration without torch."""
    with declared_only() as stand_ins:
        if stand_ins:
            check()


def write_table(file: Path) -> None:
    """Write the table of the imported classes."""
    text = json.dumps({"fingerprint": fingerprint(), "entries": build_table()})
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as temporary:
        temporary.write_text(text)


def read_table() -> dict[str, Any] | None:
    """The entries by `module:name`; None if there is no table of these sources."""
    for file in (PACKAGED, cached_table()):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            stored = json.loads(file.read_bytes())
            if stored["fingerprint"] == fingerprint():
                return dict(stored["entries"])
    return None


def _table_of_another_process() -> dict[str, Any] | None:
    """The entries, written by a process that does not import torch; None if that fails."""
    command = (sys.executable, "-m", "flray.config.without_torch", str(cached_table()))
    with contextlib.suppress(OSError):
        subprocess.run(command, capture_output=True, cwd=PACKAGE.parent)
    return read_table()


def cached_table() -> Path:
    """The table's file in `FLRAY_CACHE`, one for each installed flray."""
    return cache_root() / f"declared-{checksum(str(PACKAGE).encode())[:12]}.json"


@cache
def fingerprint() -> str:
    """A checksum of the sources' names and contents."""
    files = sorted(path for folder in SOURCES for path in (PACKAGE / folder).rglob("*.py"))
    parts = [part for path in files for part in (path.relative_to(PACKAGE).as_posix().encode(), path.read_bytes())]
    return checksum(*parts)


# from the classes to the table --------------------------------------------------------------------
def build_table() -> dict[str, Any]:
    """The entries of all that flray itself registers, and of the classes that these inherit from or hold."""
    entries: dict[str, Any] = {}
    for registry in TABLES:
        for name, path in registry.own_paths().items():
            target = registry.get(name)
            with contextlib.suppress(NotPlain):  # then the class itself is imported
                if isinstance(target, type) and issubclass(target, BaseModel):
                    _add_class(target, entries)
                    entries.setdefault(path, entries[_place(target)])
                else:
                    entries[path] = _signature_entry(target)
    return entries


def _place(target: Any) -> str:
    return f"{target.__module__}:{target.__qualname__}"


def _docs(target: Any) -> dict[str, Any]:
    return {
        "place": _place(target),
        "doc": target.__doc__,
        "about": sys.modules[target.__module__].__doc__,
    }


def _add_class(kind: type[BaseModel], entries: dict[str, Any]) -> None:
    """Add a class after its bases. Raises `NotPlain` where its own code sees the values before pydantic does."""
    if kind in ROOTS or _place(kind) in entries:
        return
    bases = [base for base in kind.__bases__ if issubclass(base, BaseModel)]
    for base in bases:
        _add_class(base, entries)
    decorators = kind.__pydantic_decorators__
    known = {name for base in bases for name in base.__pydantic_decorators__.model_validators}
    known |= set(AlgorithmSection.__pydantic_decorators__.model_validators)
    for name, validator in decorators.model_validators.items():
        if validator.info.mode != "after" and name not in known:
            raise NotPlain(f"{_place(kind)}: {name}")
    early = {
        field
        for each in decorators.field_validators.values()
        if each.info.mode != "after"
        for field in each.info.fields
    }
    inherited = {name: info for base in reversed(bases) for name, info in base.model_fields.items()}
    annotated = vars(kind).get("__annotations__", {})
    fields = {
        name: _field(info, name in early, entries)
        for name, info in kind.model_fields.items()
        if name in annotated or name not in inherited
    }
    variables = {}
    for name, value in vars(kind).items():
        if isinstance(value, property) or name in kind.__class_vars__:
            # what the class computes no stand-in knows
            variables[name] = _value(frozenset() if isinstance(value, property) else value)
    entries[_place(kind)] = {
        **_docs(kind),
        "bases": [ROOTS[base] if base in ROOTS else _place(base) for base in bases],
        "fields": fields,
        "variables": variables,
    }


def _field(info: FieldInfo, unchecked: bool, entries: dict[str, Any]) -> dict[str, Any]:
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    space: Any = extra.get("space")
    entry = {
        "type": "Any" if unchecked else _type(info.annotation, entries),
        "bounds": [] if unchecked else [_bound(item) for item in info.metadata],
        "doc": info.description,
        "space": None if space is None else [space.kind, list(space.values)],
    }
    if info.default_factory is not None:
        return {**entry, "default": _value(info.get_default(call_default_factory=True))}
    return entry if info.default is PydanticUndefined else {**entry, "default": _value(info.default)}


def _signature_entry(target: Any) -> dict[str, Any]:
    """Of a model: its parameters; an annotation that pydantic cannot check there is `Any` here as well."""
    try:
        parameters = inspect.signature(target, eval_str=True).parameters.values()
    except (NameError, AttributeError, TypeError):
        raise NotPlain(_place(target)) from None
    described = []
    for p in parameters:
        entry = {"name": p.name, "kind": p.kind.value}
        if p.annotation is not p.empty:
            entry["type"] = _type(p.annotation, {})
        if p.default is not p.empty:
            entry["default"] = _value(p.default)
        described.append(entry)
    return {**_docs(target), "parameters": described}


def _type(annotation: Any, entries: dict[str, Any]) -> Any:
    """A type as JSON."""
    plain = next((name for name, kind in PLAIN.items() if kind is annotation), None)
    if plain is not None:
        return plain
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return {"literal": [_value(value) for value in inside]}
    if origin in (Union, UnionType):
        return {"union": [_type(kind, entries) for kind in inside]}
    if origin is Annotated:
        return {"annotated": _type(inside[0], entries), "bounds": [_bound(item) for item in inside[1:]]}
    if origin in GENERIC.values():
        return {"of": origin.__name__, "types": ["..." if kind is ... else _type(kind, entries) for kind in inside]}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        _add_class(annotation, entries)
        return {"section": _place(annotation)}
    raise NotPlain(str(annotation))


def _bound(item: Any) -> list[Any]:
    """`[Ge, 0]`, or what a `Field` in an annotation says."""
    if isinstance(item, FieldInfo):
        return ["Field", [_bound(inner) for inner in item.metadata], item.description]
    name = type(item).__name__
    if name not in BOUNDS:
        raise NotPlain(str(item))
    return [name, _value(dataclasses.astuple(item)[0])]


def _value(value: Any) -> Any:
    """A default as JSON: tuples, sets and sections say what they are."""
    if isinstance(value, tuple | frozenset):
        items = sorted(value) if isinstance(value, frozenset) else value
        return {"of": type(value).__name__, "items": [_value(item) for item in items]}
    if isinstance(value, BaseModel):
        return {"of": "section", "kind": _place(type(value)), "items": _value(dict(value))}
    if isinstance(value, Mapping) and not value.keys() & {"of"}:
        if all(isinstance(key, str) for key in value):
            return {key: _value(inner) for key, inner in value.items()}
        return {"of": "mapping", "items": [[_key(key), _value(inner)] for key, inner in value.items()]}
    if isinstance(value, list):
        return [_value(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise NotPlain(repr(value))


def _key(key: Any) -> Any:
    """A key of `shorthand`, a type."""
    if isinstance(key, type) and PLAIN.get(key.__name__) is key:
        return key.__name__
    raise NotPlain(repr(key))


# from the table to stand-ins ----------------------------------------------------------------------
class StandIns(Mapping[str, Any]):
    """Stand-ins by `module:name`, made when they are first asked for."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._table = table
        self._built: dict[str, Any] = {path: root for root, path in ROOTS.items()}

    def __getitem__(self, path: str) -> Any:
        if path not in self._built:
            entry = self._table[path]
            self._built[path] = self[entry["place"]] if entry["place"] != path else self._make(entry)
        return self._built[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def _make(self, entry: Mapping[str, Any]) -> Any:
        module, _, name = entry["place"].partition(":")
        said = {"__module__": module, "__qualname__": name, "__doc__": entry["doc"], "__about__": entry["about"]}
        if "parameters" in entry:
            parameters = [self._parameter(each) for each in entry["parameters"]]
            return type(name, (), {**said, "__signature__": inspect.Signature(parameters), "__init__": _no_model})
        values: dict[str, Any] = {"__annotations__": {}, **said}
        for key, value in entry["variables"].items():
            values[key], values["__annotations__"][key] = self._read(value), ClassVar[Any]
        for key, field in entry["fields"].items():
            values[key], values["__annotations__"][key] = self._field(field), self._type(field["type"])
        bases = tuple(self[base] for base in entry["bases"])
        return new_class(name, bases, {}, lambda namespace: namespace.update(values))

    def _parameter(self, entry: Mapping[str, Any]) -> inspect.Parameter:
        empty = inspect.Parameter.empty
        return inspect.Parameter(
            entry["name"],
            inspect._ParameterKind(entry["kind"]),
            default=self._read(entry["default"]) if "default" in entry else empty,
            annotation=self._type(entry["type"]) if "type" in entry else empty,
        )

    def _field(self, entry: Mapping[str, Any]) -> Any:
        default: Any = self._read(entry["default"]) if "default" in entry else PydanticUndefined
        space = None if entry["space"] is None else SearchDomain(entry["space"][0], tuple(entry["space"][1]))
        info: Any = Field(default, description=entry["doc"], json_schema_extra={"space": space})  # type: ignore[dict-item]
        info.metadata = [self._bound(item) for item in entry["bounds"]]
        return info

    def _type(self, entry: Any) -> Any:
        if isinstance(entry, str):
            return ... if entry == "..." else PLAIN[entry]
        if "literal" in entry:
            return Literal[tuple(entry["literal"])]
        if "union" in entry:
            return Union[tuple(self._type(kind) for kind in entry["union"])]  # noqa: UP007
        if "annotated" in entry:
            return Annotated[(self._type(entry["annotated"]), *(self._bound(item) for item in entry["bounds"]))]
        if "section" in entry:
            return self[entry["section"]]
        return GENERIC[entry["of"]][tuple(self._type(kind) for kind in entry["types"])]  # type: ignore[index]

    def _bound(self, item: list[Any]) -> Any:
        if item[0] == "Field":
            info: Any = Field(description=item[2])
            info.metadata = [self._bound(inner) for inner in item[1]]
            return info
        return getattr(annotated_types, item[0])(self._read(item[1]))

    def _read(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._read(item) for item in value]
        if not isinstance(value, dict):
            return value
        items: Any = value.get("items")
        if "of" not in value:
            return {key: self._read(inner) for key, inner in value.items()}
        if value["of"] == "section":
            return self[value["kind"]](**self._read(items))
        if value["of"] == "mapping":
            return {PLAIN[key]: self._read(inner) for key, inner in items}
        return GENERIC[value["of"]](self._read(items))


def _no_model(self: Any, *_: Any, **__: Any) -> None:
    raise TypeError(f"{type(self).__name__} here is a signature, not a network")
