"""The section `tasks` of a configuration: how the data set becomes a sequence of stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from flray.core.errors import ConfigError
from flray.core.section import Section
from flray.core.seeding import rng
from flray.data.cache import Array


class TasksConfig(Section, frozen=True):
    """A sequence of tasks: the classes of the data set, `num_tasks` groups of them, one after the other."""

    shorthand: ClassVar[Mapping[type, str]] = {int: "num_tasks"}
    name: Literal["class_incremental"] = Field("class_incremental", description="each task brings classes of its own")
    num_tasks: int = Field(ge=1, description="T; where the classes do not divide, the first tasks get one more")
    class_order: Literal["random", "natural"] | tuple[int, ...] = Field(
        "random", description="drawn from the run's seed, the data set's own, or every class number once"
    )
    partition: Literal["anew", "once"] = Field(
        "anew",
        description="each task's samples are shared out anew, or all samples once, of which a task shows its classes",
    )

    @model_validator(mode="after")
    def _order(self) -> TasksConfig:
        if isinstance(self.class_order, tuple) and sorted(self.class_order) != list(range(len(self.class_order))):
            raise ConfigError("tasks.class_order: write every class number from 0 once, or random, or natural")
        return self

    def groups(self, num_classes: int, seed: int) -> list[Array]:
        """The classes of every task, int64 `[C_t]`, ascending. Raises `ConfigError` where they do not fit the data."""
        if isinstance(self.class_order, tuple):
            order = np.array(self.class_order, np.int64)
        else:
            natural = np.arange(num_classes)
            order = natural if self.class_order == "natural" else rng(seed, "class order").permutation(natural)
        if len(order) != num_classes:
            raise ConfigError(f"tasks.class_order: {len(order)} classes written, but the data set has {num_classes}")
        if self.num_tasks > num_classes:
            raise ConfigError(f"tasks.num_tasks: {self.num_tasks} tasks for {num_classes} classes; set it lower")
        return [np.sort(group) for group in np.array_split(order, self.num_tasks)]
