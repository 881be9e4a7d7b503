"""Who takes part in a round, and which actor trains whom."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from flray.core.algorithm import Algorithm
from flray.core.messages import Cohort
from flray.core.seeding import rng
from flray.engine.workbench import Assignment, Moment
from flray.experiment import CohortConfig
from flray.scenario import Partition


def sample(config: CohortConfig, seed: int, task: int, round: int, population: int) -> np.ndarray:
    """Client ids `[K]` of a round, without replacement, in cohort order; cost does not grow with the population.

    `numpy_round_seed` gives the sets of FedSOL's code: `numpy.random.seed(round)`, `choice(N, K, replace=False)` (spec 1.1).
    """
    size = config.count(population)
    if config.sampling == "numpy_round_seed":
        return np.random.RandomState(round).choice(population, size, replace=False).astype(np.int64)
    return rng(seed, "cohort", task, round).choice(population, size, replace=False).astype(np.int64)


def delivering(config: CohortConfig, seed: int, task: int, round: int, clients: np.ndarray) -> np.ndarray:
    """Those of a round's sampled clients that deliver (`cohort.dropout`), in their order; each draw is addressed by its client."""
    if not config.dropout:
        return clients
    draws = [rng(seed, "dropout", task, round, client).random() for client in clients.tolist()]
    return clients[np.array(draws) >= config.dropout]


def sizes_of(partition: Partition, clients: np.ndarray) -> np.ndarray:
    """n_k of these clients, int64 `[K]`."""
    return np.asarray(partition.offsets[clients + 1] - partition.offsets[clients], dtype=np.int64)


def runs(costs: Sequence[float] | np.ndarray, pieces: int) -> list[range]:
    """Positions cut into at most `pieces` contiguous runs whose costs are as even as the order allows."""
    count = len(costs)
    ends = np.cumsum(np.asarray(costs, dtype=np.float64))
    middles = ends - np.asarray(costs) / 2
    # a position belongs to the piece in which the middle of its cost lies
    piece = np.minimum((middles / max(ends[-1], 1e-12) * pieces).astype(np.int64), pieces - 1)
    cuts = [0, *(np.flatnonzero(np.diff(piece)) + 1).tolist(), count]
    return [range(a, b) for a, b in itertools.pairwise(cuts)]


class Work(NamedTuple):
    """One group of clients in one exchange: who they are, and the contiguous runs that actors take."""

    cohort: Cohort
    jobs: list[Assignment]


def work(partition: Partition, algorithm: Algorithm, clients: np.ndarray, moment: Moment, pieces: int) -> Work:
    """The group's sizes, steps and weights, and its runs (at most `pieces`) with the sample numbers of their clients."""
    sizes = sizes_of(partition, clients)
    steps = algorithm.local_steps(sizes)
    weights = algorithm.weights(torch.from_numpy(sizes))
    jobs = []
    for run in runs(steps + 1.0, pieces):
        members = clients[run.start : run.stop]
        shares = [partition.client(int(k)) for k in members]
        jobs.append(
            Assignment(
                task=moment.task,
                round=moment.round,
                exchange=moment.address,
                first=run.start,
                clients=tuple(members.tolist()),
                weights=tuple(weights[run.start : run.stop].tolist()),
                indices=np.concatenate(shares),
                offsets=np.concatenate([[0], np.cumsum([len(share) for share in shares])]).astype(np.int64),
                cohort_size=moment.cohort_size,
                population=moment.population,
                total_examples=moment.total_examples,
            )
        )
    return Work(Cohort(torch.from_numpy(clients), torch.from_numpy(sizes), torch.from_numpy(steps), weights), jobs)


def groups(clients: np.ndarray, order: str) -> list[np.ndarray]:
    """`parallel`: all at once; `sequential`: one after the other, each seeing what the last one added. Of nobody there is none."""
    return [clients] * bool(len(clients)) if order == "parallel" else [clients[i : i + 1] for i in range(len(clients))]
