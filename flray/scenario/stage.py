"""`Stage`: a task with its classes, their outputs and its test sets. It is small and is sent to the actors.

A client is tested on a share of the test set; shares of clients may overlap (:func:`local_test`).
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
    """Samples on which the global model is tested: numbers in a split of the data set, int64 `[n]`; None: all of it.

    `task`: the task of all samples, for inference modes that know it; -1: several tasks. `parts`: the test sets of the
    same stage of which it is the union. Their counts are added, so each sample is read once, in a batch of its task.
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

    `classes`, int64 `[C]`: the labels of its samples, in the order of the head. `outputs`, int64 `[C]`: the head's
    output for each class, in most experiments the class's own number. If each stage is a domain, `source` is its number
    in the data set (-1: all domains). Stages with a shared head have the same outputs; stages with separate heads have
    none in common.

    `tests`: the test sets by name. Accuracy and loss on the first one are the columns `test/acc` and `test/loss`
    (`val/...`) of `rounds/`. It is `test`, or `val` (held-out training data). Under `tasks` it has all tasks seen so
    far, and each task has a test set `task-0`, `task-1`, ... (`val-0`, ...). In a union of text without `tasks` its
    parts are the sources by name (`cola`, `sst2`, ...; `val-cola`, ...).
    """

    index: int
    name: str
    classes: Array
    outputs: Array
    tests: Mapping[str, TestSet]
    source: int = -1

    @property
    def by_source(self) -> bool:
        """Whether the test set is the union of the sources' test sets: tasks of text at the same time."""
        first, *others = self.tests.values()
        return bool(first.parts) and all(test.task < 0 for test in others)

    @property
    def tells_tasks_apart(self) -> bool:
        """Whether there is a test set of a single task; then each task is tested at its end."""
        return any(test.task >= 0 for test in self.tests.values())

    def own(self, split: Split) -> Array:
        """Numbers of the stage's own samples in a split (int64, ascending), whose labels are outputs
        (:func:`relabelled`)."""
        mine = np.isin(split.y, self.outputs)
        return np.flatnonzero(mine if self.source < 0 else mine & (split.source == self.source))

    def read(self, ahead: bool) -> dict[str, TestSet]:
        """The test sets that a test reads: of the tasks that have begun, with `ahead` also of later ones.

        Unions of other test sets are left out.
        """
        own = {name: test for name, test in self.tests.items() if not test.parts}
        return {name: test for name, test in own.items() if ahead or test.task <= self.index}


def together(split: Literal["train", "test"], parts: Mapping[str, TestSet]) -> TestSet:
    """The union of the test sets `parts`, in their order."""
    return TestSet(split, np.concatenate([part.samples for part in parts.values()]), parts=tuple(parts))


def num_outputs(stages: Sequence[Stage]) -> int:
    """The size of a head with the outputs of all stages."""
    return max(int(stage.outputs.max()) for stage in stages) + 1


def meanings(stages: Sequence[Stage]) -> Array:
    """The class of each output, int64 `[outputs]`; -1: none."""
    labels = np.full(num_outputs(stages), -1, np.int64)
    for stage in reversed(stages):
        labels[stage.outputs] = stage.classes
    return labels


def relabelled(dataset: Dataset, stages: Sequence[Stage]) -> Dataset:
    """The data set with outputs as labels; the data set itself if each class has the output of its own number.

    An output for several classes has the name of the first stage's class. An output without a stage has no samples.
    Outputs for one class in several domains have the domain in their names. A sample of no stage gets the label -1: it
    is in no partition and no test set. The classes' words are reordered with them.
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
    if words is not None and words.labels:  # an output without a class gets any word; none is read
        labels, task_of = ([of[label] for label in classes.tolist()] for of in (words.labels, words.task_of))
        words = words._replace(labels=tuple(labels), task_of=tuple(task_of))
    return dataset._replace(train=train, test=test, classes=tuple(names), vocabulary=words)


def _outputs(split: Split, num_classes: int, stages: Sequence[Stage]) -> Array:
    """The output of each sample's class, int64 `[n]`; -1: none."""
    output_of = np.full(len(split.y), -1, np.int64)
    for stage in reversed(stages):
        table = np.full(num_classes, -1, np.int64)
        table[stage.classes] = stage.outputs
        outputs = table[split.y]
        mine = outputs >= 0 if stage.source < 0 else split.source == stage.source
        output_of[mine] = outputs[mine]
    return output_of


def local_test(
    labels: Array,
    test_labels: Array,
    num_classes: int,
    rule: Literal["proportional", "classes"],
    rng: np.random.Generator,
    size: int = 1000,
) -> Array:
    """Sample numbers (int64, ascending) of a client's test share.

    `labels [n_k]` are those of its training samples, `test_labels [n_test]` those of the test set; a sample with the
    label -1 is in no share.

    `proportional` (Lee-Gihun/FedSOL): floor(size * n_kc / n_k) samples of each class c, drawn without replacement, or
    all that exist. `classes` (FedZoo-Bench): all samples of the client's classes; nothing is drawn.
    """
    if rule == "classes":
        return np.flatnonzero(np.isin(test_labels, labels))
    counts = np.bincount(labels, minlength=num_classes)
    # in integers: in floating point floor(size * (n_kc / n_k)) may be one too low
    wanted = size * counts // max(len(labels), 1)
    shares = [np.zeros(0, np.int64)]
    for c in np.flatnonzero(wanted):
        there = np.flatnonzero(test_labels == c)
        shares.append(rng.choice(there, min(int(wanted[c]), len(there)), replace=False))
    return np.sort(np.concatenate(shares))
