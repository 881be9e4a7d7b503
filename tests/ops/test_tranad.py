"""TranAD against a copy of the authors' layers built of PyTorch's own, its windows by hand, thresholds by NumPy."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flray.ops import tranad
from flray.ops.detect import Detector
from tests.support.small_cases import normal


def test_windows_by_hand():
    """Ends at v_t, left padded with the first value."""
    values = torch.arange(5.0)[:, None]
    assert tranad.windows(values, 3)[:, :, 0].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]


def test_positions_are_sine_plus_cosine_in_every_dimension():
    found = tranad.positions(10, 4)
    for place in range(10):
        for k in range(4):
            angle = place * math.exp(-k * math.log(10_000) / 4)
            assert float(found[place, k]) == pytest.approx(math.sin(angle) + math.cos(angle), abs=1e-5)


@pytest.mark.parametrize("features", [1, 2])
def test_both_passes_against_the_formulas(features):
    """Attention written out (softmax(q k' / sqrt d) v), residuals without norms, slope 1, sigmoid."""
    torch.manual_seed(0)
    model = tranad.TranAD(features).eval()
    x = normal(4, 10, features).sigmoid()

    def attend(layer: nn.MultiheadAttention, q, kv):
        width, heads = layer.embed_dim, layer.num_heads
        wq, wk, wv = layer.in_proj_weight.chunk(3)
        bq, bk, bv = layer.in_proj_bias.chunk(3)
        parts = [F.linear(t, w, b).unflatten(2, (heads, -1)) for t, w, b in ((q, wq, bq), (kv, wk, bk), (kv, wv, bv))]
        scores = torch.einsum("ibhd,jbhd->bhij", parts[0], parts[1]) / math.sqrt(width // heads)
        mixed = torch.einsum("bhij,jbhd->ibhd", scores.softmax(-1), parts[2]).flatten(2)
        return F.linear(mixed, layer.out_proj.weight, layer.out_proj.bias)

    def block(b, t, memory=None):
        t = t + attend(b.attention, t, t)
        if memory is not None:
            t = t + attend(b.across, t, memory)
        return t + b.forward_layers[2](b.forward_layers[0](t))

    source = x.transpose(0, 1)

    def decode(which, focus):
        encoded = torch.cat([source, focus], 2) * math.sqrt(features) + tranad.positions(10, 2 * features)[:, None]
        twice = torch.cat([source[-1:], source[-1:]], 2)
        return model.last(block(model.decoders[which], twice, block(model.encoder, encoded)))

    with torch.no_grad():
        first = decode(0, torch.zeros_like(source))
        second = decode(1, (first - source) ** 2)
        found = model(x)
    torch.testing.assert_close(found[0], first[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[1], second[0], rtol=1e-5, atol=1e-6)


def test_the_loss_moves_to_the_second_pass():
    first, second, y = normal(6, 1), normal(6, 1, seed=1), normal(6, 1, seed=2)
    a, b = (np.mean((t - y).numpy() ** 2) for t in (first, second))
    for epoch in (1, 2, 5):
        assert float(tranad.loss(first, second, y, epoch)) == pytest.approx(a / epoch + (1 - 1 / epoch) * b, rel=1e-5)


def test_scale_and_peaks_over_threshold():
    values = [1.0, math.e, math.e**2, math.e**3]
    np.testing.assert_allclose(tranad.scale(values, values[:3])[:, 0], [0, 0.5, 1, 1.5], rtol=1e-6)
    draws = np.random.default_rng(0).exponential(2.0, 20_000)
    # of an exponential tail: the share q lies above 2 ln(1 / q)
    assert tranad.pot_threshold(draws, q=1e-4, level=0.98) == pytest.approx(2 * math.log(1e4), rel=0.15)
    assert tranad.pot_threshold([1.0, 1.0, 3.0], q=1e-4) == 3.0


@pytest.mark.parametrize(("gamma", "n"), [(0.3, 500), (-0.3, 500), (1.5, 60), (0.0, 5), (0.0, 2)])
def test_the_tail_is_the_likeliest_whose_likelihood_is_bounded(gamma, n):
    """No other (gamma, sigma) with gamma >= -1 is likelier; few excesses have gamma = -1, where scipy's own fit runs
    off to what is as likely as one likes."""
    from scipy.stats import genpareto

    y = genpareto.rvs(gamma, scale=1e-3, size=n, random_state=4)
    found = tranad.pareto(y)
    known = genpareto.logpdf(y, found[0], scale=found[1] * (1 + 1e-12)).sum()
    assert found[0] >= -1 and (found[0] == -1) == (n < 10)
    for g in (*np.linspace(-1, 2, 61), found[0] - 1e-3, found[0] + 1e-3):
        for scale in found[1] * np.linspace(0.5, 2, 61):
            assert g < -1 or genpareto.logpdf(y, g, scale=scale).sum() <= known + 1e-6


def test_it_finds_a_deep_drop_and_no_rise_and_is_reproducible():
    values = np.exp(0.1 * np.random.default_rng(0).normal(size=130))
    values[110:120] /= 20
    values[122:] *= 20
    detector = Detector(method="tranad", warmup=100)
    found = detector.alarms(values)
    assert not any(found[:110]) and all(found[110:120]) and not any(found[120:])
    assert detector.alarms(values[:112]) == found[:112]
    quantile = Detector(method="tranad", warmup=100, tranad_threshold="quantile", tranad_level=0.9)
    assert quantile.alarms(values[:112])[110:] == [True, True]
