"""Who takes part, and the cut of the cohort into contiguous runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flray.algorithms.fedavg import FedAvg
from flray.core.errors import ConfigError
from flray.core.seeding import rng
from flray.engine.cohort import runs, sample, sizes_of, work
from flray.engine.workbench import Moment
from flray.experiment import CohortConfig
from flray.scenario import Partition

COSTS = st.lists(st.floats(0.1, 1000), min_size=1, max_size=60)


@given(COSTS, st.integers(1, 12))
def test_runs_are_contiguous_cover_everyone_once_and_are_balanced(costs, pieces):
    found = runs(costs, pieces)
    assert [p for run in found for p in run] == list(range(len(costs)))
    assert 1 <= len(found) <= pieces and all(len(run) for run in found)
    # the cut cannot be finer than one position: half of the largest at each end
    share = sum(costs) / pieces
    assert all(sum(costs[p] for p in run) <= share + max(costs) * (1 + 1e-9) for run in found)


def test_equal_costs_are_cut_equally():
    assert [len(r) for r in runs(np.ones(12), 4)] == [3, 3, 3, 3]
    assert sorted(len(r) for r in runs(np.ones(10), 3)) == [3, 3, 4]


def test_more_pieces_than_clients_gives_everyone_a_piece():
    assert [len(r) for r in runs(np.ones(3), 8)] == [1, 1, 1]


def test_addressed_sampling_depends_on_its_address_alone():
    config = CohortConfig(size=4)
    first = sample(config, 0, 0, 5, 20)
    np.random.seed(1)
    assert sample(config, 0, 0, 5, 20).tolist() == first.tolist()
    assert first.tolist() == rng(0, "cohort", 0, 5).choice(20, 4, replace=False).tolist()
    assert len(set(first.tolist())) == 4 and first.dtype == np.int64
    others = [sample(config, *where, 20).tolist() for where in ((1, 0, 5), (0, 1, 5), (0, 0, 6))]
    assert all(other != first.tolist() for other in others)


@pytest.mark.parametrize("round", [0, 3])
def test_numpy_round_seed_gives_the_sets_of_the_authors_code(round):
    """np.random.seed(t); np.random.choice(N, K, replace=False), whatever the run's seed."""
    state = np.random.get_state()
    np.random.seed(round)
    expected = np.random.choice(100, 10, replace=False)
    np.random.set_state(state)
    config = CohortConfig(fraction=0.1, sampling="numpy_round_seed")
    for seed in (0, 7):
        assert sample(config, seed, 0, round, 100).tolist() == expected.tolist()


def test_the_whole_population_is_the_default_and_too_many_is_an_error():
    assert sorted(sample(CohortConfig(), 0, 0, 0, 6).tolist()) == list(range(6))
    with pytest.raises(ConfigError, match=r"cohort\.size: 7 clients per round, but 6 hold samples"):
        sample(CohortConfig(size=7), 0, 0, 0, 6)
    assert len(sample(CohortConfig(fraction=0.01), 0, 0, 0, 6)) == 1


def test_work_carries_exactly_the_samples_of_its_clients():
    """Weights 3/8, 3/8, 2/8; steps ceil(n / 2) * 3; two runs of even cost."""
    partition = Partition(np.array([5, 6, 7, 0, 1, 9, 8, 2]), np.array([0, 3, 5, 5, 8]))
    clients = np.array([3, 0, 1])
    assert sizes_of(partition, clients).tolist() == [3, 3, 2]
    cohort, jobs = work(partition, FedAvg(batch_size=2, local_epochs=3), clients, Moment(1, 4, 2, True, 4, 3, 20), 2)
    assert cohort.client_ids.tolist() == [3, 0, 1]
    assert cohort.num_steps.tolist() == [6, 6, 3]
    assert cohort.weights.tolist() == [0.375, 0.375, 0.25]
    seen = []
    for job in jobs:
        assert (job.task, job.round, job.exchange, job.cohort_size, job.population) == (1, 4, 1002, 3, 4)
        for i, client in enumerate(job.clients):
            seen.append(
                (job.first + i, client, job.weights[i], job.indices[job.offsets[i] : job.offsets[i + 1]].tolist())
            )
    assert seen == [(0, 3, 0.375, [9, 8, 2]), (1, 0, 0.375, [5, 6, 7]), (2, 1, 0.25, [0, 1])]
