"""Client-level differential privacy: the Gaussian mechanism on updates, and its epsilon over rounds (FedMemo)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flray.core.schema.errors import ConfigError

ORDERS = (*(1 + x / 10 for x in range(1, 110)), *range(12, 64), 128, 256, 512)  # of Renyi divergences


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """sigma = sqrt(2 ln(1.25 / delta)) / epsilon: noise over clipping norm for (epsilon, delta) of one release.

    Proven for epsilon < 1 (Dwork and Roth 2014, Theorem A.1); the paper's formula for any.
    """
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def clipped(delta: Tensor, norm: float) -> Tensor:
    """The update `[P]` scaled to a norm of at most `norm`; all NaN if its norm is NaN."""
    length = float(delta.norm())
    return delta * (1.0 if length <= norm else norm / length)


def privatised(delta: Tensor, norm: float, sigma: float, draws: np.random.Generator, mask: Tensor) -> Tensor:
    """The clipped update `[P]` + N(0, (sigma norm)^2) on the coordinates where `mask [P]` is 1 (0: gaps between
    tensors)."""
    noise = torch.from_numpy(draws.standard_normal(len(delta), dtype=np.float32)).to(delta.device)
    return clipped(delta, norm) + sigma * norm * noise * mask


def aggregate_noise(norm: float, sigma: float, weights: Tensor) -> float:
    """Variance in each coordinate of the noise of the weighted mean of privatised updates: (sigma norm)^2 sum_i p_i^2,
    with weights p `[K]`."""
    return float((sigma * norm) ** 2 * (weights.double() ** 2).sum())


def amplified(epsilon: float, delta: float, rate: float) -> tuple[float, float]:
    """(ln(1 + q (e^epsilon - 1)), q delta): for a round in which each client takes part with probability `rate`."""
    if epsilon < 1:
        return math.log1p(rate * math.expm1(epsilon)), rate * delta
    return epsilon + math.log(rate + (1 - rate) * math.exp(-epsilon)), rate * delta  # e^epsilon may be too large


def spent_epsilon(sigma: float, rate: float, rounds: int, delta: float) -> float:
    """Epsilon after `rounds` rounds of the Poisson-subsampled Gaussian mechanism, at this `delta`.

    By Renyi differential privacy (Mironov, Talwar and Zhang 2019), converted as in Canonne, Kamath and Steinke 2020.
    `sigma` is a client's own multiplier; if only the uniform mean of m updates is revealed it is sigma sqrt(m).
    Raises `ConfigError` without opacus.
    """
    analysis = opacus_rdp()
    if not rounds or not rate:
        return 0.0
    renyi = analysis.compute_rdp(q=rate, noise_multiplier=sigma, steps=rounds, orders=ORDERS)
    return max(float(analysis.get_privacy_spent(orders=ORDERS, rdp=renyi, delta=delta)[0]), 0.0)


def opacus_rdp() -> Any:
    """The module of opacus with the accountant's formulas. Raises `ConfigError` without opacus."""
    try:
        from opacus.accountants.analysis import rdp
    except ImportError:
        raise ConfigError(
            "algorithm.privacy.clip: the privacy accountant needs opacus; pip install 'flray[dp]'"
        ) from None
    return rdp
