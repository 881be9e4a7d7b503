"""Who takes part, and the cut of the cohort into contiguous runs."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from flray.algorithms.fedavg import FedAvg
from flray.config.experiment import CohortConfig
from flray.config.loader import load_config
from flray.core.protocol.clock import Clock
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.seeding import rng
from flray.core.schema.errors import ConfigError
from flray.engine.cohort import chunk_ranges, participants, sample_cohort, turns
from flray.engine.prepare import build_data, build_scenario
from flray.scenario import Partition, Scenario
from tests.support.messages import facts

COSTS = st.lists(st.floats(0.1, 1000), min_size=1, max_size=60)


@given(COSTS, st.integers(1, 12))
def test_runs_are_contiguous_cover_everyone_once_and_are_balanced(costs, num_chunks):
    found = chunk_ranges(costs, num_chunks)
    assert [p for run in found for p in run] == list(range(len(costs)))
    assert 1 <= len(found) <= num_chunks and all(len(run) for run in found)
    # the cut cannot be finer than one position: half of the largest at each end
    share = sum(costs) / num_chunks
    assert all(sum(costs[p] for p in run) <= share + max(costs) * (1 + 1e-9) for run in found)


def test_equal_costs_are_cut_equally():
    assert [len(r) for r in chunk_ranges(np.ones(12), 4)] == [3, 3, 3, 3]
    assert sorted(len(r) for r in chunk_ranges(np.ones(10), 3)) == [3, 3, 4]


def test_more_pieces_than_clients_gives_everyone_a_piece():
    assert [len(r) for r in chunk_ranges(np.ones(3), 8)] == [1, 1, 1]


def test_addressed_sampling_depends_on_its_address_alone():
    config = CohortConfig(size=4)
    first = sample_cohort(config, 0, Clock(0, 5), range(20))
    np.random.seed(1)
    assert sample_cohort(config, 0, Clock(0, 5), range(20)).tolist() == first.tolist()
    assert first.tolist() == rng(0, "cohort", 0, 5).choice(20, 4, replace=False).tolist()
    assert len(set(first.tolist())) == 4 and first.dtype == np.int64
    others = [
        sample_cohort(config, seed, clock, range(20)).tolist()
        for seed, clock in ((1, Clock(0, 5)), (0, Clock(1, 5)), (0, Clock(0, 6)))
    ]
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
        assert sample_cohort(config, seed, Clock(0, round, done=round), range(100)).tolist() == expected.tolist()


def test_the_whole_population_is_the_default_and_too_many_is_an_error():
    assert sorted(sample_cohort(CohortConfig(), 0, Clock(), range(6)).tolist()) == list(range(6))
    with pytest.raises(ConfigError, match=facts("cohort.size", 7, 6)):
        sample_cohort(CohortConfig(size=7), 0, Clock(), range(6))
    assert len(sample_cohort(CohortConfig(fraction=0.01), 0, Clock(), range(6))) == 1


def test_a_cohort_that_a_task_cannot_fill_names_the_task():
    """Both clients hold the classes of task 0, one of them those of task 1. Without tasks there is none to name."""
    own = {"partition": {"name": "table", "table": [[5, 5, 5, 5], [5, 5, 0, 0]]}, "cohort": {"size": 2}, "rounds": 1}
    data = {"source": "synthetic", "options": {"shape": 4, "num_classes": 4, "num_train": 80, "num_test": 40}}
    tasks = {"num_tasks": 2, "class_order": "natural", "partition": "once"}
    base = {"data": data, "model": "mlp", "algorithm": "fedavg", **own}
    of_task = r"^task 1 \(0 is the first\): cohort.size: 2 clients per round, but 1 hold samples"
    for more, says in (({"tasks": tasks}, of_task), ({"cohort": {"size": 3}}, "^cohort.size: 3 .* but 2 hold samples")):
        asked = load_config({**base, **more})[0]
        with pytest.raises(ConfigError, match=says):
            build_scenario(asked, build_data(asked))


def test_a_fraction_of_the_population_is_rounded_down_as_a_decimal():
    """0.29 of 100 is 29 and 0.57 of 100 is 57, where a floating-point product is a little less."""
    for percent in range(1, 101):
        for population in (1, 10, 100, 130, 1000, 10**6):
            count = CohortConfig(fraction=percent / 100).count(population)
            assert count == max(percent * population // 100, 1), (percent, population)
    assert CohortConfig(fraction=0.3).count(15) == 4


PARTITION = Partition(np.array([5, 6, 7, 0, 1, 9, 8, 2]), np.array([0, 3, 5, 5, 8]))  # client 2 holds nothing
SCENARIO = Scenario.ordinary(PARTITION, 3)
ALGORITHM = FedAvg(batch_size=2, local_epochs=3)


def seen(turn):
    return [
        (chunk.first + i, client, chunk.weights[i], chunk.samples(i).tolist())
        for chunk in turn.chunks
        for i, client in enumerate(chunk.clients)
    ]


def test_a_parallel_exchange_is_one_moment_of_contiguous_runs():
    """Weights 3/8, 3/8, 2/8; steps ceil(n / 2) * 3; two runs of even cost.

    Who holds nothing is left out, and counted.
    """
    clock = Clock(0, 4, "round", 1, done=4)
    (turn,), empty = turns(SCENARIO, ALGORITHM, np.array([3, 0, 2, 1]), clock, ALGORITHM.training, 2)
    assert empty == 1 and turn.clock == clock
    assert turn.cohort.client_ids.tolist() == [3, 0, 1]
    assert turn.cohort.num_steps.tolist() == [6, 6, 3]
    assert turn.cohort.weights.tolist() == [0.375, 0.375, 0.25]
    assert len(turn.chunks) == 2 and all(chunk.clock == clock for chunk in turn.chunks)
    assert seen(turn) == [(0, 3, 0.375, [9, 8, 2]), (1, 0, 0.375, [5, 6, 7]), (2, 1, 0.25, [0, 1])]


def test_a_sequential_exchange_is_a_moment_for_each_client_by_number_with_its_weight_among_all():
    exchange = Exchange("chain", ALGORITHM.broadcast, ALGORITHM.aggregate, order="sequential")
    found, empty = turns(SCENARIO, ALGORITHM, np.array([3, 0, 1, 2]), Clock(0, 9, "task_end", 0, done=9), exchange, 2)
    assert empty == 1
    assert [turn.clock.turn for turn in found] == [0, 1, 2]
    assert [turn.cohort.weights.tolist() for turn in found] == [[0.375], [0.25], [0.375]]
    assert [seen(turn) for turn in found] == [
        [(0, 0, 0.375, [5, 6, 7])],
        [(0, 1, 0.25, [0, 1])],
        [(0, 3, 0.375, [9, 8, 2])],
    ]


def test_those_with_state_take_part_without_samples_and_weigh_nothing():
    exchange = Exchange("ask", ALGORITHM.broadcast, ALGORITHM.aggregate, who="stateful")
    (turn,), empty = turns(SCENARIO, ALGORITHM, np.array([1, 2]), Clock(), exchange)
    assert empty == 0
    assert seen(turn) == [(0, 1, 1.0, [0, 1]), (1, 2, 0.0, [])]
    (alone,), _ = turns(SCENARIO, FedAvg(weighting="uniform"), np.array([2]), Clock(), exchange)
    assert alone.cohort.weights.tolist() == [1.0]


def test_work_of_the_server_alone_is_one_moment_without_clients():
    """Also where the drawn client holds nothing, as client 2 does."""
    exchange = Exchange.on_server("fit", ALGORITHM.init_server)
    who = participants(exchange, Clock(), np.array([2]), SCENARIO.members(0), lambda: [1, 2], 0)
    (turn,), empty = turns(SCENARIO, ALGORITHM, who, Clock(0, 4, "round", 1, done=4), exchange, 2)
    assert empty == 0 and turn.chunks == [] and turn.clock == Clock(0, 4, "round", 1, done=4)
    assert [len(part) for part in vars(turn.cohort).values()] == [0, 0, 0, 0]


def test_where_no_client_is_left_there_is_no_moment():
    assert turns(SCENARIO, ALGORITHM, np.array([2]), Clock(), ALGORITHM.training) == ([], 1)
    assert turns(SCENARIO, FedAvg(weighting="uniform"), np.zeros(0, np.int64), Clock(), ALGORITHM.training) == ([], 0)


@pytest.mark.parametrize(("who", "expected"), [("cohort", [3, 0]), ("task", [0, 1, 3]), ("stateful", [1, 2])])
def test_an_exchange_names_who_takes_part(who, expected):
    exchange = Exchange("ask", ALGORITHM.broadcast, ALGORITHM.aggregate, who=who)
    found = participants(exchange, Clock(), np.array([3, 0]), SCENARIO.members(0), lambda: [1, 2], 0)
    assert found.tolist() == expected


def test_a_sample_of_the_task_is_addressed_by_its_moment():
    exchange, members = Exchange("ask", ALGORITHM.broadcast, ALGORITHM.aggregate, who=2), SCENARIO.members(0)
    found = participants(exchange, Clock(0, 5, "round", 1), np.array([3, 0]), members, list, 7)
    assert found.tolist() == np.array([0, 1, 3])[rng(7, "who", 0, 5, 1).choice(3, 2, replace=False)].tolist()
    assert len(participants(exchange._replace(who=9), Clock(), np.array([3]), members, list, 7)) == 3
