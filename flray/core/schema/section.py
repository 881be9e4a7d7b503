"""Sections of the configuration: their base class, shorthands, and pydantic's errors in one line."""

from __future__ import annotations

import functools
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields as dataclass_fields, is_dataclass
from typing import Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    Discriminator,
    ModelWrapValidatorHandler,
    RootModel,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError, to_jsonable_python

from flray.core.schema.errors import ConfigError, described, nearest, place, shown
from flray.core.schema.own import HOME, check_hooks
from flray.core.schema.plain import Unquoted, numbers, ordered
from flray.core.schema.registry import Registry

# pydantic's names of the errors of models and dataclasses
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_STRICT = object()  # the context of a validation that refuses every unknown key
_READ_AS_ANOTHER = re.compile(r"\s*[-+]?0[0_]*[-+]")  # pydantic drops leading zeros, and reads `0-4` as -4


class Section(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """A part of the configuration: unknown keys are errors, numbers are finite, `true` and `yes` are not numbers.

    `shorthand`: the field that a single value sets, by the type of the value, as in `cohort: 10`. `renamed`: former key
    -> present key, for the error of a former key. `elsewhere`: a key that people look for here -> where it is set.
    """

    shorthand: ClassVar[Mapping[type, str]] = {}
    renamed: ClassVar[Mapping[str, str]] = {}
    elsewhere: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, data: Any) -> Any:
        """Turn true into the text `true` for fields of numbers, because pydantic reads true as 1: its error for the
        text names the place. Turn the text `none` into None for a section that can be left out. Raises `ConfigError`
        for a user's class with a misspelt method."""
        check_hooks(cls)
        if not isinstance(data, Mapping):
            return data
        data = {
            key: None if isinstance(value, str) and value == "none" and key in _optional(cls) else value
            for key, value in data.items()
        }
        return {key: _truth_as_text(value) if key in _numeric(cls) else value for key, value in data.items()}

    @model_validator(mode="wrap")
    @classmethod
    def _no_key_is_dropped(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """Refuse a key that a model of pydantic in an option does not know, since it would ignore it."""
        section = handler(data)
        if _holds_models(cls) and info.context is not _STRICT:
            try:
                cls.__pydantic_validator__.validate_python(data, extra="forbid", context=_STRICT)
            except ValidationError as error:
                dropped = [_dropped(section, item) for item in error.errors() if item["type"] in _UNKNOWN]
                lines = {line["loc"]: line for line in dropped if line is not None}  # one of all types of a union
                if lines:
                    raise ValidationError.from_exception_data(cls.__name__, [*lines.values()]) from None
        return section


@functools.cache
def _numeric(section: type[BaseModel]) -> frozenset[str]:
    """The fields that take numbers and no booleans."""
    kinds = {name: set(_kinds(info.annotation)) for name, info in section.model_fields.items()}
    return frozenset(name for name, types in kinds.items() if types & {int, float} and not types & {bool, Any, object})


@functools.cache
def _optional(section: type[BaseModel]) -> frozenset[str]:
    """The sections that can be left out: a command line says `none`."""
    kinds = {name: set(get_args(info.annotation)) for name, info in section.model_fields.items()}
    sections = {name for name, types in kinds.items() if any(_is_section(kind) for kind in types)}
    return frozenset(name for name in sections if kinds[name] - {type(None)} != kinds[name])


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


@functools.cache
def _holds_models(section: type[BaseModel]) -> bool:
    """Whether options are models of pydantic other than sections, or dataclasses, which may hold some."""
    kinds = {kind for info in section.model_fields.values() for kind in _kinds(info.annotation)}
    of_users = [kind for kind in kinds if isinstance(kind, type) and not issubclass(kind, Section)]
    return any(issubclass(kind, BaseModel) or is_dataclass(kind) for kind in of_users)


def _dropped(section: BaseModel, item: ErrorDetails) -> InitErrorDetails | None:
    """The error for a key that a model inside a `section` ignores; None if the model's class says what becomes of such
    keys, if a function of the user's reads them, or for another type of a union than that of the value."""
    *parts, key = item["loc"]
    owner: Any = section
    path: list[Any] = []
    for part in parts:
        owner = owner.root if isinstance(owner, RootModel) else owner
        if isinstance(owner, Mapping):
            inside = {str(name): value for name, value in owner.items()}
        elif isinstance(owner, list | tuple):
            inside = {str(number): value for number, value in enumerate(owner)}
        else:
            kind: Any = type(owner)
            keys = _keys(kind)
            inside = {name: getattr(owner, field) for name, field in keys.items()}
            if part in inside and _chooses(kind, keys[str(part)]):
                return None
        if str(part) in inside:  # others are pydantic's names of a validator, or of one of several types
            owner, path = inside[str(part)], [*path, part]
    last: Any = type(owner)
    if _config(last).get("extra") is not None or key in _keys(last):
        return None
    error = PydanticCustomError("unknown_key", "unknown key{near}", {"near": nearest(str(key), _keys(last))})
    return InitErrorDetails(type=error, loc=(*path, key), input=item["input"])


def _config(kind: type) -> Mapping[str, Any]:
    return getattr(kind, "model_config", None) or getattr(kind, "__pydantic_config__", {})


def _chooses(kind: Any, field: str) -> bool:
    """Whether a function of the user's chooses the type of a field by keys that the type may lack."""
    info = getattr(kind, "__pydantic_fields__", {}).get(field)
    parts = [] if info is None else [*_kinds(info.annotation), *info.metadata, info.discriminator]
    return any(isinstance(part, Discriminator) for part in parts)


@functools.cache
def _keys(kind: Any) -> dict[str, str]:
    """By each key that a model of pydantic or a dataclass reads, the field that has its value; empty for others."""
    fields = getattr(kind, "__pydantic_fields__", None)
    if fields is None:
        return {field.name: field.name for field in dataclass_fields(kind)} if is_dataclass(kind) else {}
    by_name = _config(kind).get("populate_by_name") or _config(kind).get("validate_by_name")
    keys: dict[str, str] = {}
    for name, info in fields.items():
        alias = info.validation_alias
        keys |= {name: name} if by_name or alias is None else {}
        for one in alias.choices if isinstance(alias, AliasChoices) else [alias] if alias else []:
            keys[str(one.path[0] if isinstance(one, AliasPath) else one)] = name
    return keys


def _kinds(annotation: Any) -> Iterable[Any]:
    if get_origin(annotation) is Literal:
        return [type(value) for value in get_args(annotation)]
    inner = get_args(annotation)
    return [kind for part in inner for kind in _kinds(part)] if inner else [annotation]


def _truth_as_text(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_truth_as_text(item) for item in value]
    if isinstance(value, str) and _READ_AS_ANOTHER.match(value):
        return f"'{value}'"
    return str(value).lower() if isinstance(value, bool) else value


def section_of(root: type[BaseModel] | None, path: Iterable[Any]) -> type[BaseModel] | None:
    """The section below `root` at a path of keys; None: a plain value, or nothing, is there."""
    for part in path:
        if str(part).isdigit() and root is not None:  # an entry of a list of sections
            continue
        info = root.model_fields.get(part) if root is not None else None
        options = [info.annotation, *get_args(info.annotation)] if info else []
        root = next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)
    return root


def expand_shorthand(value: Any, section: type[BaseModel] | None) -> Any:
    """`value` with every shorthand replaced by its mapping.

    `10` for a cohort becomes `{size: 10, fraction: None}`, so over another mapping it also replaces the other fields of
    the shorthand.
    """
    if isinstance(value, Mapping):
        return {key: expand_shorthand(inner, section_of(section, (key,))) for key, inner in value.items()}
    fields: Mapping[type, str] = getattr(section, "shorthand", {})
    if isinstance(value, Unquoted) and fields:
        value = str(value) if str in fields else numbers(value)
    meant = fields.get(type(value)) or (fields.get(float) if type(value) is int else None)
    return value if meant is None else {**dict.fromkeys(fields.values()), meant: value}


def named_entries(key: str, value: Any, table: Registry) -> tuple[str | dict[str, Any], ...]:
    """The entries of a key such as `diagnostics`: `[NAME, {name: NAME, option: ...}]`, names of a `table`.

    Returns them with every option written out. Raises `ConfigError`.
    """
    sections: dict[str, dict[str, Any]] = {}
    entries = (value,) if isinstance(value, str | dict) else () if value is None else value
    if not isinstance(entries, list | tuple) or not all(isinstance(entry, str | dict) for entry in entries):
        raise ValueError("must be a list of names, or of {name: ..., option: ...}")
    for entry in entries:
        values = {"name": entry} if isinstance(entry, str) else dict(entry)
        name = values.pop("name", None)
        kind = table.get(name)
        if name in sections:
            raise ConfigError(f"{key}: {name} is there twice; remove one of them")
        with one_line(f"{key}.{name}", kind):
            sections[name] = {"name": name, **dumped(f"{key}.{name}", kind(**values))}
    return tuple(values["name"] if len(values) == 1 else values for values in sections.values())


def build_sections(entries: Iterable[str | dict[str, Any]], table: Registry) -> dict[str, Any]:
    """The sections of checked entries by name, in their order."""
    sections = {}
    for entry in entries:
        values = {"name": entry} if isinstance(entry, str) else dict(entry)
        name = values.pop("name")
        sections[name] = table.get(name)(**values)
    return sections


def dumped(where: str, section: Section) -> dict[str, Any]:
    """The options of a section as plain values, of which its class makes the same section again.

    Raises `ConfigError` for a user's class that does not: `config.yaml` would be another experiment, or none.
    """
    kind = type(section)
    if kind.__module__.startswith(HOME):
        return _options(section)
    try:
        values = _options(section)
        with one_line(where, kind):
            again = kind(**values)
    except ConfigError as error:
        remedy = "config.yaml has every option with its value, and the class must take them back"
        raise ConfigError(f"{error}; {remedy}") from None
    except Exception as error:  # a user's validator, or a value that no JSON has
        what = f"the options of {kind.__name__} cannot be written to config.yaml"
        raise ConfigError(f"{where}: {what}: {described(error)}") from None
    for name in kind.model_fields:
        given, read = getattr(section, name), getattr(again, name)
        if _of_fields(read) != _of_fields(given) and read != given:
            raise ConfigError(
                f"{where}.{name}: {kind.__name__} makes {shown(read)} of {shown(given)} as config.yaml has it: keep "
                "the option as it is given, of a declared type, and convert it where it is used"
            )
    return values


def _of_fields(value: Any) -> Any:
    """A value with the fields of each model in its place: no configuration has private attributes."""
    if isinstance(value, BaseModel):
        fields = {name: _of_fields(getattr(value, name)) for name in type(value).model_fields}
        return type(value), fields, value.__pydantic_extra__
    if isinstance(value, Mapping):
        return {key: _of_fields(part) for key, part in value.items()}
    return [type(value), *map(_of_fields, value)] if isinstance(value, list | tuple) else value


def by_alias(section: BaseModel) -> bool:
    """Whether a dump of a section is by aliases: not where its class reads the names of its fields alone, since a
    `serialization_alias` reads nothing."""
    if type(section).__module__.startswith(HOME):
        return True
    names, aliases = (section.model_dump(by_alias=by, round_trip=True, warnings=False) for by in (False, True))
    return names == aliases or _gives(section, aliases) or not _gives(section, names)


def _gives(section: BaseModel, values: Mapping[str, Any]) -> bool:
    try:
        return bool(type(section)(**values) == section)
    except Exception:  # a user's validator, or a value that it refuses
        return False


def _options(section: Section) -> dict[str, Any]:
    how: dict[str, Any] = {"by_alias": by_alias(section), "round_trip": True, "warnings": False}
    values = section.model_dump(mode="json", **how)
    for name, value in section.model_dump(**how).items():
        if (in_order := ordered(value)) is not value:
            values[name] = to_jsonable_python(in_order)
    return values


@contextmanager
def one_line(where: str, model: type[BaseModel]) -> Iterator[None]:
    """Turn a pydantic error in the block into one `ConfigError` line: key, problem, most similar valid key. So is the
    `TypeError` of a user's own `__init__`, which does not take the options."""
    try:
        yield
    except TypeError as error:
        own = model.__init__
        *_, (raised_in, _) = traceback.walk_tb(error.__traceback__)
        if own.__module__.startswith((HOME, "pydantic.")) or not raised_in.f_globals["__name__"].startswith(HOME):
            raise  # of another method, which the traceback names
        raise ConfigError(
            f"{where}: {model.__name__}.__init__{place(own)}: {error}; options are fields: write NAME: float = "
            "hp(0.5, doc=...) in place of __init__"
        ) from None
    except ValidationError as error:
        lines = [_line(item, where, model) for item in error.errors()]
        more = f" (and {len(lines) - 1} more: {'; '.join(lines[1:4])})" if len(lines) > 1 else ""
        raise ConfigError(lines[0] + more) from None


def _line(item: ErrorDetails, where: str, model: type[BaseModel]) -> str:
    inner = ("function-", "literal[", "constrained-")  # pydantic's names of what a field is made of
    path = [str(part) for part in item["loc"] if not str(part).startswith(inner)]
    key = ".".join([where, *path] if where else path)
    if item["type"] == "extra_forbidden":
        owner = section_of(model, path[:-1])
        for base in getattr(owner, "__mro__", ()):  # a class of a user's with one of these keeps that of its base
            if new := vars(base).get("renamed", {}).get(path[-1]):
                return f"{key}: this key has a new name; write {key.removesuffix(path[-1])}{new}"
            if place := vars(base).get("elsewhere", {}).get(path[-1]):
                return f"{key}: unknown key; {place}"
        keys = [info.alias or name for name, info in owner.model_fields.items()] if owner else []
        return f"{key}: unknown key{nearest(path[-1], keys) if owner else ''}"
    if item["type"] == "missing":
        return f"{key}: missing; add it to the configuration"
    if item["type"] == "model_type":
        fields = getattr(section_of(model, path), "shorthand", {}).values() or ["..."]
        return f"{key}: {shown(item['input'])} is no section; write {key}: {{{' or '.join(fields)}: VALUE}}"
    message = item["msg"].removeprefix("Value error, ")
    return f"{key}: {message[0].lower()}{message[1:]}, got {shown(item['input'])}"
