"""Data, model and algorithm of one process. Every process of a run builds the same; nothing of it needs Ray.

It stores nothing about a client between two calls.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from flray.config.experiment import Experiment
from flray.config.schedule import Version
from flray.core.messages import Message, ServerState, to_torch
from flray.core.network.attributes import content
from flray.core.network.frozen import Frozen, HeadRows, class_tables
from flray.core.network.layout import Entry, Layout
from flray.core.network.networks import cast_trained, objectives
from flray.core.network.objective import Objective
from flray.core.protocol import seeding
from flray.core.protocol.aggregation import Aggregation
from flray.core.protocol.aggregation_section import AggregationSection
from flray.core.protocol.algorithm import Algorithm
from flray.core.protocol.classes import Classes
from flray.core.protocol.clock import Clock
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.generators import preserve_globals, seed_globals
from flray.core.protocol.inputs import Inputs
from flray.core.protocol.probe import Reads
from flray.core.protocol.progress import StageProgress, no_progress
from flray.core.schema.errors import ConfigError, DataError
from flray.data import Normalizer, ProxyData, load_dataset, load_proxy
from flray.data.batching import gather
from flray.data.cache import Array
from flray.data.client_data import ClientSamples
from flray.data.splits import Split
from flray.engine import devices
from flray.engine.blame import Standing, errors_of
from flray.engine.counts import Evaluator, TestCounts
from flray.engine.node_memory import share_frozen
from flray.engine.trial import try_network
from flray.files import array_checksum, checksum
from flray.models import build_model, starts_from
from flray.scenario import Scenario, Stage, meanings, relabelled
from flray.uplink import Uplink
from flray.uplink.fits import check_noise

PROBED = 32  # samples that tell the rows of classes from those of a hidden layer


def in_force(versions: Sequence[Version], clock: Clock) -> Algorithm:
    """The algorithm of a clock; a task's end and the tests after a round have the version of that round."""
    round = clock.done + (clock.phase in ("round", "task_begin"))
    return [version.algorithm for version in versions if version.from_round <= max(round, 1)][-1]


class TaskSummary(NamedTuple):
    """What every process knows of the scenario, by task: the stage, the number of clients with samples, the number of
    these samples, and their numbers (actors get these only for a probe that reads `clients`). `cohorts`: the size of
    each round's cohort, where a file lists them. `population`: the number of clients of the whole run."""

    stages: tuple[Stage, ...]
    members: tuple[int, ...]
    examples: tuple[int, ...]
    samples: tuple[Array, ...]
    cohorts: Mapping[int, int] | None = None
    population: int = 0

    @classmethod
    def of(cls, scenario: Scenario) -> TaskSummary:
        tasks = range(len(scenario.stages))
        members = tuple(len(scenario.members(task)) for task in tasks)
        samples = tuple(partition.indices for partition in scenario.partitions)
        examples = tuple(scenario.total_examples(task) for task in tasks)
        listed = None if scenario.cohorts is None else scenario.cohorts.sizes
        return cls(scenario.stages, members, examples, samples, listed, scenario.population)

    def cohort_size(self, clock: Clock, experiment: Experiment) -> int:
        """The cohort size at a moment: the sampled clients in a round, under `coordination: buffered` the updates of a
        server step, all clients with samples at a task's beginning and end."""
        members = self.members[clock.task]
        if clock.phase != "round":
            return members
        if self.cohorts is not None:
            return self.cohorts[clock.done]
        return experiment.coordination.size or experiment.cohort.count(members)


class ArraySamples:
    """Samples of arrays, read and normalised batch by batch (`core.protocol.samples.Proxy`)."""

    def __init__(
        self,
        x: Array | Tensor,
        y: Array | Tensor | None,
        normalizer: Normalizer,
        same_labels: bool,
        rows: Array | None = None,
    ) -> None:
        """`rows`: the numbers of the samples in the arrays; None: all."""
        self._x, self._y, self._normalizer, self._rows = x, y, normalizer, rows
        self.size = len(x) if rows is None else len(rows)
        self.same_labels = same_labels and y is not None

    def inputs(self, index: np.ndarray) -> Tensor:
        return self._normalizer(gather(self._numbers(index), self._x)[0])

    def labels(self, index: np.ndarray) -> Tensor:
        if self._y is None:
            raise DataError("the proxy data have no labels; set proxy.labelled or use a loss without labels")
        return gather(self._numbers(index), self._y)[0].to(self._normalizer.device)

    def _numbers(self, index: np.ndarray) -> np.ndarray:
        return index if self._rows is None else self._rows[index]


class Runtime:
    """Data, model and algorithm of one experiment on one device."""

    def __init__(
        self,
        experiment: Experiment,
        summary: TaskSummary,
        device: torch.device | str = "cpu",
        one_of_many: bool = False,
    ) -> None:
        """`one_of_many`: other processes of the node build the same runtime and share its frozen tensors."""
        self.experiment, self.summary = experiment, summary
        self.probes = experiment.probes()
        self.algorithm, self._versions = experiment.algorithm, experiment.versions
        self.uplink = Uplink(experiment.uplink)
        self._as_loaded = load_dataset(experiment.data)
        self.dataset = relabelled(self._as_loaded, summary.stages)
        device = torch.device(device)
        self.dtype = getattr(torch, experiment.model.dtype)
        module = self._build()
        self.starts_from = starts_from(experiment.model, module)
        self.normalizer = Normalizer(self.dataset.mean, self.dataset.std, device, self.dtype)
        self.evaluator = Evaluator(self.algorithm, self.dataset, self.normalizer, self.evaluation_batch)
        self.inputs = Inputs(
            self.dataset.input_shape,
            *self.dataset.constants,
            self.dataset.classes,
            text=self.dataset.vocabulary is not None,
        )
        trained, networks = self._networks(module)
        if one_of_many and device.type == "cpu":
            share_frozen((trained, *networks.values()))
        cast_trained(trained, self.dtype)  # parts that the algorithm added
        self.objective, self.net = objectives(trained, networks, device, experiment.precision, self.dtype)
        # by task: the classes that training reads, and those that a test reads; empty: all classes are in use
        self._classes, self._tested_classes = self._classes_by_task(device)
        self.frozen, self._objectives = self._freeze()
        self._public_data = self._load_public_data(device)  # for the algorithm or for probes
        self.proxy = self._public_data if experiment.needs_proxy else None

    def _build(self) -> nn.Module:
        """The configured network after its trial; see :func:`try_network`."""
        seed, classes = self.experiment.seed, self.dataset.num_classes
        model_seed = seeding.torch_seed(seed, "model")
        first = self._samples(2)
        build = functools.partial(build_model, self.experiment.model, self.dataset.input_shape, classes, model_seed)
        name, trial_seed = self.experiment.model.name, seeding.torch_seed(seed, "trial")
        module, at_once = try_network(name, build, first, classes, trial_seed, self.dtype)
        size = self.experiment.evaluate.batch_size  # it changes no result
        self.evaluation_batch = at_once if size == "auto" else size
        return module

    def _samples(self, count: int) -> Tensor:
        normalizer = Normalizer(self.dataset.mean, self.dataset.std, dtype=self.dtype)
        return normalizer(np.array(self.dataset.train.x[:count]))

    def _classes_by_task(self, device: torch.device) -> tuple[list[Classes], list[Classes]]:
        outputs = [stage.outputs.tolist() for stage in self.summary.stages]  # `relabelled` turned labels into outputs
        size = self.dataset.num_classes
        if outputs == [list(range(size))]:
            return [], []
        tasks = range(1, len(outputs) + 1)
        trained = [Classes(outputs[:begun], size, device) for begun in tasks]
        return trained, [Classes(outputs[:begun], size, device, outputs[begun:]) for begun in tasks]

    def _load_public_data(self, device: torch.device) -> ArraySamples | None:
        """The public data, if the algorithm or a probe reads them, else None.

        Raises `ConfigError` if a probe reads their labels and these are not the private data's classes.
        """
        read_by_probe = any("proxy" in probe.reads for probe in self.probes.values())
        if self.experiment.proxy is None or not (self.experiment.needs_proxy or read_by_probe):
            return None
        proxy = self.load_proxy()[0]
        labels = [name for name, probe in self.probes.items() if "proxy_labels" in probe.reads]
        x, y = devices.resident_arrays(device, proxy.x, proxy.y)
        data = ArraySamples(x, y, Normalizer(proxy.mean, proxy.std, device, self.dtype), proxy.same_labels)
        if labels and not data.same_labels:
            raise ConfigError(
                f"diagnostics: {labels[0]} with these options reads labels of the public data, which have no labels of "
                "the private data's classes; see proxy.labelled and proxy.same_labels, or leave it out"
            )
        return data

    def _freeze(self) -> tuple[frozenset[str], dict[int, Frozen]]:
        """(the tensors that only the first task trains, by task the objective with frozen parts)."""
        config = self.experiment.tasks
        if config is None or "none" in config.freeze:
            return frozenset(), {}
        early = frozenset(self.objective.parts.early()) if "early" in config.freeze else frozenset[str]()
        if "statistics" in config.freeze and not self.objective.buffer_layout.entries:
            raise ConfigError(
                "tasks.freeze: statistics: the model has no running statistics of batch norm; leave it out"
            )
        tables: tuple[Entry, ...] = ()
        if self._classes:
            with preserve_globals(self.objective.device):
                tables = class_tables(self.objective, self._classes[0].size, functools.partial(self._samples, PROBED))
            self.objective.restore_state()
        frozen = {}
        for task in range(len(self.summary.stages)):
            rows = None
            if self._classes:
                classes = self._classes[task]
                unreached = torch.ones(classes.size, dtype=torch.bool, device=self.objective.device)
                unreached[classes.new.index] = False
                fixed = torch.zeros_like(unreached)
                if "old_heads" in config.freeze and not self.algorithm.keeps_exemplars:
                    fixed[classes.old.index] = True
                if "older_heads" in config.freeze:
                    self._fix_older(task, unreached, fixed)
                if fixed.any() and not tables and self._may_train_old_heads():
                    raise ConfigError(
                        f"tasks.freeze: {', '.join(config.freeze)}: {type(self.objective.module).__name__} has no head "
                        "with a layer whose rows are those of single classes, so there is no old head to freeze; leave "
                        "it out"
                    )
                rows = HeadRows(unreached, fixed & unreached, tables) if unreached.any() else None
            norms = bool(task) and "statistics" in config.freeze
            if (early and task) or rows is not None or norms:
                part = "early" if early and task else None
                frozen[task] = Frozen(self.objective, part, config.frozen_bn_stats == "freeze", rows, norms)
        return early, frozen

    def _may_train_old_heads(self) -> bool:
        """Whether a task could train heads of older ones: not where the head is not trained (T5's), and not where the
        network declares that nothing of it is to freeze (Fed+PEC's students of one class each)."""
        module = self.objective.module
        head = getattr(module, "head", None)
        untrained = isinstance(head, nn.Module) and [*head.parameters()] and not any(self.objective.in_head)
        return not untrained and getattr(module, "early", ()) is not None

    def _fix_older(self, task: int, unreached: Tensor, fixed: Tensor) -> None:
        """`older_heads` in task t, in `unreached [C]` and `fixed [C]`: the rows of tasks up to t - 3 are fixed.

        Those of t - 2 and t - 1 change by decay and momentum. Methods that replay samples have none fixed.
        """
        for older in range(task):
            rows = self._classes[task].task(older).index
            fixed[rows] = older < task - 2 and not self.algorithm.keeps_exemplars
            unreached[rows] = fixed[rows]

    def objective_of(self, task: int) -> Objective:
        """The network's objective in a task; `tasks.freeze` may have frozen parts of it."""
        return self._objectives.get(task, self.objective)

    def load_proxy(self) -> tuple[ProxyData, np.ndarray]:
        """(the proxy data, the numbers of the training samples that remain the clients').

        They are those of the driver. With separate heads the labels of held-out samples are outputs, and other public
        samples have none of the task's labels. Raises `ConfigError` if the configuration asks for labels that do not
        exist.
        """
        config = self.experiment.proxy
        if config is None:
            raise ConfigError("no `proxy` section in the configuration")
        proxy, private = load_proxy(config, self._as_loaded, seed=self.experiment.seed)
        if self.dataset is self._as_loaded or proxy.y is None or not proxy.same_labels:
            return proxy, private
        y = np.delete(self.dataset.train.y, private)
        if config.source == "holdout" and (y >= 0).all():
            return proxy._replace(y=y), private
        if config.labelled or config.same_labels:
            why, way = f"a public sample of {config.source!r} has no domain", "use proxy.source: holdout"
            if config.source == "holdout":
                why = f"{(y < 0).sum()} of {len(y)} held-out samples are of domains without a task"
                way = "write every domain in tasks.domains"
            raise ConfigError(
                f"proxy: with tasks.heads: separate the label of a sample is an output of its domain, and {why}; set "
                f"proxy.labelled to false, or {way}"
            )
        return proxy._replace(y=None, same_labels=False), private

    def _networks(self, module: nn.Module) -> tuple[nn.Module, Mapping[str, nn.Module]]:
        """(the network that clients train, the algorithm's own networks), from the configured `module`.

        Raises `AlgorithmError` that names the algorithm's method if it fails or returns something else.
        """
        with preserve_globals():  # for the initial values of what an algorithm adds
            seed_globals(seeding.torch_seed(self.experiment.seed, "networks"))
            with errors_of(self.algorithm, "module"):
                trained = self.algorithm.module(module, self.inputs)
                if not isinstance(trained, nn.Module):
                    raise TypeError(f"it returned a {type(trained).__name__}; it must return a torch.nn.Module")
            with errors_of(self.algorithm, "networks"):
                networks = self.algorithm.networks(module, self.inputs)
                if not isinstance(networks, Mapping):
                    raise TypeError(
                        f"it returned a {type(networks).__name__}; it must return networks by name, or {{}}"
                    )
            if (rule := self.experiment.aggregation) is not None:
                added = rule.networks(module, self.inputs)
                if twice := networks.keys() & added.keys():
                    raise ConfigError(f"aggregation: the algorithm has a network {min(twice)!r} too; rename the rule's")
                networks = {**networks, **added}
        return trained, networks

    def initial_state(self, ctx: Context) -> Message:
        """The server's state before round 1, with that of the rule of aggregation."""
        state, rule = self.algorithm.init_server(ctx, *self.objective.initial()), self.experiment.rule
        if not isinstance(state, ServerState) or not isinstance(rule, Aggregation) or state.rule is not None:
            return state
        return state.replace(rule=rule.initial(ctx, state.w, state.b))

    def rule_of(self, exchange: Exchange) -> AggregationSection | None:
        """The rule of aggregation, which decides how the models of local training are pooled; None: as declared."""
        return self.experiment.rule if exchange.client is None else None

    def algorithm_at(self, clock: Clock) -> Algorithm:
        """The algorithm with the hyper-parameters of this moment."""
        return in_force(self._versions, clock)

    def first_uplink(self) -> dict[str, Message]:
        """The server's first states of the transforms of `uplink`, by address. Raises `ConfigError`."""
        if not self.uplink:
            return {}
        objectives = [self.objective_of(task) for task in range(len(self.summary.stages))]
        check_noise(self.uplink, self.algorithm, self.experiment.rule, objectives)
        first = self.uplink.start(self.context(Clock()), self.rates(), self.summary.population)
        self.check_uplink(first)
        return first

    def check_uplink(self, states: Mapping[str, Any]) -> None:
        """Raises `ConfigError` if these states of `uplink`'s transforms do not do for the run, which a resume may have
        made longer."""
        if self.uplink.private:
            cohorts = [self.experiment.cohort.count(n) for n in self.summary.members]
            self.uplink.check_budget(states, self.rates(), cohorts)

    def rates(self, clock: Clock | None = None) -> tuple[tuple[float, int], ...]:
        """`Plan.rates` of the run, or of the rounds up to that of `clock`."""
        experiment, members = self.experiment, self.summary.members
        rounds = [experiment.rounds] * len(members)
        if clock is not None:
            rounds[clock.task :] = [clock.round + 1]
        rates = [experiment.cohort.count(n) / n if experiment.draws_among_all else 1.0 for n in members]
        return tuple(zip(rates, rounds, strict=False))

    # contexts ---------------------------------------------------------------------------------
    def context(self, clock: Clock, progress: StageProgress | None = None) -> Context:
        """The context of the server's methods at this moment; `progress` is called with the steps of long work."""
        return Context(**self._facts(clock), stage_progress=no_progress if progress is None else progress)

    def client_context(
        self, clock: Clock, client: int, *, num_steps: int, num_examples: int, weight: float
    ) -> ClientContext:
        """The context of a client's methods at this moment."""
        return ClientContext(
            **self._facts(clock), client=client, num_steps=num_steps, num_examples=num_examples, weight=weight
        )

    def _facts(self, clock: Clock) -> dict[str, Any]:
        """The fields that server and client contexts share at this moment."""
        return {
            "objective": self.objective_of(clock.task),
            "seed": self.experiment.seed,
            "clock": clock,
            "population": self.summary.members[clock.task],
            "populations": self.summary.members,
            "update_noise": self.uplink.update_noise,
            "cohort_size": self.summary.cohort_size(clock, self.experiment),
            "total_examples": self.summary.examples[clock.task],
            "proxy": self.proxy,
            "classes": self._classes[clock.task] if self._classes else None,
            "meanings": self.meanings,
            "net": self.net,
            "inputs": self.inputs,
            "aggregation": self.experiment.rule,
            "frozen": self.frozen if clock.task or clock.phase == "task_end" else frozenset(),
        }

    @functools.cached_property
    def meanings(self) -> Array | None:
        tasks = self.experiment.tasks
        return meanings(self.summary.stages) if tasks is not None and tasks.scores_classes else None

    @functools.cached_property
    def train_samples(self) -> Split:
        """The training samples, where clients gather their batches."""
        return devices.resident(self.dataset.train, self.objective.device)

    def client_data(self, ctx: Context, numbers: np.ndarray, previous: np.ndarray | None = None) -> ClientSamples:
        """The data of this context's client: the samples `numbers`, and those of the stage before (`previous`).

        Draws from `previous` have addresses of their own.
        """
        seed, address = ctx.seed, ctx.address
        data = ClientSamples(
            self.train_samples,
            numbers,
            rng=lambda purpose, epoch: seeding.rng(seed, *address, purpose, epoch),
            normalizer=self.normalizer,
            augment=self.dataset.augment,
            last_batch=self.algorithm.last_batch,
            plain_batch=self.algorithm.local_batches[0],
            shuffle=self.experiment.data.shuffle,
        )
        if previous is None:
            return data
        before = replace(
            data, numbers=previous, rng=lambda purpose, epoch: seeding.rng(seed, *address, "previous", purpose, epoch)
        )
        return replace(data, previous=before)

    def reveal(self, ctx: Context, reads: Reads) -> Context:
        """The context with the data that a probe declares to read."""
        if "proxy" in reads:
            ctx = replace(ctx, proxy=self._public_data)
        if "clients" in reads:
            train, rows = self.dataset.train, self.summary.samples[ctx.clock.task]
            return replace(ctx, tests={"clients": ArraySamples(train.x, train.y, self.normalizer, True, rows)})
        return replace(ctx, tests=self._tests(ctx.clock.task)) if "tests" in reads else ctx

    def _tests(self, task: int) -> dict[str, ArraySamples]:
        tests = {}
        for name, test in self.summary.stages[task].tests.items():
            split = getattr(self.dataset, test.split)
            tests[name] = ArraySamples(split.x, split.y, self.normalizer, True, test.samples)
        return tests

    def module_seed(self, ctx: Context) -> int:
        """The seed for this context's address of the generator that modules draw from (dropout)."""
        return seeding.torch_seed(ctx.seed, "module", *ctx.address)

    def seed_modules(self, seed: int) -> None:
        """Seed the generators that modules and losses draw from: torch's, NumPy's and Python's."""
        seed_globals(seed, self.objective.device)

    def fixed_tensors(self) -> dict[str, str]:
        """By name the checksums of what lies in the networks alone: frozen parameters, constants, first values. They
        must be equal in all processes of a run."""
        networks = {"": self.objective, **{f"{name}: ": network for name, network in self.net.items()}}
        return {
            f"{prefix}{name}": array_checksum(content(tensor).numpy())
            for prefix, network in networks.items()
            for name, tensor in network.state.fixed().items()
        }

    @property
    def layouts(self) -> list[Layout]:
        """Those of the flat vectors of parameters and of statistics, the network's own before the algorithm's."""
        return [each for net in (self.objective, *self.net.values()) for each in (net.layout, net.buffer_layout)]

    def tensor_names(self) -> str:
        """The checksum of the names and shapes of the tensors in the flat vectors, in their order."""
        names = [[(entry.name, entry.shape) for entry in layout.entries] for layout in self.layouts]
        return checksum(repr(names).encode())

    def standing(self, clock: Clock) -> Standing:
        """What the user's own classes hold before clients train."""
        parts = (self.algorithm_at(clock), self.experiment.rule, *self.experiment.uplink, *self.probes.values())
        return Standing(*parts)

    def check_networks(self) -> None:
        """Raises `ConfigError` for a buffer or a frozen parameter that should be constant and has been written to."""
        for objective in (self.objective, *self.net.values()):
            objective.state.check()

    # testing ----------------------------------------------------------------------------------
    def evaluate(self, published: Message, ctx: Context, part: int = 0, parts: int = 1) -> TestCounts:
        """The counts of part number `part` of `parts` parts of all tests.

        `published`: a message of arrays, or of tensors on any device. At the beginning and at the end of a task the
        tests include those of tasks that have not begun.
        """
        task, ahead = ctx.clock.task, ctx.clock.phase != "round"
        tests = self.summary.stages[task].read(ahead)
        if self._tested_classes:
            ctx = replace(ctx, classes=self._tested_classes[task])
        for network in (self.objective, *self.net.values()):
            network.restore_state()
        with errors_of(self.algorithm, "predict", ctx.clock):
            counts = self.evaluator.count(ctx, to_torch(published, self.objective.device), tests, part, parts)
        self.check_networks()
        return counts


def check_equal_tensors(own: Mapping[str, str], others: Mapping[str, str], process: str) -> None:
    """Raises `ConfigError` that names a tensor which has other values in a client's `process` than in the server's.

    Both are of :meth:`Runtime.fixed_tensors`.
    """
    for name in own.keys() | others.keys():
        if own.get(name) != others.get(name):
            raise ConfigError(
                f"model: {name} is not trained, so it is not sent, and it has other values in {process} than in the "
                "server; its constructor draws from what no seed decides (os.urandom, time, hash, a file, a generator "
                "of its own): draw with torch, numpy.random or random"
            )
