"""Compares detectors of latent forgetting on the recorded signal of runs: how well does each detect the drift?

python -m flray.results.detectors RUN...    # with the diagnostic latent_forgetting, with and without a drift
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flray.core.schema.errors import ConfigError
from flray.metrics.detection import delays, false_alarms, on_before, scores
from flray.ops.detect import PRESETS, Detector
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
    "robust, rho 0.5": Detector(rho=0.5),
    "robust, rho 0.65": Detector(**PRESETS["robust"]),
    "ramp (W 30)": Detector(**PRESETS["ramp"]),
}


def compare_detectors(
    runs: Iterable[str | Path | Run], detectors: Mapping[str, Detector] = DETECTORS
) -> pandas.DataFrame:
    """A row a detector, made to read the runs' WV from the first round on; nothing of its own may have changed WV.

    Means over the runs with a drift: `precision`, `recall`, `f1` by round, `f1_adjusted`, the share of `false_alarms`
    outside of the window; `delay`: median of the rounds to the first alarm that begins in the window, of the runs that
    have one; `missed`: runs without one; `on_before`: runs in which an alarm was on when the window began. `quiet`:
    share of rounds with an alarm in runs without a drift, NaN where there are none.
    Raises `ConfigError` for a run without a detector's signal.
    """
    import pandas

    series = []
    for run in (run if isinstance(run, Run) else load(run) for run in runs):
        table = next(iter(signals(run).values()), None)  # all detectors of a run read one WV
        if table is None:
            raise ConfigError(f"{run.folder}: no detector recorded WV; run it with diagnostics=[latent_forgetting]")
        window, done = drift_window(run, settings(run)), table["done"].to_numpy()
        inside = np.zeros(len(done), bool) if window is None else (window.start <= done) & (done < window.stop)
        series.append((table["wv"].to_numpy(), inside.tolist()))
    rows = [{"detector": name, **_of(detector, series)} for name, detector in detectors.items()]
    return pandas.DataFrame(rows).set_index("detector")


def _of(detector: Detector, series: list[tuple[np.ndarray, list[bool]]]) -> dict[str, float]:
    detected, late, before, quiet = [], [], [], []
    for values, labels in series:
        said = detector.alarms(values)
        if not any(labels):
            quiet.append(np.mean(said))
            continue
        point, after = (scores(labels, said, adjust) for adjust in (False, True))
        detected.append([*point, after.f1, false_alarms(labels, said)])
        late += delays(labels, said)
        before += on_before(labels, said)
    means = np.mean(detected, axis=0) if detected else np.full(5, np.nan)
    row = dict(zip(("precision", "recall", "f1", "f1_adjusted", "false_alarms"), map(float, means), strict=True))
    caught = [rounds for rounds in late if not np.isnan(rounds)]
    row["delay"] = float(np.median(caught)) if caught else float("nan")
    row["missed"] = float(len(late) - len(caught))
    row["on_before"] = float(sum(before))
    row["quiet"] = float(np.mean(quiet)) if quiet else float("nan")
    return row


if __name__ == "__main__":
    print(
        to_markdown(
            compare_detectors(run for folder in sys.argv[1:] for run in runs_below(folder)).round(3).reset_index()
        )
    )
