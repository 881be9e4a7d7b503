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
from flray.data.splits import Split


@dataclass(frozen=True, eq=False)
class TestSet:
    """Samples that the global model is tested on: numbers in a split of the data set, int64 `[n]`; None: all of it.

    `task` is the one that all of them belong to, for inference modes that are told it; -1: several. `parts`: the test
    sets of the same stage that it is made of. Their counts are added up, so each sample is read once, in a batch of its
    own task.
    """

    __test__: ClassVar[bool] = False  # pytest would collect it by its name
    split: Literal["train", "test"]
    samples: Array | None = None
    task: int = -1
    parts: tuple[str, ...] = ()

    def labels(self, dataset: Dataset) -> Array:
        """The labels of the samples, int64 `[n]`."""
        y: Array = getattr(dataset, self.split).y
        return y if self.samples is None else y[self.samples]


@dataclass(frozen=True, eq=False)
class Stage:
    """A task in time.

    `classes`, int64 `[C]`: the data set's labels that occur in it, in the order of the head. `outputs`, int64 `[C]`:
    the output of the model's head that stands for each of them. In most experiments a class has the output of its own
    number. Where each stage is a domain, `source` is its number in the data set (-1: all domains); a shared head is the
    same outputs in every stage, and a head for each stage is outputs that no other has.

    `tests`: the test sets by name; accuracy and loss on the first one are the columns `test/acc` and `test/loss`
    (`val/...`) of `rounds/`. A configuration makes `test`, or `val` (held-out training data); under `tasks` it is all
    tasks seen so far, and its parts are `task-0`, `task-1`, ... (`val-0`, ...), of every task. Where the data are a
    union of text without `tasks`, its parts are those of the sources by name (`cola`, `sst2`, ...; `val-cola`, ...).
    """

    index: int
    name: str
    classes: Array
    outputs: Array
    tests: Mapping[str, TestSet]
    source: int = -1

    @property
    def by_source(self) -> bool:
        """Whether the test set is made of those of the data set's sources: tasks of text beside each other in time."""
        first, *others = self.tests.values()
        return bool(first.parts) and all(test.task < 0 for test in others)

    @property
    def tells_tasks_apart(self) -> bool:
        """Whether there is a test set of a single task; then every task's end is tested."""
        return any(test.task >= 0 for test in self.tests.values())

    def read(self, ahead: bool) -> dict[str, TestSet]:
        """The test sets that a test reads: those of tasks that have begun, and with `ahead` those of later ones too.

        What is made of parts is left out.
        """
        own = {name: test for name, test in self.tests.items() if not test.parts}
        return {name: test for name, test in own.items() if ahead or test.task <= self.index}


def together(split: Literal["train", "test"], parts: Mapping[str, TestSet]) -> TestSet:
    """The test set that is made of `parts`, by name: all their samples, in their order."""
    return TestSet(split, np.concatenate([part.samples for part in parts.values()]), parts=tuple(parts))


def num_outputs(stages: Sequence[Stage]) -> int:
    """The size of the head that all stages need together."""
    return max(int(stage.outputs.max()) for stage in stages) + 1


def meanings(stages: Sequence[Stage]) -> Array:
    """The class that every output stands for, int64 `[outputs]`; -1: none."""
    labels = np.full(num_outputs(stages), -1, np.int64)
    for stage in reversed(stages):
        labels[stage.outputs] = stage.classes
    return labels


def relabelled(dataset: Dataset, stages: Sequence[Stage]) -> Dataset:
    """The data set with outputs in the place of labels; itself where every class has the output of its own number.

    An output that stands for several classes is named after the first stage's; one that no stage has keeps no samples.
    Outputs that stand for the same class in several domains have the domain in their names. A sample that no stage has
    gets the label -1: nobody trains or is tested on it. The words of the classes go with them.
    """
    classes = meanings(stages)
    same = all(np.array_equal(stage.classes, stage.outputs) for stage in stages)
    if same and np.array_equal(classes, np.arange(dataset.num_classes)):
        return dataset
    names = [dataset.classes[label] if label >= 0 else "" for label in classes.tolist()]
    for stage in stages:
        if stage.source >= 0 and not same:
            for label, output in zip(stage.classes.tolist(), stage.outputs.tolist(), strict=True):
                names[output] = f"{stage.name}: {dataset.classes[label]}"
    train, test = (
        split._replace(y=_outputs(split, dataset.num_classes, stages)) for split in (dataset.train, dataset.test)
    )
    words = dataset.vocabulary
    if words is not None and words.labels:  # an output without a class has any word: nobody asks for it
        labels, task_of = ([of[label] for label in classes.tolist()] for of in (words.labels, words.task_of))
        words = words._replace(labels=tuple(labels), task_of=tuple(task_of))
    return dataset._replace(train=train, test=test, classes=tuple(names), vocabulary=words)


def _outputs(split: Split, num_classes: int, stages: Sequence[Stage]) -> Array:
    """The output that stands for each sample, int64 `[n]`; -1: none."""
    output_of = np.full(len(split.y), -1, np.int64)
    for stage in reversed(stages):
        table = np.full(num_classes, -1, np.int64)
        table[stage.classes] = stage.outputs
        outputs = table[split.y]
        mine = outputs >= 0 if stage.source < 0 else split.source == stage.source
        output_of[mine] = outputs[mine]
    return output_of
