"""Compares detectors of latent forgetting on the recorded signal of runs: how well does each detect the drift?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas
import torch

from flray.core.schema.errors import ConfigError
from flray.metrics.detection import onsets
from flray.ops.detect import PRESETS, Detector, Signal
from flray.results.alarms import detected, signals
from flray.results.continual import drift_window
from flray.results.tables import settings
from flray.rundir.reader import Run, load

DETECTORS = {
    "literal, rho 0.5": Detector(**PRESETS["literal"]),
    "literal, rho 0.7": Detector(**{**PRESETS["literal"], "rho": 0.7}),
    "literal, rho 0.7, WV / sum p^2": Detector(**{**PRESETS["literal"], "rho": 0.7, "per_cohort": True}),
    "robust, rho 0.5": Detector(rho=0.5),
    "robust, rho 0.65": Detector(**PRESETS["robust"]),
    "ramp (W 30)": Detector(**PRESETS["ramp"]),
    "TranAD": Detector(method="tranad"),
    "cusum": Detector(**PRESETS["cusum"]),
    "cusum, WV / sum p^2": Detector(**PRESETS["cusum"], per_cohort=True),
    "classes": Detector(**PRESETS["classes"]),
    "both": Detector(**PRESETS["both"]),
}
MEANS = ("precision", "recall", "f1", "f1_adjusted", "false_alarms")


class Series(NamedTuple):
    """The recorded signals of a run's rounds, whether each lies in the window of the drift, and its classes."""

    signals: list[Signal]
    inside: list[bool]
    classes: tuple[int, ...]


def recorded(run: Run) -> Series:
    """What a run's detector read, from the first round on. Raises `ConfigError` for a run without a detector."""
    table = next(iter(signals(run).values()), None)  # all detectors of a run read one WV
    if table is None:
        raise ConfigError(f"{run.folder}: no detector recorded WV; run it with diagnostics=[latent_forgetting]")
    window, done = drift_window(run, settings(run)), table["done"].to_numpy()
    inside = np.zeros(len(done), bool) if window is None else (window.start <= done) & (done < window.stop)
    read = [
        Signal(float(wv), float(concentration), torch.tensor(raised, dtype=torch.float64) if known else None)
        for wv, concentration, raised, known in zip(
            table["wv"], table["concentration"], table["raised"], table["raised"].notna(), strict=True
        )
    ]
    return Series(read, inside.tolist(), () if window is None else window.classes)


def compare_detectors(
    runs: Iterable[str | Path | Run], detectors: Mapping[str, Detector] = DETECTORS
) -> pandas.DataFrame:
    """A row a detector, made to read the runs' signals from the first round on. Columns: :func:`summary`; a detector
    that a run's signal does not suffice for is left out. Raises `ConfigError` for a run without a detector's signal,
    and without a run."""
    if not (runs := [*runs]):
        raise ConfigError("no run to compare detectors on; name run folders of diagnostics=[latent_forgetting]")
    read = [run if isinstance(run, Run) else load(run) for run in runs]
    frames = [scored(run, detectors).assign(seed=settings(run).get("seed", 0)) for run in read]
    everywhere = set.intersection(*(set(frame["detector"]) for frame in frames))
    rows = pandas.concat(frames, ignore_index=True)
    return summary(rows[rows["detector"].isin(everywhere)])


def scored(run: Run, detectors: Mapping[str, Detector] = DETECTORS) -> pandas.DataFrame:
    """A row a detector, made to read the signals of one run. One that reads what was not recorded is left out.

    `drift`: whether data are missing in some rounds; then `precision`, `recall`, `f1` by round, `f1_adjusted`, the
    share of `false_alarms` outside of the window, the `delay` in rounds to the first alarm that begins in it (NaN:
    none), `on_before`: whether an alarm was on when it began, and of the `alarm_rounds` in it those in which the
    classes with a probability above 1/2 are the missing ones, `right` (NaN: the detector names none). `on`: share of
    rounds with an alarm. `begun`: alarms that begin in the `quiet` rounds, after the warm-up and before any drift.
    Raises `ConfigError` for a run without a detector's signal.
    """
    series = recorded(run)
    rows_known = all(signal.raised is not None for signal in series.signals)
    cohorts_known = not any(math.isnan(signal.concentration) for signal in series.signals)
    chosen = {
        name: detector
        for name, detector in detectors.items()
        if (rows_known or not detector.reads_classes) and (cohorts_known or not detector.per_cohort)
    }
    return pandas.DataFrame([{"detector": name, **_scores(each, series)} for name, each in chosen.items()])


def _scores(detector: Detector, series: Series) -> dict[str, float]:
    said, vanished = _read(detector, series.signals)
    labels = series.inside
    judged = onsets(said)[detector.warmup : labels.index(True) if any(labels) else None]
    row: dict[str, float] = {
        "drift": any(labels), "on": float(np.mean(said)), "begun": int(judged.sum()), "quiet": len(judged)
    }  # fmt: skip
    if not any(labels):
        return row
    named = [
        found == series.classes
        for found, alarm, label in zip(vanished, said, labels, strict=True)
        if alarm and label and found is not None
    ]
    return row | {
        **{name: value for name, value in detected(np.array(labels), np.array(said)).items() if name != "missed"},
        "alarm_rounds": len(named),
        "right": float(sum(named)) if detector.reads_classes else float("nan"),
    }


def summary(rows: pandas.DataFrame) -> pandas.DataFrame:
    """The rows of :func:`scored` of several runs, with their `seed`, as one row a detector, which is the index.

    Means over the runs with a drift: `precision`, `recall`, `f1`, `f1_adjusted`, `false_alarms`; `delay`: the median of
    those that are known; `missed`: runs without one; `on_before`: their number. `named`: of the window's rounds with an
    alarm, the share in which the missing classes are named; NaN for detectors without classes. `quiet`: share of rounds
    with an alarm in runs without a drift (NaN: no such runs). `begun`: alarms that begin per 1,000 quiet rounds, with
    the 95 % interval of Clopper and Pearson, `begun_low` to `begun_high`, of `quiet_rounds` that count as independent.
    Rounds before a drift count where no run of the same seed has no drift: its first rounds would be the same.
    """
    found = {name: _summary(group) for name, group in rows.groupby("detector", sort=False)}
    return pandas.DataFrame.from_dict(found, orient="index").rename_axis("detector")


def _summary(rows: pandas.DataFrame) -> dict[str, float]:
    of_drifts = [*MEANS, "delay", "on_before", "alarm_rounds", "right"]
    rows = rows.reindex(columns=[*rows.columns, *(column for column in of_drifts if column not in rows)])
    drifted, plain = rows[rows["drift"]], rows[~rows["drift"]]
    named = drifted[drifted["right"].notna()]
    alarms = float(named["alarm_rounds"].sum())
    distinct = rows[~rows["drift"] | ~rows["seed"].isin(plain["seed"])]
    return {
        **{name: float(drifted[name].mean()) for name in MEANS},
        "delay": float(drifted["delay"].median()),
        "missed": float(drifted["delay"].isna().sum()),
        "on_before": float(drifted["on_before"].sum()),
        "named": float(named["right"].sum()) / alarms if alarms else float("nan"),
        "quiet": float(plain["on"].mean()),
        **_rate(int(distinct["begun"].sum()), int(distinct["quiet"].sum())),
    }


def _rate(begun: int, rounds: int) -> dict[str, float]:
    from scipy.stats import binomtest

    known = binomtest(begun, rounds) if rounds else None
    low, high = known.proportion_ci(0.95, "exact") if known else (0.0, 1.0)
    rate = begun / rounds if rounds else float("nan")
    return {"begun": 1000 * rate, "begun_low": 1000 * low, "begun_high": 1000 * high, "quiet_rounds": float(rounds)}


def _read(detector: Detector, read: Sequence[Signal]) -> tuple[list[bool], list[tuple[int, ...] | None]]:
    """The alarm of every round, and the classes that the detector names in it (None: it names none)."""
    state, said, named = detector.initial_state(), list[bool](), list[tuple[int, ...] | None]()
    for signal in read:
        vanished = detector.compare(state, signal).vanished if detector.reads_classes else None
        named.append(None if vanished is None else tuple(np.flatnonzero(vanished > 0.5).tolist()))
        state, alarm = detector.detect(state, signal)
        said.append(alarm)
    return said, named
