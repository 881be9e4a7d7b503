"""How many client actors the nodes of a cluster hold."""

import pytest

from flray.core.schema.errors import ResourceError
from flray.engine.ray import capacity
from flray.engine.ray.capacity import _without_server, count_fitting, gpu_share, num_client_actors
from tests.support.commands import QUICK
from tests.support.heads import flray

NO, ONE = (0.0, 0.0), (1.0, 0.0)


@pytest.mark.parametrize(
    ("nodes", "client", "server", "actors"),
    [
        pytest.param([(4.0, 0.0)], (2.0, 0.0), NO, 2, id="an actor lies on one node"),
        pytest.param([ONE] * 4, (2.0, 0.0), NO, 0, id="four CPUs, two on no node"),
        pytest.param([(3.0, 0.0)] * 2, (2.0, 0.0), NO, 2, id="a CPU is left over on each"),
        pytest.param([(8.0, 1.0), (1.0, 2.0)], (1.0, 0.5), NO, 2 + 1, id="the scarcer of CPUs and GPUs counts"),
        pytest.param([(8.0, 0.0), (2.0, 1.0)], (0.0, 0.25), NO, 4, id="GPUs alone"),
        pytest.param([(2.0, 0.0), ONE], NO, NO, 3, id="who asks for nothing: one a CPU"),
        pytest.param([(2.0, 0.0), (3.0, 0.0)], (2.0, 0.0), ONE, 2, id="the server where it costs least: of the three"),
        pytest.param([(1.0, 1.0)], (1.0, 0.5), (0.0, 0.5), 1, id="the server on the GPU"),
        pytest.param([ONE], ONE, (2.0, 0.0), 0, id="no node holds the server"),
        pytest.param([(2.0, 0.0)], (0.2, 0.0), NO, 10, id="fifths of two CPUs"),
        pytest.param([ONE], (0.1, 0.0), (0.9, 0.0), 1, id="a tenth beside nine tenths"),
        pytest.param([(8.0, 1.0)], (0.0, 0.2), NO, 5, id="fifths of a GPU"),
        pytest.param([(8.0, 2.0)], (0.0, 0.4), NO, 4, id="a share is of one GPU: a fifth of each is left"),
        pytest.param([(8.0, 3.0)], (0.0, 2.0), NO, 1, id="two GPUs each"),
    ],
)
def test_most_actors_beside_the_server(nodes, client, server, actors):
    """Kinds are (CPUs, GPUs)."""
    kinds = [{"num_cpus": cpus, "num_gpus": gpus} for cpus, gpus in (client, server)]
    assert max((count_fitting(rest, kinds[0]) for rest in _without_server(nodes, kinds[1])), default=0) == actors


def test_as_many_actors_have_a_measured_share_as_were_counted():
    for actors in range(1, 100):  # Ray rounds each share to a ten-thousandth
        assert round(gpu_share(actors) * 10_000) * actors <= 10_000 <= round(gpu_share(actors) * 10_000) * (actors + 1)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["resources.client_actors=99999", "resources.server.num_cpus=1e9"])
def test_more_processes_than_memory_holds_are_refused_before_anything_starts(tmp_path, what):
    """Ray would start them one after the other, for minutes."""
    done = flray("run", QUICK, what, "--out", tmp_path / "run")
    assert done.returncode == 2 and not (tmp_path / "run").exists()
    error = done.stdout.splitlines()[-1]
    assert error.startswith("error: resources: ") and error.endswith("lower resources.client_actors or num_cpus")


@pytest.mark.parametrize(
    ("nodes", "wanted", "cohort", "held_by_others", "actors"),
    [
        ([(4.0, 0.0)], "auto", 10, [], 4),
        ([(4.0, 0.0)], "auto", 10, [(1.0, 0.0)] * 3, 1),
        ([(4.0, 0.0)], 3, 10, [(1.0, 0.0)] * 2, 2),
        ([(4.0, 0.0)], "auto", 10, [(4.0, 0.0)], 0),
        ([(1.7, 0.0)], "auto", 10, [(0.4, 0.0), (0.3, 0.0)], 1),  # in floats less than one is left
        ([(2.0, 1.0)], "auto", 10, [(0.0, 0.5), (0.0, 0.25)], 2),  # who needs no GPU does not mind
        ([(2.0, 0.0), (2.0, 0.0)], "auto", 10, [(2.0, 0.0), (1.0, 0.0)], 1),
    ],
)
def test_what_other_runs_hold_is_left_to_them(monkeypatch, nodes, wanted, cohort, held_by_others, actors):
    """Client actors of one CPU; each share lies on one node."""
    shares = [{"num_cpus": cpus, "num_gpus": gpus} for cpus, gpus in held_by_others]
    nothing, one = {"num_cpus": 0.0, "num_gpus": 0.0}, {"num_cpus": 1.0, "num_gpus": 0.0}
    monkeypatch.setattr(capacity, "node_resources", lambda: nodes)
    assert num_client_actors(wanted, one, nothing, cohort, shares) == actors


def test_more_than_the_whole_cluster_is_an_error_whatever_others_hold(monkeypatch):
    nothing, one = {"num_cpus": 0.0, "num_gpus": 0.0}, {"num_cpus": 1.0, "num_gpus": 0.0}
    monkeypatch.setattr(capacity, "node_resources", lambda: [(2.0, 0.0)])
    with pytest.raises(ResourceError, match="at most 2"):
        num_client_actors(3, one, nothing, 10, [one])


def test_an_actor_that_fits_nowhere_is_said_with_what_to_write(monkeypatch):
    server, large = {"num_cpus": 2.5, "num_gpus": 0.0}, {"num_cpus": 3.5, "num_gpus": 0.0}
    monkeypatch.setattr(capacity, "node_resources", lambda: [(4.0, 0.0), (2.0, 0.0)])
    with pytest.raises(ResourceError) as refused:
        num_client_actors("auto", large, server, 10)
    assert str(refused.value) == (
        "no client actor fits: each needs 3.5 CPUs and 0 GPUs, the server 2.5 CPUs and 0 GPUs, and the cluster has 6 "
        "CPUs and 0 GPUs on 2 nodes (the largest: 4 CPUs, 0 GPUs); lower resources.client or resources.server "
        "(num_cpus, num_gpus), or give the cluster more"
    )
