"""Compares detectors of latent forgetting on the recorded signal of runs: how well does each detect the drift?

python -m flray.results.detectors FOLDER...    # runs with the diagnostic latent_forgetting, with and without a drift
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from flray.core.schema.errors import ConfigError
from flray.metrics.detection import delays, false_alarms, on_before, onsets, scores
from flray.ops.detect import PRESETS, Detector, Signal
from flray.results.alarms import signals
from flray.results.continual import drift_window
from flray.results.rendering import to_markdown
from flray.results.tables import settings
from flray.rundir.reader import Run, load, runs_below

if TYPE_CHECKING:
    import pandas

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
    """A row a detector, made to read the runs' signals from the first round on; nothing of its own may have changed
    them. A detector that reads what was not recorded (the head's rows, the cohort's weights: by FedMemo itself) is left
    out.

    Means over the runs with a drift: `precision`, `recall`, `f1` by round, `f1_adjusted`, the share of `false_alarms`
    outside of the window; `delay`: median of the rounds to the first alarm that begins in the window, of the runs that
    have one; `missed`: runs without one; `on_before`: runs in which an alarm was on when the window began. `named`:
    of the window's rounds with an alarm, the share in which the classes with a probability above 1/2 are those of the
    drift; NaN for detectors without classes. `quiet`: share of rounds with an alarm in runs without a drift (NaN: no
    such runs). `begun`: alarms that begin after the warm-up and before any drift, per 1,000 such rounds of all runs.
    Raises `ConfigError` for a run without a detector's signal.
    """
    import pandas

    series = [recorded(run if isinstance(run, Run) else load(run)) for run in runs]
    every = [signal for one in series for signal in one.signals]
    rows_known = all(signal.raised is not None for signal in every)
    cohorts_known = not any(math.isnan(signal.concentration) for signal in every)
    chosen = {
        name: detector
        for name, detector in detectors.items()
        if (rows_known or not detector.reads_classes) and (cohorts_known or not detector.per_cohort)
    }
    rows = [{"detector": name, **_of(detector, series)} for name, detector in chosen.items()]
    return pandas.DataFrame(rows).set_index("detector")


def _of(detector: Detector, series: Sequence[Series]) -> dict[str, float]:
    detected, late, before, quiet, begun, named = [], [], [], [], [], []
    for one in series:
        said, vanished = _read(detector, one.signals)
        labels = one.inside
        begun.append(onsets(said)[detector.warmup : labels.index(True) if any(labels) else None])
        if not any(labels):
            quiet.append(np.mean(said))
            continue
        point, after = (scores(labels, said, adjust) for adjust in (False, True))
        detected.append([*point, after.f1, false_alarms(labels, said)])
        late += delays(labels, said)
        before += on_before(labels, said)
        named += [
            found == one.classes
            for found, alarm, label in zip(vanished, said, labels, strict=True)
            if alarm and label and found is not None
        ]
    means = np.mean(detected, axis=0) if detected else np.full(5, np.nan)
    row = dict(zip(("precision", "recall", "f1", "f1_adjusted", "false_alarms"), map(float, means), strict=True))
    caught = [rounds for rounds in late if not np.isnan(rounds)]
    row["delay"] = float(np.median(caught)) if caught else float("nan")
    row["missed"] = float(len(late) - len(caught))
    row["on_before"] = float(sum(before))
    row["named"] = float(np.mean(named)) if named else float("nan")
    row["quiet"] = float(np.mean(quiet)) if quiet else float("nan")
    judged = np.concatenate(begun)
    row["begun"] = float(1000 * judged.mean()) if len(judged) else float("nan")
    return row


def _read(detector: Detector, read: Sequence[Signal]) -> tuple[list[bool], list[tuple[int, ...] | None]]:
    """The alarm of every round, and the classes that the detector names in it (None: it names none)."""
    state, said, named = detector.initial_state(), list[bool](), list[tuple[int, ...] | None]()
    for signal in read:
        if detector.reads_classes:
            vanished = detector.compare(state, signal).vanished
            named.append(None if vanished is None else tuple(np.flatnonzero(vanished > 0.5).tolist()))
        else:
            named.append(None)
        state, alarm = detector.detect(state, signal)
        said.append(alarm)
    return said, named


def by_setting(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs with a drift by their settings without the seed, each with the runs that differ in nothing but the
    missing drift."""
    found: dict[str, list[Run]] = {}
    quiet: dict[str, list[Run]] = {}
    for run in runs:
        config = {key: value for key, value in settings(run).items() if key != "seed"}
        plain = _key({key: value for key, value in config.items() if key.partition(".")[0] != "drift"})
        is_quiet = not any(key.startswith("drift.") for key in config)
        (quiet if is_quiet else found).setdefault(plain if is_quiet else plain + _key(config), []).append(run)
    return {
        key: [*group, *next((q for plain, q in quiet.items() if key.startswith(plain)), [])]
        for key, group in found.items()
    }


def _key(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True, default=str)


def _title(run: Run) -> str:
    config = settings(run)
    shown = ("data.source", "partition.alpha", "model.name", "drift.name", "drift.classes")
    return ", ".join(f"{key} {config[key]}" for key in shown if key in config)


if __name__ == "__main__":
    for group in by_setting(load(run) for folder in sys.argv[1:] for run in runs_below(folder)).values():
        with_drift = sum(drift_window(run, settings(run)) is not None for run in group)
        print(f"{_title(group[0])}: {with_drift} runs with the drift, {len(group) - with_drift} without\n")
        print(to_markdown(compare_detectors(group).round(3).reset_index()) + "\n")
