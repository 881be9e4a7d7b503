"""The arithmetic of plans against numbers by hand, and plans of a small experiment from stated measurements."""

from __future__ import annotations

import doctest
import itertools
from dataclasses import dataclass

import pytest

from flray.config.loader import load_config
from flray.core.schema.errors import ConfigError, ResourceError
from flray.engine.prepare import build_data, build_scenario
from flray.planning import arithmetic, machines, measure, plan, sweeps
from flray.planning.arithmetic import Network, Span, links
from flray.planning.machines import Cluster, network_rate
from flray.planning.measured import ExchangeCost, Measured, costly

CONFIG = {
    "rounds": 7, "data": "iris", "model": "mlp", "algorithm": {"name": "fedavg", "batch_size": 5, "local_epochs": 1},
    "partition": {"name": "iid", "clients": 8}, "cohort": {"size": 8}, "evaluate": {"every": 0},
    "resources": {"executor": "calls"},
}  # fmt: skip
MB = 10**6


@dataclass(frozen=True)
class Made:
    """An experiment, its scenario and its data."""

    experiment: object
    scenario: object
    dataset: object


def made(**sections: object) -> Made:
    (experiment,) = load_config({**CONFIG, **sections})
    dataset, _, private = build_data(experiment)
    return Made(experiment, build_scenario(experiment, dataset, private), dataset)


def measured(experiment, **changes) -> Measured:
    """A client takes 1 s and 2 s a step, the server half 3 s; a model of 100 MB."""
    cost = ExchangeCost(
        name="train", phase="round", order="parallel", who="cohort", broadcast=100 * MB, summed=100 * MB, single=0,
        state=0, client_s=1.0, step_s=2.0, server_s=3.0, measured_clients=2, step_flops=1e12, client_flops=0.0,
    )  # fmt: skip
    values = {
        "machine": "this", "device": "cpu", "cores": 2, "threads": 1, "torch": "2", "parameters": 25 * MB,
        "vector": 100 * MB, "exchanges": (cost,), "timed": True, "test_s": 0.5, "test_flops": 1e9,
        "process_bytes": 300 * MB, "client_bytes": 400 * MB,
    }  # fmt: skip
    return Measured(experiment=costly(experiment), **values | changes)


@pytest.mark.parametrize("module", [arithmetic, machines, measure, plan, sweeps], ids=lambda m: m.__name__)
def test_numbers_by_hand_in_docstrings(module):
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


def test_with_combiners_the_server_receives_as_many_vectors_however_many_nodes():
    """Of 100 = 64 + 32 + 4 clients 3 vectors; without combiners each of 100 actors with one client sends one."""
    for nodes, combined in itertools.product((2, 5, 20), (True, False)):
        size = 100 // nodes
        spans = [[Span(first, 1) for first in range(i * size, (i + 1) * size)] for i in range(nodes)]
        sent = links(spans, 0, 10, 0, combined, Network(1.0))
        assert sent.vectors == (3 if combined else 100)
        if not combined:
            assert sent.up == 10 * (100 - size)


def test_the_sum_of_all_nodes_goes_to_the_server_unless_the_last_combiner_is_on_its_node():
    """Positions 0 to 3 (one subtree) on the server's node, 4 to 6 (two) on node 1: node 0 sends its vector to node 1,
    which has more of the bytes. The three vectors of 0-3, 4-5, 6 go to the server. Other way round: node 1 sends."""
    there = links([[Span(0, 4)], [Span(4, 3)]], 0, 10, 0, True, Network(1.0))
    assert (there.between, there.up, there.up_s) == (10, 30, 10 + 30)
    here = links([[Span(0, 3)], [Span(3, 1)]], 0, 10, 0, True, Network(1.0))
    assert (here.between, here.up, here.up_s) == (10, 0, 10)


def test_simulated_nodes_fetch_one_after_the_other():
    """A broadcast of 30 bytes to 3 nodes at 10 bytes a second: 9 s; and 2 s for an object, or for each of three."""
    nodes = [[Span(i, 1)] for i in range(4)]
    assert links(nodes, 30, 0, 0, False, Network(10.0, 2.0)).down_s == 9 + 2
    assert links(nodes, 30, 0, 0, False, Network(10.0, 2.0, one_machine=True)).down_s == 9 + 3 * 2


def test_seconds_and_bytes_of_a_round_on_two_nodes():
    """8 clients of 15 samples, 3 steps each, on 2 nodes of 2 CPUs: 4 actors of 2 clients.

    Clients: 2 (1 + 3 x 2) = 14 s. The 4 chunks are a subtree each, fewer than 2 log2(8), so they are not combined. Down
    100 MB at 1 GB/s: 0.1 s. Up: the 2 vectors of node 2, 0.2 s. Each way 3 ms until the bytes flow. Server: 3 s and 4
    vectors at the copying rate. Messages: 3 ms, 4 actors' 1 ms, and the broadcast at the copying rate.
    """
    m = made()
    row = plan.plan(m.experiment, m.scenario, m.dataset, measured(m.experiment), Cluster(2, 0, 2, 1e9), None).row
    copied = 100 * MB / machines.COPY_RATE
    assert row["actors"] == 4 and row["clients_s"] == pytest.approx(14)
    assert (row["bytes_down"], row["bytes_between"], row["bytes_up"], row["vectors"]) == (100 * MB, 0, 200 * MB, 4)
    assert row["network_s"] == pytest.approx(0.306)
    assert row["server_s"] == pytest.approx(3 + 4 * copied)
    assert row["messages_s"] == pytest.approx(0.003 + 4 * 0.001 + copied)
    assert row["round_s"] == pytest.approx(14 + 0.306 + 3 + 4 * copied + 0.007 + copied)
    # 30 test samples after the last round, spread over 4 actors
    tested = 30 * 0.5 / 4
    assert row["test_s"] == pytest.approx(tested)
    assert row["run_s"] == pytest.approx(machines.START_S + 7 * row["round_s"] + tested)
    assert row["core_hours"] == pytest.approx(4 * row["run_s"] / 3600) and row["bottleneck"] == "clients"


def test_a_gpu_takes_flops_over_its_stated_rate():
    """8 clients on 2 T4 of 8.1 TFLOP/s, half of which is reached: 4 clients each of 3 steps of 1 TFLOP, 10 ms, and
    200 MB at 16 GB/s."""
    m = made(resources={"executor": "calls", "client": {"num_gpus": 1.0}})
    found = plan.plan(m.experiment, m.scenario, m.dataset, measured(m.experiment), Cluster(1, 2, 64, 1e9), ("t4", 0.5))
    assert found.row["clients_s"] == pytest.approx(4 * (3 / 4.05 + 0.01 + 0.2 / 16))
    assert found.row["actors"] == 2 and found.row["gpu_hours"] == pytest.approx(2 * found.row["run_s"] / 3600)
    assert any("50% of its stated peak, 4.05 TFLOP/s" in sentence for sentence in found.assumptions)


def test_more_actors_than_clients_are_not_started_and_the_plan_says_how_many_nodes_do_the_same():
    m = made()
    found = plan.plan(m.experiment, m.scenario, m.dataset, measured(m.experiment), Cluster(10, 0, 4, 1e9), None)
    rows = {row["what"]: row["plan"] for row in found.rows}
    assert found.row["actors"] == 8 and rows["change"].startswith("nodes=2 do the same")


def test_actors_of_a_gpu_node_are_no_more_than_its_cpus_hold():
    m = made(resources={"executor": "calls", "client": {"num_gpus": 0.5, "num_cpus": 2.0}})
    found = plan.plan(m.experiment, m.scenario, m.dataset, measured(m.experiment), Cluster(1, 4, 6, 1e9), ("t4", 0.5))
    assert found.row["actors"] == 3


def test_clients_that_do_not_fit_the_memory_of_a_gpu():
    """2 actors share one T4 of 16 GB: 7 GB each fit, 9 GB do not."""
    m = made(resources={"executor": "calls", "client": {"num_gpus": 0.5}})
    args = (m.experiment, m.scenario, m.dataset)
    found = plan.plan(*args, measured(m.experiment, gpu_bytes=7000 * MB), Cluster(1, 1, 8, 1e9), ("t4", 0.5))
    rows = {row["what"]: row["plan"] for row in found.rows}
    assert rows["memory: a GPU"].startswith("2 client actors of about 7 GB on a GPU of 16 GB")
    with pytest.raises(ResourceError, match=r"2 client actors of about 9 GB .* do not fit"):
        plan.plan(*args, measured(m.experiment, gpu_bytes=9000 * MB), Cluster(1, 1, 8, 1e9), ("t4", 0.5))


def test_actors_with_two_cores_each_need_more_nodes():
    m = made(resources={"executor": "calls", "client": {"num_cpus": 2.0}})
    found = plan.plan(m.experiment, m.scenario, m.dataset, measured(m.experiment), Cluster(10, 0, 4, 1e9), None)
    assert {row["what"]: row["plan"] for row in found.rows}["change"].startswith("nodes=4 do the same")


def test_memory_of_server_and_object_store():
    """The server: 300 MB of a process, 4 vectors of 100 MB. The store of the one node: the broadcast, and a vector of
    each of two chunks of 4 clients. On two nodes of 2 chunks of 2 clients each, the second has the same; the server's
    has the other's vectors and fields as well. A field `each()` of 10 MB of 8 clients: 80 MB, 40 MB on the other."""
    m = made()
    found = plan.plan(m.experiment, m.scenario, m.dataset, measured(m.experiment), Cluster(1, 0, 2, 1e9), None)
    rows = {row["what"]: row["plan"] for row in found.rows}
    assert rows["memory: server"].startswith("700 MB, of which 400 MB")
    assert rows["memory: object store"] == "300 MB on the server's node"
    (cost,) = measured(m.experiment).exchanges
    unsummed = measured(m.experiment, exchanges=(cost.model_copy(update={"single": 10 * MB}),))
    found = plan.plan(m.experiment, m.scenario, m.dataset, unsummed, Cluster(2, 0, 2, 1e9), None)
    text = {row["what"]: row["plan"] for row in found.rows}["memory: object store"]
    assert text == "580 MB on the server's node, with what 8 clients send unsummed, 10 MB each; 340 MB on others"


def test_actors_without_a_chunk_are_named():
    """Iris has 120 training samples; of clients as uneven as these, one has a third of all steps and more than its
    share of 8 chunks, so fewer chunks than actors are cut."""
    m = made(partition={"name": "dirichlet", "alpha": 0.3, "clients": 8, "min_size": 2})
    found = plan.plan(m.experiment, m.scenario, m.dataset, measured(m.experiment), Cluster(1, 0, 8, 1e9), None)
    working = found.row["working"]
    assert 1 < working < found.row["actors"] == 8
    assert f"a round has work for {working} of them" in {row["what"]: row["plan"] for row in found.rows}["actors"]


def test_actors_side_by_side_take_the_measured_slowdown():
    """2 of 2 cores at work: 1.5 times the 14 s of the clients; one actor alone: 8 clients of 7 s."""
    m, one = made(), made(resources={"executor": "calls", "client_actors": 1})
    crowded = measured(m.experiment, slowdown=1.5, together=2)
    row = plan.plan(m.experiment, m.scenario, m.dataset, crowded, Cluster(2, 0, 2, 1e9), None).row
    assert row["clients_s"] == pytest.approx(14 * 1.5) and row["test_s"] == pytest.approx(30 * 0.5 / 4 * 1.5)
    alone = plan.plan(one.experiment, m.scenario, m.dataset, crowded, Cluster(1, 0, 2, 1e9), None).row
    assert alone["clients_s"] == pytest.approx(8 * 7)


def test_a_server_with_a_share_of_a_gpu_leaves_less_for_clients():
    """One of two GPUs is the server's half: 3 halves for clients on the first node, 4 on the second. Beside two actors
    of 7 GB on one T4 of 16 GB there is no room for a server of 4 x 100 MB and a model of 100 MB more than 1.9 GB."""
    m = made(resources={"executor": "calls", "client": {"num_gpus": 0.5}, "server": {"num_gpus": 0.5}})
    args = (m.experiment, m.scenario, m.dataset)
    found = plan.plan(*args, measured(m.experiment), Cluster(2, 2, 64, 1e9), ("t4", 0.5))
    assert found.row["actors"] == 7
    rows = {row["what"]: row["plan"] for row in found.rows}
    assert rows["actors"].startswith("7 client actors, 3 to 4 a node on 2 nodes")
    with pytest.raises(ResourceError, match=r"and the server of about 500 MB on a GPU of 16 GB do not fit"):
        plan.plan(*args, measured(m.experiment, gpu_bytes=7900 * MB), Cluster(2, 2, 64, 1e9), ("t4", 0.5))
    with pytest.raises(ResourceError, match=r"the server \(0 CPUs, 0.5 GPUs\) does not fit"):
        plan.layout(m.experiment, Cluster(1, 0, 64, 1e9), 8, True)


def test_a_test_on_a_gpu_takes_a_launch_for_each_batch():
    """30 samples in batches of 4 are 8 batches, 4 for each of two actors, of 1 ms although 4 GFLOP take less."""
    m = made(resources={"executor": "calls", "client": {"num_gpus": 1.0}})
    batches = measured(m.experiment, test_batch=4, test_flops=1e8)
    row = plan.plan(m.experiment, m.scenario, m.dataset, batches, Cluster(1, 2, 64, 1e9), ("t4", 0.5)).row
    assert row["test_s"] == pytest.approx(4 * machines.STEP_S)


def test_errors():
    m = made(resources={"executor": "calls", "client_actors": 9})
    with pytest.raises(ResourceError, match="9 client actors do not fit 2 nodes of 4 CPUs"):
        plan.plan(m.experiment, m.scenario, m.dataset, measured(m.experiment), Cluster(2, 0, 4, 1e9), None)
    untimed = measured(m.experiment, timed=False)
    with pytest.raises(ConfigError, match="add --gpu NAME"):
        plan.plan(m.experiment, m.scenario, m.dataset, untimed, Cluster(3, 0, 4, 1e9), None)
    for resources in ({"executor": "calls"}, {"executor": "local", "client": {"num_gpus": 1.0}}):
        m = made(resources=resources)
        with pytest.raises(ConfigError, match=r"the run would use none .*; set resources.client.num_gpus"):
            plan.plan(m.experiment, m.scenario, m.dataset, measured(m.experiment), Cluster(1, 2, 8, 1e9), ("t4", 0.5))
    for text in ("fast", "0gbit", "10"):
        with pytest.raises(ConfigError, match="write a number above 0 and a unit"):
            network_rate(text)


def test_a_measurement_counts_the_bytes_and_flops_of_the_model():
    """MLP of 4-8-3: 4 8 + 8 + 8 3 + 3 = 67 parameters. A batch of 5: 2 (32 + 24) FLOPs a sample forward; backward
    twice that without the gradient of the inputs, 2 32: 3 112 - 64 = 272 a sample, 1,360 a step."""
    quantized = made(encoding={"name": "quantize", "bits": 2}, evaluate={"every": 0, "clients": False})
    sums = measure.measure(quantized.experiment, timed=False)
    assert sums.exchanges[0].summed == sums.vector  # decoded before they are added
    assert {"encoding.name", "resources.client.num_cpus"} <= set(sums.experiment)
    m = made(model={"name": "mlp", "hidden": [8]}, evaluate={"every": 0, "clients": False})
    found = measure.measure(m.experiment, 0.01, together=2)
    (cost,) = found.exchanges
    assert (found.parameters, found.test_flops, cost.step_flops) == (67, 112, 1360)
    assert cost.summed == found.vector == cost.broadcast and cost.single == cost.state == 0
    assert cost.step_s > 0 and cost.server_s > 0 and found.test_s > 0 and found.client_bytes >= 0
    assert found.together == 2 and found.slowdown >= 1 and found.test_batch > 0
    counted = measure.measure(m.experiment, timed=False)
    assert not counted.timed and counted.exchanges[0].step_flops == 1360 and counted.exchanges[0].step_s == 0
    assert (counted.exchanges[0].broadcast, counted.exchanges[0].summed) == (cost.broadcast, cost.summed)
