"""One task in time as every process needs it: its classes, their outputs, its test sets.

Small: it travels to the actors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from flray.data.cache import Array
from flray.data.dataset import Dataset


@dataclass(frozen=True, eq=False)
class TestSet:
    """Samples that the global model is tested on: numbers in a split of the data set, int64 `[n]`; None: all of it.

    `task` is the one that all of them belong to, for inference modes that are told it; -1: several.
    """

    __test__: ClassVar[bool] = False  # pytest would collect it by its name
    split: Literal["train", "test"]
    samples: Array | None = None
    task: int = -1

    def labels(self, dataset: Dataset) -> Array:
        """The labels of the samples, int64 `[n]`."""
        y: Array = getattr(dataset, self.split).y
        return y if self.samples is None else y[self.samples]


@dataclass(frozen=True, eq=False)
class Stage:
    """A task in time.

    `classes`, int64 `[C]`: the data set's labels that occur in it, in the order of the head. `outputs`, int64 `[C]`:
    the output of the model's head that stands for each of them. In most experiments a class has the output of its own
    number. Where each domain has labels of its own for the same things (a union of digit data sets), one shared head is
    the same outputs in every stage, and a head for each stage is outputs that no other stage has.

    `tests`: the test sets after this stage by name, `test` or `val` (held-out training data) where a configuration made
    them; accuracy and loss on the first one are the columns `test/acc` and `test/loss` (`val/...`) of `rounds/`.
    """

    index: int
    name: str
    classes: Array
    outputs: Array
    tests: Mapping[str, TestSet]


def num_outputs(stages: Sequence[Stage]) -> int:
    """The size of the head that all stages need together."""
    return max(int(stage.outputs.max()) for stage in stages) + 1


def relabelled(dataset: Dataset, stages: Sequence[Stage]) -> Dataset:
    """The data set with outputs in the place of labels; itself where every class has the output of its own number.

    An output that stands for several classes is named after the first stage's; one that no stage has keeps no samples.
    A label that no stage has becomes -1: nobody trains or is tested on it.
    """
    table = np.full(dataset.num_classes, -1, np.int64)
    names = [""] * num_outputs(stages)
    for stage in reversed(stages):
        table[stage.classes] = stage.outputs
        for label, output in zip(stage.classes.tolist(), stage.outputs.tolist(), strict=True):
            names[output] = dataset.classes[label]
    if len(names) == dataset.num_classes and np.array_equal(table, np.arange(len(table))):
        return dataset
    train, test = (split._replace(y=table[split.y]) for split in (dataset.train, dataset.test))
    return dataset._replace(train=train, test=test, classes=tuple(names))
