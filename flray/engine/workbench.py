"""Data, model and algorithm of one process. Every process of a run builds the same; nothing of it needs Ray.

A workbench stores nothing about a client between two calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from flray.config.experiment import CohortConfig, Experiment
from flray.config.schedule import Version
from flray.core.messages import Message, to_torch
from flray.core.network.frozen import Frozen, HeadRows
from flray.core.network.networks import objectives
from flray.core.network.objective import Objective
from flray.core.protocol import last_call, seeding
from flray.core.protocol.algorithm import Algorithm
from flray.core.protocol.classes import Classes
from flray.core.protocol.clock import Clock
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.inputs import Inputs
from flray.core.protocol.probe import Reads
from flray.core.protocol.progress import StageProgress, no_progress
from flray.core.protocol.returned import label
from flray.core.schema.errors import ConfigError, DataError
from flray.data import Normalizer, ProxyData, load_dataset, load_proxy
from flray.data.cache import Array
from flray.data.client_data import ClientSamples
from flray.engine.blame import errors_of
from flray.engine.counts import Evaluator, TestCounts
from flray.engine.evaluation_batch import samples_at_once
from flray.engine.node_memory import share_frozen
from flray.models import build_model, starts_from
from flray.scenario import Scenario, Stage, meanings, relabelled


def in_force(versions: Sequence[Version], clock: Clock) -> Algorithm:
    """The algorithm of a clock; a task's end and the tests after a round have the version of that round."""
    round = clock.done + (clock.phase in ("round", "task_begin"))
    return [version.algorithm for version in versions if version.from_round <= max(round, 1)][-1]


class TaskSummary(NamedTuple):
    """What every process knows of the scenario, by task: the stage, the number of clients with samples, the number of
    these samples, and their numbers (actors get these only for a probe that reads `clients`)."""

    stages: tuple[Stage, ...]
    members: tuple[int, ...]
    examples: tuple[int, ...]
    samples: tuple[Array, ...]

    @classmethod
    def of(cls, scenario: Scenario) -> TaskSummary:
        tasks = range(len(scenario.stages))
        members = tuple(len(scenario.members(task)) for task in tasks)
        samples = tuple(partition.indices for partition in scenario.partitions)
        return cls(scenario.stages, members, tuple(scenario.total_examples(task) for task in tasks), samples)

    def cohort_size(self, clock: Clock, cohort: CohortConfig) -> int:
        """The cohort size at a moment: the sampled clients in a round, all clients with samples at a task's beginning
        and end."""
        members = self.members[clock.task]
        return cohort.count(members) if clock.phase == "round" else members


class ArraySamples:
    """Samples of arrays, read and normalised batch by batch (`core.protocol.samples.Proxy`)."""

    def __init__(
        self, x: Array, y: Array | None, normalizer: Normalizer, same_labels: bool, rows: Array | None = None
    ) -> None:
        """`rows`: the numbers of the samples in the arrays; None: all."""
        self._x, self._y, self._normalizer, self._rows = x, y, normalizer, rows
        self.size = len(x) if rows is None else len(rows)
        self.same_labels = same_labels and y is not None

    def inputs(self, index: np.ndarray) -> Tensor:
        return self._normalizer(self._x[self._numbers(index)])

    def labels(self, index: np.ndarray) -> Tensor:
        if self._y is None:
            raise DataError("the proxy data have no labels; set proxy.labelled or use a loss without labels")
        return torch.from_numpy(self._y[self._numbers(index)]).to(self._normalizer.device)

    def _numbers(self, index: np.ndarray) -> np.ndarray:
        return index if self._rows is None else self._rows[index]


class Workbench:
    """Data, model and algorithm of one experiment on one device."""

    def __init__(
        self,
        experiment: Experiment,
        summary: TaskSummary,
        device: torch.device | str = "cpu",
        one_of_many: bool = False,
    ) -> None:
        """`one_of_many`: other processes of the node build the same workbench and share its frozen tensors."""
        self.experiment, self.summary = experiment, summary
        self.probes = experiment.probes()
        self.algorithm, self._versions = experiment.algorithm, experiment.versions
        self.dataset = relabelled(load_dataset(experiment.data), summary.stages)
        device = torch.device(device)
        module = build_model(
            experiment.model,
            self.dataset.input_shape,
            self.dataset.num_classes,
            seeding.torch_seed(experiment.seed, "model"),
        )
        self.starts_from = starts_from(experiment.model, module)
        self.normalizer = Normalizer(self.dataset.mean, self.dataset.std, device)
        self.evaluation_batch = self._evaluation_batch(module)
        by_class = experiment.tasks is not None and experiment.tasks.scores_classes
        scored = meanings(summary.stages) if by_class else None
        self.evaluator = Evaluator(self.algorithm, self.dataset, self.normalizer, self.evaluation_batch, scored)
        self.inputs = Inputs(
            self.dataset.input_shape,
            *self.dataset.constants,
            self.dataset.classes,
            text=self.dataset.vocabulary is not None,
        )
        trained, networks = self._networks(module)
        if one_of_many and device.type == "cpu":
            share_frozen((trained, *networks.values()))
        self.objective, self.net = objectives(trained, networks, device, experiment.precision)
        # by task: the classes that training reads, and those that a test reads; empty: all classes are in use
        self._classes, self._tested_classes = self._classes_by_task(device)
        self.frozen, self._frozen = self._freeze()
        self._public_data = self._load_public_data(device)  # for the algorithm or for probes
        self.proxy = self._public_data if experiment.algorithm.needs_proxy else None

    def _evaluation_batch(self, module: nn.Module) -> int:
        """The number of samples in one forward pass of a test. It changes no result."""
        size = self.experiment.evaluate.batch_size
        if size != "auto":
            return size
        first = Normalizer(self.dataset.mean, self.dataset.std)(np.array(self.dataset.train.x[:2]))
        return samples_at_once(module, first, self.dataset.num_classes)

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
        if self.experiment.proxy is None or not (self.algorithm.needs_proxy or read_by_probe):
            return None
        proxy = self.load_proxy()[0]
        labels = [name for name, probe in self.probes.items() if "proxy_labels" in probe.reads]
        data = ArraySamples(proxy.x, proxy.y, Normalizer(proxy.mean, proxy.std, device), proxy.same_labels)
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
                rows = HeadRows(unreached, fixed & unreached) if unreached.any() else None
            norms = bool(task) and "statistics" in config.freeze
            if (early and task) or rows is not None or norms:
                part = "early" if early and task else None
                frozen[task] = Frozen(self.objective, part, config.frozen_bn_stats == "freeze", rows, norms)
        return early, frozen

    def objective_of(self, task: int) -> Objective:
        """The network's objective in a task; `tasks.freeze` may have frozen parts of it."""
        return self._frozen.get(task, self.objective)

    def load_proxy(self) -> tuple[ProxyData, np.ndarray]:
        """(the proxy data, the numbers of the training samples that remain the clients')."""
        if self.experiment.proxy is None:
            raise ConfigError("no `proxy` section in the configuration")
        return load_proxy(self.experiment.proxy, self.dataset, seed=self.experiment.seed)

    def _networks(self, module: nn.Module) -> tuple[nn.Module, Mapping[str, nn.Module]]:
        """(the network that clients train, the algorithm's own networks), from the configured `module`.

        Raises `AlgorithmError` that names the algorithm's method if it fails or returns something else.
        """
        with torch.random.fork_rng(devices=[]):  # for the initial values of what an algorithm adds
            torch.manual_seed(seeding.torch_seed(self.experiment.seed, "networks"))
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
        return trained, networks

    def algorithm_at(self, clock: Clock) -> Algorithm:
        """The algorithm with the hyper-parameters of this moment."""
        return in_force(self._versions, clock)

    # contexts ---------------------------------------------------------------------------------
    def context(self, clock: Clock, progress: StageProgress | None = None) -> Context:
        """The context of the server's methods at this moment; `progress` is called with the steps of long work."""
        return Context(**self._facts(clock), stage_progress=no_progress if progress is None else progress)

    def client_context(
        self, clock: Clock, client: int, *, num_steps: int, num_examples: int, weight: float
    ) -> ClientContext:
        """The context of a client's methods at this moment."""
        own: dict[str, Any] = {"num_steps": num_steps, "num_examples": num_examples, "weight": weight}
        return ClientContext(**self._facts(clock), client=client, **own)

    def _facts(self, clock: Clock) -> dict[str, Any]:
        """The fields that server and client contexts share at this moment."""
        return {
            "objective": self.objective_of(clock.task),
            "seed": self.experiment.seed,
            "clock": clock,
            "population": self.summary.members[clock.task],
            "populations": self.summary.members,
            "cohort_size": self.summary.cohort_size(clock, self.experiment.cohort),
            "total_examples": self.summary.examples[clock.task],
            "proxy": self.proxy,
            "classes": self._classes[clock.task] if self._classes else None,
            "net": self.net,
            "inputs": self.inputs,
            "frozen": self.frozen if clock.task or clock.phase == "task_end" else frozenset(),
        }

    def client_data(self, ctx: Context, numbers: np.ndarray, previous: np.ndarray | None = None) -> ClientSamples:
        """The data of this context's client: the samples `numbers`, and those of the stage before (`previous`).

        Draws from `previous` have addresses of their own.
        """
        seed, address = ctx.seed, ctx.address
        data = ClientSamples(
            self.dataset.train,
            numbers,
            rng=lambda purpose, epoch: seeding.rng(seed, *address, purpose, epoch),
            normalizer=self.normalizer,
            augment=self.dataset.augment,
            last_batch=self.algorithm.last_batch,
            plain_batch=self.algorithm.local_batches[0],
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
        """Seed the generator that modules draw from."""
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would format a stack trace, 0.1 ms
        if self.objective.device.type == "cuda":
            torch.cuda.manual_seed(seed)

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
        where, method = last_call.at(f"the test after {ctx.clock}"), label(type(self.algorithm), "predict")
        with errors_of(self.algorithm, "predict", ctx.clock), where, last_call.within(method):
            return self.evaluator.count(ctx, to_torch(published, self.objective.device), tests, part, parts)
