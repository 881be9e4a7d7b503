"""What my partition must be; `pytest` in this folder."""

import numpy as np
from my_partition import my_partition

import flray
from flray.config.loader import load_config


def test_every_sample_has_one_client():
    (experiment,) = load_config("my_partition.yaml")
    labels = np.arange(1000) % 10
    parts = my_partition(labels, 10, experiment.partition, np.random.default_rng(0), None)
    assert len(parts) == experiment.partition.clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))


def test_a_run_has_it(tmp_path):
    run = flray.run("my_partition.yaml", rounds=2, out=tmp_path / "run", progress=False)
    assert run.rounds["test/acc"].iloc[-1] > 0.2, "chance is 0.1"
