"""Builds a module from a checked `model` section. Refuses what no function of flat vectors can stand for."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from flray.core.network.buffers import declare
from flray.core.protocol.generators import preserve_globals, seed_globals
from flray.core.schema.errors import ConfigError, ResourceError, shown
from flray.core.schema.own import errors_of_own
from flray.models.model_config import TOKENS, ModelConfig, check_options, model_target
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
    check_structure(config, module, own_dtype="dtype" in parameters)
    if not hasattr(module, "head"):
        last = next(reversed(module._modules.values()), None)
        if last is not None and next(last.parameters(), None) is not None:
            object.__setattr__(module, "head", last)  # not registered: its parameters would have two names
    if config.dtype == "float64":
        module.double()  # in place; a method of the user's own may return nothing
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
    """A text model's arguments from the data's vocabulary. Raises `ConfigError` if only one of the two is text."""
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


EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
FLOAT32 = "build the network in float32 (precision: bf16 computes in mixed precision)"
PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def check_structure(config: ModelConfig, module: nn.Module, own_dtype: bool) -> None:
    """Raises `ConfigError` for a network that is of a kind that cannot be trained here. `own_dtype`: the key
    `model.dtype` is an option of the network's own."""
    name = config.name
    for place, part in module.named_modules():
        wrong = _wrong_kind(part)
        if wrong:
            raise ConfigError(f"model {name!r}: {place or type(part).__name__} {wrong}")
        dotted = next((key for key in part._modules if "." in key), None)
        if dotted is not None:
            other = dotted.replace(".", "_")
            raise ConfigError(
                f"model {name!r}: {place or type(part).__name__} names a part {dotted!r}, and a dot separates the "
                f"names of parts; write {other!r}"
            )
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for key, tensor in tensors.items():
        if is_lazy(tensor):
            raise ConfigError(f"model {name!r}: {key} has no shape yet (a Lazy layer); construct it with its sizes")
        if tensor.is_meta and torch.get_default_device().type != "meta":  # else the caller counts parameters
            raise ConfigError(
                f"model {name!r}: {key} is on the meta device and has no values; construct the network on the CPU"
            )
        if tensor.layout != torch.strided:
            raise ConfigError(f"model {name!r}: {key} is stored {tensor.layout}; register it as a dense tensor")
        trained = isinstance(tensor, nn.Parameter) and tensor.requires_grad
        if trained and tensor.dtype not in (torch.float32, getattr(torch, config.dtype)):
            wide = tensor.dtype == torch.float64 and not own_dtype
            advice = "write model.dtype=float64, or build the network in float32" if wide else FLOAT32
            raise ConfigError(f"model {name!r}: trainable parameter {key} is {tensor.dtype}; {advice}")
    _check_memory(name, tensors)
    _check_names(name, module)


def _wrong_kind(part: nn.Module) -> str:
    """What is wrong with a module, and what to write instead; "": nothing."""
    if isinstance(part, torch.jit.ScriptModule):
        return "is TorchScript, which holds its tensors itself; give the nn.Module that it was made from"
    if part._compiled_call_impl is not None or type(part).__name__ == "OptimizedModule":
        return "is compiled, and torch.compile would compile anew for every client; give the network without it"
    if isinstance(part, PARALLEL):
        return f"is wrapped in {type(part).__name__}; give the network in it (NETWORK.module): flray trains in parallel"
    if isinstance(part, EMBEDDINGS) and part.max_norm is not None:
        return (
            "has max_norm, so a forward pass writes into its weight, which other clients read; leave max_norm out and "
            "scale what it returns"
        )
    if isinstance(part, EMBEDDINGS) and part.sparse:
        return "has sparse=True, and gradients here are dense vectors; write sparse=False"
    if isinstance(part, _NormBase) and part.track_running_stats and part.momentum is None:
        return (
            "has momentum=None, an average that needs a count of batches, which is not averaged over clients; set a "
            "number, such as momentum=0.1"
        )
    return ""


def _check_memory(name: str, tensors: dict[str, Tensor]) -> None:
    """Two tensors in one place of memory: only one of them would be trained."""
    spans = []
    for key, tensor in tensors.items():
        if tensor.numel() and tensor.device.type == "cpu":
            last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
            start = tensor.data_ptr()
            spans.append((start, start + (last + 1) * tensor.element_size(), key))
    for (_, end, first), (start, _, second) in pairwise(sorted(spans)):
        if start < end:
            raise ConfigError(
                f"model {name!r}: {first} and {second} share memory and are two tensors; to tie them, give both "
                "modules one and the same: b.weight = a.weight, not its .data; else register a copy (.clone())"
            )


def _check_names(name: str, module: nn.Module) -> None:
    """Names in the state_dict other than those of parameters and buffers: hooks, or `get_extra_state`."""
    try:
        saved = module.state_dict()
    except Exception as error:
        raise ConfigError(f"model {name!r}: its state_dict() fails: {type(error).__name__}: {error}") from error
    known = {key for key, _ in module.named_parameters(remove_duplicate=False)}
    for place, owner in module.named_modules(remove_duplicate=False):
        leaves = owner._buffers.keys() - owner._non_persistent_buffers_set
        known |= {f"{place}.{leaf}".lstrip(".") for leaf in leaves if owner._buffers[leaf] is not None}
    other = sorted(saved.keys() ^ known)
    if other:
        which = "has" if other[0] in saved else "lacks"
        raise ConfigError(
            f"model {name!r}: its state_dict {which} {other[0]}, unlike its parameters and buffers; leave out "
            "get_extra_state and the hooks that rename tensors, or make the value a buffer"
        )
