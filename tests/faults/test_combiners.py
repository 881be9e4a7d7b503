"""A combiner that dies, and a node on which sums lie: the same bits, and only what was lost is done again."""

import pytest

from flray.api import run as flray_run
from tests.support.combining import sums_combined
from tests.support.faults import combiner_killed
from tests.support.heads import facts_of, flray
from tests.support.runs import model, on_actors as config


@pytest.mark.slow
def test_a_killed_combiners_chunks_are_combined_again(ray_cluster, tmp_path):
    calls = {"resources": {"executor": "calls", "client_actors": 3}}
    whole = flray_run(config(rounds=3, **calls), out=tmp_path / "whole")
    with sums_combined(always=True) as merged, combiner_killed() as killed:
        again = flray_run(config(rounds=3, **calls), out=tmp_path / "run")
    assert killed and merged[0] == 3 and len(merged) == 3, "three chunks on one node in the first of three rounds"
    assert again.environment["actors"]["repeated_work"] >= 1 and whole.environment["actors"]["repeated_work"] == 0
    assert model(again.folder) == model(whole.folder)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_that_dies_while_sums_are_combined_costs_its_own_chunk(tmp_path):
    found = facts_of("tests.engine.ray.nodes", tmp_path / "run", "combining", "resources.executor=calls")
    assert found["nodes"] == 3 and len(found["gone"]) == 1
    assert [row["actors"] for row in found["rounds"]] == [3, 3, 2, 2, 2, 2]
    assert found["trained"] == 3 + 1, "the two chunks of the other nodes are not trained again"
    overrides = ["address=null", "resources.client_actors=1", "resources.executor=local"]
    here = flray("run", tmp_path / "run" / "config.yaml", *overrides, "--out", tmp_path / "here")
    assert here.returncode == 0, here.stdout
    assert model(tmp_path / "run") == model(tmp_path / "here")
