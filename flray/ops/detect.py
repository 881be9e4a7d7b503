"""Detection of latent forgetting from the variance of the global update, WV (FedMemo, Algorithm 1 and appendix B).

When classes vanish from the clients, local models differ less and change less, so WV falls below its recent values. A
detector maps (state, WV of a round) to (next state, alarm). It reads the aggregate only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from flray.core.messages import Record
from flray.core.network.objective import Objective
from flray.core.schema.hp import hp
from flray.core.schema.section import Section
from flray.ops import tranad

Layers = Literal["all", "last", "head"]
Trigger = Literal["while_alarm", "latched", "scheduled", "delayed"]

REFERENCE = 5  # smallest number of reference values for an alarm


# the signal -------------------------------------------------------------------------------------
def variance(tensors: Iterable[Tensor]) -> float:
    """(1/d) sum_j (x_j - mean x)^2 over all d elements of the tensors: biased, one mean for all, in float64.

    Tensors are merged by Chan's formula, with one pass over each. Raises `ValueError` without any element.
    """
    count, mean, squares = 0, 0.0, 0.0  # squares: sum of (x - mean)^2 so far
    for tensor in tensors:
        if not tensor.numel():
            continue
        x = tensor.detach().double()
        own, m = (float(v) for v in torch.var_mean(x, correction=0))
        n, apart = x.numel(), m - mean
        squares += own * n + apart**2 * count * n / (count + n)
        mean += apart * n / (count + n)
        count += n
    if not count:
        raise ValueError("the variance of no element")
    return squares / count


def measured_layers(
    shapes: Mapping[str, Iterable[int]], layers: Layers = "all", last: int = 5, head: Iterable[str] = ()
) -> tuple[str, ...]:
    """Names of the tensors whose update is measured, out of the trained ones, given by `shapes` in registration order.

    `all` of them; the `last` k weight tensors, those with at least 2 dimensions; `head`: the final layer's weight and
    bias, whose names are given.
    """
    if layers == "all":
        return tuple(shapes)
    if layers == "last":
        return tuple(name for name, shape in shapes.items() if len(tuple(shape)) >= 2)[-last:]
    final = set(head)
    return tuple(name for name in shapes if name in final)


def weight_variance(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], names: Iterable[str] | None = None, noise: float = 0.0
) -> float:
    """WV = variance of `after - before` over the tensors `names` (None: all), float64.

    `noise`, which is subtracted: the known variance in each coordinate of the noise that differential privacy added.
    """
    chosen = before if names is None else names
    return variance(after[name].double() - before[name].double() for name in chosen) - noise


# the detector -----------------------------------------------------------------------------------
class Detection(Record):
    """A detector's state: the number of `rounds`, `on`: the alarm of the last one, consecutive `hits`, and float64
    values, oldest first: the last m, `recent`; the `reference` (at most W); those that will enter it, `pending` (at
    most guard)."""

    rounds: int
    on: bool
    hits: int
    recent: Tensor
    reference: Tensor
    pending: Tensor


class DetectorValues(NamedTuple):
    """A round's `wv`, its moving mean `smoothed` (s), the mean of the `reference` (mu), the `threshold`, and whether s
    is a `hit`, below it. An empty reference has mean NaN; without a decision the threshold is NaN.

    With TranAD `smoothed` is the score, and a hit lies above the threshold.
    """

    wv: float
    smoothed: float
    reference: float
    threshold: float
    hit: bool

    @property
    def row(self) -> dict[str, float]:
        """The values as a row of metrics."""
        return {name: value for name, value in self._asdict().items() if name != "hit"}


class Detector(Section, frozen=True):
    """A moving mean against a threshold, its reference frozen during an alarm (FedMemo appendix B; its card says
    what is flray's own). The defaults are the robust ones."""

    renamed: ClassVar[Mapping[str, str]] = {"detector": "method"}

    layers: Layers = hp("all", choice=("all", "last", "head"), doc="tensors whose update is measured (WV)")
    last: int = hp(5, choice=(1, 2, 5), ge=1, doc="layers: last: how many weight tensors, counted from the end")
    method: Literal["moving_mean", "tranad"] = hp(
        "moving_mean", doc="what judges WV: its moving mean, or TranAD, fitted to the rounds of the warm-up"
    )
    tranad_threshold: Literal["pot", "quantile"] = hp(
        "pot", doc="tranad: bound of the score, by peaks over threshold (q = 1e-5) or a quantile of the warm-up's"
    )
    tranad_level: float = hp(0.99, linear=(0.9, 0.999), gt=0, lt=1, doc="tranad: that quantile, or where peaks begin")
    W: int = hp(20, linear=(5, 40), ge=REFERENCE, doc="values in the detector's reference, at most (W)")
    m: int = hp(5, linear=(1, 10), ge=1, doc="rounds in the moving mean that is compared with it (m)")
    rho: float = hp(0.65, linear=(0.3, 0.8), gt=0, lt=1, doc="drop below the reference's mean that is a hit (rho)")
    rho_off: float | None = hp(None, gt=0, lt=1, doc="the same while the alarm is on; none: rho")
    guard: int = hp(4, linear=(0, 8), ge=0, doc="newest values that stay out of the reference until others follow")
    warmup: int = hp(30, linear=(0, 50), ge=0, doc="rounds before the first that is judged")
    confirm: int = hp(1, choice=(1, 2, 3), ge=1, doc="consecutive hits that switch the alarm on")

    def measure(self, objective: Objective, before: Tensor, after: Tensor, noise: float = 0.0) -> float:
        """WV of the update from `before [P]` to `after [P]`; `noise` as in :func:`weight_variance`.

        Raises `ConfigError` where the head is asked for and the network declares none.
        """
        shapes = {entry.name: entry.shape for entry in objective.layout.entries}
        head = objective.parts.tensors("head") if self.layers == "head" else ()
        names = measured_layers(shapes, self.layers, self.last, head)
        return weight_variance(objective.views(before), objective.views(after), names, noise)

    def initial_state(self) -> Detection:
        """The state before the first value."""
        empty = torch.zeros(0, dtype=torch.float64)
        return Detection(0, False, 0, empty, empty, empty)

    def compare(self, state: Detection, value: float) -> DetectorValues:
        """`value` (WV), the values it is compared with, and whether it is a hit."""
        if self.method == "tranad":
            return self._compare_by_tranad(state, value)
        s = fmean([*state.recent.tolist(), value][-self.m :])
        reference = state.reference.tolist()
        mu = fmean(reference) if reference else float("nan")
        judged = state.rounds >= self.warmup and len(reference) >= REFERENCE
        rho = self.rho_off if state.on and self.rho_off is not None else self.rho
        threshold = (1 - rho) * mu if judged else float("nan")
        return DetectorValues(value, s, mu, threshold, s < threshold)

    def _compare_by_tranad(self, state: Detection, value: float) -> DetectorValues:
        train, nan = state.reference.tolist(), float("nan")
        mean = fmean(train) if train else nan
        if len(train) < max(self.warmup, REFERENCE):
            return DetectorValues(value, nan, mean, nan, False)
        values = [*state.recent.tolist(), value]
        score, threshold, hit = tranad.judge(values, train, self.tranad_threshold, self.tranad_level)
        return DetectorValues(value, score, mean, threshold, hit)

    def detect(self, state: Detection, value: float) -> tuple[Detection, bool]:
        """(the state after the next round's `value`, whether there is an alarm).

        The alarm begins after `confirm` consecutive hits; until then their values enter `pending` like others. One
        round without a hit ends the alarm."""
        hits = state.hits + 1 if self.compare(state, value).hit else 0
        on = hits > 0 and (state.on or hits >= self.confirm)
        pending, reference, count = [*state.pending.tolist(), value], state.reference.tolist(), self.m
        if on:
            pending = []
        waiting = len(pending) - self.guard
        if self.method == "tranad":  # it is fitted to the reference and reads the last window
            pending, count = [], tranad.WINDOW - 1
            reference = [*reference, value][: max(self.warmup, REFERENCE)]
        elif waiting > 0:
            pending, reference = pending[waiting:], [*reference, *pending[:waiting]][-self.W :]
        recent = [*state.recent.tolist(), value][-count:]
        return Detection(state.rounds + 1, on, hits, *map(_values, (recent, reference, pending))), on

    def alarms(self, values: Iterable[float]) -> list[bool]:
        """The alarm of every round of a whole series."""
        state, alarms = self.initial_state(), []
        for value in values:
            state, alarm = self.detect(state, float(value))
            alarms.append(alarm)
        return alarms


def _values(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


# `literal`: the paper's text; `ramp`: a longer reference, for slow drifts
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "robust": {},
    "literal": {"m": 1, "guard": 0, "rho": 0.5},
    "ramp": {"W": 30},
}


# when step 2 is taken ----------------------------------------------------------------
class Episode(Record):
    """The last consecutive rounds with an alarm: the first of them, `began` (-1: none yet), and whether the alarm
    `lasts`."""

    began: int
    lasts: bool


def episode_after(episode: Episode, alarm: bool, now: int) -> Episode:
    """The episode after round `now`, which had an alarm or not."""
    return Episode(now if alarm and not episode.lasts else episode.began, alarm)


def mitigates(
    rule: Trigger, episode: Episode, now: int, *, min_on: int = 10, d: int = 8, r0: int = 0, r1: int | None = None
) -> bool:
    """Whether round `now` takes step 2; `episode` is that after the round.

    `while_alarm`: during an alarm, and in at least `min_on` rounds from its first one on. `latched`: from the first
    alarm to the end. `delayed`: during an alarm, from `d` rounds after its first one on. `scheduled`: in the rounds r0
    <= now < r1 (None: to the end), without the detector."""
    if rule == "scheduled":
        return r0 <= now and (r1 is None or now < r1)
    if rule == "delayed":
        return episode.lasts and now - episode.began >= d
    if rule == "latched":
        return episode.began >= 0
    return episode.lasts or 0 <= episode.began > now - min_on
