"""By calls the clients of a round begin before the driver knows its plan: the bits are the same, whatever comes."""

import itertools
import time

import numpy as np
import pandas
import pytest
import ray

import flray
from flray.core.protocol.clock import Clock
from flray.engine.ray import combiners
from flray.engine.ray.calls import CallsExecutor
from flray.engine.ray.leases import newest
from flray.engine.ray.pool import SentCall
from flray.running import play
from flray.scenario import Scenario
from tests.engine.ray import ahead, mortal  # noqa: F401  they register algorithms
from tests.support import outcome
from tests.support.processes import python
from tests.support.runs import on_actors

pytestmark = pytest.mark.usefixtures("ray_cluster")


def by_calls(algorithm, rounds=5, **sections):
    imports = ["tests.contracts.own", "tests.engine.ray.ahead", "tests.engine.ray.mortal"]
    resources = {"executor": "calls", "client_actors": 2, **sections.pop("resources", {})}
    return on_actors(algorithm, rounds, imports=imports, resources=resources, **sections)


def alone(algorithm, folder, **sections):
    flray.run(by_calls(algorithm, resources={"executor": "local"}, **sections), out=folder)
    return outcome.contents(flray.load(folder))


@pytest.fixture
def used(monkeypatch):
    """The rounds whose clients had begun before their plan was known, and whose work was taken."""
    rounds, taken = [], CallsExecutor._taken

    def watched(self, turn, plan):
        calls = taken(self, turn, plan)
        rounds.extend([plan.clock.round] * bool(calls))
        return calls

    monkeypatch.setattr(CallsExecutor, "_taken", watched)
    return rounds


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_the_clients_of_a_round_begin_before_its_plan_is_known(algorithm, used, tmp_path):
    """From the third round on: the first shows that a round has one exchange. SCAFFOLD's clients have states."""
    flray.run(by_calls(algorithm), out=tmp_path / "run")
    assert used == [2, 3, 4]
    assert outcome.contents(flray.load(tmp_path / "run")) == alone(algorithm, tmp_path / "alone")


def test_the_batches_of_who_begins_so_lie_ready(tmp_path):
    """All of an actor's 2 clients. In the first two rounds each finds those of the clients before it in the actor."""
    flray.run(by_calls("tells", cohort={"size": 4}), out=tmp_path / "run")
    ready = flray.load(tmp_path / "run").clients.groupby("done")["ready"].sum()
    assert ready.tolist() == [2, 2, 4, 4, 4]


@pytest.mark.parametrize(
    "sections", [{"cohort": {"size": 3, "dropout": 0.3}}, {"cohort": {"size": 3, "sampling": "poisson"}}]
)
def test_so_do_those_of_a_cohort_that_is_not_whole(sections, used, tmp_path):
    flray.run(by_calls("fedavg", rounds=8, **sections), out=tmp_path / "run")
    assert used
    assert outcome.contents(flray.load(tmp_path / "run")) == alone("fedavg", tmp_path / "alone", rounds=8, **sections)


@pytest.mark.parametrize(
    ("algorithm", "sections"), [("own", {}), ("fedavg", {"uplink": [{"name": "clip", "adaptive": 0.5}]})]
)
def test_where_the_next_work_is_not_known_nobody_begins(algorithm, sections, used, tmp_path):
    """`own` has two exchanges a round; that norm is a state, which travels with the plan."""
    flray.run(by_calls(algorithm, **sections), out=tmp_path / "run")
    assert used == []


@pytest.mark.parametrize("change", ["who", "name"])
def test_a_plan_of_another_kind_discards_what_was_begun(change, used, tmp_path):
    """In round 4 everybody with data of the task is asked, and not the cohort; or the exchange has another name."""
    algorithm = {"name": "otherwise", "change": change}
    flray.run(by_calls(algorithm, rounds=7), out=tmp_path / "run")
    assert used == [2, 5, 6]
    assert outcome.contents(flray.load(tmp_path / "run")) == alone(algorithm, tmp_path / "alone", rounds=7)


def test_work_that_reads_no_list_does_not_get_the_listed_batches_that_lay_ready(tmp_path):
    """The driver foresaw local training, whose batches a file lists."""
    drawn = flray.run(by_calls("works", rounds=1, cohort={"size": 4}), out=tmp_path / "drawn")
    shares = Scenario.load(drawn.folder / "partition", 3).shares(Clock(0), np.arange(5))
    draws, rows = np.random.default_rng(5), []
    for number, (place, client) in itertools.product(range(1, 6), enumerate(shares.clients.tolist())):
        rows += [(number, client, 1, sample) for sample in draws.permutation(shares.of(place)).tolist()]
    pandas.DataFrame(rows, columns=["round", "client", "epoch", "sample"]).to_parquet(tmp_path / "order.parquet")
    listed = {"source": "iris", "standardize": True, "batch_order": str(tmp_path / "order.parquet")}
    sections = {"cohort": {"size": 4}, "data": listed}
    flray.run(by_calls("works", **sections), out=tmp_path / "run")
    assert outcome.contents(flray.load(tmp_path / "run")) == alone("works", tmp_path / "alone", **sections)


def test_a_round_whose_sums_are_combined_begins_when_its_plan_is_known(used, monkeypatch, tmp_path):
    """Whether combiners are worth it depends on how the cohort of a round is cut; their calls give other objects."""
    monkeypatch.setattr(combiners, "worth_it", lambda chunks, size: chunks[0].clock.round in (3, 5))
    flray.run(by_calls("scaffold", rounds=8), out=tmp_path / "run")
    assert used == [2, 4, 6, 7]
    assert outcome.contents(flray.load(tmp_path / "run")) == alone("scaffold", tmp_path / "alone", rounds=8)


def test_a_call_to_an_actor_that_was_restarted_since_is_lost(tmp_path):
    """Its answer would be that of a dead process, for which the pool would take the new one out."""
    for row in play(by_calls("fedavg"), tmp_path / "run"):
        if row["round"] == 1:
            pool = newest()
            actor = pool.clients[0]  # of a run before, too, in which it may have been taken out
            lives = pool._lives[actor] - 1, pool._lives[actor]
            old, here = (SentCall(actor, [], ray.put("old"), life) for life in lives)
            call = lambda actor: ([], ray.put("new"))  # noqa: E731
            assert [report for _, report in pool.execute([call, call], begun={0: old, 1: here})] == ["new", "old"]


@pytest.mark.slow
def test_who_dies_in_such_work_changes_nothing(used, tmp_path):
    dying = {"name": "mortal", "dies": "training", "round": 3, "unless": str(tmp_path / "died")}
    flray.run(by_calls(dying), out=tmp_path / "run")
    assert (tmp_path / "died").exists() and 3 in used
    run = flray.load(tmp_path / "run")
    assert run.environment["actors"]["repeated_work"] >= 1
    assert outcome.contents(run) == alone("scaffold", tmp_path / "alone")


def test_its_error_is_that_of_its_own_round(tmp_path):
    """A client fails in round 4, while the driver still has round 3: three rounds are there."""
    broken = {"name": "breaks", "round": 3}
    with pytest.raises(flray.FlrayError, match="failed in task 0, round 4"):
        flray.run(by_calls(broken), out=tmp_path / "run")
    assert len(flray.load(tmp_path / "run").rounds) == 3


@pytest.mark.slow
def test_a_run_whose_ray_was_ended_takes_nothing_back_in_a_new_one(tmp_path):
    """In a process of its own: the Ray of these tests goes on. Ray starts itself for any call without a connection."""
    rows = (
        "import sys, ray\n"
        "from pathlib import Path\n"
        "from flray.running import play\n"
        "from tests.engine.ray.test_ahead import by_calls\n"
        "rows = play(by_calls('fedavg'), Path(sys.argv[1]))\n"
        "for row in rows:\n"
        "    if row['round'] == 3:\n"
        "        break\n"
        "ray.shutdown()\n"
        "try:\n"
        "    rows.close()\n"
        "finally:\n"
        "    print('ended', ray.is_initialized())\n"
    )
    done = python("-c", rows, tmp_path / "run", status=None)
    assert done.stdout.splitlines()[-1:] == ["ended False"], done.stderr


@pytest.mark.slow
def test_the_next_run_does_not_wait_for_what_a_paused_one_had_begun(tmp_path):
    """Who stops after round 3 has clients at work on round 4, for minutes."""
    slow = {"name": "mortal", "pause_s": 400.0, "round": 3, "unless": str(tmp_path / "awake")}
    rows, began = play(by_calls(slow), tmp_path / "run"), time.monotonic()
    for row in rows:
        if row["round"] == 3:
            break
    rows.close()
    flray.run(by_calls("fedavg", rounds=1), out=tmp_path / "next")
    assert time.monotonic() - began < 200
    (tmp_path / "awake").touch()
    flray.resume(tmp_path / "run")
    assert outcome.contents(flray.load(tmp_path / "run")) == alone("scaffold", tmp_path / "alone")
