"""A fall in a series that follows a line: Page's CUSUM on the errors of a least-squares forecast.

The errors, divided by their standard deviation, are the recursive residuals of Brown, Durbin and Evans (JRSS B 1975),
but for the newest rounds, which the line leaves out. They depend neither on the line nor on the size of the noise, so
one simulation gives the threshold of a false-alarm rate (:func:`threshold`). CUSUM: Page (Biometrika 1954).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from flray.core.messages import Record
from flray.core.protocol.seeding import rng

Floats = NDArray[np.float64]

SERIES, ROUNDS = 4000, 200  # of the simulation
FEWEST = 5  # values under a line


class Trend(Record):
    """CUSUM's `total`, and rows (round, value), oldest first: the `reference [n, 2]` under the line and the newest,
    `pending [g, 2]`, that wait. float64."""

    total: float
    reference: torch.Tensor
    pending: torch.Tensor

    @classmethod
    def start(cls) -> Trend:
        empty = torch.zeros(0, 2, dtype=torch.float64)
        return cls(0.0, empty, empty)


def forecast(rounds: Floats, values: Floats, now: float) -> tuple[Floats, Floats]:
    """(forecast, its standard deviation) in round `now`, both `[...]`, by least squares from `values [..., n]` in the
    `rounds [n]`, n > 2: s sqrt(1 + 1/n + (now - mean)^2 / sum (rounds - mean)^2), s^2 with n - 2 degrees of freedom."""
    n, middle = len(rounds), rounds.mean()
    apart = rounds - middle
    spread = float((apart**2).sum())
    level = values.mean(-1)
    slope = (values * apart).sum(-1) / spread
    left = values - level[..., None] - slope[..., None] * apart
    variance = (left**2).sum(-1) / (n - 2)
    return level + slope * (now - middle), np.sqrt(variance * (1 + 1 / n + (now - middle) ** 2 / spread))


def page(total: Floats | float, z: Floats | float, slack: float) -> Floats:
    """CUSUM of falls after one more error `z`: max(0, total - z - slack)."""
    return np.maximum(0.0, total - z - slack)


def step(trend: Trend, now: int, value: float, slack: float) -> tuple[float, float]:
    """(forecast, CUSUM) in round `now` with this value; the reference is :func:`ready`.

    A reference without any spread gives an error of 0 for a value on its line, else one without bound.
    """
    rounds, values = trend.reference.numpy().T
    expected, deviation = (float(part) for part in forecast(rounds, values, now))
    with np.errstate(divide="ignore"):
        z = 0.0 if value == expected else float(np.divide(value - expected, deviation))
    return expected, float(page(trend.total, z, slack))


def ready(trend: Trend, width: int, guard: int, warmup: int) -> bool:
    """Whether the line has as many values as at the end of the warm-up."""
    return len(trend.reference) >= fewest(width, guard, warmup)


def fewest(width: int, guard: int, warmup: int) -> int:
    """Values of a line that is judged by: those of the warm-up but the `guard` newest, 5 at least, `width` at most."""
    return max(FEWEST, min(width, warmup - guard))


def after(
    trend: Trend, now: int, value: float | None, total: float, was: bool, alarm: bool, width: int, guard: int
) -> Trend:
    """The state after a round with an `alarm` or not, and one before it (`was`). The line has the last `width` values
    but the `guard` newest; a `value` that is unknown (None), values of rounds with an alarm, and those that waited when
    it began, do not enter. When an alarm ends, line and CUSUM start anew: the model learns again, and WV falls from a
    peak."""
    empty = torch.zeros(0, 2, dtype=torch.float64)
    if alarm:
        return Trend(total, trend.reference, empty)
    known = Trend.start() if was else Trend(total, trend.reference, trend.pending)
    if value is None:
        return known
    pending = torch.cat([known.pending, torch.tensor([[now, value]], dtype=torch.float64)])
    moved = max(0, len(pending) - guard)
    return known.replace(reference=torch.cat([known.reference, pending[:moved]])[-width:], pending=pending[moved:])


@lru_cache
def threshold(rate: float, slack: float, width: int, guard: int, warmup: int) -> float:
    """The CUSUM that normal noise around a line exceeds with the false-alarm `rate` per round.

    Of :data:`SERIES` simulated series the share (1 - rate)^ROUNDS stays below it through the :data:`ROUNDS` rounds that
    follow the warm-up.
    """
    begin = max(warmup, guard + fewest(width, guard, warmup))
    noise = rng(0, "cusum").normal(size=(SERIES, begin + ROUNDS))
    total, highest = np.zeros(SERIES), np.zeros(SERIES)
    for now in range(begin, begin + ROUNDS):
        known = np.arange(max(0, now - guard - width), now - guard)
        expected, deviation = forecast(known.astype(np.float64), noise[:, known], now)
        total = page(total, (noise[:, now] - expected) / deviation, slack)
        highest = np.maximum(highest, total)
    return float(np.quantile(highest, (1 - rate) ** ROUNDS))
