"""What my data must be; `pytest` in this folder."""

import numpy as np
from my_data import my_data

import flray
from flray.config.loader import load_config


def test_every_class_is_in_both_splits():
    (experiment,) = load_config("my_data.yaml")
    data = my_data(experiment.data)
    for split in (data.train, data.test):
        assert np.bincount(split.y, minlength=len(data.classes)).min() > 10


def test_a_run_learns_it(tmp_path):
    run = flray.run("my_data.yaml", rounds=5, out=tmp_path / "run", progress=False)
    assert run.rounds["test/acc"].iloc[-1] > 0.7, "chance is 0.5"
