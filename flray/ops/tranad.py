"""TranAD (Tuli et al., VLDB 2022) on one series, and thresholds on its score: FedMemo's other detector (appendix B).

A transformer reconstructs the last value of a window twice: without, then with attention to its first error. Values
with a large error are anomalous. As in imperial-qore/TranAD: no layer norm, LeakyReLU of slope 1, one encoder layer and
two decoders. The series is ln WV, min-max scaled on its training part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from flray.core.protocol.generators import preserve_globals, seed_globals
from flray.core.protocol.seeding import torch_seed

WINDOW = 10  # values in a window
DROPOUT = 0.1


def windows(values: Tensor, size: int = WINDOW) -> Tensor:
    """`[T, size, f]` of a series `[T, f]`: window t ends at value t; values before the first one are the first value.
    (The code's window t ends at value t - 1.)"""
    padded = torch.cat([values[:1].expand(size - 1, -1), values])
    return torch.stack([padded[t : t + size] for t in range(len(values))])


def positions(size: int, width: int) -> Tensor:
    """`[size, width]`: sin + cos of pos e^(-k ln 1e4 / width) in every dimension k (the code's own encoding)."""
    place = torch.arange(size, dtype=torch.float32)[:, None]
    angle = place * torch.exp(torch.arange(width, dtype=torch.float32) * (-math.log(10_000.0) / width))
    return angle.sin() + angle.cos()


class TransformerLayer(nn.Module):
    """Self-attention, in a decoder attention to a memory, and a feed-forward layer of 16; each with a residual."""

    def __init__(self, width: int, heads: int, decoder: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, dropout=DROPOUT)
        self.across = nn.MultiheadAttention(width, heads, dropout=DROPOUT) if decoder else None
        self.forward_layers = nn.Sequential(nn.Linear(width, 16), nn.Dropout(DROPOUT), nn.Linear(16, width))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        x = x + self.dropout(self.attention(x, x, x)[0])
        if self.across is not None:
            assert memory is not None
            x = x + self.dropout(self.across(x, memory, memory)[0])
        return x + self.dropout(self.forward_layers(x))  # type: ignore[no-any-return]


class TranAD(nn.Module):
    """`windows [B, size, f]` -> the two reconstructions of their last values, each `[B, f]`."""

    encoding: Tensor  # [size, 1, 2 f]

    def __init__(self, features: int = 1, size: int = WINDOW) -> None:
        super().__init__()
        self.features, width = features, 2 * features
        self.register_buffer("encoding", positions(size, width)[:, None], persistent=False)
        self.dropout = nn.Dropout(DROPOUT)
        self.encoder = TransformerLayer(width, features, decoder=False)
        self.decoders = nn.ModuleList(TransformerLayer(width, features, decoder=True) for _ in range(2))
        self.last = nn.Sequential(nn.Linear(width, features), nn.Sigmoid())

    def forward(self, window: Tensor) -> tuple[Tensor, Tensor]:
        source = window.transpose(0, 1)  # [size, B, f]
        target = source[-1:]
        first = self._decoded(0, source, torch.zeros_like(source), target)
        second = self._decoded(1, source, (first - source) ** 2, target)
        return first[0], second[0]

    def _decoded(self, which: int, source: Tensor, focus: Tensor, target: Tensor) -> Tensor:
        encoded = torch.cat([source, focus], dim=2) * math.sqrt(self.features)
        memory = self.encoder(self.dropout(encoded + self.encoding))
        return self.last(self.decoders[which](target.repeat(1, 1, 2), memory))  # type: ignore[no-any-return]


def loss(first: Tensor, second: Tensor, target: Tensor, epoch: int) -> Tensor:
    """(1/n) MSE(first, y) + (1 - 1/n) MSE(second, y) at epoch n, from 1 (0-dim)."""
    share = 1 / epoch
    return share * nn.functional.mse_loss(first, target) + (1 - share) * nn.functional.mse_loss(second, target)


def scale(values: Sequence[float], train: Sequence[float]) -> Tensor:
    """`[T, 1]`: ln of the values, min-max scaled on the training part (0 to 1 there)."""
    logs, known = (torch.tensor(np.log(np.maximum(part, 1e-300))) for part in map(np.asarray, (values, train)))
    low, high = known.min(), known.max()
    return ((logs - low) / (high - low).clamp_min(1e-12)).float()[:, None]


def fit(
    series: Sequence[Tensor],
    *,
    seed: int = 0,
    epochs: int = 5,
    batch_size: int = 128,
    lr: float = 0.006,
    weight_decay: float = 1e-5,
) -> TranAD:
    """A model of the windows of training series (each `[T, f]`, scaled): AdamW, its rate times 0.9 every 5 epochs.

    Several series without a drop are better than one: 100 points are few. The random draws depend on `seed` alone.
    """
    with preserve_globals():
        seed_globals(torch_seed(seed, "tranad"))
        model = TranAD(series[0].shape[1])
        x = torch.cat([windows(values) for values in series])
        y = x[:, -1]
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
        model.train()
        for epoch in range(1, epochs + 1):
            for batch, target in zip(
                torch.split(x, batch_size), torch.split(y, batch_size), strict=True
            ):  # in order, as the code
                optimizer.zero_grad()
                first, second = model(batch)
                loss(first, second, target, epoch).backward()
                optimizer.step()
            schedule.step()
    return model.eval()


def anomaly_scores(model: TranAD, values: Tensor) -> np.ndarray:
    """||second - y||^2 of every window of a scaled series `[T, f]`, y being its last value; float64 `[T]`."""
    read = windows(values)
    with torch.no_grad():
        _, second = model(read)
    return ((second - read[:, -1]) ** 2).sum(1).double().numpy()  # type: ignore[no-any-return]


# thresholds -------------------------------------------------------------------------------------
def pot_threshold(scores: Sequence[float] | np.ndarray, q: float = 1e-5, level: float = 0.99) -> float:
    """The score that a share `q` of normal scores exceeds, by peaks over threshold (Siffer et al., KDD 2017).

    t = the quantile `level`; the N_t excesses over it follow a generalised Pareto distribution (:func:`pareto`): z_q =
    t + sigma / gamma ((q n / N_t)^-gamma - 1), or t - sigma ln(q n / N_t) at gamma = 0. Without two different excesses
    it is the largest score.
    """
    values = np.sort(np.asarray(scores, dtype=np.float64))
    t = values[min(int(level * len(values)), len(values) - 1)]
    excess = values[values > t] - t
    if len(np.unique(excess)) < 2:
        return float(values[-1])
    gamma, sigma = pareto(excess)
    ratio = q * len(values) / len(excess)
    if abs(gamma) < 1e-8:
        return float(t - sigma * math.log(ratio))
    return float(t + sigma / gamma * (ratio**-gamma - 1))


def pareto(excess: np.ndarray, places: int = 200) -> tuple[float, float]:
    """(gamma, sigma) of the generalised Pareto distribution of the positive numbers `excess [n]`, not all alike: the
    most likely one with gamma >= -1, for below that the likelihood has no bound (Grimshaw, Technometrics 1993).

    With x = gamma max(y) / sigma the best gamma is mean ln(1 + x y / max(y)), and -ln(sigma) - gamma - 1 is left, a
    function of x alone: its best place among `places` on either side of 0 is refined, and compared with that of the
    border, the uniform distribution up to the largest excess.
    """
    from scipy.optimize import minimize_scalar

    largest = float(excess.max())
    y = excess / largest

    def shape(x: float) -> float:
        return float(np.log1p(x * y).mean())

    def scale_of(x: float) -> float:
        return shape(x) / x if abs(x) > 1e-9 else float(y.mean())

    def cost(x: float) -> float:
        gamma = shape(x)
        return math.log(scale_of(x)) + gamma if gamma >= -1 else math.inf

    highest = 2 * float((y.mean() - y.min()) / y.min() ** 2)  # no solution lies beyond it
    grid = np.concatenate([np.expm1(np.linspace(-34, 0, places)), np.geomspace(1e-6, max(highest, 1e-5), places)])
    best = int(np.argmin([cost(x) for x in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    minimum = minimize_scalar(
        cost, bounds=(low, high), method="bounded", options={"xatol": 1e-10 * max(high - low, 1e-6)}
    )
    x = float(minimum.x) if minimum.fun < cost(grid[best]) else float(grid[best])
    return (shape(x), scale_of(x) * largest) if cost(x) < -1 else (-1.0, largest)


def judge(
    values: Sequence[float], train: Sequence[float], threshold: Literal["pot", "quantile"] = "pot", level: float = 0.99
) -> tuple[float, float, bool]:
    """(score of the last value, threshold, whether it is a hit), of a model that is fitted to the rounds `train`.

    The threshold is :func:`pot_threshold` or the quantile `level` of the training scores. The score is two-sided, so
    a hit must also lie below the training mean. Only the last `WINDOW` values are read.
    """
    model, normal = _fitted(tuple(train))
    bound = pot_threshold(normal, level=level) if threshold == "pot" else float(np.quantile(normal, level))
    score = float(anomaly_scores(model, scale(values[-WINDOW:], train))[-1])
    return score, bound, score > bound and values[-1] < float(np.mean(train))


@lru_cache(maxsize=4)
def _fitted(train: tuple[float, ...]) -> tuple[TranAD, np.ndarray]:
    """A model of one series, and its scores of it: after the warm-up every round asks for the same one."""
    known = scale(train, train)
    model = fit([known])
    return model, anomaly_scores(model, known)
