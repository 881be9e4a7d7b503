"""The two sides of a comparison: a workload run by flray, and the bare PyTorch loop that does the same work."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from flray.config.experiment import Experiment
from flray.config.loader import load_config
from flray.core.protocol import seeding
from flray.core.protocol.clock import Clock
from flray.data import load_dataset
from flray.data.splits import Split
from flray.models import build_model
from flray.scenario import Scenario, build

WARM_UP = 2  # rounds of a run that are not counted, and the last one, which tests
TEST_BATCH = 500  # samples that the bare loop tests at once


class Workload(NamedTuple):
    """Clients of equal size on synthetic images."""

    clients: int
    images: int
    shape: tuple[int, int, int]  # H, W, C
    cohort: int
    batch: int
    model: dict[str, Any]
    epochs: int = 1
    tested: int = 0  # test samples that the global model reads after every round

    def experiment(self, rounds: int, **sections: Any) -> Experiment:
        options = {
            "num_train": self.clients * self.images,
            "num_test": max(100, self.tested),
            "shape": list(self.shape),
        }
        data = {"source": "synthetic", "options": options}
        algorithm = {
            "name": "fedavg",
            "lr": 0.01,
            "momentum": 0.9,
            "local_epochs": self.epochs,
            "batch_size": self.batch,
        }
        config = {
            "rounds": rounds, "data": data, "partition": {"name": "iid", "clients": self.clients}, "model": self.model,
            "algorithm": algorithm, "cohort": {"size": self.cohort}, "checkpoint": {"every": 0},
            "evaluate": {"every": int(self.tested > 0), "clients": False}, "resources": {"executor": "calls"},
        }  # fmt: skip
        return load_config({**config, **sections})[0]

    def scenario(self, experiment: Experiment) -> Scenario:
        return build(load_dataset(experiment.data), experiment.partition, seed=experiment.seed)


class Way(NamedTuple):
    """A way to run the bare loop: number of processes, threads of each, fused optimiser, channels-last convolutions."""

    processes: int
    threads: int
    fused: bool = False
    channels_last: bool = False

    def __str__(self) -> str:
        fused, last = " fused" * self.fused, " channels-last" * self.channels_last
        return f"{self.processes} x {self.threads} threads{fused}{last}"


class Bare:
    """Plain PyTorch FedAvg over a part of the cohort; `total` gets the weighted sum of the clients' parameters."""

    def __init__(self, experiment: Experiment, scenario: Scenario, way: Way, addressed: bool = False) -> None:
        dataset, algorithm = load_dataset(experiment.data), experiment.algorithm
        self.seed, self.addressed, self.partition = experiment.seed, addressed, scenario.partitions[0]
        self.batch, self.epochs = algorithm.local_batches
        self.x, self.y = self._in_memory(dataset.train, way.channels_last)
        self.tested = self._in_memory(dataset.test, way.channels_last)
        std = torch.tensor(dataset.std).view(-1, 1, 1)
        levels = 255 if self.x.dtype == torch.uint8 else 1
        self.scale, self.shift = 1 / (levels * std), -torch.tensor(dataset.mean).view(-1, 1, 1) / std
        seed = seeding.torch_seed(experiment.seed, "model")
        self.model = build_model(experiment.model, dataset.input_shape, dataset.num_classes, seed)
        self.model.train()
        if way.channels_last:
            self.model.to(memory_format=torch.channels_last)
        self.parameters: list[Tensor] = [p for p in self.model.parameters() if p.requires_grad]
        lr, momentum = algorithm.lr, algorithm.momentum  # type: ignore[attr-defined]
        self.optimizer = torch.optim.SGD(self.parameters, lr=lr, momentum=momentum, fused=way.fused)
        self.loss = nn.CrossEntropyLoss()
        self.total = [torch.zeros_like(p) for p in self.parameters]

    @staticmethod
    def _in_memory(split: Split, channels_last: bool) -> tuple[Tensor, Tensor]:
        """Images uint8 `[n, C, H, W]` and labels in memory."""
        x = torch.from_numpy(split.x.copy()).permute(0, 3, 1, 2)
        return x if channels_last else x.contiguous(), torch.from_numpy(split.y.copy())

    def test(self, weights: Sequence[Tensor], part: int, parts: int) -> tuple[int, float]:
        """(right predictions, summed loss) of the global weights on this process's part of the test set."""
        x, y = self.tested
        right, loss = 0, 0.0
        self.model.eval()
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, list(weights))
            batches = [range(i, min(i + TEST_BATCH, len(y))) for i in range(0, len(y), TEST_BATCH)][part::parts]
            for rows in batches:
                logits = self.model(x[rows.start : rows.stop].float().mul_(self.scale).add_(self.shift))
                labels = y[rows.start : rows.stop]
                right += int((logits.argmax(dim=1) == labels).sum())
                loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
        self.model.train()
        return right, loss

    def train(self, weights: Sequence[Tensor], round: int, clients: Sequence[int], shares: Sequence[float]) -> int:
        steps = 0
        torch._foreach_zero_(self.total)
        for client, share in zip(clients, shares, strict=True):
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, list(weights))
            self.optimizer.state.clear()
            for x, y in self.batches(round, client):
                self.optimizer.zero_grad()
                self.loss(self.model(x), y).backward()
                self.optimizer.step()
                steps += 1
            with torch.no_grad():
                torch._foreach_add_(self.total, self.parameters, alpha=share)
        return steps

    def inputs(self, rows: Tensor) -> Tensor:
        return self.x[rows].float().mul_(self.scale).add_(self.shift)

    def batches(self, round: int, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Gathers and normalises a whole epoch at once, which is faster than batch by batch."""
        indices = torch.from_numpy(self.partition.client(client).astype(np.int64))
        for epoch in range(self.epochs):
            if self.addressed:  # flray's own order
                rng = seeding.rng(self.seed, 0, round, 0, client, "batches", epoch)
                order = torch.from_numpy(rng.permutation(len(indices)))
            else:
                order = torch.randperm(len(indices))
            rows = indices[order]
            x = self.inputs(rows)
            yield from zip(x.split(self.batch), self.y[rows].split(self.batch), strict=True)


def _serve(pipe: Any, threads: int, weights: list[Tensor], total: list[Tensor], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(threads)
    bare = Bare(*arguments)
    bare.total = total  # shared memory
    pipe.send("ready")
    while (work := pipe.recv()) is not None:
        method, *rest = work
        pipe.send(getattr(bare, method)(weights, *rest))


class BarePool:
    """Processes that live over all rounds; global weights and partial sums are in shared memory.

    `with BarePool(...) as pool`.
    """

    def __init__(self, experiment: Experiment, scenario: Scenario, way: Way, addressed: bool = False) -> None:
        from flray.engine.cohort import sample_cohort

        self.way = way
        self.experiment, self.scenario, self._sample = experiment, scenario, sample_cohort
        dataset = load_dataset(experiment.data)
        seed = seeding.torch_seed(experiment.seed, "model")
        model = build_model(experiment.model, dataset.input_shape, dataset.num_classes, seed)
        self.names = [name for name, _ in model.named_parameters()]
        if way.channels_last:
            model.to(memory_format=torch.channels_last)
        self.weights = [p.detach().clone().share_memory_() for p in model.parameters()]
        self.totals = [[torch.zeros_like(p).share_memory_() for p in self.weights] for _ in range(way.processes)]
        context = torch.multiprocessing.get_context("spawn")
        self.workers = []
        for total in self.totals:
            parent, child = context.Pipe()
            arguments = (child, way.threads, self.weights, total, (experiment, scenario, way, addressed))
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            child.close()  # so that a worker that dies ends the wait for it
            self.workers.append((process, parent))
        for _, pipe in self.workers:
            pipe.recv()
        self.done = 0

    def __enter__(self) -> BarePool:
        return self

    def __exit__(self, *_: object) -> None:
        for process, pipe in self.workers:
            pipe.send(None)
            process.join()

    def round(self) -> int:
        """One round of FedAvg, and a test if the experiment tests every round; returns the number of gradient steps."""
        cohort, members = self.experiment.cohort, self.scenario.members(0)
        clients = self._sample(cohort, self.experiment.seed, Clock(0, self.done, done=self.done), members)
        offsets = self.scenario.partitions[0].offsets
        sizes = offsets[clients + 1] - offsets[clients]
        shares = sizes / sizes.sum()
        pieces = zip(np.array_split(clients, len(self.workers)), np.array_split(shares, len(self.workers)), strict=True)
        for (_, pipe), (members, part) in zip(self.workers, pieces, strict=True):
            pipe.send(("train", self.done, members.tolist(), part.tolist()))
        steps = sum(int(pipe.recv()) for _, pipe in self.workers)
        for total in self.totals[1:]:
            torch._foreach_add_(self.totals[0], total)
        torch._foreach_copy_(self.weights, self.totals[0])
        self.done += 1
        if self.experiment.evaluate.every:
            self.test()
        return steps

    def test(self) -> tuple[int, float]:
        """(right predictions, summed loss) of the global weights on the test set."""
        for number, (_, pipe) in enumerate(self.workers):
            pipe.send(("test", number, len(self.workers)))
        answers = [pipe.recv() for _, pipe in self.workers]
        return sum(right for right, _ in answers), sum(loss for _, loss in answers)

    def measure(self, rounds: int) -> tuple[float, int]:
        """(median seconds of a round, gradient steps of one)."""
        times, steps = [], set()
        for _ in range(rounds):
            started = time.perf_counter()
            steps.add(self.round())
            times.append(time.perf_counter() - started)
        return median(times), steps.pop()


# flray -------------------------------------------------------------------------------------------
class Measured(NamedTuple):
    """Of one run: median seconds of a round, gradient steps of a round, and the median share of a round outside the
    slowest actor's clients."""

    round_s: float
    steps: int
    server: float


def measure(experiment: Experiment, scenario: Scenario, folder: Path) -> Measured:
    """A real run with Ray, from the end of one round to the end of the next; without the first rounds and the last
    one."""
    from flray.engine.cohort import chunk_ranges
    from flray.rundir.reader import load
    from flray.running import play

    ends = [time.perf_counter() for _ in play(experiment, folder, scenario=scenario, overwrite=True)]
    run = load(folder)
    rows, seconds = run.rounds.iloc[WARM_UP:-1], np.diff(ends)[WARM_UP - 1 : -1]
    actors = run.environment["actors"]["client_actors"]
    shares = []
    for done, round_s in zip(rows["done"], seconds, strict=True):
        clients = run.clients[run.clients["done"] == done].sort_values("position")
        trained = clients["time/client_s"].to_numpy()
        # the engine's own split of the cohort: a contiguous run an actor
        slowest = max(
            trained[r.start : r.stop].sum() for r in chunk_ranges(clients["num_steps"].to_numpy() + 1.0, actors)
        )
        shares.append((round_s - slowest) / round_s)
    return Measured(median(seconds.tolist()), int(rows["client_steps"].iloc[0]), median(shares))
