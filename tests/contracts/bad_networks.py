"""Networks of a user's own, right ones and wrong ones, for `test_bad_objects.py`."""

from typing import Any

import torch
from torch import Tensor, nn


class Right(nn.Module):
    """Batch norm, one option."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, width: int = 4) -> None:
        super().__init__()
        self.body = nn.Linear(input_shape[0], width)
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Any:
        return self.head(torch.relu(self.norm(self.body(x))))


class Inside:
    class Net(Right):
        pass


class Narrow(Right):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x)[:, :2]


class Tuple(Right):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


class ByName(Right):
    def forward(self, x: Tensor) -> Any:
        return {"logits": super().forward(x)}


class Labels(Right):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x).argmax(1)


class Detached(Right):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x).detach()


class Writing(Right):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x.mul_(2.0))


class Failing(Right):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        raise ValueError("made up by the test")


class Unready(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        self.head = nn.Linear(input_shape[0], num_classes)


class Unlisted(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.layers = [nn.Linear(input_shape[0], num_classes)]

    def forward(self, x: Tensor) -> Any:
        return self.layers[0](x)


class Without(nn.Module):
    """No forward."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(input_shape[0], num_classes)


class Double(Right):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.double()

    def forward(self, x: Tensor) -> Any:
        return super().forward(x.double())


class Softmax(Right):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x).softmax(1)


class NoNetwork:
    def __init__(self, input_shape: tuple[int, ...]) -> None:
        pass


def right(input_shape: tuple[int, ...], num_classes: int, width: int = 4) -> nn.Module:
    return Right(input_shape, num_classes, width)


def nothing(input_shape, num_classes):
    """Its return is missing."""
