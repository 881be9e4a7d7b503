"""Builds a module from a checked `model` section."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from flray.core.network.buffers import declare
from flray.core.protocol.generators import preserve_globals, seed_globals
from flray.core.schema.errors import ConfigError, ResourceError, shown
from flray.core.schema.own import errors_of_own
from flray.models.model_config import TOKENS, ModelConfig, check_options, model_target
from flray.models.structure import check_structure
from flray.models.weights import load_weights


def build_model(config: ModelConfig, input_shape: tuple[int, ...], num_classes: int, seed: int) -> nn.Module:
    """The network for inputs `[B, *input_shape]` and `num_classes` logits, on the CPU, initialised from `seed` alone.

    The generators of torch, NumPy and Python are seeded for the constructor. The shape of text has its `vocabulary`
    (`flray.data.dataset.TextShape`), from which a model gets `num_tokens`, `pad_token` and `separator_token`. Global
    generators do not change. `head` is the module's own attribute, or else its last registered child if that has
    parameters. A network of yours that declares `features` must satisfy `head(features(x)) == forward(x)`. Raises
    `ConfigError` and `ResourceError`.
    """
    target = model_target(config.name)
    checked = check_options(config.name, config.options)
    # options that were not given keep the default objects of the signature
    arguments = {key: getattr(checked, key) for key in checked.model_fields_set}
    parameters = inspect.signature(target).parameters
    sizes = {
        "input_shape": tuple(input_shape),
        "num_classes": num_classes,
        **_tokens(config.name, input_shape, parameters),
    }
    arguments |= {key: value for key, value in sizes.items() if key in parameters}
    with preserve_globals():
        seed_globals(seed)
        with errors_of_own(f"model {config.name!r}"):
            try:
                module = target(**arguments)
            except (MemoryError, RuntimeError, TypeError, OverflowError) as error:  # TypeError: more than 63 bits
                memory = isinstance(error, MemoryError | OverflowError) or "allocate memory" in str(error)
                if not memory and "overflow" not in str(error).lower():
                    raise
                raise _too_large(config, error) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model {config.name!r} returned a {type(module).__name__}; return a torch.nn.Module")
    check_structure(config.name, module)
    if not hasattr(module, "head"):
        last = next(reversed(module._modules.values()), None)
        if last is not None and next(last.parameters(), None) is not None:
            object.__setattr__(module, "head", last)  # not registered: its parameters would have two names
    if config.dtype == "float64":
        module = module.double()
    if config.start:
        how = load_weights(module, config.start["weights"], config.start["weights_head"])
        object.__setattr__(module, "weights_read", how)
    if config.buffers:
        declare(module, config.buffers, config.name)
    return module


def starts_from(config: ModelConfig, module: nn.Module) -> str | None:
    """In words, the file with a built network's starting weights, and the parts that are random. None: it has no option
    `pretrained` and no `weights`."""
    options = config.options
    if config.start:
        how = getattr(module, "weights_read", "")
        return f"{config.start['weights']}, its head: {config.start['weights_head']}" + (how and f"; read {how}")
    if "pretrained" not in options:
        return None
    pretrained = getattr(module, "starts_from", options["pretrained"])
    if pretrained is None or pretrained is False:
        return "random weights: model.pretrained names no file"
    return "its own weights (model.pretrained: true)" if pretrained is True else str(pretrained)


def _too_large(config: ModelConfig, error: Exception) -> ResourceError:
    """The error for a model too large to allocate; it names the option with the largest number."""
    asked = re.search(r"allocate (\d+) bytes", str(error))
    size = f"{int(asked[1]) / 1e9:,.0f} GB for one tensor" if asked else "more than 2^63 bytes for one tensor"
    numbers = {key: [int(n) for n in re.findall(r"\d+", str(value))] for key, value in config.options.items()}
    widest = max(numbers, key=lambda key: max(numbers[key], default=0), default="name")
    value = shown(config.options.get(widest, config.name))
    return ResourceError(f"model.{widest}={value}: {config.name!r} needs {size}, which cannot be allocated; lower it")


def _tokens(name: str, input_shape: tuple[int, ...], parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """A text model's arguments from the data's vocabulary. Raises `ConfigError` if only the model or only the data are
    text."""
    vocabulary = getattr(input_shape, "vocabulary", None)
    if vocabulary is None:
        if "num_tokens" in parameters and parameters["num_tokens"].default is inspect.Parameter.empty:
            raise ConfigError(
                f"model {name!r} reads text, the data have samples of shape {list(input_shape)}; choose another model"
            )
        return {}
    if "num_tokens" not in parameters:
        raise ConfigError(
            f"model {name!r} does not read text: it has no argument num_tokens; use 'bert', or a network that has one"
        )
    words = parameters.get("label_tokens")
    if words is not None and words.default is words.empty and not vocabulary.labels:
        raise ConfigError(f"model {name!r} answers in words, and the classes of the data have none; set data.words")
    return {argument: getattr(vocabulary, field) for argument, field in TOKENS.items()}
