"""One flat vector for many tensors, and the views that lead back.

A :class:`Layout` maps named tensors to places in a flat float32 vector (float64 for comparisons with other code). Every
tensor starts on a 64-byte boundary; the gaps hold zeros for ever, so norms, inner products and averages over the flat
vector equal those over the tensors. Convolution kernels are held channels-last (strided views): the
CPU and tensor-core kernels then need no reordering. Some are held contiguous (`convolutions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT = 16  # floats: 64 bytes, one cache line


@dataclass(frozen=True)
class Entry:
    """One tensor's place: elements `offset : offset + numel` of the flat vector."""

    name: str
    shape: tuple[int, ...]
    offset: int
    numel: int
    contiguous: bool = False

    def view(self, flat: Tensor) -> Tensor:
        """The tensor inside `flat [size]`: logical `shape`, kernels `[out, in, kh, kw]` strided channels-last unless
        `contiguous`."""
        part = flat.narrow(0, self.offset, self.numel)
        if len(self.shape) == 4 and not self.contiguous:
            out, inputs, kh, kw = self.shape
            return part.view(out, kh, kw, inputs).permute(0, 3, 1, 2)
        return part.view(self.shape)


class Layout:
    """Where each named tensor lies in a flat vector of `size` elements, `count` of them in use."""

    def __init__(self, shapes: Mapping[str, Iterable[int]], contiguous: Collection[str] = ()) -> None:
        """`contiguous`: the names of kernels that are not held channels-last."""
        entries, offset = [], 0
        for name, shape in shapes.items():
            shape = tuple(shape)
            numel = 1
            for side in shape:
                numel *= side
            entries.append(Entry(name, shape, offset, numel, name in contiguous))
            offset += -(-numel // ALIGNMENT) * ALIGNMENT
        self.entries: tuple[Entry, ...] = tuple(entries)
        self.size = offset
        self.count = sum(entry.numel for entry in entries)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Name -> view of `flat [size]`; writing to a view writes to `flat`."""
        return {entry.name: entry.view(flat) for entry in self.entries}

    def flatten(
        self, tensors: Mapping[str, Tensor], device: torch.device | None = None, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """`tensors` (by name, logical shapes) copied into a new flat vector."""
        flat = torch.zeros(self.size, dtype=dtype, device=device)
        for name, view in self.views(flat).items():
            view.copy_(tensors[name].detach())
        return flat

    def mask(self, chosen: Callable[[str], bool]) -> Tensor:
        """Float `[size]`: 1 in the tensors whose name is chosen, 0 elsewhere and in the gaps."""
        flat = torch.zeros(self.size)
        for entry in self.entries:
            if chosen(entry.name):
                flat.narrow(0, entry.offset, entry.numel).fill_(1.0)
        return flat
