"""The section `tasks` of a configuration: the sequence of tasks that a data set becomes."""

from __future__ import annotations

from collections.abc import Mapping
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
        description="parameters that do not change, for any algorithm. unreached: rows of the head that the loss does "
        "not read, of older and later tasks; early: also the model's early layers, after the first task; old_heads: "
        "also rows of older tasks that the loss reads, except for methods that replay samples; older_heads: those rows "
        "but for the last two tasks, whose rows decay (FedProTIP's code from random weights); statistics: also the "
        "running statistics of all batch norms, after the first task: training then normalises by them, as tests do; "
        "none: decay and momentum change every row",
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
