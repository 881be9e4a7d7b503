"""From `model: {name: resnet18, norm: group}` to a module.

A model's options are the parameters of its class (or function) besides those that the data give (`FROM_DATA`): names,
types, bounds and defaults are read from that signature and stand nowhere else. The same holds for a network of the
user's own, named by import path (`my_module:MyNet`) or added with `MODELS.add("mine", MyNet)`. Every model that has no
option of that name takes `weights`, a file to start from, and `weights_head`: whether its head comes from there too
(`load`) or stays as initialised (`fresh`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, get_args, get_type_hints

import torch
from pydantic import BaseModel, ValidationError, create_model, model_validator
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from flray.core.schema.errors import ConfigError, ResourceError, shown, unknown
from flray.core.schema.hp import Hyperparameter, declared_keys
from flray.core.schema.registry import Registry, load
from flray.core.schema.section import Section
from flray.models.weights import Head, load_weights

MODELS = Registry(
    "model",
    {
        "mlp": "flray.models.mlp:MLP",
        "fedavg_cnn": "flray.models.cnn:FedAvgCNN",
        "small_cnn": "flray.models.cnn:SmallCNN",
        "resnet8": "flray.models.resnet:resnet8",
        "resnet8_3stage": "flray.models.resnet:resnet8_3stage",
        "resnet18": "flray.models.resnet:resnet18",
        "vgg11": "flray.models.vgg:VGG11",
        "sl_vit": "flray.models.sl_vit:SLViT",
        "vit": "flray.models.vit:ViT",
        "bert": "flray.models.bert:Bert",
        "t5": "flray.models.t5:T5",
    },
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


class ModelConfig(Section, frozen=True, extra="allow"):
    """A model's `name` (registered, or `module:Name`), its own options with all defaults, and its starting weights."""

    shorthand: ClassVar[Mapping[type, str]] = {str: "name"}
    name: str

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        """Check the options against the model and add its defaults, as plain values that YAML can hold."""
        if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
            return data  # pydantic's own message says what is wrong
        given = {key: value for key, value in data.items() if key != "name"}
        start = _start(data["name"], given)
        given = {key: value for key, value in given.items() if key not in start}
        options = _check(data["name"], given)
        plain = {"name": data["name"]}
        for key in (*type(options).model_fields, *(options.model_extra or {})):
            try:
                plain.update(options.model_dump(mode="json", include={key}))
            except PydanticSerializationError as error:
                if key in given:
                    raise ConfigError(f"model {data['name']!r}, option {key!r}: not a plain value ({error})") from error
        return {**plain, **_checked_start(start)}

    @property
    def options(self) -> dict[str, Any]:
        """The model's own options."""
        extra = self.model_extra or {}
        return {key: value for key, value in extra.items() if key not in _start(self.name, extra)}

    @property
    def start(self) -> dict[str, Any]:
        """`weights`, `weights_head`; empty where it starts from random ones."""
        return _start(self.name, self.model_extra or {})

    @property
    def sources(self) -> list[str]:
        """The checkpoints that are named here: `weights`, and what a network's own option `pretrained` says."""
        given = (self.start.get("weights"), self.options.get("pretrained"))
        return [source for source in given if isinstance(source, str)]


def _too_large(config: ModelConfig, error: Exception) -> ResourceError:
    """The error for a model that cannot be allocated: it names the option with the largest number in it."""
    asked = re.search(r"allocate (\d+) bytes", str(error))
    size = f"{int(asked[1]) / 1e9:,.0f} GB for one tensor" if asked else "more than 2^63 bytes for one tensor"
    numbers = {key: [int(n) for n in re.findall(r"\d+", str(value))] for key, value in config.options.items()}
    widest = max(numbers, key=lambda key: max(numbers[key], default=0), default="name")
    value = shown(config.options.get(widest, config.name))
    return ResourceError(f"model.{widest}={value}: {config.name!r} takes {size}, which cannot be allocated; lower it")


def build_model(config: ModelConfig, input_shape: tuple[int, ...], num_classes: int, seed: int) -> nn.Module:
    """The network for inputs `[B, *input_shape]` and `num_classes` logits, on the CPU, initialised from `seed` alone.

    The shape of text tells its `vocabulary` (`flray.data.dataset.TextShape`), from which a model gets `num_tokens`,
    `pad_token` and `separator_token`. The process-wide generators are left as they were. `head` is the module's own
    attribute, or else its last registered child where that has parameters; a network of yours that declares `features`
    must satisfy `head(features(x)) == forward(x)`.
    """
    target = _target(config.name)
    checked = _check(config.name, config.options)
    # defaults that were not given stay the signature's own objects
    arguments = {key: getattr(checked, key) for key in checked.model_fields_set}
    parameters = inspect.signature(target).parameters
    sizes = {
        "input_shape": tuple(input_shape),
        "num_classes": num_classes,
        **_tokens(config.name, input_shape, parameters),
    }
    arguments |= {key: value for key, value in sizes.items() if key in parameters}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed the GPUs' generators as well
        try:
            module = target(**arguments)
        except (MemoryError, RuntimeError, TypeError, OverflowError) as error:  # TypeError: more than 63 bits
            memory = isinstance(error, MemoryError | OverflowError) or "allocate memory" in str(error)
            if not memory and "overflow" not in str(error).lower():
                raise
            raise _too_large(config, error) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model {config.name!r} gave a {type(module).__name__}, not a torch.nn.Module")
    _reject(config.name, module)
    if not hasattr(module, "head"):
        last = next(reversed(module._modules.values()), None)
        if last is not None and next(last.parameters(), None) is not None:
            object.__setattr__(module, "head", last)  # an alias: registering it would give its parameters a second name
    if config.start:
        load_weights(module, config.start["weights"], config.start["weights_head"])
    return module


def starts_from(config: ModelConfig, module: nn.Module) -> str | None:
    """In words, the file that a built network starts from and what of it is random; None: it can name no file of
    another program, and `weights` names none."""
    options = config.options
    if config.start:
        return f"{config.start['weights']}, its head: {config.start['weights_head']}"
    if "pretrained" not in options:
        return None
    if options["pretrained"] is None:
        return "random weights: model.pretrained names no file"
    return str(getattr(module, "starts_from", options["pretrained"]))


def model_options(name: str) -> list[Hyperparameter]:
    """The options that model `name` declares, as `flray list models` prints them."""
    return declared_keys(_declared(name))


def _start(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the given options that say where to start from; a network's own option of that name is its own."""
    own = inspect.signature(_target(name)).parameters if any(key in given for key in START) else {}
    return {key: given[key] for key in START if key in given and key not in own}


def _checked_start(given: Mapping[str, Any]) -> dict[str, Any]:
    """Both options as plain values, or none."""
    weights, head = given.get("weights"), given.get("weights_head")
    if weights is None:
        if head is not None:
            raise ConfigError(
                "model.weights_head says what becomes of the head of model.weights, which is not given; leave it out"
            )
        return {}
    if not isinstance(weights, str | Path):
        raise ConfigError(f"model.weights: {weights!r} is no path; give a .safetensors file or a run folder")
    if head not in (None, *get_args(Head)):
        raise unknown("value", str(head), get_args(Head), "model.weights_head")
    return {"weights": str(weights), "weights_head": head or "load"}


def _tokens(name: str, input_shape: tuple[int, ...], parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """What token ids count in, where the data are text; `ConfigError` where only one of model and data is for text."""
    vocabulary = getattr(input_shape, "vocabulary", None)
    if vocabulary is None:
        if "num_tokens" in parameters and parameters["num_tokens"].default is inspect.Parameter.empty:
            raise ConfigError(
                f"model {name!r} reads text, the data have samples of shape {list(input_shape)}; choose another model"
            )
        return {}
    if "num_tokens" not in parameters:
        raise ConfigError(
            f"model {name!r} does not read text: it declares no num_tokens; use 'bert', or a network of yours that does"
        )
    words = parameters.get("label_tokens")
    if words is not None and words.default is words.empty and not vocabulary.labels:
        raise ConfigError(f"model {name!r} answers in words, and the data have none for their classes; set data.words")
    return {argument: getattr(vocabulary, field) for argument, field in TOKENS.items()}


def _target(name: str) -> Callable[..., Any]:
    """What makes the model: registered by code, or named by import path, and then a maker of networks, nothing else."""
    if ":" not in name:
        return MODELS.get(name)  # type: ignore[no-any-return]
    target = load(name, f"model {shown(name)}")
    made = target if isinstance(target, type) else _returned(target)
    if not (isinstance(made, type) and issubclass(made, nn.Module)):
        raise ConfigError(
            f"model {shown(name)} is no torch.nn.Module class, and no function that says it returns one: "
            "class Net(nn.Module), or def net(...) -> nn.Module"
        )
    return target  # type: ignore[no-any-return]


def _returned(target: Any) -> Any:
    """The annotation of what a function returns; None for anything else."""
    if not inspect.isfunction(target):
        return None
    try:
        return get_type_hints(inspect.unwrap(target)).get("return")
    except (NameError, AttributeError, TypeError):  # annotations that only a type checker can resolve
        return None


def _declared(name: str) -> type[BaseModel]:
    """The signature of model `name`, without what comes from the data, as a pydantic record."""
    target = _target(name)
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
    except PydanticUserError:  # a type that pydantic cannot check: then the class checks it itself
        return record(typed=False)


def _type(parameter: inspect.Parameter) -> Any:
    annotation = parameter.annotation
    if annotation is not parameter.empty and not isinstance(annotation, str):
        return annotation
    return tuple[Any, ...] if isinstance(parameter.default, tuple) else Any  # YAML has lists only


def _check(name: str, given: Mapping[str, Any]) -> BaseModel:
    """`given` as checked options of model `name`; raises `ConfigError` for an unknown, missing or wrong one."""
    declared = _declared(name)
    for key in given:
        if key in FROM_DATA and key in inspect.signature(_target(name)).parameters:
            raise ConfigError(f"model {name!r}: {key} comes from the data; leave it out")
        if key not in declared.model_fields and declared.model_config["extra"] == "forbid":
            if not declared.model_fields:
                raise ConfigError(f"unknown option {key!r} in model {name!r}, which has no options")
            raise unknown("option", str(key), (*declared.model_fields, *START), f"model {name!r}")
    try:
        return declared(**given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        value = "" if first["type"] == "missing" else f", got {shown(first['input'])}"
        raise ConfigError(f"model {name!r}, option {place!r}: {first['msg']}{value}") from error


def _reject(name: str, module: nn.Module) -> None:
    for place, norm in module.named_modules():
        if isinstance(norm, _NormBase) and norm.track_running_stats and norm.momentum is None:
            raise ConfigError(
                f"model {name!r}: {place} has momentum=None, an average that needs the count of batches seen; "
                "statistics are averaged over clients as floats: set a number, such as momentum=0.1"
            )
    lazy = [place for place, parameter in module.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise ConfigError(f"model {name!r}: {lazy[0]} has no shape yet (a Lazy layer); construct it with its sizes")
