"""What my network must be; `pytest` in this folder."""

import torch
from my_model import Net

import flray


def test_the_head_reads_the_features():
    net, x = Net((1, 8, 8), 10), torch.rand(3, 1, 8, 8)
    assert net(x).shape == (3, 10) and torch.equal(net.head(net.features(x)), net(x))


def test_a_run_learns_with_it(tmp_path):
    run = flray.run("my_model.yaml", rounds=2, out=tmp_path / "run", progress=False)
    assert run.rounds["test/acc"].iloc[-1] > 0.2, "chance is 0.1"
