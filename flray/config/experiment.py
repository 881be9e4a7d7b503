"""`Experiment`: a checked and complete configuration. `loader.py` makes one, `api.py` runs it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import to_jsonable_python

from flray.aggregations import AGGREGATIONS
from flray.algorithms import ALGORITHMS
from flray.config.schedule import Change, Version, versions
from flray.config.tracking import TRACKERS
from flray.core.protocol.aggregation_section import AggregationSection
from flray.core.protocol.algorithm_section import AlgorithmSection
from flray.core.schema.errors import ConfigError, warn
from flray.core.schema.plain import document, words
from flray.core.schema.registry import Registry, readable
from flray.core.schema.section import (
    Section,
    build_sections,
    dumped,
    expand_shorthand,
    named_entries,
    one_line,
    section_of,
)
from flray.core.schema.shares import floor_share
from flray.data import DataConfig, ProxyConfig
from flray.data.data_config import DRAWN
from flray.metrics.probes import PROBES, table_names
from flray.models import ModelConfig
from flray.scenario import (
    DRIFTS,
    Coordination,
    DevicesConfig,
    Drift,
    PartitionConfig,
    TasksConfig,
    Until,
    ValidationConfig,
)
from flray.uplink.chain import Uplink, plain as plain_transforms, transforms
from flray.uplink.transform import Transform

if TYPE_CHECKING:
    from flray.core.protocol.aggregation import Aggregation
    from flray.core.protocol.algorithm import Algorithm
    from flray.core.protocol.probe import Probe
else:
    Aggregation = AggregationSection
    Algorithm = AlgorithmSection  # for pydantic: a configuration is checked without torch

LENGTH = ("rounds", "until")  # keys that say how far a run goes
# keys that may change when a run is resumed
RESUMABLE = (*LENGTH, "resources", "address", "checkpoint", "storage", "track", "profile")


def _folder_name(value: str) -> str:
    if value in ("", ".", "..") or "/" in value or not value.isprintable() or len(value.encode()) > 200:
        raise ValueError("must be the name of one folder: at most 200 bytes, no / and no control characters")
    return value


FolderName = Annotated[str, AfterValidator(_folder_name)]


def _positive(value: int | str) -> int | str:
    if not isinstance(value, str) and value < 1:
        raise ValueError("must be at least 1")
    return value


PositiveOrAuto = Annotated[int | Literal["auto"], AfterValidator(_positive)]


class CohortConfig(Section, serialize_by_alias=True):
    """The clients of a round: `size` of them, or a `fraction` of the population. Without both all take part.

    `from` names the clients of every round, in the order of its rows; rounds count over all tasks, from 0 or 1.

    A sampled client that drops out receives the first broadcast of the round and sends nothing in any of its exchanges.
    Its training is not computed, and its state does not change. The aggregation weights are those of the clients that
    deliver. If no client delivers, the server's state does not change. No client drops out at a task's end.
    """

    shorthand: ClassVar[Mapping[type, str]] = {int: "size", float: "fraction"}
    file: str | None = Field(
        None,
        alias="from",
        description="file (CSV, Parquet, JSON) with the columns round and client: the cohort of every round; none: "
        "drawn",
    )
    size: int | None = Field(None, ge=1, description="clients per round (K)")
    fraction: float | None = Field(
        None, gt=0, le=1, description="share of the population, rounded down, at least one client"
    )
    sampling: Literal["addressed", "poisson", "numpy_round_seed"] = Field(
        "addressed",
        description="poisson: each client independently with the probability K / N, so that the size varies; "
        "numpy_round_seed: the sets of FedSOL's code, numpy.random.seed(round)",
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="probability that a sampled client does not deliver, drawn each round"
    )

    @model_validator(mode="after")
    def _one(self) -> CohortConfig:
        if self.size is not None and self.fraction is not None:
            raise ValueError("give size or fraction, not both")
        if self.file is not None:
            default = type(self).model_fields["sampling"].default
            drawn = next((key for key in ("size", "fraction") if getattr(self, key) is not None), None)
            if (also := drawn or ("sampling" if self.sampling != default else None)) is not None:
                raise ConfigError(f"cohort.{also}: cohort.from names the clients of every round; leave one of them out")
        return self

    @property
    def not_addressed(self) -> str:
        """The option in place of the addressed draw of a cohort, `cohort.from` or `cohort.sampling=...`; "": none."""
        sampled = "" if self.sampling == "addressed" else f"cohort.sampling={self.sampling}"
        return "cohort.from" if self.file else sampled

    def count(self, population: int) -> int:
        """The cohort size K of `population` clients with samples; of a file's cohorts, the most that K can be.

        Raises `ConfigError` if it is larger than the population.
        """
        if self.fraction is not None:
            return max(floor_share(self.fraction, population), 1)
        size = population if self.size is None else self.size
        if size > population:
            raise ConfigError(f"cohort.size: {size} clients per round, but {population} hold samples; lower it")
        return size


class EvaluateConfig(Section):
    """When, where and on which samples the global model is tested, and the tests of clients on their own data."""

    validation: ValidationConfig | None = Field(
        None,
        description="test on held-out training data (val/acc, val/loss) instead of the test set; sweeps tune on it",
    )

    every: int = Field(1, ge=0, description="rounds between two tests; 0: only after the last round")
    batch_size: PositiveOrAuto = Field(
        "auto",
        description="samples tested at once; auto: from the size of the model's activations, the same on every machine "
        "(environment.json)",
    )
    on: Literal["clients", "server"] = Field(
        "clients", description="spread over the client actors, or on the server actor"
    )
    clients: bool = Field(True, description="accuracy of each client on its own data before and after local training")
    finetune_epochs: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (),
        description="personalised test after the run: epochs of fine-tuning (0: none) before each client's test "
        "on its own test share",
    )
    personal_clients: int | None = Field(
        None, ge=1, description="number of clients in the personalised test, the first by id; none: all"
    )
    local_test: Literal["proportional", "classes"] = Field(
        "proportional",
        description="a client's test share: proportional to its labels (FedSOL), or all samples of its classes "
        "(FedZoo)",
    )
    local_test_size: int = Field(1000, ge=1, description="samples of a proportional share (FedSOL's code: 1000)")

    @property
    def split(self) -> Literal["val", "test"]:
        """Prefix of the columns `acc` and `loss`: the split on which the global model is tested."""
        return "test" if self.validation is None else "val"

    def due(self, round: int, rounds: int) -> bool:
        """Whether the global model is tested after round `round` (from 0) of `rounds`."""
        return bool(self.every and (round + 1) % self.every == 0) or round + 1 == rounds

    @field_validator("finetune_epochs", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int) else value


class CheckpointConfig(Section):
    """How often the state of the run is saved. A run that ends or is interrupted always saves it."""

    shorthand: ClassVar[Mapping[type, str]] = {int: "every"}
    every: int = Field(10, ge=0, description="rounds between two checkpoints; 0: only at the end")
    keep: int = Field(2, ge=0, description="number of checkpoints that stay; 0: all")


GPU = "a GPU is given by resources.client.num_gpus=1 (a share, or auto) and resources.server.num_gpus=1"


class ClientResources(Section):
    num_cpus: float = Field(1.0, ge=0, description="CPUs of a client actor; it runs max(1, int(num_cpus)) threads")
    num_gpus: float | Literal["auto"] = Field(0.0, description="GPU share of a client actor; auto: measured")
    graphs: bool = Field(
        True, description="on a GPU, repeat local steps as CUDA graphs where the method allows it, with the same bits"
    )

    @field_validator("num_gpus")
    @classmethod
    def _share(cls, value: float | str) -> float | str:
        if not isinstance(value, str) and not 0 <= value <= 1:
            raise ValueError("must be between 0 and 1: a client trains on one GPU; a whole number of them stands idle")
        return value


class ServerResources(Section):
    num_cpus: float = Field(
        0.0, ge=0, description="CPUs reserved for the server actor; 0: it works while the clients wait"
    )
    num_gpus: float = Field(0.0, ge=0, description="GPU share of the server actor")
    threads: int | Literal["auto"] = Field("auto", description="torch threads of the server actor; auto: every core")


class ResourcesConfig(Section):
    elsewhere: ClassVar[Mapping[str, str]] = {"device": GPU, "gpu": GPU, "gpus": GPU}
    client_actors: PositiveOrAuto = Field(
        "auto", description="number of client actors; auto: as many as the cluster's CPUs or GPUs allow"
    )
    client: ClientResources = ClientResources()
    server: ServerResources = ServerResources()
    executor: Literal["auto", "local", "calls"] = Field(
        "auto",
        description="local: this process, without Ray; calls: Ray actors, one call for each chunk of the cohort; "
        "auto: local for a small run that names no address, actors or GPUs, else calls",
    )
    store: Literal["memory", "files"] = Field(
        "memory", description="where client state lives between rounds; files: in the run folder"
    )
    insecure_ray: bool = Field(
        False,
        description="start a Ray also where it has no token (before Ray 2.52) or does not keep to loopback: other "
        "users of this machine, or other machines, can then use it",
    )

    @field_validator("executor", mode="before")
    @classmethod
    def _by_calls(cls, value: Any) -> Any:
        if value == "graph":
            warn("resources.executor: graph, a compiled Ray graph of earlier versions, means calls, to the same bits")
            return "calls"
        return value


class ProfileConfig(Section):
    """Which clients' local training torch's profiler traces; the files lie below `profile/` in the run folder."""

    rounds: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        min_length=1, description="rounds, counted from 1 over all tasks"
    )
    clients: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), description="client ids, where they take part in the round; none: the cohort's first client"
    )


# sections of a name and its own options: what each is, its table, and an example of a name
NAMED: Mapping[str, tuple[type[Section], Registry, str]] = {
    "algorithm": (AlgorithmSection, ALGORITHMS, "fedavg"),
    "aggregation": (AggregationSection, AGGREGATIONS, "median"),
    "drift": (Drift, DRIFTS, "remove_classes, from_round: 10"),
}


class Experiment(Section):
    """A checked and complete experiment. `flray run DIR/config.yaml` repeats a run bit for bit."""

    renamed: ClassVar[Mapping[str, str]] = {"encoding": "uplink"}
    elsewhere: ClassVar[Mapping[str, str]] = {"device": GPU, "gpu": GPU, "gpus": GPU}

    name: FolderName = Field("run", description="names the run's folder")
    seed: int = Field(0, description="address of every random draw")
    rounds: int = Field(ge=0, description="rounds per task")
    data: DataConfig
    proxy: ProxyConfig | None = Field(None, description="public data on the server; none: no such data")
    partition: PartitionConfig
    tasks: TasksConfig | None = Field(None, description="a sequence of tasks; none: one task of all classes")
    drift: Drift | None = Field(
        None, description="classes that vanish from clients' data in some rounds; none: no drift"
    )
    model: ModelConfig
    algorithm: Algorithm
    aggregation: Aggregation | None = Field(
        None,
        description="how the server makes the next model of the clients' models; none: as the algorithm says, for most "
        "the mean",
    )
    uplink: tuple[Transform, ...] = Field(
        (),
        description="what happens to a client's update on its way, as the difference to the broadcast, in this order: "
        "[{name: clip, norm: 1.0}, {name: topk, fraction: 0.01}]; none: nothing",
    )
    cohort: CohortConfig = CohortConfig()
    devices: DevicesConfig | None = Field(
        None,
        description="how fast the clients compute and send, on a virtual clock (time/virtual_s); none: no such clock",
    )
    coordination: Coordination = Coordination()
    until: Until | None = Field(None, description="an end before `rounds`: {virtual_s: 3600}; none: all rounds")
    evaluate: EvaluateConfig = EvaluateConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    resources: ResourcesConfig = ResourcesConfig()
    schedule: tuple[Change, ...] = Field(
        (),
        description="hyper-parameters that change: [{from_round: 50, algorithm.optimizer: adam, algorithm.lr: 0.001}]",
    )
    diagnostics: tuple[str | dict[str, Any], ...] = Field(
        (), description="probes that measure training: names, or {name: ..., option: ...}"
    )
    track: tuple[str | dict[str, Any], ...] = Field(
        (), description="trackers that also get each round, mlflow or wandb: names, or {name: ..., option: ...}"
    )
    profile: ProfileConfig | None = Field(
        None, description="traces of local training by torch's profiler: {rounds: [3], clients: [0]}; none: no trace"
    )
    on_nonfinite: Literal["stop", "skip", "fail"] = Field(
        "stop",
        description="a NaN or an infinity in training: the run ends as diverged, skips the client, or fails",
    )
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        "fp32",
        description="tf32: on a GPU, products in TF32, with errors of some percent in a gradient; bf16: autocast in "
        "forward and backward passes",
    )
    address: str | None = Field(
        None, description="Ray cluster; none: RAY_ADDRESS, else a new one on this machine; auto: the running one"
    )
    storage: str | None = Field(
        None, description="URI below which the run folder is mirrored, e.g. s3://bucket/exp; none: no mirror"
    )
    imports: tuple[str, ...] = Field((), description="modules to import first: your own algorithms, models, sources")

    def probes(self) -> dict[str, Probe]:
        """The probes of `diagnostics` by the name of their table, in the order written."""
        sections = build_sections(self.diagnostics, PROBES)
        return dict(zip(table_names(sections), sections.values(), strict=True))

    def trackers(self) -> dict[str, Section]:
        """The options of each tracker by name, in the order written."""
        return build_sections(self.track, TRACKERS)

    @field_validator("diagnostics", "track", mode="before")
    @classmethod
    def _entries(cls, value: Any, info: ValidationInfo) -> Any:
        return named_entries(str(info.field_name), value, TRACKERS if info.field_name == "track" else PROBES)

    @field_validator(*NAMED, mode="before")
    @classmethod
    def _named(cls, value: Any, info: ValidationInfo) -> Any:
        optional = info.field_name != "algorithm"
        return None if value is None and optional else _of_its_kind(str(info.field_name), value)

    @field_validator("uplink", mode="before")
    @classmethod
    def _uplink(cls, value: Any) -> Any:
        return transforms(value)

    @model_validator(mode="after")
    def _fits_uplink(self) -> Experiment:
        uplink = Uplink(self.uplink)
        if uplink.private and self.cohort.file is not None:
            raise ConfigError("uplink.gaussian: epsilon holds for cohorts that are drawn; leave cohort.from out")
        return self

    def _fits_proxy(self, readers: Sequence[str]) -> None:
        if readers and self.proxy is None:
            example = "e.g. proxy: {source: holdout, size: 200}"
            raise ConfigError(f"{readers[0]} needs public data: add a `proxy` section, {example}")
        if self.proxy is None or self.proxy.source not in DRAWN:
            return
        for name, field in DataConfig.model_fields.items():
            value = getattr(self.proxy, name)
            same = value in (field.get_default(call_default_factory=True), getattr(self.data, name))
            if name not in ("source", "root", "download", "options") and not same:
                made = f"samples of {self.proxy.source} are prepared as the private ones"
                raise ConfigError(f"proxy.{name}: {made}; leave it out, or set data.{name}")

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        readers = [f"algorithm {algorithm_name(self.algorithm)}"] if self.algorithm.reads_proxy() else []
        if self.aggregation is not None and self.aggregation.reads_proxy():
            readers.append(f"aggregation {registered_name(AGGREGATIONS, self.aggregation)}")
        readers += [f"diagnostics {name}" for name, probe in self.probes().items() if "proxy" in probe.reads]
        self._fits_centralized(len(self.versions) > 1)
        self._fits_rule()
        self._fits_clock()
        self._fits_float64()
        self._fits_proxy(readers)
        if self.num_tasks > 1 and not self.rounds:
            raise ConfigError("rounds: 0 in each of several tasks trains nothing; set 1 or more, or leave tasks out")
        if self.schedule and self.schedule[-1].from_round > self.total_rounds:
            late = f"from_round {self.schedule[-1].from_round} is after the last round, {self.total_rounds}"
            raise ConfigError(f"schedule: {late}; lower it, or leave the change out (schedule=null)")
        if self.profile is not None and (last := max(self.profile.rounds)) > self.total_rounds:
            raise ConfigError(f"profile.rounds: {last} is after the last round, {self.total_rounds}; lower it")
        if self.tasks is not None:
            self.tasks.check_algorithm(self.algorithm, algorithm_name(self.algorithm))
        if self.evaluate.validation is not None and (self.evaluate.finetune_epochs or not self.algorithm.global_model):
            tuned = self.evaluate.finetune_epochs
            what = "evaluate.finetune_epochs" if tuned else f"algorithm {algorithm_name(self.algorithm)}"
            raise ConfigError(
                f"evaluate.validation: {what} tests each client on the test set; leave one of the two out"
            )
        if self.data.batch_order is not None and not self.data.shuffle:
            raise ConfigError("data.shuffle: data.batch_order gives the order already; leave one of the two out")
        return self

    def _fits_centralized(self, changes: bool) -> None:
        """Raises `ConfigError` for what a run without clients does not read. `changes`: whether `schedule` has any."""
        if not self.algorithm.centralized:
            return
        if changes:
            raise ConfigError("schedule: a centralized run has none; leave it out, or write algorithm.lr_decay")
        given: dict[str, Any] = {"uplink": self.uplink, "profile": self.profile, "devices": self.devices}
        given |= {"cohort.from": self.cohort.file, "data.batch_order": self.data.batch_order}
        for key, value in given.items():
            if value:
                raise ConfigError(f"{key}: a centralized run has no clients; leave it out ({key}=null)")

    def _fits_rule(self) -> None:
        """Raises `ConfigError` for a rule of aggregation that does not fit the algorithm, or what clients send."""
        if self.aggregation is not None and (reason := self.aggregation.misfit(self.algorithm)):
            rule = registered_name(AGGREGATIONS, self.aggregation)
            raise ConfigError(
                f"aggregation: {rule} does not fit algorithm {algorithm_name(self.algorithm)}: {reason}; leave it out "
                "(aggregation=none), or take algorithm=fedavg"
            )
        if self.rule is not None:
            self.rule.check(self.algorithm, self.uplink)

    def _fits_clock(self) -> None:
        """Raises `ConfigError` for devices or a coordination that this run would not read, or not rightly."""
        name, waits = self.coordination.name, self.coordination.name != "synchronous"
        if self.until is not None:
            if self.devices is None:
                raise ConfigError("until: virtual_s needs devices; add e.g. devices: {speed: equal}")
            if Uplink(self.uplink).private:
                raise ConfigError("uplink.gaussian: epsilon is that of all rounds; set rounds, and leave until out")
        if self.devices is None and self.partition.slow_classes is not None:
            raise ConfigError(
                "partition.slow_classes needs devices; add e.g. devices: {speed: {name: lognormal, sigma: 1}}"
            )
        if self.devices is None and waits:
            raise ConfigError(f"coordination: {name} needs devices; add e.g. devices: {{speed: equal}}")
        if self.devices is not None and self.tasks is not None:
            raise ConfigError("devices: the virtual clock has no tasks; leave one of the two out (devices=none)")
        if self.rule is not None and self.rule.mixes and self.coordination.size is None:
            raise ConfigError("aggregation: fedasync needs coordination: {name: buffered, size: 1}; add it")
        if self.devices is None:
            return
        if waits and self.algorithm.training.order == "sequential":
            who = algorithm_name(self.algorithm)
            raise ConfigError(f"coordination: the clients of algorithm {who} work one after another; leave {name} out")
        if waits and Uplink(self.uplink).private:
            raise ConfigError(f"uplink.gaussian: epsilon does not hold under coordination {name}; leave one out")
        other = self.cohort.not_addressed
        if self.devices.availability.name != "always" and other:
            raise ConfigError(f"devices.availability: clients are drawn among those that are there; leave {other} out")
        if self.coordination.size is not None:
            self._fits_buffer()
        if self.coordination.share is not None and other:
            raise ConfigError(f"coordination: over_selected draws the clients itself; leave {other} out")

    def _fits_buffer(self) -> None:
        """Raises `ConfigError` for what does not go with updates that started from older models."""
        algorithm, rule, name = self.algorithm, self.rule, algorithm_name(self.algorithm)
        wrong = {"cohort.dropout": self.cohort.dropout, "cohort.from": self.cohort.file}
        wrong["cohort.sampling"] = self.cohort.sampling != "addressed"
        for key, given in wrong.items():
            if given:
                raise ConfigError(f"coordination: buffered draws clients one by one; leave {key} out")
        averages = algorithm.fitting_rules()[0] == "any" and algorithm.sends_once
        if not (algorithm.asynchronous or averages):
            raise ConfigError(
                f"coordination: the server of algorithm {name} needs all updates from its present state; leave "
                "buffered out, or take algorithm=fedavg"
            )
        if rule is not None and not rule.asynchronous:
            raise ConfigError("coordination: aggregation fedmemo asks the clients of a round again; leave buffered out")
        if rule is not None and rule.mixes and self.coordination.size != 1:
            raise ConfigError("aggregation: fedasync takes one client's model at a time; write coordination.size=1")
        if any(getattr(transform, "adaptive", None) is not None for transform in self.uplink):
            raise ConfigError("uplink.clip: adaptive has a norm for each round, which buffered has not; leave one out")
        if self.data.batch_order is not None:
            raise ConfigError("data.batch_order: a file lists batches by round, which buffered has not; leave it out")

    def _fits_float64(self) -> None:
        """Raises `ConfigError` for what computes in float32 in a run with `model.dtype: float64`."""
        if self.model.dtype == "float32":
            return
        parts = [f"algorithm {algorithm_name(self.algorithm)} ({self.algorithm.float32_only})"]
        parts = parts if self.algorithm.float32_only else []
        if self.aggregation is not None and (what := self.aggregation.float32_only):
            parts += [f"aggregation {registered_name(AGGREGATIONS, self.aggregation)} ({what})"]
        parts += [step.address for step in Uplink(self.uplink).steps if step.transform.float32_only]
        parts += [f"precision: {self.precision}"] * (self.precision != "fp32")
        if parts:
            raise ConfigError(f"model.dtype: float64 does not fit {parts[0]}, which computes in float32; leave one out")

    @field_validator("schedule", mode="before")
    @classmethod
    def _schedule(cls, value: Any) -> Any:
        return () if value is None else [value] if isinstance(value, Mapping) else value

    @property
    def versions(self) -> tuple[Version, ...]:
        """The algorithm before the first change of `schedule` and after each change."""
        kind = type(self.algorithm)  # a class of `__main__` has no registered name in other processes
        return versions(self.algorithm, ALGORITHMS.name_of(kind) or kind.__name__, self.schedule, self.num_tasks)

    @property
    def rule(self) -> Aggregation | None:
        """The rule of aggregation: the algorithm where it is one itself; None: as the algorithm says."""
        return self.algorithm if isinstance(self.algorithm, AggregationSection) else self.aggregation

    @property
    def needs_proxy(self) -> bool:
        """Whether the algorithm or the rule of aggregation reads public data."""
        return self.algorithm.reads_proxy() or (self.aggregation is not None and self.aggregation.reads_proxy())

    @property
    def draws_among_all(self) -> bool:
        """Whether a round draws its K clients among all N, each at the rate K / N; else a file says who takes part, or
        the devices do: who is there, and who is fast."""
        devices, coordination = self.devices, self.coordination
        if self.cohort.file is not None or (devices is not None and devices.availability.name != "always"):
            return False
        return coordination.share is None and coordination.size is None

    @property
    def num_tasks(self) -> int:
        """The number of tasks T."""
        return 1 if self.tasks is None else self.tasks.num_tasks

    @property
    def total_rounds(self) -> int:
        """The number of rounds over all tasks, the last value of the clock's `done`."""
        return self.rounds * self.num_tasks

    @property
    def personal_epochs(self) -> tuple[int, ...]:
        """Numbers of fine-tuning epochs of the personalised test. Without a global model the default is (0,), not
        ()."""
        return self.evaluate.finetune_epochs or (() if self.algorithm.global_model else (0,))

    def dump(self) -> dict[str, Any]:
        """All keys as plain values, in the order of the fields."""
        values = self.model_dump(mode="json", exclude={*NAMED, "uplink"})
        values["uplink"] = plain_transforms(self.uplink)
        for key, (_, table, _) in NAMED.items():
            section = getattr(self, key)
            values[key] = None
            if section is not None:
                values[key] = {"name": registered_name(table, section), **dumped(key, section)}
        return {key: values[key] for key in type(self).model_fields}

    def yaml(self) -> str:
        return document(self.dump())


def algorithm_name(algorithm: Algorithm) -> str:
    """The name under which an algorithm's class is registered."""
    return registered_name(ALGORITHMS, algorithm)


def method_name(experiment: Experiment) -> str:
    """The name of the algorithm, and that of the rule of aggregation where the experiment names one: `fedavg-krum`."""
    name, rule = algorithm_name(experiment.algorithm), experiment.aggregation
    return "-".join(map(readable, [name] if rule is None else [name, registered_name(AGGREGATIONS, rule)]))


def registered_name(table: Registry, section: Section) -> str:
    """The name under which a section's class is registered in a table. Raises `ConfigError` if it is not."""
    name = table.name_of(type(section))
    if name is not None:
        return name
    kind = type(section).__name__
    raise ConfigError(f"{kind} is not registered; add it with {table.kind.upper()}S.add('name', {kind})")


def completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run, complete, with the default of each key that an older flray did not write.

    No module is imported: a section that names one, or that has a key which is no more, stays as it is.
    """
    whole = dict(values)
    for name, field in Experiment.model_fields.items():
        key = field.alias or name
        if key not in values and not field.is_required():
            whole[key] = to_jsonable_python(field.get_default(call_default_factory=True))
        elif values.get(key) and all(
            text.partition(":")[0] in sys.modules for text in words(values[key]) if ":" in text
        ):
            with contextlib.suppress(ConfigError, ValueError):
                whole[key] = _completed(key, values[key])
    return whole


def _completed(key: str, value: Any) -> Any:
    """One section as `dump` writes it. Raises `ConfigError` or `ValueError` for one that cannot be built."""
    if key in NAMED:
        return {"name": value["name"], **dumped(key, _of_its_kind(key, value))}
    if key == "uplink":
        return plain_transforms(transforms(value))
    if key in ("diagnostics", "track"):
        return list(named_entries(key, value, TRACKERS if key == "track" else PROBES))
    kind = section_of(Experiment, (key,))
    return value if kind is None or not isinstance(value, Mapping) else kind(**value).model_dump(mode="json")


def _of_its_kind(key: str, value: Any) -> Any:
    """The section `key` as an instance of the class that its table has under its `name`.

    Raises `ConfigError`, also for options that `config.yaml` would not give back.
    """
    base, table, example = NAMED[key]
    if isinstance(value, base):
        dumped(key, value)
        return value
    values = expand_shorthand(value, base)
    if not isinstance(values, dict) or "name" not in values:
        raise ConfigError(f"{key}: the name is missing; write {key}: {{name: {example}}}")
    kind = table.get(values.pop("name"))
    with one_line(key, kind):
        section = kind(**values)
    dumped(key, section)
    return section
