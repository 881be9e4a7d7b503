"""Which clients take part at a moment, and how they are cut into chunks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from flray.config.experiment import CohortConfig, Experiment
from flray.core.messages import Cohort
from flray.core.protocol.algorithm import Algorithm
from flray.core.protocol.batching import ListedBatches
from flray.core.protocol.clock import Clock
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.seeding import rng
from flray.engine.blame import errors_of
from flray.engine.exchanges import Aged, Chunk, Turn
from flray.engine.this_process import as_in_a_run
from flray.engine.tickets import ServerStep, planned_steps
from flray.scenario import Coordination, Scenario, Shares, clients_at
from flray.scenario.tables import BatchOrders, ListedCohorts

SYNCHRONOUS = Coordination()


def sample_cohort(
    config: CohortConfig,
    seed: int,
    clock: Clock,
    members: range | np.ndarray,
    listed: ListedCohorts | None = None,
    coordination: Coordination = SYNCHRONOUS,
) -> np.ndarray:
    """Client ids `[K]` of a round, drawn from the `members` of the stage without replacement, in cohort order.

    The cost does not grow with the population. `coordination: over_selected` draws more than K. `poisson`: each member
    takes part with the probability K / N, independently of the others, so that there may be none. `numpy_round_seed`
    draws the sets of FedSOL's code: `numpy.random.seed(round)`, `choice(N, K, replace=False)`; `round` counts over all
    tasks. `listed`: the content of `cohort.from`, which is read if it is not given. Raises `DataError` for a round that
    it does not have.
    """
    if config.file is not None:
        return (listed or ListedCohorts(config.file)).among(clock.done, members)
    count = len(members)
    size = coordination.drawn(config.count(count), count)
    draws = rng(seed, "cohort", clock.task, clock.round)
    if config.sampling == "numpy_round_seed":
        places = np.random.RandomState(clock.done).choice(count, size, replace=False)
    elif config.sampling == "poisson":  # independent draws: a binomial number of clients, each set of them as likely
        places = draws.choice(count, int(draws.binomial(count, size / count)), replace=False)
    else:
        places = draws.choice(count, size, replace=False)
    return clients_at(members, places.astype(np.int64))


def draw_cohort(experiment: Experiment, scenario: Scenario, clock: Clock) -> tuple[np.ndarray, np.ndarray]:
    """(ids of the sampled clients `[K]` of a round, ids of those that deliver), in cohort order."""
    config, seed, members = experiment.cohort, experiment.seed, scenario.members(clock.task)
    sampled = sample_cohort(config, seed, clock, members, scenario.cohorts, experiment.coordination)
    return sampled, without_dropouts(config, seed, clock, sampled)


def costliest_client(experiment: Experiment, scenario: Scenario) -> Chunk:
    """The client with the most samples, alone in a chunk of the first round of its task."""
    task = int(np.argmax([partition.sizes.max() for partition in scenario.partitions]))
    largest, algorithm = int(np.argmax(scenario.partitions[task].sizes)), experiment.algorithm
    found, _ = turns(scenario.drifting(None), algorithm, np.array([largest]), Clock(task), algorithm.training)
    return found[0].chunks[0]


def largest_cohort(experiment: Experiment, scenario: Scenario) -> int:
    """The most clients that train in a round of the run; under `buffered`, whose updates make a server step."""
    if experiment.coordination.size is not None:
        return experiment.coordination.size
    if scenario.cohorts is not None:
        return max(scenario.cohorts.sizes.values())
    members = [len(scenario.members(task)) for task in range(len(scenario.stages))]
    sizes = [experiment.cohort.count(count) for count in members]
    if experiment.cohort.sampling == "poisson":  # five standard deviations above its mean
        sizes = [min(size + math.ceil(5 * math.sqrt(size)), n) for size, n in zip(sizes, members, strict=True)]
    return max(sizes)


def without_dropouts(config: CohortConfig, seed: int, clock: Clock, clients: np.ndarray) -> np.ndarray:
    """The sampled clients that deliver (`cohort.dropout`), in their order. Each client has its own addressed draw."""
    if not config.dropout:
        return clients
    draws = [rng(seed, "dropout", clock.task, clock.round, client).random() for client in clients.tolist()]
    return clients[np.array(draws) >= config.dropout]


def chunk_ranges(costs: Sequence[float] | np.ndarray, num_chunks: int) -> list[range]:
    """Positions cut into at most `num_chunks` contiguous ranges of nearly even cost."""
    count = len(costs)
    ends = np.cumsum(np.asarray(costs, dtype=np.float64))
    middles = ends - np.asarray(costs) / 2
    # a position belongs to the chunk in which the middle of its cost lies
    chunk_of = np.minimum((middles / max(ends[-1], 1e-12) * num_chunks).astype(np.int64), num_chunks - 1)
    cuts = [0, *(np.flatnonzero(np.diff(chunk_of)) + 1).tolist(), count]
    return [range(a, b) for a, b in itertools.pairwise(cuts)]


@as_in_a_run
def turns(
    scenario: Scenario,
    algorithm: Algorithm,
    clients: np.ndarray,
    clock: Clock,
    exchange: Exchange,
    num_chunks: int = 1,
    batch_orders: BatchOrders | None = None,
    uplink: Mapping[str, Any] | None = None,
    even_empty: bool = False,
    taken: Mapping[int, int] | None = None,
) -> tuple[list[Turn], int]:
    """(the turns of an exchange over `clients`, the number of clients without a sample at this moment).

    A parallel exchange has one turn, cut into at most `num_chunks` chunks; a sequential one has a turn a client, by id.
    A client without a sample takes no part, unless the exchange asks for clients with state. Weights are those among
    all clients that take part, in a sequential exchange too. Returns no turns if no client takes part; work of the
    server alone is one turn without clients. `batch_orders` are those of a round's local training. `uplink`,
    `even_empty`: those of the plan; with the latter an exchange in which no client takes part is one turn as well.
    `taken`: the local steps of clients that stop before the end of a round's local training.
    """
    none = torch.zeros(0, dtype=torch.int64)
    alone = [Turn(clock, Cohort(none, none, none, none.double()), [])]
    if exchange.who == "nobody":
        return alone, 0
    sequential, before = exchange.order == "sequential", clock.stage_before if algorithm.keeps_exemplars else None
    shares = scenario.shares(clock, np.sort(clients) if sequential else clients, everyone=exchange.who == "stateful")
    if not len(shares.clients):
        return alone if even_empty else [], shares.empty
    previous = None if before is None else scenario.shares(before, shares.clients, everyone=True)
    with errors_of(algorithm, "local_steps", clock):
        steps = np.asarray(algorithm.local_steps(shares.sizes))
    with errors_of(algorithm, "weights", clock):
        weights = _weights(algorithm, shares.sizes)
    listed = None
    if batch_orders is not None and clock.phase == "round" and exchange.client is None:
        listed = _listed(batch_orders, clock, shares, steps, algorithm)
    early = bool(taken) and clock.phase == "round" and exchange.client is None
    if taken and early:
        steps = np.array([taken.get(k, n) for k, n in zip(shares.clients.tolist(), steps.tolist(), strict=True)])
    result = []
    for turn, part in enumerate([slice(i, i + 1) for i in range(len(shares.clients))] if sequential else [slice(None)]):
        now, first = clock._replace(turn=turn), part.start or 0
        cohort = Cohort(
            client_ids=torch.from_numpy(shares.clients[part]),
            num_examples=torch.from_numpy(shares.sizes[part]),
            num_steps=torch.from_numpy(steps[part]),
            weights=weights[part],
        )
        chunks = []
        for run in chunk_ranges(steps[part] + 1.0, num_chunks):
            a, b = first + run.start, first + run.stop
            previous_shares = None if previous is None else previous.cut(a, b)
            own = None if listed is None else listed[a:b]
            parts, share = shares.cut(a, b), tuple(weights[a:b].tolist())
            stops = tuple(steps[a:b].tolist()) if early else None
            chunks.append(Chunk(now, run.start, share, parts, previous_shares, stops, own, uplink or {}))
        result.append(Turn(now, cohort, chunks))
    return result, shares.empty


@as_in_a_run
def turn_of_step(
    experiment: Experiment,
    scenario: Scenario,
    clock: Clock,
    step: ServerStep,
    num_chunks: int,
    uplink: Mapping[str, Any],
) -> Turn:
    """The turn of a server step under `coordination: buffered`.

    A client has the clock and the samples of its dispatch. Clients of one version are neighbours, in one chunk or more.
    Weights fall with age; under a rule that gets every model they do not, and the server moves each model by its age.
    """
    algorithm, rule, by_age = experiment.algorithm, experiment.rule, experiment.coordination.age_weights
    versions = np.array([ticket.version for ticket in step.tickets], dtype=np.int64)
    numbers, starts = np.unique(versions, return_index=True)
    ends = [*starts[1:].tolist(), len(versions)]
    clocks = [clock._replace(round=number, done=number) for number in numbers.tolist()]
    parts = [
        scenario.shares(at, np.array([ticket.client for ticket in step.tickets[a:b]], dtype=np.int64))
        for at, a, b in zip(clocks, starts.tolist(), ends, strict=True)
    ]
    sizes = np.concatenate([part.sizes for part in parts])
    steps = np.concatenate(
        [planned_steps(algorithm, at, part.sizes)[0] for at, part in zip(clocks, parts, strict=True)]
    )
    with errors_of(algorithm, "weights", clock):
        weights = _weights(algorithm, sizes)
    ages = clock.done - versions
    s = by_age.weights(ages)
    if (rule is None or rule.pooled == "mean") and (s != 1).any():
        weights = weights * torch.from_numpy(s)
        weights = weights / weights.sum()
    clients = torch.tensor([ticket.client for ticket in step.tickets], dtype=torch.int64)
    cohort = Cohort(clients, torch.from_numpy(sizes), torch.from_numpy(steps), weights)
    chunks, runs = list[Chunk](), list[int]()
    for run in chunk_ranges(steps + 1.0, num_chunks):
        before = len(chunks)
        for at, part, start, end in zip(clocks, parts, starts.tolist(), ends, strict=True):
            a, b = max(run.start, start), min(run.stop, end)
            if a < b:
                of = tuple(weights[a:b].tolist())
                chunks.append(Chunk(at, a, of, part.cut(a - start, b - start), uplink=uplink, version=at.done))
        runs.append(len(chunks) - before)
    return Turn(clock, cohort, chunks, Aged(tuple(versions.tolist()), tuple(s.tolist()), step.held), tuple(runs))


def _listed(
    orders: BatchOrders, clock: Clock, shares: Shares, steps: np.ndarray, algorithm: Algorithm
) -> tuple[ListedBatches, ...]:
    """The batches that a file lists for each client of the shares, which takes so many local `steps [K]`."""
    an_epoch = algorithm.epoch_batches(shares.sizes)
    return tuple(
        orders.of(clock.done, client, shares.of(place), int(steps[place]), int(an_epoch[place]))
        for place, client in enumerate(shares.clients.tolist())
    )


def _weights(algorithm: Algorithm, sizes: np.ndarray) -> torch.Tensor:
    """Aggregation weights `[K]`; 0 for a client without samples, equal weights if no client has any."""
    nonempty = sizes > 0
    weights = torch.zeros(len(sizes), dtype=torch.float64)
    if not nonempty.any():
        return weights + 1.0 / len(sizes)
    weights[torch.from_numpy(nonempty)] = algorithm.weights(torch.from_numpy(sizes[nonempty]))
    return weights


def participants(
    exchange: Exchange,
    clock: Clock,
    cohort: np.ndarray,
    members: range | np.ndarray,
    stateful: Callable[[], Sequence[int]],
    seed: int,
) -> np.ndarray:
    """Ids of the clients that an exchange names (`Exchange.who`): the `cohort`, all `members` of the task, the
    `stateful` ones, so many drawn from the members, or none."""
    if exchange.who == "nobody":
        return np.zeros(0, dtype=np.int64)
    if isinstance(exchange.who, int):
        size = min(exchange.who, len(members))
        places = rng(seed, "who", *clock.address).choice(len(members), size, replace=False)
        return clients_at(members, places.astype(np.int64))
    if exchange.who == "stateful":
        return np.array(stateful(), dtype=np.int64)
    return cohort if exchange.who == "cohort" else np.asarray(members, dtype=np.int64)
