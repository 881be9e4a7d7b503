"""Refuses, each in one line, networks that no function of flat vectors can stand for."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from flray.core.schema.errors import ConfigError

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def check_structure(name: str, module: nn.Module) -> None:
    """Raises `ConfigError` for the network of model `name` that is of a kind that cannot be trained here."""
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
        if isinstance(tensor, nn.Parameter) and tensor.requires_grad and tensor.dtype != torch.float32:
            raise ConfigError(
                f"model {name!r}: trainable parameter {key} is {tensor.dtype}, not float32; build the network in "
                "float32 (precision: bf16 computes in mixed precision)"
            )
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
