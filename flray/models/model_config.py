"""The section `model: {name: resnet18, norm: group}`; importing it imports no torch.

A model's options are the parameters of its class (or function) besides those that the data give (`FROM_DATA`): names,
types, bounds and defaults are read from that signature and stand nowhere else. The same holds for a network of another
library (`libraries.py`: `timm:resnet18`) and for one of the user's own, named by import path (`my_module:MyNet`) or
added with `MODELS.add("mine", MyNet)`. Every model that has no
option of that name takes `weights`, a file to start from, and `weights_head`: whether its head comes from there too
(`load`) or stays as initialised (`fresh`); `dtype`: `float64` for comparisons with other code; and `buffers`, the kinds
of buffers by name (`core/network/buffers.py`).
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_type_hints

import numpy as np
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, create_model, model_validator
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from flray.core.schema.errors import ConfigError, kind_of, shown, unknown
from flray.core.schema.hp import Hyperparameter, declared_keys
from flray.core.schema.plain import Unquoted, numbers, ordered
from flray.core.schema.registry import OWN, Registry, load, readable
from flray.core.schema.section import Section
from flray.models.libraries import NETWORKS, library_model

MODELS = Registry(
    "model",
    {
        "mlp": "flray.models.mlp:MLP",
        "fedavg_cnn": "flray.models.cnn:FedAvgCNN",
        "small_cnn": "flray.models.cnn:SmallCNN",
        "simple_cnn": "flray.models.cnn:SimpleCNN",
        "resnet8": "flray.models.resnet:resnet8",
        "resnet8_3stage": "flray.models.resnet:resnet8_3stage",
        "resnet18": "flray.models.resnet:resnet18",
        "vgg11": "flray.models.cnn:VGG11",
        "sl_vit": "flray.models.sl_vit:SLViT",
        "vit": "flray.models.vit:ViT",
        "bert": "flray.models.bert:Bert",
        "t5": "flray.models.t5:T5",
    },
    f"{NETWORKS}; {OWN}",
)

# argument of a model of text -> field of the vocabulary
TOKENS = {
    "num_tokens": "size",
    "pad_token": "pad",
    "separator_token": "separator",
    "label_tokens": "labels",
    "task_of": "task_of",
    "task_tokens": "tasks",
}
FROM_DATA = ("input_shape", "num_classes", *TOKENS)
START = ("weights", "weights_head")
DTYPES = ("float32", "float64")  # of the parameters; float32 is the default, and is not written out
BUFFER_KINDS = ("average", "keep", "local")
OF_ALL = (*START, "dtype", "buffers")  # options that every network has
Head = Literal["load", "fresh"]  # of the weights to start from
ALIKE = {(int, float)}  # types of a default, and of what is read in its place
GIVEN_ALIKE = {*ALIKE, (tuple, list), (Unquoted, str)}


class ModelConfig(Section, frozen=True, extra="allow"):
    """A model's `name` (registered, or `module:Name`), its options with all defaults, and its starting weights."""

    shorthand: ClassVar[Mapping[type, str]] = {str: "name"}
    name: str

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        """Checks the options against the model and adds its defaults, as plain values."""
        if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
            return data  # pydantic's own message says what is wrong
        given = {key: value for key, value in data.items() if key != "name"}
        of_all = _of_all(data["name"], given)
        given = {key: _written(value) for key, value in given.items() if key not in of_all}
        options = check_options(data["name"], given)
        plain = {"name": data["name"]}
        for key in (*type(options).model_fields, *(options.model_extra or {})):
            value, why = _recorded(data["name"], options, given, key)
            if not why:
                plain[key] = value
            elif key in given:
                raise ConfigError(f"model {data['name']!r}, option {key!r}: not a plain value ({why})")
        return plain | _checked(of_all)

    @property
    def options(self) -> dict[str, Any]:
        """The model's own options."""
        return {key: value for key, value in (self.model_extra or {}).items() if key not in self._engines}

    @property
    def _engines(self) -> dict[str, Any]:
        return _of_all(self.name, self.model_extra or {})

    @property
    def dtype(self) -> str:
        """The type of the parameters and of the whole run's arithmetic: `float32`, or `float64` for comparisons."""
        return str(self._engines.get("dtype", DTYPES[0]))

    @property
    def buffers(self) -> dict[str, Any]:
        """The kinds of buffers that are declared, by name or pattern."""
        return dict(self._engines.get("buffers", {}))

    @property
    def start(self) -> dict[str, Any]:
        """`weights` and `weights_head`; empty for random weights."""
        return {key: value for key, value in self._engines.items() if key in START}

    @property
    def sources(self) -> list[str]:
        """The checkpoints that are named: `weights`, and the network's own option `pretrained`."""
        given = (self.start.get("weights"), self.options.get("pretrained"))
        return [source for source in given if isinstance(source, str)]


def _written(value: Any) -> Any:
    """A value with Python's numbers in place of NumPy's, and texts in place of paths, at any depth."""
    if isinstance(value, dict):
        return {_written(key): _written(inner) for key, inner in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(map(_written, value))
    if isinstance(value, np.generic):
        return value.item()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _recorded(name: str, options: BaseModel, given: Mapping[str, Any], key: str) -> tuple[Any, str]:
    """(an option as a plain value; "", or in words why it has none from which the network would get the same): by the
    aliases of its fields, or else by their names, since a `serialization_alias` reads nothing."""
    by_alias = _recorded_by(True, name, options, given, key)
    by_name = _recorded_by(False, name, options, given, key) if by_alias[1] else by_alias
    return by_alias if by_name[1] else by_name


def _recorded_by(alias: bool, name: str, options: BaseModel, given: Mapping[str, Any], key: str) -> tuple[Any, str]:
    value = getattr(options, key)
    try:
        plain = options.model_dump(mode="json", include={key}, by_alias=alias, round_trip=True)[key]
    except PydanticSerializationError as error:
        return None, str(error)
    if (in_order := ordered(value)) is not value:
        plain = to_jsonable_python(in_order)
    try:
        read = getattr(check_options(name, {**given, key: plain}), key)
    except ConfigError as error:
        return None, str(error)
    alike = GIVEN_ALIKE if key in given else ALIKE
    return plain, "" if _same(value, read, alike) else f"{shown(value)} would be read as {shown(read)}"


def _same(value: Any, read: Any, alike: Collection[tuple[type, type]]) -> bool:
    """Whether two options are equal and of equal types, or of two that are `alike`."""
    if type(value) is not type(read) and (type(value), type(read)) not in alike:
        return False
    if isinstance(value, Mapping):
        value, read = list(value.items()), list(read.items())
    if isinstance(value, list | tuple):
        return len(value) == len(read) and all(_same(*pair, alike) for pair in zip(value, read, strict=True))
    return bool(value == read)


def model_options(name: str) -> list[Hyperparameter]:
    """The options that model `name` declares, as `flray list models` prints them."""
    return declared_keys(_record(name, model_target(name)))


def _of_all(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of every network (`OF_ALL`) among the given ones, unless the network has options of these names."""
    own = inspect.signature(model_target(name)).parameters if any(key in given for key in OF_ALL) else {}
    return {key: given[key] for key in OF_ALL if key in given and key not in own}


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of every network as plain values, without those that say nothing. Raises `ConfigError`."""
    weights, head, dtype = (given.get(key) for key in (*START, "dtype"))
    dtype = dtype and getattr(dtype, "__name__", str(dtype)).removeprefix("torch.")  # also of an object: np.float64
    checked: dict[str, Any] = {}
    if weights is None and head is not None:
        raise ConfigError("model.weights_head is for the head of model.weights, which is not given; leave it out")
    if weights is not None:
        if not isinstance(weights, str | Path):
            what = (
                f"model.weights: {kind_of(weights) if isinstance(weights, Mapping) else shown(weights)} is not a path"
            )
            raise ConfigError(f"{what}; give a .safetensors file or a run folder, or torch.save it and give that file")
        if head not in (None, *get_args(Head)):
            raise unknown("value", str(head), get_args(Head), "model.weights_head")
        checked |= {"weights": str(weights), "weights_head": head or "load"}
    if dtype and dtype != DTYPES[0]:
        if dtype not in DTYPES:
            raise unknown("value", dtype, DTYPES, "model.dtype")
        checked["dtype"] = dtype
    kinds = given.get("buffers") or {}
    if not isinstance(kinds, Mapping):
        raise ConfigError(
            f"model.buffers: {shown(kinds)} is no mapping; write a kind for each buffer, such as model.buffers: "
            "{steps: keep}; the policy for all running statistics is algorithm.buffers"
        )
    for name, kind in kinds.items():
        if kind not in BUFFER_KINDS:
            raise unknown("value", str(kind), BUFFER_KINDS, f"model.buffers, {name}")
    return checked | ({"buffers": {str(name): str(kind) for name, kind in kinds.items()}} if kinds else {})


def model_target(name: str) -> Callable[..., Any]:
    """The class or function of a model: a registered one, or one named by import path. Raises `ConfigError`."""
    if ":" not in name:
        registered = MODELS.get(name)
        if not isinstance(registered, type | functools.partial) and not inspect.isroutine(registered):
            raise ConfigError(
                f"model {name!r} is registered as {kind_of(registered)}, a network that is built already; register its "
                f"class: MODELS.add({name!r}, {type(registered).__name__})"
            )
        return registered
    known = library_model(name)
    if known is not None:
        return known
    target = load(name, f"model {shown(name)}")
    from torch import nn  # the user's own module needs it anyway; the names of the table do not

    result = target if isinstance(target, type) else _returned(target)
    if result is None and inspect.isfunction(target) and set(FROM_DATA) & set(inspect.signature(target).parameters):
        return target  # of input_shape or num_classes: written for flray; `build_model` checks what it returns
    if not (isinstance(result, type) and issubclass(result, nn.Module)):
        raise ConfigError(
            f"model {shown(readable(name))} is not a torch.nn.Module class or a function annotated to return one; "
            "write class Net(nn.Module), or def net(input_shape, num_classes)"
        )
    return target  # type: ignore[no-any-return]


def _returned(target: Any) -> Any:
    """The return annotation of a function; None for other objects."""
    if not inspect.isfunction(target):
        return None
    try:
        return get_type_hints(inspect.unwrap(target)).get("return")
    except (NameError, AttributeError, TypeError):  # annotations that only a type checker can resolve
        return None


@functools.cache  # pydantic builds a record in 5 ms, and every experiment of a grid asks for it
def _record(name: str, target: Callable[..., Any]) -> type[BaseModel]:
    """The options of model `name` as a pydantic record: its signature without the arguments that the data give."""
    try:
        parameters = inspect.signature(target, eval_str=True).parameters.values()
    except (NameError, AttributeError, TypeError):  # annotations that only a type checker can resolve
        parameters = inspect.signature(target).parameters.values()
    keywords = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    options = [p for p in keywords if p.name not in (*FROM_DATA, "name") and not p.name.startswith("_")]
    extra: Any = "allow" if any(p.kind is p.VAR_KEYWORD for p in parameters) else "forbid"
    config = {"extra": extra, "arbitrary_types_allowed": True, "protected_namespaces": ()}

    def record(typed: bool) -> type[BaseModel]:
        fields: dict[str, Any] = {}
        for p in options:
            fields[p.name] = (_type(p) if typed else Any, ... if p.default is p.empty else p.default)
        return create_model(name, __base__=Section, __cls_kwargs__=config, **fields)

    try:
        return record(typed=True)
    except PydanticUserError:  # for a type that pydantic cannot check; the class itself does
        return record(typed=False)


def _type(parameter: inspect.Parameter) -> Any:
    """The annotation. Where the default value says more, a value is first read as of its type. A number, a truth value
    or a text is not, since each may be meant as it stands: `on` may name a mode where the default is False."""
    annotation, default = parameter.annotation, parameter.default
    unknown = annotation in (parameter.empty, Any) or isinstance(annotation, str)
    guess: Any = None
    if unknown and (isinstance(default, Enum | set | frozenset) or _reads_back(default)):
        guess = type(default)
    if (unknown or annotation is dict) and isinstance(default, dict):  # and texts only as keys
        kinds = {type(key) for key in default}
        guess = dict[kinds.pop(), Any] if len(kinds) == 1 and kinds != {str} else None  # type: ignore[misc]
    known = annotation if not unknown else tuple[Any, ...] if isinstance(default, tuple) else Any  # YAML has lists only
    return known if guess is None else Annotated[guess | known, Field(union_mode="left_to_right")]


def _reads_back(default: Any) -> bool:
    """Whether a value is a dataclass, a named tuple or a model of pydantic, and its fields as plain values give it."""
    kind: Any = type(default)
    if not (is_dataclass(kind) or hasattr(kind, "_fields") or isinstance(default, BaseModel)):
        return False
    for by_alias in (True, False):
        with suppress(Exception):  # a field of a type that pydantic does not know, an own __post_init__
            fields = TypeAdapter(kind).dump_python(default, mode="json", by_alias=by_alias, round_trip=True)
            if TypeAdapter(kind).validate_python(fields) == default:
                return True
    return False


def check_options(name: str, given: Mapping[str, Any]) -> BaseModel:
    """The checked options of model `name`. Raises `ConfigError` for an unknown, missing or wrong one."""
    declared = _record(name, target := model_target(name))
    for key in given:
        if key in FROM_DATA and key in inspect.signature(target).parameters:
            raise ConfigError(f"model {name!r}: {key} comes from the data; leave it out")
        if key not in declared.model_fields and declared.model_config["extra"] == "forbid":
            if not declared.model_fields:
                raise ConfigError(f"unknown option {key!r} in model {name!r}, which has no options")
            raise unknown("option", str(key), (*declared.model_fields, *OF_ALL), f"model {name!r}")
    fields = declared.model_fields
    types = {key: field.annotation for key, field in fields.items()}
    untyped = {key for key in given if Any in (types.get(key, Any), *get_args(types.get(key)))}
    texts = {key for key in untyped & fields.keys() if isinstance(fields[key].default, str)}
    given = {key: numbers(value) if key in untyped - texts else value for key, value in given.items()}
    try:
        return declared(**given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        value = f", got {shown(first['input'])}"
        if first["type"] == "missing":
            value = (
                f"; write model.{place}=VALUE, or give it a default ({' and '.join(FROM_DATA[:2])} come from the data)"
            )
        raise ConfigError(f"model {name!r}, option {place!r}: {first['msg']}{value}") from error
