"""A network of your own, `model: my_model:Net`. Its options are the parameters of the class."""

import math

from torch import nn


class Net(nn.Module):
    """`input_shape` is (C, H, W) or (d,); it and `num_classes` come from the data."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, width: int = 32):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), width), nn.ReLU())
        self.head = nn.Linear(width, num_classes)

    def features(self, x):
        """What the head reads, `[B, width]`: for methods that compare representations."""
        return self.body(x)

    def forward(self, x):
        """Logits `[B, num_classes]`."""
        return self.head(self.features(x))
