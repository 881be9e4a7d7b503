"""The inputs of every layer in one forward pass, as columns, for subspace methods, and where its weight is in `w`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from flray.core.network.layout import Entry
from flray.core.schema.errors import ConfigError

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Layer(NamedTuple):
    """A linear layer or a convolution: the place of its weight in `w`, and the groups of its inputs."""

    name: str
    entry: Entry
    groups: int

    @property
    def keys(self) -> list[str]:
        """Its names in a block: its own, or one a group."""
        return [self.name] if self.groups == 1 else [f"{self.name}:{group}" for group in range(self.groups)]

    def stored(self, flat: Tensor) -> Tensor:
        """A writable view of its rows `[groups, out / groups, d]`, without groups `[out, d]`, in a vector `[P]`, in
        memory order."""
        rows = flat.narrow(0, self.entry.offset, self.entry.numel)
        return rows.view(-1, self.width) if self.groups == 1 else rows.view(self.groups, -1, self.width)

    @property
    def width(self) -> int:
        """d: channels of a group times pixels of the kernel."""
        return self.entry.numel // self.entry.shape[0]

    def basis(self, blocks: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """Its basis `[groups, d, q]`, without groups `[d, q]`, with rows in the memory order of the weight (kernels of
        images are channels-last). Shorter bases of groups end with columns of zeros."""
        bases = [torch.cat([block[key] for block in blocks if key in block], dim=1) for key in self.keys]
        widest = max(basis.shape[1] for basis in bases)
        basis = torch.stack([F.pad(part, (0, widest - part.shape[1])) for part in bases])
        if len(self.entry.shape) == 4:
            _, channels, height, width = self.entry.shape
            basis = torch.unflatten(basis, 1, (channels, height * width)).transpose(1, 2).flatten(1, 2)
        return basis[0] if self.groups == 1 else basis


@dataclass(frozen=True, slots=True, eq=False)
class LayerInputs:
    """The inputs of one layer: the columns that its weight, reshaped to `[groups, out / groups, d]`, multiplies.

    A convolution has a column for every sample and output pixel, in that order, with rows in the order (channel, kernel
    row, kernel column), padding included; a linear layer has one for every vector. :meth:`columns` copies them on
    demand: all columns of a convolution take as many times the memory of its input as its kernel has pixels.
    """

    windows: Tensor  # [samples, *output pixels, groups, channels of a group, *kernel], a view of the padded input
    places: int  # number of dimensions before the groups

    def __len__(self) -> int:
        """Number of columns, n."""
        return self.windows.shape[: self.places].numel()

    def columns(self, chosen: Tensor | None = None) -> Tensor:
        """The columns `[groups, d, n]`, float32: all, or those with the numbers `chosen [n]` (int64), in that order.

        `groups` is 1 except for a grouped convolution.
        """
        if chosen is None:
            chosen = torch.arange(len(self), device=self.windows.device)
        where = torch.unravel_index(chosen.to(self.windows.device), self.windows.shape[: self.places])
        return self.windows[where].flatten(2).permute(1, 2, 0).float()


@contextmanager
def record_inputs(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, list[Tensor]]]:
    """Records the inputs of each layer, by its name, at every call in this block."""
    seen: dict[str, list[Tensor]] = {name: [] for name in layers}
    with ExitStack() as hooks:
        for name, layer in layers.items():

            def record(_: nn.Module, given: tuple[Tensor, ...], calls: list[Tensor] = seen[name]) -> None:
                calls.append(given[0].detach().clone())  # the network may change it in place later

            hooks.callback(layer.register_forward_pre_hook(record).remove)
        yield seen


def inputs_of(name: str, layer: nn.Module, calls: list[Tensor]) -> LayerInputs:
    """The inputs of a layer over all calls. Raises `ConfigError` for images of two sizes in one convolution."""
    if isinstance(layer, nn.Linear):
        x = torch.cat([call.flatten(0, -2) if call.dim() > 1 else call[None] for call in calls])
        return LayerInputs(x[:, None], 1)
    if len({call.shape[1:] for call in calls}) > 1:
        shapes = [list(call.shape[1:]) for call in calls]
        raise ConfigError(
            f"layer {name} ran on inputs of the shapes {shapes} in one forward pass: its inputs cannot be put together"
        )
    assert isinstance(layer, _ConvNd)
    x, dimensions = torch.cat(calls), len(layer.kernel_size)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = F.pad(x, layer._reversed_padding_repeated_twice, mode)
    sides: Any = layer.kernel_size, layer.stride, layer.dilation
    for i, (size, stride, dilation) in enumerate(zip(*sides, strict=True)):
        x = x.unfold(2 + i, dilation * (size - 1) + 1, stride)[..., ::dilation]
    x = torch.unflatten(x, 1, (layer.groups, -1))
    pixels = range(3, 3 + dimensions)
    return LayerInputs(x.permute(0, *pixels, 1, 2, *(p + dimensions for p in pixels)), 1 + dimensions)
