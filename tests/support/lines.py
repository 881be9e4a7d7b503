"""Two tasks of which the first lies in a plane, for the algorithms that protect subspaces."""

from pathlib import Path

import numpy as np
from torch import Tensor, nn

from flray.contracts.played import Local
from flray.data.splits import Split, Splits
from flray.models.base import Classifier
from tests.contracts.table import TABLE, experiment


class Deep(Classifier):
    """Two linear layers without bias, and a head."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(input_shape[0], 7, bias=False), nn.Linear(7, 6, bias=False))
        self.head = nn.Linear(6, num_classes)

    def features(self, x: Tensor) -> Tensor:
        return self.body(x)


def lines(config):
    """Samples of the classes 0 and 1 lie in a plane of eight dimensions, those of 2 and 3 anywhere."""
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(160, 8)), np.arange(160) % 4
    plane = np.linalg.qr(draws.normal(size=(8, 2)))[0]
    x = np.where(y[:, None] < 2, x[:, :2] @ plane.T, x) + 0.5 * (y % 2)[:, None] * plane[:, 0]
    x = x.astype(np.float32)
    return Splits(Split(x[:120], y[:120]), Split(x[120:], y[120:]), classes=tuple("abcd"))


def local(folder, name="fedprotip", sections=None, **options):
    return Local(experiment(name, options, **(sections or TABLE["fedprotip"].sections)), Path(folder))


def to_the_end(run):
    """Every transaction; returns the states after each task's end."""
    ends = []
    while (clock := next(run.schedule(), None)) is not None:
        run.exchanges(clock)
        if clock.phase == "task_end":
            ends.append(run.state)
    return ends


LINES = {
    "rounds": 2,
    "data": {"source": "test_lines"},
    "tasks": {"num_tasks": 2, "class_order": "natural"},
    "model": {"name": "tests.support.lines:Deep"},
    "partition": {"name": "iid", "clients": 2},
    "cohort": {"size": 2},
}
