"""Epsilon and delta of Gaussian noise over rounds, by opacus' formulas. Importing it imports neither opacus nor torch.

Renyi differential privacy of the Poisson-subsampled Gaussian mechanism (Mironov, Talwar and Zhang 2019), which adds up
over rounds, converted as in Canonne, Kamath and Steinke 2020.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from flray.core.schema.errors import ConfigError

ORDERS = (*(1 + x / 10 for x in range(1, 110)), *range(12, 64), 128, 256, 512)  # of Renyi divergences
PRECISION = 1e-4  # of a noise multiplier, relative
LARGEST = 1e4  # noise multiplier that is tried


def renyi(rate: float, noise: float, rounds: int = 1) -> np.ndarray:
    """Renyi divergences `[orders]` of so many rounds whose cohort has each client with probability `rate` and whose
    noise has the standard deviation `noise` times the clipping norm. Raises `ConfigError` without opacus."""
    return _renyi(rate, noise) * rounds


@functools.lru_cache(maxsize=1024)
def _renyi(rate: float, noise: float) -> np.ndarray:
    if not rate:
        return np.zeros(len(ORDERS))
    found = opacus_rdp().compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=ORDERS)
    return np.asarray(found, dtype=np.float64)


def epsilon_of(spent: np.ndarray, delta: float) -> float:
    """Epsilon at this `delta` of summed Renyi divergences `[orders]`."""
    if not spent.any():
        return 0.0
    return max(float(opacus_rdp().get_privacy_spent(orders=ORDERS, rdp=spent, delta=delta)[0]), 0.0)


def spent_epsilon(noise: float, rates: Iterable[tuple[float, int]], delta: float) -> float:
    """Epsilon at this `delta` of (rate, rounds) with this `noise`. Raises `ConfigError` without opacus."""
    return epsilon_of(np.sum([renyi(rate, noise, rounds) for rate, rounds in rates], axis=0), delta)


def noise_for(epsilon: float, delta: float, rates: Iterable[tuple[float, int]]) -> float:
    """The smallest noise over the clipping norm, to a relative 1e-4 and on the safe side, with which a run of (rate,
    rounds) spends at most `epsilon` at `delta`. Raises `ConfigError` where no noise does."""
    parts = [(rate, rounds) for rate, rounds in rates if rounds]
    if not parts:
        return 1.0
    high = 1.0
    while spent_epsilon(high, parts, delta) > epsilon:
        high *= 2
        if high > LARGEST:
            raise ConfigError(f"uplink.gaussian.epsilon: no noise reaches {epsilon:g} at delta {delta:g}; raise it")
    low = high / 2
    while low > 0.05 and spent_epsilon(low, parts, delta) <= epsilon:
        high, low = low, low / 2
    while high / low > 1 + PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent_epsilon(middle, parts, delta) <= epsilon else (middle, high)
    return high


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """sigma = sqrt(2 ln(1.25 / delta)) / epsilon: noise over clipping norm for (epsilon, delta) of one release.

    Proven for epsilon < 1 (Dwork and Roth 2014, Theorem A.1); the paper's formula for any.
    """
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def amplified(epsilon: float, delta: float, rate: float) -> tuple[float, float]:
    """(ln(1 + q (e^epsilon - 1)), q delta): for a round in which each client takes part with probability `rate`."""
    if epsilon < 1:
        return math.log1p(rate * math.expm1(epsilon)), rate * delta
    return epsilon + math.log(rate + (1 - rate) * math.exp(-epsilon)), rate * delta  # e^epsilon may be too large


def opacus_rdp() -> Any:
    """The module of opacus with the accountant's formulas. Raises `ConfigError` without opacus."""
    try:
        from opacus.accountants.analysis import rdp
    except ImportError:
        raise ConfigError("uplink.gaussian: the privacy accountant needs opacus; pip install 'flray[dp]'") from None
    return rdp
