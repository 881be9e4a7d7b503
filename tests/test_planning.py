"""The table of `flray doctor --nodes`: numbers by hand from stated measurements, and one measurement."""

import doctest
from pathlib import Path

import pytest

from flray import planning
from flray.config.loader import load_config
from flray.core.schema.errors import ConfigError, ResourceError
from flray.engine.message_sizes import MessageSizes
from flray.engine.prepare import build_data, build_scenario
from flray.planning import CALL_S, RATE, START_S, Measured
from tests.support.commands import succeeded

CONFIG = {
    "rounds": 7, "data": "iris", "model": "mlp", "algorithm": {"name": "fedavg", "batch_size": 5, "local_epochs": 1},
    "partition": {"name": "iid", "clients": 8}, "cohort": {"size": 8}, "evaluate": {"every": 0},
    "resources": {"executor": "calls"},
}  # fmt: skip
MB = 10**6
MEASURED = Measured(client_s=1.0, step_s=2.0, server_s=3.0, test_s=6.0, process=300 * MB, training=400 * MB)
SIZES = MessageSizes(8, 100 * MB, 100 * MB, {"w": 100 * MB}, {}, 100 * MB, 0)


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch):
    monkeypatch.setattr(planning, "cores", lambda: 2)


def planned(nodes: int, sizes: MessageSizes = SIZES, **sections: object) -> dict:
    (experiment,) = load_config({**CONFIG, **sections})
    scenario = build_scenario(experiment, build_data(experiment))
    actors = planning.actors_by_node(experiment, nodes, 8)
    at = planning.round_of(experiment, scenario, MEASURED, sizes, actors)
    return planning.row(experiment, MEASURED, sizes, 0, at)


def test_numbers_by_hand_in_docstrings():
    found = doctest.testmod(planning)
    assert found.attempted and not found.failed


def test_seconds_and_bytes_of_two_nodes():
    """8 clients of 15 samples, 3 steps each, on 2 nodes of 2 cores: 4 actors of 2 clients, of 2 (1 + 3 x 2) = 14 s.

    The 4 chunks are a subtree each, fewer than 2 log2(8): not combined. Down 100 MB to node 2, up its 2 vectors. Server
    half 3 s. 7 rounds and one test of 6 s on 4 actors.
    """
    row = planned(2)
    assert (row["actors"], row["vectors"], row["client_s"]) == (4, 4, pytest.approx(14))
    assert (row["down_bytes"], row["up_bytes"]) == (100 * MB, 200 * MB)
    assert row["network_s"] == pytest.approx(300 * MB / RATE + 2 * CALL_S)
    assert row["round_s"] == pytest.approx(14 + row["network_s"] + 3)
    assert row["run_s"] == pytest.approx(START_S + 7 * row["round_s"] + 6 / 4)
    assert row["core_hours"] == pytest.approx(2 * 2 * row["run_s"] / 3600)


def test_one_node_sends_nothing_and_more_nodes_than_clients_do_not_help():
    one, many = planned(1), planned(100)
    assert (one["down_bytes"], one["up_bytes"], one["network_s"], one["client_s"]) == (0, 0, 0, pytest.approx(28))
    assert (many["actors"], many["client_s"]) == (8, pytest.approx(7))


def test_with_combiners_the_server_receives_the_whole_cohorts_subtrees_however_many_nodes():
    """8 chunks of one client each would send 8 vectors; added up on their way they are 1. Three levels of nodes."""
    row = planned(8)
    assert (row["vectors"], row["up_bytes"], row["down_bytes"]) == (1, 100 * MB, 700 * MB)
    assert row["network_s"] == pytest.approx((800 + 300) * MB / RATE + 5 * CALL_S)


COORDINATIONS = {
    "over_selected": {"name": "over_selected", "share": 1.0},
    "buffered": {"name": "buffered", "size": 4, "concurrency": 6},
}


@pytest.mark.parametrize("name", COORDINATIONS)
def test_late_clients_and_those_at_work_do_not_train_in_a_round(name):
    """4 of 8 clients train, 2 on each of 2 actors: 2 (1 + 3 x 2) = 14 s. The measured run is of two clients, who work
    in every round of theirs."""
    sections = {"cohort": {"size": 4}, "coordination": COORDINATIONS[name], "devices": {"speed": "equal"}}
    assert planned(1, **sections)["client_s"] == pytest.approx(14)
    away = {"devices": {"availability": {"name": "windows", "period": 1.0, "share": 0.1}}, "until": {"virtual_s": 99}}
    (experiment,) = load_config({**CONFIG, **sections, **away})
    (row,) = planning.table(experiment, [1], seconds=0.0)
    assert row["actors"] == 2 and row["client_s"] > 0


def test_memory_of_server_actor_and_node():
    """Of 300 MB a process: four vectors in the server; what training adds and two partial sums in an actor of two
    clients. On the node: driver, server, two actors, and the broadcast and two vectors in the object store. A field of
    10 MB that is not summed: of 8 clients in the server."""
    row = planned(1)
    assert row["server_bytes"] == 700 * MB and row["actor_bytes"] == (300 + 400 + 3 * 100) * MB
    assert row["node_bytes"] == (300 + 700 + 100 + 100 * row["vectors"] + 2 * 1000) * MB
    own = planned(2, SIZES._replace(single={"logits": 10 * MB}))
    assert own["server_bytes"] == 780 * MB and own["up_bytes"] == (200 + 4 * 10) * MB


def test_actors_are_spread_evenly_and_the_servers_share_is_left_free():
    def actors(nodes: int, **resources: object) -> list[int]:
        (experiment,) = load_config({**CONFIG, "resources": {"executor": "calls", **resources}})
        return planning.actors_by_node(experiment, nodes, 8)

    assert actors(3) == [2, 2, 2] and actors(5) == [2, 2, 2, 1, 1] and actors(1, client_actors=5) == [5]
    assert actors(3, server={"num_cpus": 1}) == [1, 2, 2] and actors(2, client={"num_cpus": 2}) == [1, 1]
    with pytest.raises(ResourceError, match=r"--nodes 2: 5 client actors \(1 CPUs, .* do not fit .* which hold 4"):
        actors(2, client_actors=5)
    with pytest.raises(ResourceError, match="ask on a machine like the cluster's"):
        actors(2, client={"num_gpus": 1.0})


@pytest.mark.parametrize("override", ["algorithm=centralized", "resources.executor=local"])
def test_a_run_in_one_process_has_no_nodes(override):
    (experiment,) = load_config(CONFIG, [override])
    with pytest.raises(ConfigError, match=r"--nodes: .*trains in one process"):
        planning.table(experiment, [2])


def test_what_is_measured_here():
    """In three rounds, as 0 s are given."""
    (experiment,) = load_config(CONFIG)
    one, two = planning.table(experiment, [1, 2], seconds=0.0)
    assert one["round_s"] >= one["client_s"] > 0 and one["server_s"] > 0 and one["test_s"] > 0
    assert one["actor_bytes"] > one["server_bytes"] / 2 > 10 * MB
    assert two["nodes"] == 2 and two["down_bytes"] > 0
    assert set(planning.in_words(two)) >= {"nodes", "a round", "the run"}


def test_the_table_of_the_command():
    done = succeeded("doctor", Path(__file__).parents[1] / "configs" / "quickstart.yaml", "--nodes", "1,3")
    assert "nodes like this machine" in done.stdout and "* measured: " in done.stdout
