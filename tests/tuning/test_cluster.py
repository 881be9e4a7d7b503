"""A sweep on three nodes, one of which goes away in the middle: no trial is lost, and every number is what it would
have been."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.sweeps import SWEEP, found, rungs

SCRIPT = """
import sys, threading, time
from pathlib import Path
import ray
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, connect=False, head_node_args={"num_cpus": 1, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=2) for _ in range(2)]
ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")

from flray.tuning.sweep_file import load_sweep
from flray.tuning.sweep import run_sweep
from flray.tuning.trials import trials_table

folder, remove = Path(sys.argv[2]), sys.argv[3] == "remove"

def away():
    while True:
        time.sleep(0.1)
        if (folder / "study.journal").exists() and (trials_table(folder)["state"] != "running").sum() >= 1:
            break
    busy = [group for group in ray.util.placement_group_table().values() if group["state"] == "CREATED"]
    homes = {node for group in busy for node in group["bundles_to_node_id"].values()}
    victim = next((n for n in nodes if n.node_id in homes), nodes[0])  # one on which the trial has a bundle
    print("removed", victim.node_id in homes, flush=True)
    cluster.remove_node(victim, allow_graceful=False)

if remove:
    threading.Thread(target=away, daemon=True).start()
run_sweep(load_sweep(sys.argv[1]), folder, progress=False)
ray.shutdown()
cluster.shutdown()
"""


def sweep(tmp_path, name, *words):
    experiment = {**SWEEP["experiment"], "resources": {"client_actors": 2, "server": {"threads": 1}}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({**SWEEP, "experiment": experiment, "final": {"top": 0}}))
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "sweep.yaml"), str(tmp_path / name), *words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    return tmp_path / name, done.stdout


@pytest.mark.slow
def test_a_node_that_goes_away_costs_no_trial(tmp_path):
    whole, _ = sweep(tmp_path, "whole", "keep")
    lamed, said = sweep(tmp_path, "lamed", "remove")
    assert "removed True" in said
    assert found(lamed) == found(whole)
    assert rungs(lamed) == rungs(whole)
