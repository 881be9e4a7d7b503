"""Tasks: the section `tasks` of a configuration, the sequence that a data set becomes, and `Stage`, one of them.

A stage has its classes, their outputs and its test sets. It is small and is sent to the actors. A client is tested on a
share of the test set; shares of clients may overlap (:func:`local_test`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from pydantic import Field, field_validator, model_validator

from flray.core.protocol.seeding import rng
from flray.core.schema.errors import ConfigError, DataError, nearest
from flray.core.schema.section import Section
from flray.data.cache import Array
from flray.data.dataset import Dataset
from flray.data.splits import Split

if TYPE_CHECKING:
    from flray.core.protocol.algorithm import Algorithm

PYCIL = 1993  # the seed of PyCIL's class order, which the papers of class-incremental learning share


class TaskSpec(NamedTuple):
    """A task: its name, its classes (int64 `[C_t]`), their outputs of the head (int64 `[C_t]`), and the domain of its
    samples, -1: any."""

    name: str
    classes: Array
    outputs: Array
    source: int = -1

    def has(self, split: Split) -> Array:
        """A mask of the task's samples in a split, bool `[n]`."""
        if self.source < 0:
            return np.isin(split.y, self.classes)
        mask: Array = domains_of(split) == self.source
        return mask


def domains_of(split: Split) -> Array:
    """The domain of each sample, integers `[n]`. Raises `DataError` for a split without them."""
    if split.source is None:
        raise DataError(
            "tasks of domains need the domain of every training and test sample, and a split has none; return "
            "Split(x, y, source=numbers) for both from the source of your own"
        )
    return split.source


Freeze = Literal["none", "unreached", "early", "old_heads", "older_heads", "statistics"]


FROZEN: tuple[str, ...] = get_args(Freeze)


class TasksConfig(Section, frozen=True):
    """A sequence of tasks: groups of the data set's classes, or its domains."""

    shorthand: ClassVar[Mapping[type, str]] = {int: "num_tasks"}
    name: Literal["class_incremental", "domain_incremental"] = Field(
        "class_incremental", description="each task has its own classes, or the same classes from another domain"
    )
    num_tasks: int = Field(ge=1, description="T; if the classes do not divide evenly, the first tasks get one more")
    class_order: Literal["random", "natural", "pycil"] | tuple[int, ...] = Field(
        "random",
        description="drawn from the run's seed, the data set's, PyCIL's (seed 1993), or a list of all class numbers",
    )
    first_task: int | None = Field(
        None, ge=1, description="number of classes of the first task, if it differs from the others"
    )
    domains: tuple[str, ...] = Field(
        (), description="domain_incremental: the domains (data.domain, or the sets of a union) in their order"
    )
    heads: Literal["shared", "separate"] = Field(
        "shared", description="domain_incremental: one head for all domains, or separate outputs for each"
    )
    domain_scoring: Literal["class_only", "class_and_domain"] = Field(
        "class_only",
        description="separate heads: a prediction is right with the right class in any head, or in its domain's only",
    )
    partition: Literal["anew", "once"] = Field(
        "anew",
        description="anew: a partition of each task's samples; once: one partition of all samples, split by task",
    )

    freeze: tuple[Freeze, ...] = Field(
        ("unreached",),
        description="parameters that do not change, for any algorithm. unreached: rows of the head that the network's "
        "loss does not read, of older and later tasks, whatever a penalty reads; early: also the model's early layers, "
        "after the first task; old_heads: also rows of older tasks that the loss reads, except for methods that replay "
        "samples; older_heads: those rows but for the last two tasks, whose rows decay (FedProTIP's code from random "
        "weights); statistics: also the running statistics of all batch norms, after the first task: training then "
        "normalises by them, as tests do; none: decay and momentum change every row",
    )
    frozen_bn_stats: Literal["freeze", "update"] = Field(
        "freeze", description="running statistics of batch norm in frozen layers: fixed, or updated"
    )

    @field_validator("freeze", mode="before")
    @classmethod
    def _parts(cls, value: Any) -> Any:
        """A tuple of the words in one order; `unreached` is left out beside another one, which includes it."""
        words = [value] if isinstance(value, str) else value
        if not isinstance(words, list | tuple) or not words or not set(map(str, words)) <= set(FROZEN):
            return words
        if "none" in words and len(set(words)) > 1:
            raise ConfigError("tasks.freeze: none excludes the others; leave it out, or the others")
        return tuple(word for word in FROZEN if word in words and (word != "unreached" or set(words) == {word}))

    @model_validator(mode="before")
    @classmethod
    def _of_its_name(cls, data: Any) -> Any:
        """Sets `num_tasks` to the number of domains. An option of the other kind of sequence is an error."""
        if not isinstance(data, dict):
            return data
        by_domain = data.get("name") == "domain_incremental"
        fields = cls.model_fields
        foreign = ("class_order", "first_task") if by_domain else ("domains", "heads", "domain_scoring")
        for option in foreign:
            default = fields[option].default
            if data.get(option, default) not in (default, list(default) if isinstance(default, tuple) else default):
                kind = "domain_incremental" if by_domain else "class_incremental"
                raise ConfigError(f"tasks.{option}: {kind} does not read it; leave it out")
        domains = data.get("domains")
        if not by_domain or not isinstance(domains, list | tuple):
            if by_domain:
                raise ConfigError("tasks.domains: missing; write the domains in their order, domains: [photo, sketch]")
            return data
        if not domains or len(set(map(str, domains))) < len(domains):
            raise ConfigError("tasks.domains: a domain is missing or repeated; write each domain once, in order")
        if data.get("num_tasks") not in (None, len(domains)):
            raise ConfigError(
                f"tasks.num_tasks: {data['num_tasks']}, but {len(domains)} domains are written; leave it out"
            )
        return {**data, "num_tasks": len(domains)}

    @model_validator(mode="after")
    def _order(self) -> TasksConfig:
        if isinstance(self.class_order, tuple) and sorted(self.class_order) != list(range(len(self.class_order))):
            raise ConfigError(
                "tasks.class_order: write every class number from 0 once, or random, or natural, or pycil"
            )
        return self

    def check_algorithm(self, algorithm: Algorithm, name: str) -> None:
        """Raises `ConfigError` if the algorithm of this name cannot work on these tasks."""
        if self.name == "domain_incremental" and algorithm.needs_new_classes:
            raise ConfigError(f"tasks.name: {name} needs new classes in every task, domains bring none; choose another")

    @property
    def scores_classes(self) -> bool:
        """Whether a prediction of the right class in any domain's head is right."""
        return self.heads == "separate" and self.domain_scoring == "class_only"

    def specs(self, dataset: Dataset, seed: int) -> list[TaskSpec]:
        """The tasks in order. Raises `ConfigError` and `DataError` if they do not fit the data."""
        classes = np.arange(dataset.num_classes)
        if self.name == "class_incremental":
            groups = self.groups(dataset.num_classes, seed)
            return [TaskSpec(f"task {task}", group, group) for task, group in enumerate(groups)]
        if not dataset.sources:
            raise DataError(
                f"tasks: domain_incremental needs the domain of every sample, and {dataset.name!r} has none; set "
                "data.domain to the column that holds it, or data.source: union for several sets"
            )
        for name in self.domains:
            if name not in dataset.sources:
                raise ConfigError(f"tasks.domains: the data have no domain {name!r}{nearest(name, dataset.sources)}")
        return [
            TaskSpec(
                name,
                classes,
                classes + len(classes) * task if self.heads == "separate" else classes,
                dataset.sources.index(name),
            )
            for task, name in enumerate(self.domains)
        ]

    def groups(self, num_classes: int, seed: int) -> list[Array]:
        """The classes of each task, int64 `[C_t]`, ascending. Raises `ConfigError` if they do not fit the data."""
        natural = np.arange(num_classes)
        if isinstance(self.class_order, tuple):
            order = np.array(self.class_order, np.int64)
        elif self.class_order == "pycil":
            order = np.random.RandomState(PYCIL).permutation(num_classes)
        else:
            order = natural if self.class_order == "natural" else rng(seed, "class order").permutation(natural)
        if len(order) != num_classes:
            raise ConfigError(
                f"tasks.class_order: {len(order)} classes, but the data set has {num_classes}; list all of them"
            )
        if self.num_tasks > num_classes:
            raise ConfigError(f"tasks.num_tasks: {self.num_tasks} tasks for {num_classes} classes; set it lower")
        if self.first_task is None:
            return [np.sort(group) for group in np.array_split(order, self.num_tasks)]
        rest = num_classes - self.first_task
        if rest < self.num_tasks - 1 or (self.num_tasks == 1 and rest):
            raise ConfigError(
                f"tasks.first_task: {self.first_task} of {num_classes} classes leave {max(rest, 0)} for "
                f"{self.num_tasks - 1} tasks; set it lower"
            )
        later = np.array_split(order[self.first_task :], self.num_tasks - 1) if self.num_tasks > 1 else []
        return [np.sort(group) for group in (order[: self.first_task], *later)]


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
