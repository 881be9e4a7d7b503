"""Networks with batch norm for four features, named in the configurations by import path."""

import torch
from torch import Tensor, nn

from flray.models.base import Classifier


class NormNet(Classifier):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(input_shape[0], 8)
        self.norm = nn.BatchNorm1d(4)  # of two values a sample: a last batch of one sample has a variance
        self.head = nn.Linear(8, num_classes)

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.hidden(x).view(-1, 4, 2))).flatten(1)

    def levels(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        first = self.hidden(x)
        second = self.norm(first.view(-1, 4, 2)).flatten(1)
        return [first, second], self.head(torch.relu(second))


class SampleNorm(Classifier):
    """Batch norm over samples alone: one sample has no variance."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(input_shape[0])
        self.head = nn.Linear(input_shape[0], num_classes)

    def features(self, x: Tensor) -> Tensor:
        return self.norm(x)


class Layered(Classifier):
    """Two wide layers, the first of which a continual method may freeze after the first task."""

    early = ("first", "norm")

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(input_shape[0], 90)
        self.norm = nn.BatchNorm1d(45)  # of two values a sample: a last batch of one sample has a variance
        self.second = nn.Linear(90, 90)
        self.head = nn.Linear(90, num_classes)

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.norm(self.first(x).view(-1, 45, 2))).flatten(1)))


class Pictured(Classifier):
    """One convolution with batch norm, for images; a vector of features is a column of pixels."""

    early = ("conv", "norm")

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(input_shape[0] if len(input_shape) == 3 else 1, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6 * 4, num_classes)

    def features(self, x: Tensor) -> Tensor:
        x = x[:, None, :, None] if x.dim() == 2 else x
        return torch.nn.functional.adaptive_avg_pool2d(torch.relu(self.norm(self.conv(x))), 2).flatten(1)


class DeepHead(nn.Module):
    """A head of two layers, the hidden one of which is as wide as there are classes."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(input_shape[0], 8)
        self.head = nn.Sequential(nn.Tanh(), nn.Linear(8, num_classes), nn.Tanh(), nn.Linear(num_classes, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(x))


class ColumnHead(nn.Module):
    """A head whose weight has a column for each class."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.head = nn.ParameterList([nn.Parameter(0.1 * torch.randn(input_shape[0], num_classes))])

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.head[0]


class UntrainedHead(NormNet):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.head.requires_grad_(False)


class Unnamed(nn.Module):
    """Its last child has no parameters, so nothing tells which layer the head is."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.last, self.out = nn.Linear(input_shape[0], num_classes), nn.LogSoftmax(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.last(x))
