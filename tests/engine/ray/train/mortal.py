"""A network with batch norm and dropout that ends its own process, once, where the test says."""

import os
import signal
from pathlib import Path

import torch
from torch import Tensor, nn

from flray.models.base import Classifier

# the number of passes of this process: a network that counted them itself would be refused
PASSES = "MORTAL_PASSES"


class Mortal(Classifier):
    """`kill`: the process that makes this file dies, in forward pass `at` of training; `fault`: that pass raises an
    error instead."""

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, *, kill: str = "", at: int = 0, fault: bool = False
    ) -> None:
        super().__init__()
        self.hidden = nn.Linear(input_shape[0], 8)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(8, num_classes)
        self._kill, self._at, self._fault = kill, at, fault
        os.environ[PASSES] = "0"

    def features(self, x: Tensor) -> Tensor:
        if self.training:  # flray's trial of a network has a few passes as well
            os.environ[PASSES] = passes = str(int(os.environ[PASSES]) + 1)
            if passes == str(self._at) and self._fault:
                raise ZeroDivisionError("made up by the test")
            if passes == str(self._at) and self._kill and not Path(self._kill).exists():
                Path(self._kill).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return self.dropout(torch.relu(self.norm(self.hidden(x).view(-1, 4, 2))).flatten(1))
