"""Fed+PEC's networks: a small student for each class, and a wide random teacher whose outputs they imitate."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from flray.core.protocol.inputs import Inputs

AT_ONCE = 2**22  # activations of the teacher at once; a block of samples would fill the memory


class Students(nn.Module):
    """Students g_c with one initialisation, and a frozen random teacher h. The outputs are the negated errors.

    Images: convolution 3x3, instance norm, ReLU, mean pooling to 4x4 pixels, linear. Feature vectors: linear, layer
    norm, ReLU, linear. The teacher is the same with `factor` times the width. Zajac et al. 2024, ICLR.
    """

    early = None  # each student has one class, so `tasks.freeze: early` freezes nothing

    def __init__(self, inputs: Inputs, width: int, outputs: int, factor: int) -> None:
        super().__init__()
        student = network(inputs, width, outputs)
        self.students = nn.ModuleList(copy.deepcopy(student) for _ in inputs.classes)
        self.teacher = network(inputs, factor * width, outputs).requires_grad_(False)
        self._piece = max(
            1, AT_ONCE // (factor * width * (inputs.shape[1] * inputs.shape[2] if inputs.is_image else 1))
        )

    def target(self, x: Tensor) -> Tensor:
        """The teacher's outputs `[B, o]` on `x [B, ...]`, without a gradient, a few samples at a time."""
        with torch.no_grad():
            return torch.cat([self.teacher(piece) for piece in torch.split(x, self._piece)])

    def error(self, student: int, x: Tensor, target: Tensor) -> Tensor:
        """|g_c(x) - h(x)|^2 / o of every sample, `[B]`, of the student of one class; `target [B, o]` is h(x)."""
        return (self.students[student](x) - target).square().mean(dim=1)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """Minus the error of every class's student, `[B, C]`: the largest is the predicted class."""
        target = self.target(x)
        return -torch.stack([self.error(c, x, target) for c in range(len(self.students))], dim=1)


def network(inputs: Inputs, width: int, outputs: int) -> nn.Module:
    """A student, or with another width the teacher."""
    if not inputs.is_image:
        return nn.Sequential(
            nn.Linear(inputs.shape[0], width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, outputs)
        )
    return nn.Sequential(
        nn.Conv2d(inputs.shape[0], width, 3, padding=1),
        nn.InstanceNorm2d(width, affine=True),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(width * 16, outputs),
    )
