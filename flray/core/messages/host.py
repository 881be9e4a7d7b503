"""Copies from a device to the host: several values in one, because a GPU waits at each."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64  # bytes, of each array in a common copy
# bytes of the largest tensor in a common copy: for a larger one its second copy on the device costs more than waiting
LARGEST = 2**20


class Numbers:
    """Values of which those on a device come to the host in one copy, as float64.

    `packed`: their numbers `[n]` on the device; None: none is on a device. Other values stay as they are.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self.values = list(values)
        on_device = [value for value in self.values if _on_device(value)]
        self.packed = torch.cat([value.detach().reshape(-1).double() for value in on_device]) if on_device else None

    def unpacked(self, numbers: np.ndarray | None) -> list[Any]:
        """The values, with those on a device from the copy of `packed`."""
        if numbers is None:
            return self.values
        sizes = [value.numel() if _on_device(value) else 0 for value in self.values]
        parts = torch.split(torch.from_numpy(numbers), sizes)
        return [
            part.view(value.shape) if _on_device(value) else value
            for part, value in zip(parts, self.values, strict=True)
        ]


def _on_device(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type != "cpu"


def to_host(values: Iterable[Any]) -> list[Any]:
    """The values, with tensors on the CPU: those of a device in one copy, as float64; the others are what they are."""
    numbers = Numbers(values)
    return numbers.unpacked(None if numbers.packed is None else numbers.packed.cpu().numpy())


def arrays(tensors: Iterable[Tensor]) -> list[np.ndarray]:
    """The tensors as NumPy arrays. Those of a device of at most `LARGEST` bytes come in one copy."""
    tensors = [tensor.detach() for tensor in tensors]
    packed = [i for i, t in enumerate(tensors) if t.device.type != "cpu" and 0 < t.nbytes <= LARGEST]
    if len(packed) < 2:
        return [tensor.cpu().numpy() for tensor in tensors]
    parts, starts = [], [0]
    for i in packed:
        raw = tensors[i].contiguous().reshape(-1).view(torch.uint8)
        parts.append(torch.nn.functional.pad(raw, (0, -len(raw) % ALIGNMENT)))
        starts.append(starts[-1] + len(parts[-1]))
    content = torch.cat(parts).cpu()
    found: dict[int, np.ndarray] = {}
    for i, (start, _) in zip(packed, itertools.pairwise(starts), strict=True):
        tensor = tensors[i]
        found[i] = content[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape).numpy()
    return [found[i] if i in found else tensor.cpu().numpy() for i, tensor in enumerate(tensors)]
