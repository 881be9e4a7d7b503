"""Detection of latent forgetting from the variance of the global update, WV (FedMemo, Algorithm 1 and appendix B).

When classes vanish from the clients, local models differ less and change less, so WV falls below its recent values. A
detector maps (state, signal of a round) to (next state, alarm). It reads the aggregate and the cohort's weights only.
Besides the paper's rules there are two sequential tests of flray's own with a false-alarm rate: of ln WV
(`change_point.py`) and of the classes that the head's update names (`absent_classes.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from flray.core.messages import Record
from flray.core.network.objective import Objective
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.core.schema.section import Section
from flray.ops import absent_classes, change_point, tranad
from flray.ops.absent_classes import Presence
from flray.ops.change_point import Trend

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


class Signal(NamedTuple):
    """What a detector reads of a round: WV; `concentration`, sum_k p_k^2 of the cohort's weights; and of each class the
    share of its head row's movement that was upwards, `raised [C]` (`absent_classes.raised_shares`; None: unknown).

    A WV below 0 is unknown: the noise that is subtracted is larger than what was measured."""

    wv: float
    concentration: float = math.nan
    raised: Tensor | None = None

    @classmethod
    def of(cls, value: float | Signal) -> Signal:
        return value if isinstance(value, Signal) else cls(float(value))

    @property
    def known(self) -> bool:
        return self.wv >= 0


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


class SequentialDetection(Detection):
    """The state of the sequential tests: also that of CUSUM and that of the classes."""

    trend: Trend
    presence: Presence


class DetectorValues(NamedTuple):
    """A round's `wv`, its moving mean `smoothed` (s), the mean of the `reference` (mu), the `threshold`, and whether s
    is a `hit`, below it. An empty reference has mean NaN; without a decision the threshold is NaN. Of an unknown WV all
    three are NaN.

    With other methods `smoothed` is their score, and a hit lies above the threshold. `cusum`: the CUSUM, and as
    `reference` the forecast of WV. `classes`: the ln of the evidence that classes vanished, and as `reference` the
    number of classes expected in a cohort. `both`: the larger one of the two scores divided by their thresholds. Of the
    last two `vanished [C]` are the probabilities of the classes to be gone, 0 without a hit.
    """

    wv: float
    smoothed: float
    reference: float
    threshold: float
    hit: bool
    vanished: Tensor | None = None

    @property
    def row(self) -> dict[str, float]:
        """The numbers as a row of metrics."""
        return {name: value for name, value in self._asdict().items() if name not in ("hit", "vanished")}


class Detector(Section, frozen=True):
    """A moving mean against a threshold, its reference frozen during an alarm (FedMemo appendix B; its card says
    what is flray's own). The defaults are the robust ones."""

    renamed: ClassVar[Mapping[str, str]] = {"detector": "method"}

    layers: Layers = hp("all", choice=("all", "last", "head"), doc="tensors whose update is measured (WV)")
    last: int = hp(5, choice=(1, 2, 5), ge=1, doc="layers: last: how many weight tensors, counted from the end")
    method: Literal["moving_mean", "tranad", "cusum", "classes", "both"] = hp(
        "moving_mean",
        doc="what judges: WV's moving mean; TranAD, fitted to the warm-up; CUSUM of ln WV around a line; the classes "
        "that the head's update names; or both of these",
    )
    per_cohort: bool = hp(False, doc="divide WV by sum_k p_k^2, p_k the weights of the cohort's clients")
    rate: float = hp(
        0.002,
        log=(1e-4, 1e-2),
        ge=1e-5,
        le=0.1,
        doc="cusum, classes, both: false alarms per round that set the threshold",
    )
    slack: float = hp(
        0.5, linear=(0.25, 1.5), gt=0, doc="cusum, both: fall of ln WV, in standard deviations, that CUSUM ignores (k)"
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

    @property
    def reads_classes(self) -> bool:
        """Whether the method reads the head's rows."""
        return self.method in ("classes", "both")

    def measure(
        self, objective: Objective, before: Tensor, after: Tensor, weights: Tensor, noise: float = 0.0
    ) -> Signal:
        """The signal of the update from `before [P]` to `after [P]` of a cohort with these `weights [K]`; `noise` as in
        :func:`weight_variance`.

        Raises `ConfigError` where the method or the layers need a head and the network declares none.
        """
        shapes = {entry.name: entry.shape for entry in objective.layout.entries}
        final = {name for name, inside in zip(shapes, objective.parts.in_head, strict=True) if inside}
        if not final and (self.layers == "head" or self.reads_classes):
            objective.parts.tensors("head")
        names = measured_layers(shapes, self.layers, self.last, final)
        first, second = objective.views(before), objective.views(after)
        raised = absent_classes.raised_shares(first, second, (name for name in shapes if name in final))
        if raised is None and self.reads_classes:
            raise ConfigError(
                f"detector.method: {self.method} reads the head's weight matrix, and there is none; use cusum"
            )
        p = weights.double()
        return Signal(weight_variance(first, second, names, noise), float(p @ p), raised)

    def initial_state(self) -> Detection:
        """The state before the first value."""
        empty = torch.zeros(0, dtype=torch.float64)
        start = Detection(0, False, 0, empty, empty, empty)
        if self.method in ("cusum", "classes", "both"):
            return SequentialDetection.of(start, trend=Trend.start(), presence=Presence.start())
        return start

    def value_of(self, signal: Signal) -> float:
        """The number that is judged: WV, or with `per_cohort` WV / sum_k p_k^2."""
        return signal.wv / signal.concentration if self.per_cohort else signal.wv

    def compare(self, state: Detection, value: float | Signal) -> DetectorValues:
        """The signal's WV, what it is compared with, and whether it is a hit. A number is a signal of WV alone."""
        signal = Signal.of(value)
        if isinstance(state, SequentialDetection):
            return self._compare_in_sequence(state, signal)
        if not signal.known:
            nan = float("nan")
            return DetectorValues(signal.wv, nan, nan, nan, False)
        number = self.value_of(signal)
        judge = self._compare_by_tranad if self.method == "tranad" else self._compare_by_mean
        return judge(state, number)._replace(wv=signal.wv)

    def _compare_in_sequence(self, state: SequentialDetection, signal: Signal) -> DetectorValues:
        nan, scores, probabilities = float("nan"), [], None
        expected = nan
        value = self._log(signal)
        if self.method != "classes" and self._has_line(state) and value is not None:
            forecast, total = change_point.step(state.trend, state.rounds, value, self.slack)
            expected = math.exp(forecast)
            scores.append((total, self._bound()))
        if self.reads_classes:
            presence = absent_classes.seen(state.presence, self._raised(signal))
            probabilities = torch.zeros_like(presence.absent)
            if self.method == "classes" and presence.rounds:
                expected = float(presence.held.sum()) / presence.rounds
            if state.rounds >= self.warmup and presence.rounds:
                logarithm, inside = absent_classes.evidence(presence)
                scores.append((logarithm, -math.log(self._rate)))
                if logarithm >= -math.log(self._rate):
                    probabilities = torch.from_numpy(inside)
        if not scores:
            return DetectorValues(signal.wv, nan, expected, nan, False, probabilities)
        if self.method == "both":
            scores = [(max(score / bound for score, bound in scores), 1.0)]
        ((score, bound),) = scores
        return DetectorValues(signal.wv, score, expected, bound, score >= bound, probabilities)

    def _log(self, signal: Signal) -> float | None:
        """ln of the number that is judged; None: it is unknown."""
        return math.log(max(self.value_of(signal), 1e-300)) if signal.known else None

    def _raised(self, signal: Signal) -> Tensor:
        if signal.raised is None:
            raise ConfigError(f"detector.method: {self.method} reads the head's update, and this signal is WV alone")
        return signal.raised

    def _has_line(self, state: SequentialDetection) -> bool:
        return state.rounds >= self.warmup and change_point.ready(state.trend, self.W, self.guard, self.warmup)

    @property
    def _rate(self) -> float:
        """The false alarms per round of one test; `both` share them."""
        return self.rate / 2 if self.method == "both" else self.rate

    def _bound(self) -> float:
        return change_point.threshold(self._rate, self.slack, self.W, self.guard, self.warmup)

    def _detect_in_sequence(self, state: SequentialDetection, signal: Signal) -> tuple[Detection, bool]:
        if self._compare_in_sequence(state, signal).hit:
            hits = state.hits + 1
        else:  # without a WV the CUSUM stays, and so does its alarm, or what it has confirmed of one
            stays = not signal.known and self._has_line(state) and state.trend.total >= self._bound()
            hits = state.hits if stays else 0
        on = hits > 0 and (state.on or hits >= self.confirm)
        trend, presence = state.trend, state.presence
        if self.method != "classes":
            value, total = self._log(signal), trend.total
            if self._has_line(state) and value is not None:
                _, total = change_point.step(trend, state.rounds, value, self.slack)
                total = min(total, self._bound() + 2 * self.slack)  # two rounds on the line end the alarm
            trend = change_point.after(trend, state.rounds, value, total, state.on, on, self.W, self.guard)
        if self.reads_classes:
            raised = self._raised(signal)
            presence = absent_classes.counted(absent_classes.seen(presence, raised), raised, on, self.guard)
        return state.replace(rounds=state.rounds + 1, on=on, hits=hits, trend=trend, presence=presence), on

    def _compare_by_mean(self, state: Detection, value: float) -> DetectorValues:
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

    def detect(self, state: Detection, value: float | Signal) -> tuple[Detection, bool]:
        """(the state after the next round's signal, whether there is an alarm).

        The alarm begins after `confirm` consecutive hits; until then their values enter `pending` like others. One
        round without a hit ends the alarm. One whose WV is unknown enters nothing and judges nothing: an alarm lasts,
        and hits before and after it are consecutive. The head's classes are judged in it."""
        signal = Signal.of(value)
        if isinstance(state, SequentialDetection):
            return self._detect_in_sequence(state, signal)
        if not signal.known:
            return state.replace(rounds=state.rounds + 1), state.on
        hits, value = state.hits + 1 if self.compare(state, signal).hit else 0, self.value_of(signal)
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

    def alarms(self, values: Iterable[float | Signal]) -> list[bool]:
        """The alarm of every round of a whole series."""
        state, alarms = self.initial_state(), []
        for value in values:
            state, alarm = self.detect(state, value)
            alarms.append(alarm)
        return alarms


def _values(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


# `literal`: the paper's text; `ramp`: a longer reference, for slow drifts; the last three: sequential tests
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "robust": {},
    "literal": {"m": 1, "guard": 0, "rho": 0.5},
    "ramp": {"W": 30},
    "cusum": {"method": "cusum", "W": 40},
    "classes": {"method": "classes"},
    "both": {"method": "both", "W": 40, "per_cohort": True},
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
