"""How many client actors the nodes of a cluster hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from flray.core.schema.errors import ResourceError
from flray.engine.ray import capacity
from flray.engine.ray.capacity import _without_server, count_fitting, num_client_actors
from tests.support.heads import flray

QUICK = Path(__file__).parents[3] / "configs" / "quickstart.yaml"


def held(nodes, client, server=(0.0, 0.0)):
    """Most actors of a kind beside the server; kinds are (CPUs, GPUs)."""
    kinds = [{"num_cpus": cpus, "num_gpus": gpus} for cpus, gpus in (client, server)]
    return max((count_fitting(rest, kinds[0]) for rest in _without_server(nodes, kinds[1])), default=0)


def test_an_actor_lies_on_one_node():
    assert held([(4.0, 0.0)], (2.0, 0.0)) == 2
    assert held([(1.0, 0.0)] * 4, (2.0, 0.0)) == 0, "four CPUs, two on no node"
    assert held([(3.0, 0.0), (3.0, 0.0)], (2.0, 0.0)) == 2, "a CPU is left over on each"


def test_the_scarcer_of_cpus_and_gpus_counts_on_every_node():
    assert held([(8.0, 1.0), (1.0, 2.0)], (1.0, 0.5)) == 2 + 1
    assert held([(8.0, 0.0), (2.0, 1.0)], (0.0, 0.25)) == 4
    assert held([(2.0, 0.0), (1.0, 0.0)], (0.0, 0.0)) == 3, "who asks for nothing: one a CPU"


def test_the_server_takes_its_share_where_it_costs_least():
    assert held([(2.0, 0.0), (3.0, 0.0)], (2.0, 0.0), (1.0, 0.0)) == 2, "of the three"
    assert held([(1.0, 1.0)], (1.0, 0.5), (0.0, 0.5)) == 1
    assert held([(1.0, 0.0)], (1.0, 0.0), (2.0, 0.0)) == 0, "no node holds the server"


@pytest.mark.parametrize(
    "what", ["resources.client_actors=99999", pytest.param("resources.server.num_cpus=1e9", marks=pytest.mark.slow)]
)
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
