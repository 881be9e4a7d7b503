"""The kind of every buffer of a network: which are averaged over clients, and which stay where they are.

| kind | which | where it is |
|---|---|---|
| `average` | running means and variances of norm layers; declared ones | in `b [Q]`, see `algorithm.buffers` |
| `direction` | the vectors of `spectral_norm` | in `b [Q]`; the server makes the mean singular vectors |
| `counter` | `num_batches_tracked` of norm layers, which no forward pass reads | in the module, saved as initialised |
| `constant` | all others: training must not change them | in the module, saved bit for bit |
| `keep` | declared | in the module; a client's work and a test begin with its initial value, which is saved |
| `local` | declared | as `keep`, but a client goes on with its own value of last time |

A declaration is an entry of `model.buffers`, or of the attribute `buffer_kinds` of the module that owns the buffer:
`{leaf: kind}`. It is part of the module, so copies and wrappers of the network have it as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from flray.core.schema.errors import ConfigError, unknown

Declared = Literal["average", "keep", "local"]
Kind = Literal["average", "keep", "local", "direction", "counter", "constant"]
KINDS = "buffer_kinds"  # the attribute of a module with the kinds of its own buffers
RUNNING = ("running_mean", "running_var")


class Buffer(NamedTuple):
    """A buffer of a network. `names`: all its names, that of `named_buffers` first. `sites`: the dictionaries of
    modules that hold it, and its key there. `direct`: kernels of torch update it in place, so they may write to `b`."""

    names: tuple[str, ...]
    tensor: Tensor
    owner: nn.Module
    sites: tuple[tuple[dict[str, Any], str], ...]
    kind: Kind
    persistent: bool
    direct: bool

    @property
    def name(self) -> str:
        return self.names[0]


def find_buffers(module: nn.Module, dtype: torch.dtype = torch.float32) -> list[Buffer]:
    """All buffers, one that has several names once, in the order of `named_buffers`.

    Raises `ConfigError` for a declared `average` of what cannot be averaged: another type than `dtype`, that of the
    flat vectors, or a buffer that is not persistent, which no saved model contains.
    """
    found: dict[int, list[tuple[str, nn.Module, str]]] = {}
    tensors: dict[int, Tensor] = {}
    for place, owner in module.named_modules(remove_duplicate=False):
        for leaf, tensor in owner._buffers.items():
            if tensor is not None:
                found.setdefault(id(tensor), []).append((f"{place}.{leaf}".lstrip("."), owner, leaf))
                tensors[id(tensor)] = tensor
    return [_buffer(type(module).__name__, tensors[key], places, dtype) for key, places in found.items()]


def statistics(module: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """(owner, its name there, tensor) of every buffer of the kinds `average` and `direction`."""
    for owner in module.modules():
        for leaf, tensor in list(owner._buffers.items()):
            if tensor is not None and _kind(owner, leaf) in ("average", "direction"):
                yield owner, leaf, tensor


def declare(module: nn.Module, kinds: Mapping[str, Declared], model: str) -> None:
    """Write `model.buffers` to the modules of the network: names of buffers, or patterns of them (`*.steps`).

    A name that is no buffer may be another attribute that training changes, of the kind `keep`. Raises `ConfigError`
    for a name or pattern that fits none.
    """
    owners: dict[str, tuple[nn.Module, str]] = {}
    for place, owner in module.named_modules(remove_duplicate=False):
        for leaf in owner._buffers:
            owners[f"{place}.{leaf}".lstrip(".")] = (owner, leaf)
    for pattern, kind in kinds.items():
        fitting = [owners[name] for name in owners if fnmatchcase(name, pattern)] or _attribute(module, pattern)
        if not fitting:
            raise unknown("name", pattern, owners, f"model.buffers: model {model!r} has no such buffer")
        for owner, leaf in fitting:
            if leaf not in owner._buffers and kind != "keep":
                raise ConfigError(
                    f"model.buffers: {pattern} is an attribute and no buffer, so it can only be kept; write {pattern}: "
                    "keep, or register it with register_buffer"
                )
            setattr(owner, KINDS, {**getattr(owner, KINDS, {}), leaf: kind})


def declared_attributes(module: nn.Module) -> list[tuple[nn.Module, str]]:
    """The attributes besides buffers that are declared `keep`: (the module that owns it, its name there)."""
    declared = [(owner, leaf) for owner in module.modules() for leaf in getattr(owner, KINDS, {})]
    return [(owner, leaf) for owner, leaf in declared if leaf not in owner._buffers]


def attribute_refusal(model: str, name: str, content: str) -> str:
    """The line about an attribute, a global or a hook that training changes. `content`: its type, then more."""
    kind = content.partition(" ")[0]
    if kind in ("Generator", "RandomState", "Random"):
        return (
            f"model {model}: forward draws from {name}, a generator of its own; draw with torch.rand, numpy.random or "
            "random, which flray seeds by address, so that every process draws the same"
        )
    how = "make it a buffer (register_buffer), whose kind model.buffers declares"
    if name.replace(".", "").isidentifier() or name.replace(".", "").replace("_", "").isalnum():
        how += f", or write model.buffers: {{{name}: keep}} (every client begins with its first value)"
    return f"{_changed(model, name)}; {how}"


def _changed(model: str, name: str) -> str:
    return f"model {model}: training changes {name}, which is not sent, so each process would have its own"


def refusal(model: str, name: str, tensor: Tensor, persistent: bool = True) -> str:
    """The line about a buffer that training changes and nobody sends."""
    if persistent and tensor.dtype == torch.float32:
        how = f"write model.buffers: {{{name}: average}}, or keep (the first value), or local (each client's own)"
    else:
        why = "it is not in the state_dict" if not persistent else f"it is {str(tensor.dtype).removeprefix('torch.')}"
        how = (
            f"write model.buffers: {{{name}: keep}} (the first value), or local (each client's own); only a persistent "
            f"float32 buffer can be averaged, and {why}"
        )
    return f"{_changed(model, name)}; {how}"


def spectral_weight(left: Buffer) -> tuple[str, int]:
    """(the name of the weight that a `spectral_norm` with the vector `left` divides, the dimension of its rows)."""
    if isinstance(left.owner, _SpectralNorm):
        return f"{left.name.rsplit('.', 2)[0]}.original", left.owner.dim
    hook = next(hook for hook in left.owner._forward_pre_hooks.values() if isinstance(hook, SpectralNorm))
    return f"{left.name.removesuffix('_u')}_orig", hook.dim


def power_iterations(matrix: Tensor, left: Tensor, right: Tensor) -> None:
    """Move vectors to the first singular vectors of a `matrix [n, m]`, in place: `left [n]`, from which it starts, and
    `right [m]`. As many steps as PyTorch takes when it registers them."""
    for _ in range(15):
        right.copy_(normalize(matrix.T @ left, dim=0))
        left.copy_(normalize(matrix @ right, dim=0))


def _attribute(module: nn.Module, name: str) -> list[tuple[nn.Module, str]]:
    """The module and the name there of an attribute that is no buffer, parameter or module; [] if there is none."""
    place, _, leaf = name.rpartition(".")
    try:
        owner = module.get_submodule(place)
    except AttributeError:
        return []
    return [(owner, leaf)] if leaf in vars(owner) else []


def _buffer(model: str, tensor: Tensor, places: list[tuple[str, nn.Module, str]], dtype: torch.dtype) -> Buffer:
    names = tuple(name for name, _, _ in places)
    kinds = [(owner, leaf, _kind(owner, leaf)) for _, owner, leaf in places]
    # of several names of one buffer a declaration counts, or else the first that is no constant
    ordered = sorted(kinds, key=lambda kind: (kind[1] not in getattr(kind[0], KINDS, {}), kind[2] == "constant"))
    owner, leaf, kind = ordered[0]
    persistent = all(leaf not in owner._non_persistent_buffers_set for _, owner, leaf in places)
    if kind in ("average", "direction") and (tensor.dtype != dtype or not persistent):
        if leaf not in getattr(owner, KINDS, {}) and not isinstance(owner, _NormBase):
            kind = "constant"  # by its name alone: training must not change it
        else:
            what = f"is {tensor.dtype}, not {dtype}" if persistent else "is not persistent, so no saved model has it"
            raise ConfigError(
                f"model {model}: {names[0]} {what}, and cannot be averaged; write model.buffers: {{{names[0]}: keep}}"
            )
    sites = {(id(owner), leaf): (owner._buffers, leaf) for _, owner, leaf in places}
    kernel = getattr(type(owner).forward, "__module__", "").startswith("torch.nn.modules.")
    direct = isinstance(owner, _BatchNorm) and kernel and kind == "average"
    return Buffer(names, tensor, owner, tuple(sites.values()), kind, persistent, direct)


def _kind(owner: nn.Module, leaf: str) -> Kind:
    declared: Mapping[str, Kind] = getattr(owner, KINDS, {})
    if leaf in declared:
        return declared[leaf]
    if isinstance(owner, _NormBase) and leaf == "num_batches_tracked":
        return "counter"
    if leaf in RUNNING:
        return "average"
    if isinstance(owner, _SpectralNorm) and leaf in ("_u", "_v"):
        return "direction"
    hooks = owner._forward_pre_hooks.values()
    old = {f"{hook.name}{end}" for hook in hooks if isinstance(hook, SpectralNorm) for end in ("_u", "_v")}
    return "direction" if leaf in old else "constant"
