"""Convolutional networks: FedAvg's and VGG-11, as the FedSOL code builds them, NIID-Bench's, GLFC's encoder."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flray.models.base import Classifier, Projection, enlarge, image_shape, pooled, projected


class Layers(Classifier):
    """Convolutions, then linear layers, with a ReLU after each, a projection if there is one, and the head."""

    projection: nn.Module | None

    def before_relu(self, x: Tensor) -> list[Tensor]:
        """The outputs of all layers for `x [B, K, H, W]`, before ReLU."""
        raise NotImplementedError

    def features(self, x: Tensor) -> Tensor:
        """Representation `z [B, F]` of `x [B, K, H, W]`."""
        return self._projected(self.before_relu(x)[-1])

    def levels(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """All layers before ReLU, `[B, F_l]`, convolutions averaged over pixels; and logits `[B, C]`."""
        levels = self.before_relu(x)
        return [pooled(z) if z.dim() == 4 else z for z in levels], self.head(self._projected(levels[-1]))

    def _projected(self, last: Tensor) -> Tensor:
        z = torch.relu(last)
        return z if self.projection is None else self.projection(z)


class FedAvgCNN(Layers):
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

    def before_relu(self, x: Tensor) -> list[Tensor]:
        # pool before ReLU: the same value and gradient, a quarter of the work
        first = self.conv1(x)
        second = self.conv2(torch.relu(F.max_pool2d(first, 2)))
        return [first, second, self.linear(torch.relu(F.max_pool2d(second, 2)).flatten(1))]


class SmallCNN(FedAvgCNN):
    """`fedavg_cnn` at a quarter of its width, for fast tests: 8 and 16 kernels, then a linear layer of 128.

    `x [B, K, H, W]` -> `z [B, 128]` -> logits `[B, C]`. Parameters at C=10: 38,010 (3x16x16). In no paper.
    """

    kernels = 8


class SimpleCNN(Layers):
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

    def before_relu(self, x: Tensor) -> list[Tensor]:
        first = self.conv1(x)
        second = self.conv2(torch.relu(F.max_pool2d(first, 2)))
        third = self.linear1(torch.relu(F.max_pool2d(second, 2)).flatten(1))
        return [first, second, third, self.linear2(torch.relu(third))]


# widths of the 3x3 convolutions, max-pool 2 after every stage
STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))
VGG_SIDE = 32  # halved five times


class VGG11(Layers):
    """Eight 3x3 convolutions in five stages, max-pool 2 after each, two linear layers of 512; ReLU after every layer.

    `x [B, K, H, W]` -> `z [B, 512]` -> logits `[B, C]`. No normalisation, no dropout. Sides below 32 are upsampled to
    32 (nearest). Kernels start at N(0, 2 / (9 out)) and their biases at 0, linear layers at PyTorch's default.
    Parameters at K=3, C=10: 9,750,922.
    Simonyan and Zisserman 2015, ICLR, configuration A, with the smaller linear layers of Lee et al. 2024 (FedSOL),
    CVPR, Table 3.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape("vgg11", input_shape)
        widths = [channels, *(out for stage in STAGES for out in stage)]
        self.convolutions = nn.ModuleList(nn.Conv2d(n, m, 3, padding=1) for n, m in pairwise(widths))
        pixels = (max(height, VGG_SIDE) // VGG_SIDE) * (max(width, VGG_SIDE) // VGG_SIDE)
        self.linears = nn.ModuleList([nn.Linear(512 * pixels, 512), nn.Linear(512, 512)])
        self.head, self.projection = nn.Linear(512, num_classes), None
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=(2 / (9 * module.out_channels)) ** 0.5)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def before_relu(self, x: Tensor) -> list[Tensor]:
        x, levels, convolutions = enlarge(x, VGG_SIDE), [], iter(self.convolutions)
        for stage in STAGES:
            for layer in range(len(stage)):
                levels.append(next(convolutions)(x))
                # pool before ReLU: the same value and gradient, a quarter of the work
                x = torch.relu(F.max_pool2d(levels[-1], 2) if layer == len(stage) - 1 else levels[-1])
        x = x.flatten(1)
        for linear in self.linears:
            levels.append(linear(x))
            x = torch.relu(levels[-1])
        return levels


LENET_BOUND = 0.5  # of the uniform initial values


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
            nn.init.uniform_(parameter, -LENET_BOUND, LENET_BOUND)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[B, C]` of images `x [B, K, H, W]`."""
        return self.head(torch.flatten(self.body(x), 1))  # type: ignore[no-any-return]
