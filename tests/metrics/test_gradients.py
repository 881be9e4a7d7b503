"""Gradient variance, cosine and Fisher trace against closed forms and against plain autograd."""

import numpy as np
import pytest
import torch
from torch import nn

import flray
from flray.config.loader import load_config
from flray.core.network.objective import Objective
from flray.core.protocol.classes import ClassSet
from flray.core.schema.errors import ConfigError
from flray.metrics.latent_forgetting import fisher_trace, gradient_variance
from tests.support.latent import CONFIG, PROBE
from tests.support.small_cases import normal


def softmax_regression():
    torch.manual_seed(0)
    return Objective(nn.Linear(4, 3))


def test_gradient_variance_leaves_the_gaps_out():
    objective = softmax_regression()
    g = objective.layout.flatten({"weight": normal(3, 4), "bias": normal(3, seed=1)})
    assert len(g) > 15
    flat = np.concatenate([normal(3, 4).numpy().ravel(), normal(3, seed=1).numpy()]).astype(np.float64)
    assert gradient_variance(objective, g) == pytest.approx(flat.var(), rel=1e-9)


def test_empirical_fisher_of_softmax_regression_in_closed_form():
    """grad log p(y | x) = (e_y - p) (x, 1)': its squared norm is ||e_y - p||^2 (||x||^2 + 1)."""
    objective = softmax_regression()
    w, b = objective.initial()
    x, y = normal(9, 4), torch.arange(9) % 3
    p = objective.at(w, b)(x).softmax(1).detach().double()
    apart = ((nn.functional.one_hot(y, 3) - p) ** 2).sum(1)
    expected = float((apart * (x.double().pow(2).sum(1) + 1)).mean())
    assert fisher_trace(objective, w, b, x, y) == pytest.approx(expected, rel=1e-5)
    two = ClassSet([0, 2], 3)
    q = objective.at(w, b)(x)[:, [0, 2]].softmax(1).detach().double()
    y = torch.tensor([0, 2, 0, 2, 0, 2, 0, 2, 0])
    apart = ((nn.functional.one_hot(y // 2, 2) - q) ** 2).sum(1)
    expected = float((apart * (x.double().pow(2).sum(1) + 1)).mean())
    assert fisher_trace(objective, w, b, x, y, classes=two) == pytest.approx(expected, rel=1e-5)


def test_sampled_labels_give_the_expectation():
    """E_y ||e_y - p||^2 = 1 - ||p||^2."""
    objective = softmax_regression()
    w, b = objective.initial()
    x = normal(1, 4).expand(3000, 4).contiguous()
    p = objective.at(w, b)(x[:1]).softmax(1).detach().double()
    expected = float((1 - p.pow(2).sum()) * (x[0].double().pow(2).sum() + 1))
    found = fisher_trace(objective, w, b, x, draws=np.random.default_rng(0))
    assert found == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("labels", ["sampled", "empirical"])
def test_the_probe_reports_them_where_it_is_asked_to(tmp_path, labels):
    options = {"gradients_every": 2, "fisher_samples": 5, "fisher_labels": labels}
    config = {**CONFIG, "rounds": 3, "diagnostics": [{**PROBE, **options}]}
    table = flray.run(load_config(config)[0], out=tmp_path / "run", progress=False).diagnostics["latent_forgetting"]
    for name in ("gradient_variance", "cosine", "fisher_trace"):
        assert table[name].notna().tolist() == [True, False, True]
    assert (table["gradient_variance"].dropna() > 0).all() and table["cosine"].abs().max() <= 1


def test_public_data_without_labels_are_told_of_before_the_first_round(tmp_path):
    config = {**CONFIG, "diagnostics": [{**PROBE, "gradients_every": 1}]}
    config["proxy"] = {**config["proxy"], "labelled": False}
    with pytest.raises(ConfigError, match="latent_forgetting with these options reads labels of the public data"):
        flray.run(load_config(config)[0], out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "rounds").exists()
    never = {**config, "rounds": 1, "diagnostics": [PROBE]}
    assert len(flray.run(load_config(never)[0], out=tmp_path / "never", progress=False).rounds) == 1
