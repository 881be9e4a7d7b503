"""A sweep: what its YAML file says, checked and complete.

sweep.experiment(sweep.search_space.suggest(trial))  # the experiment of one trial of a sweep
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from flray.config.experiment import Experiment, FolderName
from flray.config.loader import with_values
from flray.core.schema.errors import ConfigError, unknown
from flray.core.schema.plain import document
from flray.core.schema.registry import Registry
from flray.core.schema.section import Section, expand_shorthand
from flray.metrics.names import LAST, METRICS
from flray.results.axes import TASK_TIMES
from flray.scenario import ValidationConfig
from flray.tuning.domain import Fixed
from flray.tuning.space import Space, resolve

# objectives that are sums over a run's rounds, and the beginnings and ends of its tasks; the columns that they add
CUMULATIVE = {
    "comm/bytes": ("comm/up_bytes", "comm/down_bytes"),
    "client_steps": ("client_steps",),
    "time/s": ("time/round_s", *TASK_TIMES),
}
# objectives that are means over a run's last `LAST` tested rounds, and the column of rounds/ that they average
RECENT = {f"val/acc_mean{LAST}": "val/acc"}
# sections that change no number of a trial but its times
OF_MACHINE = ("resources", "checkpoint", "track", "profile")
SECTIONS_OF_PROCESSES = ("resources", "resources.server")
OF_PROCESSES = ("resources.client", "resources.server.num_")  # prefixes, also of resources.client_actors
# a URL with a file: what comes before it, the file
SQLITE = re.compile(r"(sqlite(?:\+\w+)?:///)(?!:memory:|file:)([^?]+)")
# the options of each scheduler, with defaults
SCHEDULERS: dict[str, dict[str, Any]] = {
    "none": {},
    "asha": {"grace": 4, "reduction": 3.0, "seeds": (1,), "time_attr": "round"},
    "hyperband": {"reduction": 3.0},
    "pbt": {"grace": 4},
    "median": {"grace": 4, "startup": 5},
    "percentile": {"grace": 4, "startup": 5, "percentile": 25.0},
    "successive_halving": {"grace": 4, "reduction": 4.0},
}


def sqlite_file(url: str | None) -> Path | None:
    """The file of a SQLite database; None: `url` is that of another one, or of one in memory."""
    found = SQLITE.match(url or "")
    return None if found is None else Path(found[2])


class SchedulerConfig(Section):
    """Which trials are stopped early, by their intermediate objective values."""

    shorthand: ClassVar[Mapping[type, str]] = {str: "name"}
    name: Literal["none", "asha", "hyperband", "pbt", "median", "percentile", "successive_halving"] = Field(
        "none", description="asha, hyperband and pbt, or a pruner of Optuna"
    )
    grace: int | float | None = Field(
        None,
        gt=0,
        description="rounds (or time_attr) before the first decision (the first rung); pbt: between two exchanges",
    )
    time_attr: Literal["round", "time/virtual_s"] | None = Field(
        None, description="asha: what a rung counts, rounds or virtual seconds up to until.virtual_s"
    )
    reduction: float | None = Field(
        None, gt=1, description="one in so many goes on to the next rung, which is so many times later"
    )
    seeds: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        None,
        min_length=1,
        description="asha: seeds over which a trial is judged, rung by rung; the last holds for those after it",
    )
    startup: int | None = Field(None, ge=0, description="median, percentile: trials that end before any is stopped")
    percentile: float | None = Field(
        None, gt=0, lt=100, description="percentile: the share of trials, in percent, that goes on"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        """Expands a name alone and adds the scheduler's defaults, so that the saved sweep is complete."""
        data = {"name": "none"} if data is None else expand_shorthand(data, cls)
        name = data.get("name", "none") if isinstance(data, Mapping) else None
        reads = SCHEDULERS.get(name) if isinstance(name, str) else None
        if reads is None:
            return data
        for option in cls.model_fields:
            if option != "name" and option not in reads and data.get(option) is not None:
                readers = [name for name, options in SCHEDULERS.items() if option in options]
                raise ConfigError(
                    f"scheduler.{option}: {data.get('name', 'none')} does not read it (read by {', '.join(readers)})"
                )
        given = {option: value for option, value in data.items() if value is not None}
        if isinstance(grace := given.get("grace"), float) and grace.is_integer():
            given["grace"] = int(grace)
        if given.get("time_attr", "round") != "round" and "grace" not in given:
            raise ConfigError("scheduler.grace: time/virtual_s has none of its own; write the virtual seconds")
        return {**reads, **given}

    @model_validator(mode="after")
    def _check_reduction_and_seeds(self) -> SchedulerConfig:
        if self.name == "successive_halving" and self.reduction != int(self.reduction or 0):
            raise ConfigError(f"scheduler.reduction: successive_halving needs a whole number, not {self.reduction}")
        timed = self.time_attr == "time/virtual_s"
        if not timed and self.grace is not None and self.grace != int(self.grace):
            raise ConfigError(f"scheduler.grace: {self.grace} rounds; write a whole number")
        if timed and self.seeds != (1,):
            raise ConfigError(
                "scheduler.seeds: seeds are in step by rounds, not by time/virtual_s; leave it out, or time_attr"
            )
        if self.seeds is not None and list(self.seeds) != sorted(self.seeds):
            raise ConfigError(
                f"scheduler.seeds: {list(self.seeds)} falls; a later rung has as many seeds as the one before, or more"
            )
        return self


class FinalConfig(Section):
    """Repeats the best configurations with fresh seeds and all training data, and reads the test set once."""

    top: int | None = Field(
        None,
        ge=0,
        description="configurations that are run again (of each algorithm where each has its budget); default: 1, of "
        "several objectives the whole Pareto front; 0: none",
    )
    seeds: int = Field(3, ge=1, description="fresh seeds for each")


class Sweep(Section):
    """A complete, checked sweep; `load_sweep(SWEEP/sweep.yaml)` gives the same from any folder."""

    name: FolderName = Field("sweep", description="names the study and the sweep's folder")
    values: dict[str, Any] = Field(
        alias="experiment", description="the experiment of every trial, as in any configuration file"
    )
    space: dict[str, Any] = Field(
        description="what is searched: auto, a list, {log: [lo, hi]}, {linear: [lo, hi]}, or a constant"
    )
    objective: dict[str, Literal["max", "min"]] = Field(
        {"val/acc": "max"},
        min_length=1,
        description=f"columns of rounds/, val/acc_mean{LAST} (over the last {LAST} tested rounds), comm/bytes, "
        "client_steps or time/s, each max or min",
    )
    trials: int = Field(12, ge=1, description="configurations that are tried")
    hours: float | None = Field(None, gt=0, description="wall time after which no trial starts")
    client_steps: int | None = Field(
        None, gt=0, description="local gradient steps, over all trials, after which none starts"
    )
    budget_per: Literal["sweep", "algorithm"] = Field(
        "sweep", description="algorithm: each has these budgets, and a study of its own"
    )
    seed: int = Field(0, ge=0, description="address of the suggestions; that of the trials is the experiment's")
    sampler: Literal["tpe", "random", "qmc", "gp", "nsga2", "nsga3"] = Field("tpe", description="Optuna's sampler")
    scheduler: SchedulerConfig = Field(SchedulerConfig(), description="which trials are stopped early")
    concurrency: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto",
        description="trials at a time; auto: what the cluster holds. With 1 the same seed gives the same suggestions",
    )
    study: str | None = Field(
        None, description="URL of a database for the study; none: a journal file in the sweep's folder"
    )
    final: FinalConfig = Field(FinalConfig(), description="the final table")

    @field_validator("values")
    @classmethod
    def _held_out(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Requires a validation split: a sweep never reads the test set."""
        evaluate = values.get("evaluate") or {}
        if not isinstance(evaluate, Mapping) or evaluate.get("validation") is not None:
            return values
        return {**values, "evaluate": {**evaluate, "validation": ValidationConfig().model_dump()}}

    @field_validator("objective", mode="before")
    @classmethod
    def _names(cls, value: Any, info: ValidationInfo) -> Any:
        imports = (info.data.get("values") or {}).get("imports")
        own = bool(imports) or any(table.of_main() for table in Registry.tables)
        if isinstance(value, str):
            _metric(value, own)
            if "acc" not in value.rpartition("/")[2]:
                raise ConfigError(
                    f"objective: {value} alone does not say max or min; write objective: {{{value}: min}}"
                )
            return {value: "max"}
        for name in value if isinstance(value, Mapping) else ():
            _metric(str(name), own)
        return value

    @field_validator("study")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        """The file of SQLite is absolute, so that every directory has the same one."""
        if value is not None and "://" not in value:
            raise ConfigError(
                f"study: {value!r} is not a database URL; write for example sqlite:///sweep.db, or null for a journal "
                "file"
            )
        return None if value is None else SQLITE.sub(lambda url: f"{url[1]}{Path(url[2]).absolute()}", value)

    def lengths(self, algorithm: str) -> tuple[int, int]:
        """The fewest and the most rounds, over all tasks, that a trial of this algorithm can have."""
        space = self.search_space
        varied = [p for p in space.parameters[algorithm] if p.key in ("rounds", "tasks.num_tasks")]
        cells = itertools.product(*([(p.key, value) for value in p.domain.probes()] for p in varied))
        lengths_of = [self.experiment({**space.example(algorithm), **dict(cell)}).total_rounds for cell in cells]
        return min(lengths_of), max(lengths_of)

    @model_validator(mode="after")
    def _fits(self) -> Sweep:
        space = self.search_space
        if self.budget_per == "algorithm" and not space.conditional:
            raise ConfigError(
                "budget_per: algorithm, but the sweep has one; let it choose: space: {algorithm: [fedavg, fedprox]}"
            )
        if recent := RECENT.keys() & self.objective.keys():
            self._alike(space, *recent)
        if self.scheduler.name != "none":
            self._schedulable(space)
        return self

    def check_new(self) -> None:
        """Raises `ConfigError` where a sweep that is to begin searches the processes of a trial, or what changes no
        number of one, unless an objective is a time, or the user's own."""
        known = {*CUMULATIVE, *RECENT, *METRICS}
        timed = any(name.startswith("time/") or name not in known for name in self.objective)
        for _, key, domain in itertools.chain.from_iterable(self.search_space.parameters.values()):
            if isinstance(domain, Fixed):
                continue
            if key in SECTIONS_OF_PROCESSES or key.startswith(OF_PROCESSES):
                raise ConfigError(
                    f"space.{key}: all trials have the same processes; set it in the experiment, and compare by flray "
                    "ablate"
                )
            if key.partition(".")[0] in OF_MACHINE and not timed:
                raise ConfigError(
                    f"space.{key}: it changes no run but its time; set it in the experiment, or write objective: "
                    "{time/s: min}"
                )

    def _alike(self, space: Space, objective: str) -> None:
        """Requires rounds that can be averaged."""
        for algorithm in space.algorithms:
            experiment = self.experiment(space.example(algorithm))
            if experiment.num_tasks > 1 or experiment.drift is not None:
                what = "tasks" if experiment.num_tasks > 1 else "drift"
                raise ConfigError(
                    f"objective: {objective} averages rounds, and with {what} they are not alike; use "
                    f"{RECENT[objective]}"
                )
            every, rounds = experiment.evaluate.every, self.lengths(algorithm)[0]
            if not 0 < every < rounds:
                raise ConfigError(
                    f"evaluate.every: {every} tests a trial of {rounds} rounds only at its end, {objective} averages "
                    "several tests; lower it"
                )

    def _schedulable(self, space: Space) -> None:
        """Requires one number by which unfinished trials can be compared."""
        name, grace = self.scheduler.name, self.scheduler.grace or 1
        timed = self.scheduler.time_attr == "time/virtual_s"
        end = self.virtual_end
        if not timed and end is not None:
            raise ConfigError(
                f"until: scheduler {name} compares trials by rounds; leave until out, or scheduler=none, or asha with "
                "time_attr: time/virtual_s"
            )
        if timed and end is None:
            raise ConfigError("scheduler.time_attr: rungs of time/virtual_s need an end; write until: {virtual_s: ...}")
        if timed and grace >= (end or 0):
            raise ConfigError(
                f"scheduler.grace: the first decision is after {grace:g} virtual seconds, a trial has {end:g}; lower "
                "it, or raise until.virtual_s"
            )
        if len(self.objective) > 1:
            raise ConfigError(
                f"scheduler: {name} judges trials by one number, this sweep has {len(self.objective)} objectives; set "
                "it to none"
            )
        for algorithm in space.algorithms:
            experiment, (rounds, _) = self.experiment(space.example(algorithm)), self.lengths(algorithm)
            every = experiment.evaluate.every
            if not timed and grace >= rounds:
                raise ConfigError(
                    f"scheduler.grace: the first decision is after {grace} rounds, a trial has {rounds}; lower it, or "
                    "raise rounds"
                )
            if next(iter(self.objective)).startswith("val/") and experiment.num_tasks == 1 and not 0 < every < rounds:
                raise ConfigError(
                    f"evaluate.every: {every} tests a trial of {rounds} rounds only at its end, {name} needs a value "
                    "before; lower it"
                )
            if name == "successive_halving" and experiment.num_tasks == 1:
                self._one_rung_a_test(every, rounds)
            if name == "pbt" and not space.mutations(algorithm):
                raise ConfigError(
                    f"scheduler: pbt changes numbers of the algorithm as it goes, and none of {algorithm} is in the "
                    "space"
                )
        if name in ("hyperband", "pbt") and self.concurrency != "auto":
            raise ConfigError(
                f"concurrency: {name} halts trials and goes on with others, as the cluster holds; leave it at auto"
            )
        fixed = [
            p.name
            for p in space.parameters[space.algorithms[0]]
            if not p.key.startswith("algorithm.") and p.name in space.names()
        ]
        if name == "pbt" and fixed:
            raise ConfigError(
                f"scheduler: pbt copies one trial's state into another, which {fixed[0]} may not fit; do not search it"
            )
        if name == "pbt" and len(space.algorithms) > 1:
            raise ConfigError(
                "scheduler: pbt copies one trial's state into another, so there is one algorithm; or choose asha"
            )

    def _one_rung_a_test(self, every: int, rounds: int) -> None:
        """Requires a test between any two rungs, which Optuna would judge by one value."""
        factor, at = self.scheduler.reduction or 1, float(self.scheduler.grace or 1)
        while at * factor < rounds:
            first, second = (math.ceil(rung / every) * every for rung in (at, at * factor))
            if first == second:
                raise ConfigError(
                    f"evaluate.every: {every} has no test between the rungs at rounds {at:.0f} and {at * factor:.0f}, "
                    "which successive_halving would judge by one value; lower it, raise scheduler.grace, or choose asha"
                )
            at *= factor

    @property
    def virtual_end(self) -> float | None:
        """The virtual seconds after which a trial ends (`until`); None: all its rounds."""
        space = self.search_space
        until = self.experiment(space.example(space.algorithms[0])).until
        return None if until is None else until.virtual_s

    @cached_property
    def search_space(self) -> Space:
        """The resolved space."""
        return resolve(self.space, self.values)

    def experiment(self, overrides: Mapping[str, Any]) -> Experiment:
        """The experiment of a trial: `overrides` (of :meth:`Space.suggest`) over that of the sweep."""
        return with_values(self.values, overrides)

    def dump(self) -> dict[str, Any]:
        """Plain values, complete, in the order of the file."""
        return {**self.model_dump(mode="json", by_alias=True), "experiment": self.values}

    def yaml(self) -> str:
        return document(self.dump())


def _metric(name: str, own: bool) -> None:
    """Raises `ConfigError` if `name` is not reported round by round, or if tuning must not read it.

    `own`: the experiment uses a module of the user's, whose metrics are known when a round reports them.
    """
    if name.startswith(("test/", "personal/")):
        raise ConfigError(f"objective: tuning never reads the test set, so not {name}; use val/acc")
    hidden = [
        metric
        for metric, meaning in METRICS.items()
        if metric.startswith(("test/", "personal/", "detect/")) or meaning.startswith(("tasks/:", "tests/:"))
    ]
    valid = {*CUMULATIVE, *RECENT, *METRICS} - set(hidden)
    if name not in valid and (name in hidden or not own):
        raise unknown("metric", name, valid, "objective")
