"""Convolutions whose backward pass corrupts memory on the CPU of PyTorch 2.15: they compute in the plain layout.

The kernels of a flat vector lie channels-last, and so activations do. If its kernel or its input lies so, the
backward pass of a 1x1 convolution with a stride and fewer than 8 input channels writes past its memory (`free():
invalid next size`, or nothing visible); if both are contiguous it does not. Other shapes keep their layout, and so
their bits.
"""

from __future__ import annotations

from torch import Tensor, nn

SAFE_CHANNELS = 8


def contiguous_kernels(module: nn.Module) -> list[nn.Parameter]:
    """The kernels of every such convolution of the module, also those that are reparametrised. Makes these convolutions
    copy an input that lies channels-last."""
    kernels = []
    for part in module.modules():
        if isinstance(part, nn.Conv2d) and _corrupts(part):
            kernels += [p for p in part.parameters() if p.dim() == 4]
            if _contiguous not in part._forward_pre_hooks.values():
                part.register_forward_pre_hook(_contiguous)
    return kernels


def _corrupts(part: nn.Conv2d) -> bool:
    strided = any(step > 1 for step in part.stride)
    return part.kernel_size == (1, 1) and strided and part.groups == 1 and part.in_channels < SAFE_CHANNELS


def _contiguous(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    x = inputs[0]
    return (x.contiguous(), *inputs[1:]) if x.device.type == "cpu" else inputs
