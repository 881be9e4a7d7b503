"""The Gaussian mechanism by hand; the accountant against the series of Mironov et al. and a closed form."""

import math
import sys

import numpy as np
import pytest
import torch
from scipy.special import gammaln, logsumexp

from flray.core.schema.errors import ConfigError
from flray.uplink import accountant
from flray.uplink.clip import clipped
from flray.uplink.gaussian import aggregate_noise, privatised


def test_the_mechanism_by_hand():
    assert accountant.gaussian_multiplier(2.0, 1e-5) == pytest.approx(math.sqrt(2 * math.log(125_000)) / 2)
    assert clipped(torch.zeros(3), 1.0).tolist() == [0, 0, 0]
    epsilon, delta = accountant.amplified(1.0, 1e-5, 0.1)
    assert epsilon == pytest.approx(math.log(1 + 0.1 * (math.e - 1))) and delta == pytest.approx(1e-6)
    assert accountant.amplified(1000.0, 1e-5, 0.5)[0] == pytest.approx(1000 - math.log(2)), "e^1000 is no float"
    assert aggregate_noise(2.0, 3.0, torch.tensor([0.5, 0.25, 0.25])) == pytest.approx(36 * 0.375)


def test_noise_has_the_stated_variance_and_stays_out_of_the_gaps():
    mask = torch.ones(40_000)
    mask[::4] = 0
    out = privatised(torch.zeros(40_000), 0.5, 2.0, np.random.default_rng(0), mask)
    assert float(out[mask > 0].var()) == pytest.approx(1.0, rel=0.03) and not out[mask == 0].any()
    mean = sum(privatised(torch.zeros(40_000), 0.5, 2.0, np.random.default_rng(k), mask) for k in range(4)) / 4
    known = aggregate_noise(0.5, 2.0, torch.full((4,), 0.25))
    assert float(mean[mask > 0].var()) == pytest.approx(known, rel=0.03)


def by_series(sigma, q, rounds, delta):
    """Integer orders: RDP = ln sum_k C(a, k) (1-q)^(a-k) q^k e^(k(k-1) / (2 sigma^2)) / (a - 1), then Canonne et al."""
    best = math.inf
    for a in range(2, 64):
        k = np.arange(a + 1)
        binomial = gammaln(a + 1) - gammaln(k + 1) - gammaln(a - k + 1)
        tail = (a - k) * math.log1p(-q) if q < 1 else np.where(k == a, 0.0, -np.inf)
        rdp = rounds * logsumexp(binomial + tail + k * math.log(q) + k * (k - 1) / (2 * sigma**2)) / (a - 1)
        best = min(best, rdp + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1))
    return best


@pytest.mark.parametrize(("sigma", "q", "rounds"), [(1.0, 0.1, 100), (2.0, 0.1, 200), (4.0, 1.0, 10)])
def test_what_is_spent_against_the_series(sigma, q, rounds):
    """The library's orders are finer, so that its epsilon is a little smaller."""
    pytest.importorskip("opacus")
    found, known = accountant.spent_epsilon(sigma, [(q, rounds)], 1e-5), by_series(sigma, q, rounds, 1e-5)
    assert known * 0.98 <= found <= known * (1 + 1e-6)
    assert (
        accountant.spent_epsilon(sigma, [(q, rounds + 1)], 1e-5)
        > found
        > accountant.spent_epsilon(2 * sigma, [(q, rounds)], 1e-5)
    )
    assert accountant.spent_epsilon(sigma, [(q, 0)], 1e-5) == 0


def test_without_the_library_it_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus.accountants.analysis", None)
    with pytest.raises(ConfigError, match=r"needs opacus; pip install 'flray\[dp\]'"):
        accountant.spent_epsilon(1.0, [(0.1, 1)], 1e-5)
