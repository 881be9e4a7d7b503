"""Starting weights of other programs, with their names of tensors: a network's own option `pretrained`.

Files of flray are for `model.weights` (`weights.py`). Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from flray.core.schema.errors import ConfigError
from flray.models.weights import read_weights

STATISTICS = ("running_mean", "running_var")


def adopt(module: nn.Module, source: str, weights: Mapping[str, Tensor], fresh: Collection[str]) -> str:
    """Copy the tensors `weights` of the file `source`, by the module's own names, into `module`.

    The children in `fresh` take tensors of equal shapes, and otherwise stay as initialised. Counters of batches are
    ignored, and so are running statistics that the module does not have. Returns a line with the source and the random
    parts. Raises `ConfigError` for other tensors that are missing, unknown or of another shape.
    """
    own, what, left = module.state_dict(), f"model.pretrained: {source}", dict[str, str]()
    for name, tensor in own.items():
        child = name.partition(".")[0]
        if name in weights and weights[name].shape == tensor.shape:
            continue
        there = f"{list(weights[name].shape)} there" if name in weights else "not there"
        if child in fresh:
            left.setdefault(child, f" ({there})" if name in weights else "")
        elif tensor.is_floating_point():
            need = f"{type(module).__name__} needs it as {list(tensor.shape)}"
            raise ConfigError(f"{what}: {name} is {there}, {need}; it is of another network")
    for name in weights.keys() - own.keys():
        if name.partition(".")[0] not in left and name.rpartition(".")[2] not in (*STATISTICS, "num_batches_tracked"):
            raise ConfigError(f"{what} has {name}, which {type(module).__name__} has not; it is of another network")
    taken = {name: t for name, t in weights.items() if name in own and name.partition(".")[0] not in left}
    module.load_state_dict(taken, strict=False)
    said = ", ".join(child + why for child, why in left.items())
    return source + (f"; random: {said}" if left else "")


def foreign_weights(source: str) -> dict[str, Tensor]:
    """The tensors of a `.safetensors`, `.pth`, `.pt` or `.bin` file, floating ones as float32.

    Raises `ConfigError` for a file that cannot be read, or has other values than tensors.
    """
    weights = read_weights(source, "model.pretrained")
    wrong = next((name for name, value in weights.items() if not isinstance(value, Tensor)), None)
    if wrong is not None:
        raise ConfigError(f"model.pretrained: {source} has {wrong!r}, which is not a tensor; save the state_dict alone")
    return {name: t.to(torch.float32) if t.is_floating_point() else t for name, t in weights.items()}
