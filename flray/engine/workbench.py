"""What one process needs to run an experiment: data, model, algorithm. Built alike in every actor, and without Ray.

Nothing about a client stays here between two calls.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flray.core import seeding
from flray.core.algorithm import Context, Exchange, Predictor
from flray.core.errors import AlgorithmError, ClientError, ConfigError, DataError, NonFiniteError
from flray.core.messages import to_numpy, to_torch
from flray.core.objective import Objective
from flray.data import Batches, Normalizer, Proxy, load_dataset, load_proxy
from flray.data.cache import Array
from flray.engine.block import samples_at_once
from flray.engine.counts import Evaluator, Tally
from flray.engine.health import client_problem, reported
from flray.experiment import Experiment
from flray.models import build_model
from flray.ops.pooling import Collector, Sent
from flray.scenario.local_test import local_test
from flray.scenario.stage import TestSet

PERSONAL = 2000  # the exchange under which the personalised test draws


class Moment(NamedTuple):
    """Where in the experiment: `task` and `round` from 0, the `exchange`; `task_end` for the exchanges after a task."""

    task: int
    round: int
    exchange: int
    task_end: bool
    population: int
    cohort_size: int
    total_examples: int

    @property
    def address(self) -> int:
        """The exchange as randomness is addressed: those of a task's end are others than those of a round."""
        return self.exchange + (1000 if self.task_end else 0)


class Assignment(NamedTuple):
    """A contiguous run of the cohort: positions `first ...`, their clients, aggregation weights and sample numbers."""

    task: int
    round: int
    exchange: int
    first: int
    clients: tuple[int, ...]
    weights: tuple[float, ...]
    indices: np.ndarray  # of all clients, one after the other
    offsets: np.ndarray  # client i holds indices[offsets[i] : offsets[i + 1]]
    cohort_size: int
    population: int
    total_examples: int


class Delivery(NamedTuple):
    """What a run of the cohort sends up: its updates, pooled as far as they can be, and the new client states."""

    sent: Sent
    states: list[Any]


class ProxyTensors:
    """The proxy data on one device (`core.algorithm.Proxy`)."""

    def __init__(self, proxy: Proxy, device: torch.device) -> None:
        self._x, self._y = proxy.x, proxy.y
        self._normalizer = Normalizer(proxy.mean, proxy.std, device)
        self.size = len(proxy.x)
        self.same_labels = proxy.same_labels and proxy.y is not None

    def inputs(self, index: np.ndarray) -> Tensor:
        return self._normalizer(self._x[index])

    def labels(self, index: np.ndarray) -> Tensor:
        if self._y is None:
            raise DataError("the proxy data have no labels; set proxy.labelled or use a loss without labels")
        return torch.from_numpy(self._y[index]).to(self._normalizer.device)


class Workbench:
    """Data, model and algorithm of one experiment on one device."""

    def __init__(self, experiment: Experiment, device: torch.device | str = "cpu", held: np.ndarray | None = None) -> None:
        """`held`: training samples to test the global model on, instead of the test set."""
        self.experiment = experiment
        self.algorithm = experiment.algorithm
        self.dataset = load_dataset(experiment.data)
        device = torch.device(device)
        module = build_model(
            experiment.model, self.dataset.input_shape, self.dataset.num_classes, seeding.torch_seed(experiment.seed, "model")
        )
        self.normalizer = Normalizer(self.dataset.mean, self.dataset.std, device)
        self.block = experiment.evaluate.batch_size  # samples read at once where it makes no difference
        if self.block == "auto":
            self.block = samples_at_once(module, Normalizer(self.dataset.mean, self.dataset.std)(np.array(self.dataset.train.x[:2])))
        self.objective = Objective(module, device, experiment.precision)
        self.evaluator = Evaluator(self.algorithm, self.dataset, self.normalizer, self.block)
        self.tests = {experiment.evaluate.split: TestSet("test") if held is None else TestSet("train", held)}
        self.proxy: ProxyTensors | None = None
        if experiment.proxy is not None and experiment.algorithm.needs_proxy:
            self.proxy = ProxyTensors(self.load_proxy()[0], device)

    def load_proxy(self) -> tuple[Proxy, np.ndarray]:
        """The proxy set and the training samples that stay the clients'."""
        if self.experiment.proxy is None:
            raise ConfigError("no `proxy` section in the configuration")
        return load_proxy(self.experiment.proxy, self.dataset, seed=self.experiment.seed)

    def context(
        self, task: int, round: int, exchange: int, population: int, cohort_size: int, total_examples: int, **client: Any
    ) -> Context:
        where = (task, round, exchange, population, cohort_size)
        return Context(self.objective, self.experiment.seed, *where, self.proxy, total_examples=total_examples, **client)

    def server_context(self, moment: Moment) -> Context:
        return self.context(moment.task, moment.round, moment.address, moment.population, moment.cohort_size, moment.total_examples)

    # training ---------------------------------------------------------------------------------
    def train_run(
        self, job: Assignment, exchange: Exchange, down: Any, states: Sequence[Any] | None
    ) -> tuple[Delivery, list[dict[str, Any]]]:
        """Train the run's clients one after the other; `down` and the delivery are messages of NumPy arrays.

        Raises `ClientError` with the client's own traceback, `NonFiniteError` under `on_nonfinite: fail`.
        """
        down = to_torch(down, self.objective.device)
        updates, new_states, rows = Collector(), [], []
        for i, client in enumerate(job.clients):
            started = time.perf_counter()
            state = self.client_state(job, client, states[i] if states else None)
            indices = job.indices[job.offsets[i] : job.offsets[i + 1]]
            update, state, row = self.train_client(job, exchange, down, state, client, job.weights[i], indices)
            position = job.first + i
            updates.add(position, update, job.weights[i])
            new_states.append(to_numpy(state) if update is not None else None)
            rows.append(
                {"client": client, "exchange": job.exchange, "position": position, **row, "time/client_s": time.perf_counter() - started}
            )
        return Delivery(updates.sent(), new_states), rows

    def train_client(
        self, job: Assignment, exchange: Exchange, down: Any, state: Any, client: int, weight: float, indices: np.ndarray
    ) -> tuple[Any, Any, dict[str, Any]]:
        """One client's exchange: (update or None when skipped, client state, its row of metrics)."""
        ctx, batches = self.client_context(job, client, weight, indices)
        self.seed_modules(ctx)
        row: dict[str, Any] = {"num_examples": len(indices), "num_steps": len(batches)}
        before = self.algorithm.point(ctx, down) if self.experiment.evaluate.clients else None
        try:
            if before is not None:
                row["client/acc_before"] = self.accuracy(*before, indices)
            update, state, metrics = exchange.client(ctx, down, state, batches)
            row.update(reported(metrics))
            problem = client_problem(update, state, row)
            if problem and self.experiment.on_nonfinite != "skip":
                raise NonFiniteError(f"{problem}; lower algorithm.lr, or set on_nonfinite: skip")
            after = None if problem or before is None else self.algorithm.point(ctx, update)
            if after is not None:
                row["client/acc_after"] = self.accuracy(*after, indices)
        except (AlgorithmError, ConfigError):  # one line that says what to do; where it happened does not matter
            raise
        except Exception as error:
            self.check_batch_norm(error, client, indices)
            raise client_error(error, self.experiment, job, client) from None
        row["skipped"] = bool(problem)
        return None if problem else update, state, row

    def check_batch_norm(self, error: Exception, client: int, indices: np.ndarray) -> None:
        """Raises `ConfigError` where an error says that batch norm was to train on one sample: which setting leaves that."""
        if not (isinstance(error, ValueError) and "more than 1 value per channel" in str(error)):
            return
        size, _ = self.algorithm.local_batches
        if size == 1:
            what = "algorithm.batch_size is 1; raise it"
        elif len(indices) == 1:
            what = "it is all the client has; set partition.min_size=2, where the partition has that"
        else:
            what = f"the last of {len(indices)} in batches of {size}; set algorithm.last_batch=merge or drop, or another batch_size"
        raise ConfigError(f"client {client}: batch norm cannot train on a batch of one sample: {what}") from None

    def seed_modules(self, ctx: Context) -> None:
        """What a module itself draws (dropout) is addressed as well. `torch.manual_seed` would format a stack trace, 0.1 ms."""
        seed = seeding.torch_seed(ctx.seed, "module", ctx.task, ctx.round, ctx.exchange, ctx.client)
        torch.default_generator.manual_seed(seed)
        if ctx.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def client_context(
        self, job: Assignment, client: int, weight: float, indices: np.ndarray, finetune_epochs: int | None = None
    ) -> tuple[Context, Batches]:
        """The context and the batches of one client in one exchange, or in its fine-tuning."""
        batch_size, epochs = self.algorithm.local_batches
        steps = None
        if finetune_epochs is None:
            steps = int(self.algorithm.local_steps(np.array([len(indices)]))[0])
        else:
            epochs = finetune_epochs
        address = (self.experiment.seed, job.task, job.round, job.exchange, client)
        batches = Batches(
            self.dataset.train.x,
            self.dataset.train.y,
            indices,
            batch_size=batch_size,
            epochs=epochs,
            steps=steps,
            last_batch=self.algorithm.last_batch,
            rng=lambda purpose, epoch: seeding.rng(*address, purpose, epoch),
            normalizer=self.normalizer,
            augment=self.dataset.augment,
        )
        ctx = self.context(
            job.task, job.round, job.exchange, job.population, job.cohort_size, job.total_examples,
            client=client, num_steps=len(batches), num_examples=len(indices), weight=weight,
        )  # fmt: skip
        return ctx, batches

    def client_state(self, job: Assignment, client: int, stored: Any) -> Any:
        """The state that a client begins with: the stored one (NumPy) as tensors, or the algorithm's first one."""
        if stored is not None:
            return to_torch(stored, self.objective.device)
        ctx = self.context(job.task, job.round, job.exchange, job.population, job.cohort_size, job.total_examples, client=client)
        return self.algorithm.init_client(ctx)

    # testing ----------------------------------------------------------------------------------
    def personal(self, job: Assignment, down: Any, states: Sequence[Any], finetune_epochs: Sequence[int]) -> list[dict[str, Any]]:
        """Every client of the run, fine-tuned for each number of epochs from the same start, on its own share of the test set."""
        down, test, rule = to_torch(down, self.objective.device), self.dataset.test, self.experiment.evaluate
        rows = []
        for i, client in enumerate(job.clients):
            indices = job.indices[job.offsets[i] : job.offsets[i + 1]]
            state = self.client_state(job, client, states[i])
            draws = seeding.rng(self.experiment.seed, "local test", client)
            labels = self.dataset.train.y[indices]
            share = local_test(labels, test.y, self.dataset.num_classes, rule.local_test, draws, rule.local_test_size)
            for epochs in finetune_epochs:
                ctx, batches = self.client_context(job, client, job.weights[i], indices, epochs)
                self.seed_modules(ctx)
                try:
                    predictor = self.algorithm.personalize(ctx, down, state, batches)
                    right = self.right(predictor, test.x, test.y, share)
                except (AlgorithmError, ConfigError):
                    raise
                except Exception as error:
                    self.check_batch_norm(error, client, indices)
                    raise client_error(error, self.experiment, job, client) from None
                row = {"client": client, "finetune_epochs": epochs, "num_examples": len(indices), "num_test": len(share)}
                rows.append({**row, "test/acc": right / len(share) if len(share) else None})
        return rows

    def accuracy(self, w: Tensor, b: Tensor, indices: np.ndarray) -> float:
        """Share of right predictions on training samples `indices`, without augmentation."""
        return self.right(self.objective.at(w, b), self.dataset.train.x, self.dataset.train.y, indices) / max(len(indices), 1)

    def right(self, predictor: Predictor, x: Array, y: Array, indices: np.ndarray) -> float:
        """Number of right predictions on samples `indices`."""
        batches = Batches(x, y, indices, batch_size=self.block, epochs=1, rng=None, normalizer=self.normalizer)
        with torch.no_grad():
            return float(sum((predictor(batch.x).argmax(dim=1) == batch.y).sum() for batch in batches))

    def evaluate(self, published: Any, ctx: Context, part: int = 0, parts: int = 1) -> Tally:
        """What is counted in one of `parts` parts of all tests; `published` is a message of arrays or of tensors on any device."""
        return self.evaluator.count(ctx, to_torch(published, self.objective.device), self.tests, part, parts)


def client_error(error: Exception, experiment: Experiment, job: Assignment, client: int) -> ClientError:
    """The error of one client: where, its seed, its own traceback, and the command that repeats just this client."""
    kind = NonFiniteError if isinstance(error, NonFiniteError) else ClientError
    text = str(error) if isinstance(error, NonFiniteError) else f"{type(error).__name__}: {error}\n{traceback.format_exc()}".rstrip()
    return kind(
        f"client {client} failed in task {job.task}, round {job.round + 1}, exchange {job.exchange}, seed {experiment.seed}: {text}\n"
        f"repeat just this client: flray replay RUN_FOLDER --client {client}"
    )


def in_folder(error: ClientError, folder: Path) -> ClientError:
    """The same error with the run's folder in the command that it names: an actor does not know it."""
    return type(error)(str(error).replace("RUN_FOLDER", str(folder)))
