"""The encoder whose gradients stand for images in GLFC (Dong et al. 2022), after "deep leakage from gradients"."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flray.models.base import image_shape

BOUND = 0.5  # of the uniform initial values


class LeNet(nn.Module):
    """Three 5x5 convolutions of 12 kernels (strides 2, 2, 1) with sigmoids, and a linear layer.

    `x [B, K, H, W]` -> logits `[B, C]`; the linear layer reads 12 ceil(H / 4) ceil(W / 4) numbers, 768 of 32 x 32
    images. All weights and biases are uniform in -0.5 to 0.5; the sigmoids are smooth, so that an image can be
    reconstructed from its gradient. Parameters at 3x32x32, C = 100: 85,036.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape("lenet", input_shape)
        convolutions = [nn.Conv2d(k, 12, 5, stride, 2) for k, stride in ((channels, 2), (12, 2), (12, 1))]
        self.body = nn.Sequential(*(layer for conv in convolutions for layer in (conv, nn.Sigmoid())))
        self.head = nn.Linear(12 * -(-height // 4) * -(-width // 4), num_classes)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -BOUND, BOUND)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[B, C]` of images `x [B, K, H, W]`."""
        return self.head(torch.flatten(self.body(x), 1))  # type: ignore[no-any-return]
