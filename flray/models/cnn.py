"""Small convolutional networks: FedAvg's, as the FedSOL code builds it, and NIID-Bench's."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flray.models.base import Classifier, Projection, image_shape, pooled, projected


class FedAvgCNN(Classifier):
    """Two 5x5 convolutions (32 and 64 kernels), each with ReLU and max-pool 2, then a linear layer of 512 with ReLU.

    `x [B, K, H, W]` -> `z [B, 512]` -> logits `[B, C]`. No normalisation, no dropout, PyTorch's default
    initialisation. Parameters at C=10: 2,156,490 (3x32x32), 1,664,970 (3x28x28), 1,663,370 (1x28x28).
    McMahan et al. 2017, AISTATS; Lee et al. 2024 (FedSOL), CVPR, default model.
    """

    kernels = 32  # of the first convolution; other widths are multiples

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, projection: Projection = None) -> None:
        super().__init__()
        channels, rows, columns = image_shape("fedavg_cnn", input_shape, smallest=4)
        kernels = self.kernels
        self.conv1 = nn.Conv2d(channels, kernels, 5, padding=2)
        self.conv2 = nn.Conv2d(kernels, 2 * kernels, 5, padding=2)
        self.linear = nn.Linear(2 * kernels * (rows // 4) * (columns // 4), 16 * kernels)
        self.projection, features = projected(16 * kernels, projection)
        self.head = nn.Linear(features, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Representation `z [B, 512]` of `x [B, K, H, W]`."""
        # pool before ReLU: the same value and gradient, a quarter of the work
        x = torch.relu(F.max_pool2d(self.conv1(x), 2))
        x = torch.relu(F.max_pool2d(self.conv2(x), 2))
        return self.projection(torch.relu(self.linear(x.flatten(1))))  # type: ignore[no-any-return]

    def levels(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Both convolutions, averaged over pixels, `[B, 32]`, `[B, 64]`, and the linear layer `[B, 512]`, before ReLU;
        and logits `[B, C]`.
        """
        first = self.conv1(x)
        second = self.conv2(torch.relu(F.max_pool2d(first, 2)))
        third = self.linear(torch.relu(F.max_pool2d(second, 2)).flatten(1))
        return [pooled(first), pooled(second), third], self.head(self.projection(torch.relu(third)))


class SmallCNN(FedAvgCNN):
    """`fedavg_cnn` at a quarter of its width, for fast tests: 8 and 16 kernels, then a linear layer of 128.

    `x [B, K, H, W]` -> `z [B, 128]` -> logits `[B, C]`. Parameters at C=10: 38,010 (3x16x16). In no paper.
    """

    kernels = 8


class SimpleCNN(Classifier):
    """`simple-cnn` of NIID-Bench, MOON and Flower's `niid_bench`: two 5x5 convolutions (6 and 16 kernels), no padding.

    Each has ReLU and max-pool 2; then linear layers of 120 and 84 with ReLU, and the head. `x [B, K, H, W]` ->
    `z [B, 84]` -> logits `[B, C]`. No normalisation, no dropout, PyTorch's default initialisation. Parameters at C=10:
    62,006 (3x32x32), 44,426 (1x28x28). Li et al. 2022, ICDE, section V.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, projection: Projection = None) -> None:
        super().__init__()
        channels, rows, columns = image_shape("simple_cnn", input_shape, smallest=16)
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        pixels = (((rows - 4) // 2 - 4) // 2) * (((columns - 4) // 2 - 4) // 2)
        self.linear1 = nn.Linear(16 * pixels, 120)
        self.linear2 = nn.Linear(120, 84)
        self.projection, features = projected(84, projection)
        self.head = nn.Linear(features, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Representation `z [B, 84]` of `x [B, K, H, W]`."""
        # pool before ReLU: the same value and gradient, a quarter of the work
        x = torch.relu(F.max_pool2d(self.conv1(x), 2))
        x = torch.relu(F.max_pool2d(self.conv2(x), 2))
        x = torch.relu(self.linear1(x.flatten(1)))
        return self.projection(torch.relu(self.linear2(x)))  # type: ignore[no-any-return]

    def levels(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Both convolutions, averaged over pixels, `[B, 6]`, `[B, 16]`, and the linear layers `[B, 120]`, `[B, 84]`,
        before ReLU; and logits `[B, C]`.
        """
        first = self.conv1(x)
        second = self.conv2(torch.relu(F.max_pool2d(first, 2)))
        third = self.linear1(torch.relu(F.max_pool2d(second, 2)).flatten(1))
        fourth = self.linear2(torch.relu(third))
        return [pooled(first), pooled(second), third, fourth], self.head(self.projection(torch.relu(fourth)))
