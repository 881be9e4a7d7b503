"""CUSUM around a line: the forecast against NumPy's least squares, the recursion by hand, the false-alarm rate against
the Markov chain of Brook and Evans and by other noise."""

import numpy as np
import pytest
from scipy.stats import binom, norm

from flray.metrics.detection import onsets
from flray.ops.change_point import Trend, after, forecast, page, step, threshold
from flray.ops.detect import PRESETS, Detector, Signal


def test_forecast_is_that_of_least_squares():
    draws = np.random.default_rng(0)
    rounds, values = np.array([3.0, 4, 5, 8, 9, 10, 14]), draws.normal(size=(3, 7))
    found, deviation = forecast(rounds, values, 17)
    design = np.stack([np.ones(7), rounds], 1)
    at = np.array([1.0, 17])
    for row, mean, sd in zip(values, found, deviation, strict=True):
        solution, left, *_ = np.linalg.lstsq(design, row, rcond=None)
        assert mean == pytest.approx(at @ solution)
        assert sd == pytest.approx(np.sqrt(left[0] / 5 * (1 + at @ np.linalg.inv(design.T @ design) @ at)))


def test_cusum_by_hand():
    """Errors -2, 1, -3, -0.5, 2 with slack 0.5: 1.5, 0, 2.5, 2.5, 0."""
    total, seen = 0.0, []
    for z in (-2, 1, -3, -0.5, 2):
        total = float(page(total, z, 0.5))
        seen.append(total)
    assert seen == [1.5, 0, 2.5, 2.5, 0]


def test_a_line_without_noise_is_followed_and_a_step_off_it_is_without_bound():
    state = Trend.start()
    for now in range(8):
        state = after(state, now, 2.0 - 0.25 * now, 0.0, False, False, width=5, guard=1)
    assert state.reference.tolist() == [[n, 2.0 - 0.25 * n] for n in range(2, 7)] and len(state.pending) == 1
    assert step(state, 8, 0.0, 0.5) == (0.0, 0.0)
    assert step(state, 8, -0.1, 0.5)[1] == np.inf and step(state, 8, 0.1, 0.5)[1] == 0
    alarmed = after(state, 8, -9.0, 4.0, False, True, width=5, guard=1)
    assert alarmed.total == 4 and len(alarmed.pending) == 0 and alarmed.reference.equal(state.reference)
    anew = after(alarmed, 9, 3.0, 2.0, True, False, width=5, guard=1)
    assert anew.total == 0 and len(anew.reference) == 0 and anew.pending.tolist() == [[9, 3]]


def run_length(bound, slack, cells=400):
    """Mean rounds to an alarm of CUSUM of known normal noise: a Markov chain over cells of its total (Brook and Evans,
    Biometrika 1972)."""
    width = 2 * bound / (2 * cells - 1)
    centres = width * np.arange(cells)
    low, high = centres - centres[:, None] - width / 2, centres - centres[:, None] + width / 2
    move = norm.cdf(high + slack) - norm.cdf(low + slack)
    move[:, 0] = norm.cdf(high[:, 0] + slack)
    return np.linalg.solve(np.eye(cells) - move, np.ones(cells))[0]


def test_the_chain_is_that_of_the_printed_table():
    """Known: h 4 and k 0.5 have a mean run length of 336 on one side (Montgomery: 168 for both)."""
    assert run_length(4.0, 0.5) == pytest.approx(336, rel=0.01)


@pytest.mark.slow
def test_with_a_long_reference_the_threshold_is_that_of_known_noise():
    """The line through 400 values adds little noise of its own, so the exact run length at the simulated threshold is
    near 1 / rate; a higher rate has a lower threshold, a shorter line a higher one."""
    bound = threshold(0.005, 0.5, 400, 0, 400)
    assert 150 < run_length(bound, 0.5) < 300
    assert threshold(0.02, 0.5, 40, 4, 30) < threshold(0.005, 0.5, 40, 4, 30) < threshold(0.005, 0.5, 12, 4, 30)


@pytest.mark.parametrize("decay", [0.0, 0.03])
def test_false_alarms_of_noise_around_a_line(decay):
    """3,000 quiet rounds at one in 500, with other draws than the threshold's: 6 alarms are expected."""
    draws, detector, found = np.random.default_rng(5), Detector(**PRESETS["cusum"]), 0
    for _ in range(20):
        said = detector.alarms(np.exp(0.6 * draws.normal(size=180) - decay * np.arange(180)))
        found += int(onsets(said).sum())
    assert found <= binom.isf(1e-4, 3000, 0.002)


def test_only_the_shape_counts():
    """The size of WV, and a decay, change no alarm."""
    noise = 0.4 * np.random.default_rng(2).normal(size=150)
    noise[90:110] -= 1.6
    said = [
        Detector(**PRESETS["cusum"]).alarms(np.exp(noise + level - decay * np.arange(150)))
        for level, decay in ((0, 0), (-9, 0), (3, 0.05))
    ]
    assert said[0] == said[1] == said[2] and any(said[0][90:95]) and not any(said[0][:90])


def test_wv_per_cohort_is_judged_where_it_is_asked_for():
    """Cohorts of one client have twice the WV of those of two; divided by sum p^2 they are the same."""
    draws = np.random.default_rng(3)
    sizes = draws.integers(1, 3, 120)
    level = np.where(np.arange(120) < 90, 1.0, 0.5) * np.exp(0.05 * draws.normal(size=120))
    series = [Signal(float(v / n), 1 / n) for v, n in zip(level, sizes, strict=True)]
    plain, divided = (Detector(method="cusum", W=40, per_cohort=p) for p in (False, True))
    assert divided.alarms(series) == Detector(method="cusum", W=40).alarms(level.tolist())
    assert divided.alarms(series).index(True) == 90 and not plain.alarms(series)[90]
    assert divided.compare(divided.initial_state(), series[0]).wv == series[0].wv


def test_a_peak_after_the_drop_does_not_hold_the_alarm():
    """WV returns from the drop far above its line and decays: judged again after a warm-up, by a line of its own."""
    values = 0.2 * np.random.default_rng(4).normal(size=200)
    values[100:130] -= 1.5
    values[130:] += 2.0 * np.exp(-np.arange(70) / 15)
    said = Detector(**PRESETS["cusum"]).alarms(np.exp(values))
    assert not any(said[:100]) and any(said[100:103]) and said[128] and sum(said[130:]) <= 2
