"""The networks of one experiment: the one that is trained, and those that the server trains alone or freezes."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import nn

from flray.core.network.buffers import statistics
from flray.core.network.objective import Objective, Precision
from flray.core.schema.errors import ConfigError

MODEL = "model"  # how an error calls the network that is trained


def objectives(
    model: nn.Module,
    others: Mapping[str, nn.Module],
    device: torch.device | str = "cpu",
    precision: Precision = "fp32",
    dtype: torch.dtype = torch.float32,
) -> tuple[Objective, dict[str, Objective]]:
    """The objective of the network that is trained, and those of the others by name, which may be all frozen.

    Raises `ConfigError` for what is no module, for a model without a trainable parameter, and where two networks have a
    module in common: each would run with the other's tensors.
    """
    owners: dict[int, str] = {}
    for name, network in {MODEL: model, **others}.items():
        if not isinstance(network, nn.Module):
            raise ConfigError(f"network {name!r} of the algorithm is a {type(network).__name__}, not a torch.nn.Module")
        for place, module in network.named_modules():
            owner = owners.setdefault(id(module), name)
            if owner != name and (module._parameters or module._buffers):  # others hold nothing
                raise ConfigError(
                    f"networks {owner!r} and {name!r} of the algorithm have the module {place or 'itself'} in common; "
                    "give one of them a copy: flray.core.network.networks.twin"
                )
    return Objective(model, device, precision, dtype=dtype), {
        name: Objective(network, device, precision, False, _type(network, dtype)) for name, network in others.items()
    }


def cast_trained(module: nn.Module, dtype: torch.dtype) -> None:
    """Give what a network has in the flat vectors, trained parameters and running statistics, the type `dtype`, in
    place.

    Other tensors keep their bits: frozen parts in bfloat16, constants in float64. A network in float64 is so as a
    whole, because its inputs are; complex tensors stay as they are.
    """
    if dtype == torch.float64:
        module.double()
        return
    for p in module.parameters():
        if p.requires_grad and p.is_floating_point():
            p.data = p.data.to(dtype)
    for owner, leaf, tensor in statistics(module):
        if tensor.is_floating_point():
            owner._buffers[leaf] = tensor.to(dtype)


def _type(network: nn.Module, dtype: torch.dtype) -> torch.dtype:
    """The type of another network's flat vectors: `dtype` if what is in them has it, else float32."""
    trained = [p for p in network.parameters() if p.requires_grad]
    held = [*trained, *(tensor for _, _, tensor in statistics(network))]
    return dtype if held and held[0].dtype == dtype else torch.float32


def twin(network: nn.Module) -> nn.Module:
    """A copy of a network that shares its frozen parameters, so that a frozen body is in memory once."""
    return copy.deepcopy(network, {id(p): p for p in network.parameters() if not p.requires_grad})
