"""`preset=official`: the switches of the authors' engines, held to steps that are transcribed here in plain PyTorch.

Lee-Gihun/FedSOL (ebc3f64): SAM of davda54, whose second pass does not update batch norm; FedDyn with the mean by n_k.
MMorafah/FedZoo-Bench (0598152): FedProx whose term is 0; SCAFFOLD whose c lacks the factor |S| / N.
"""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import flray
from flray.config.loader import load_config
from flray.data import DataConfig, load_dataset
from tests.support.networks import Pixels

CONFIGS = Path(__file__).parents[2] / "configs"
LR, MOMENTUM, DECAY, BATCH = 0.05, 0.9, 1e-3, 16


def official(file, name):
    """The options of an algorithm under the preset, as a run of that file would have them."""
    experiment = load_config(CONFIGS / file, ["preset=official", f"algorithm={name}"])[0]
    return experiment.dump()["algorithm"]


def played(folder, algorithm, rounds=2, **sections):
    """A small run with these options, in float64, over clients of unequal size in the order of their samples."""
    own = {
        "lr": LR,
        "lr_decay": 1.0,
        "momentum": MOMENTUM,
        "weight_decay": DECAY,
        "local_epochs": 1,
        "batch_size": BATCH,
    }
    config = {
        "rounds": rounds,
        "data": {"source": "digits", "train_size": 150, "shuffle": False},
        "partition": {"name": "dirichlet", "clients": 4, "alpha": 1.0, "variant": "plain", "min_size": 12},
        "cohort": {"size": 3},
        "model": {"name": "tests.support.networks:Pixels", "dtype": "float64"},
        "algorithm": {**algorithm, **own},
        "checkpoint": {"every": 1, "keep": 0},
        "resources": {"executor": "local"},
        **sections,
    }
    return flray.run(config, out=folder, progress=False)


class Engine:
    """What both engines share: the data, the cohorts and the first weights of a run, in float64."""

    def __init__(self, run: flray.Run) -> None:
        data = load_dataset(DataConfig(source="digits", train_size=150))
        pixels = torch.tensor(np.array(data.train.x)).permute(0, 3, 1, 2).double()
        self.x, self.y = (pixels / 255 - data.mean[0]) / data.std[0], torch.tensor(np.array(data.train.y))
        offsets = np.load(run.folder / "partition" / "partition_offsets.npy")
        self.own = np.split(np.load(run.folder / "partition" / "partition_indices.npy"), offsets[1:-1])
        took = run.clients.sort_values(["done", "position"])
        self.cohorts = [group["client"].tolist() for _, group in took.groupby("done")]
        self.net = Pixels().double()
        self.net.load_state_dict(run.weights(0))

    def batches(self, client):
        own = torch.tensor(self.own[client]).long()
        return [(self.x[rows], self.y[rows]) for rows in own.split(BATCH)]

    def shares(self, cohort):
        sizes = torch.tensor([len(self.own[k]) for k in cohort], dtype=torch.float64)
        return sizes / sizes.sum()

    def trained(self, step):
        """The network after a client's `step(net, optimizer, x, y)` on each batch, by client of the cohort."""

        def train(client):
            net = copy.deepcopy(self.net).train()
            optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
            for x, y in self.batches(client):
                step(client, net, optimizer, x, y)
            return net

        return train

    def averaged(self, nets, shares):
        states = [net.state_dict() for net in nets]
        mean = {n: sum(p * s[n] for p, s in zip(shares, states, strict=True)) for n in states[0]}
        self.net.load_state_dict({n: t.to(states[0][n].dtype) for n, t in mean.items()})


def difference(net, weights):
    floats = {name: tensor for name, tensor in net.state_dict().items() if tensor.is_floating_point()}
    return max(float((weights[name] - tensor).abs().max()) for name, tensor in floats.items())


def norm_statistics(net, updates):
    """As `disable_running_stats`: momentum 0 in the second pass."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.momentum = 0.1 if updates else 0.0


@pytest.mark.parametrize(("name", "adaptive"), [("fedsam", False), ("fedasam", True)])
def test_sam_of_fedsols_engine(tmp_path, name, adaptive):
    """e = rho T^2 g / (norm(T g) + 1e-12), T = |w| in all tensors if adaptive; statistics by the first pass alone."""
    options = official("fedsol/cifar10_lda01.yaml", name)
    assert (options["rho"], options["eps"], options["bn_passes"], options["weighting"]) == (
        0.5, 1e-12, "first", "examples",
    )  # fmt: skip
    if adaptive:
        assert (options["eta"], options["scaled"]) == (0.0, "all")

    def step(client, net, optimizer, x, y):
        norm_statistics(net, True)
        cross_entropy(net(x), y).backward()
        parameters = list(net.parameters())
        with torch.no_grad():
            scale = [p.abs() if adaptive else torch.ones_like(p) for p in parameters]
            norm = torch.stack([(t * p.grad).norm() for t, p in zip(scale, parameters, strict=True)]).norm()
            before = [p.clone() for p in parameters]
            for t, p in zip(scale, parameters, strict=True):
                p.add_(t**2 * p.grad * (options["rho"] / (norm + 1e-12)))
        optimizer.zero_grad()
        norm_statistics(net, False)
        cross_entropy(net(x), y).backward()
        with torch.no_grad():
            for p, old in zip(parameters, before, strict=True):
                p.copy_(old)
        optimizer.step()
        optimizer.zero_grad()

    run = played(tmp_path / "run", options)
    engine = Engine(run)
    for cohort in engine.cohorts:
        engine.averaged([engine.trained(step)(k) for k in cohort], engine.shares(cohort))
    assert difference(engine.net, run.weights()) < 1e-12
    # each switch matters: the method's own default is another network
    default = played(tmp_path / "default", {"name": name, "rho": options["rho"]})
    assert difference(engine.net, default.weights()) > 1e-4


def test_the_engine_of_fedsol_ships_these_hyper_parameters():
    """`configs/*.json` of the code."""
    shipped = {
        "fedsol": {"rho": 1.0, "perturb": "all", "adaptive": "columnwise"},
        "fedprox": {"mu": 1.0},
        "fednova": {"ccvr": "fedsol_snapshot"},
        "moon": {"mu": 0.1, "tau": 1.0},
        "fedntd": {"beta": 1.0, "tau": 1.0},
        "scaffold": {"divisor": "momentum", "weighting": "examples", "c_over": "population"},
        "feddyn": {"alpha": 0.1, "weighting": "examples"},  # transcribed in test_feddyn.py
    }
    for name, options in shipped.items():
        found = official("fedsol/cifar10_lda01.yaml", name)
        assert {key: found[key] for key in options} == options
        common = {
            "lr": 0.01,
            "lr_decay": 0.99,
            "momentum": 0.9,
            "weight_decay": 1e-5,
            "local_epochs": 5,
            "batch_size": 50,
        }
        assert {key: found[key] for key in common} == common


def test_fedprox_of_fedzoo_bench_is_fedavg(tmp_path):
    """Its term compares the parameters with themselves. Bit for bit, and not with the mu that its options print."""
    options = official("fedproj/cifar10_dir03.yaml", "fedprox")
    assert (options["mu"], options["optimizer"], options["momentum"], options["lr"]) == (0.0, "sgd", 0.9, 0.01)
    prox, plain = played(tmp_path / "prox", options), played(tmp_path / "plain", {"name": "fedavg"})
    assert all(torch.equal(tensor, plain.weights()[name]) for name, tensor in prox.weights().items())
    printed = played(tmp_path / "printed", {**options, "mu": 0.001})
    assert not torch.equal(printed.weights()["head.weight"], plain.weights()["head.weight"])


def test_scaffold_of_fedzoo_bench_lacks_the_sampled_share(tmp_path):
    """c += mean over the cohort of c_k+ - c_k; the paper's c is |S| / N of that in round 1, where all start at 0."""
    options = official("fedproj/cifar10_dir03.yaml", "scaffold")
    assert options["c_over"] == "cohort"
    run, paper = played(tmp_path / "run", options), played(tmp_path / "paper", {**options, "c_over": "population"})
    before, after = run.state(1), run.state(2)
    cohort = sorted(run.clients[run.clients["done"] == 1]["client"])
    zero = torch.zeros(())
    for name, c in before.server["c"].items():
        mean = sum(before.clients[k]["c"][name] for k in cohort) / 3
        torch.testing.assert_close(c, mean, rtol=0, atol=1e-12)
        torch.testing.assert_close(paper.state(1).server["c"][name], c * 3 / 4, rtol=0, atol=1e-12)
        change = sum(
            after.clients[k]["c"][name] - (before.clients[k]["c"][name] if k in before.clients else zero)
            for k in run.clients[run.clients["done"] == 2]["client"]
        )
        torch.testing.assert_close(after.server["c"][name] - c, change / 3, rtol=0, atol=1e-12)
    assert difference_of(run.weights(), paper.weights()) > 1e-6


def difference_of(a, b):
    return max(float((a[name] - tensor).abs().max()) for name, tensor in b.items())
