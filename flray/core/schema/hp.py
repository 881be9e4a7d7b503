"""A hyper-parameter is declared once: default, bounds, search space, meaning.

The config check, the command line, `flray list`, the sweep's search space and the docs read that line:

    rho: float = hp(1.5, log=(0.05, 5.0), ge=0, doc="perturbation strength, Eq. 5")
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, Flag
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined


class SearchDomain(NamedTuple):
    """The default search space of a sweep: `log` and `linear` are ranges, `choice` a list."""

    kind: Literal["log", "linear", "choice"]
    values: tuple[Any, ...]


class Hyperparameter(NamedTuple):
    """One declared hyper-parameter, as `flray list` prints it and a sweep reads it."""

    name: str
    type: str
    default: Any
    bounds: str
    space: SearchDomain | None
    doc: str
    required: bool = False


def hp(
    default: Any,
    *,
    log: tuple[float, float] | None = None,
    linear: tuple[float, float] | None = None,
    choice: Sequence[Any] | None = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    doc: str,
) -> Any:
    """Declare a hyper-parameter; at most one of `log`, `linear`, `choice` is its search space.

    Raises `TypeError` for two spaces or a range that is empty (at import: a declaration is code).
    """
    given: dict[Any, Sequence[Any] | None] = {"log": log, "linear": linear, "choice": choice}
    spaces = [SearchDomain(kind, tuple(values)) for kind, values in given.items() if values is not None]
    if len(spaces) > 1:
        raise TypeError(f"hp: give one of log, linear, choice, not {len(spaces)}")
    for space in spaces:
        if space.kind != "choice" and not space.values[0] < space.values[1]:
            raise TypeError(f"hp: empty range {space.values}")
    extra: dict[str, Any] = {"space": spaces[0] if spaces else None}
    return Field(default, ge=ge, gt=gt, le=le, lt=lt, description=doc, json_schema_extra=extra)


def hyperparameters(model: type[BaseModel]) -> list[Hyperparameter]:
    """The declared hyper-parameters of an algorithm's class, in order of declaration. Those of a section inside it have
    dotted names: `detector.rho`."""
    declared = []
    for name, info in model.model_fields.items():
        part = info.annotation
        if isinstance(part, type) and issubclass(part, BaseModel):
            declared += [inner._replace(name=f"{name}.{inner.name}") for inner in hyperparameters(part)]
        else:
            declared.append(_describe(name, info))
    return declared


def declared_keys(model: type[BaseModel]) -> list[Hyperparameter]:
    """The keys of a section, in order of declaration; a section inside it is one key."""
    return [_describe(name, info) for name, info in model.model_fields.items()]


def _describe(name: str, info: FieldInfo) -> Hyperparameter:
    bounds = " ".join(
        f"{sign} {getattr(m, field)}"
        for m in info.metadata
        for field, sign in _SIGNS.items()
        if getattr(m, field, None) is not None
    )
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    space: Any = extra.get("space")
    options = _literals(info.annotation)
    if options:
        bounds = bounds or " | ".join(map(str, options))
    default = None if info.default is PydanticUndefined else info.default
    kind, doc = _type_name(info.annotation), info.description or ""
    return Hyperparameter(info.alias or name, kind, default, bounds, space, doc, required=info.is_required())


_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def _literals(annotation: Any) -> tuple[Any, ...]:
    """The values that a choice takes, as a configuration writes them."""
    if _is_enum(annotation):
        return tuple(member.value for member in annotation)
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _is_enum(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Enum) and not issubclass(annotation, Flag)


def _type_name(annotation: Any) -> str:
    """The type in words: `int | None`, `float | auto`, `list of int`; `choice` for a literal or an Enum, whose values
    are the bounds."""
    kind, inside = get_origin(annotation), get_args(annotation)
    if kind is Annotated:
        return _type_name(inside[0])
    if kind is Literal or _is_enum(annotation):
        return "choice"
    if kind in (Union, UnionType):
        return " | ".join(
            " | ".join(map(str, get_args(a))) if get_origin(a) is Literal else _type_name(a) for a in inside
        )
    if kind in (tuple, list):
        return f"list of {_type_name(inside[0])}"
    if isinstance(kind or annotation, type) and issubclass(kind or annotation, BaseModel):
        return "section"
    if kind is dict:
        return "mapping"
    return "None" if annotation is type(None) else getattr(annotation, "__name__", str(annotation))
