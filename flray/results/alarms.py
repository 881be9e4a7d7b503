"""Alarms of latent forgetting in a run, by detector: the rounds, the signal, and how well they detect the drift."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flray.metrics.detection import delays, false_alarms, on_before, scores
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas

PROBE = "latent_forgetting"
OWN = {"fedmemo": "memo/"}  # algorithms with a detector of their own, and how its columns of `rounds/` begin
COLUMNS = ("wv", "smoothed", "reference", "threshold", "alarm")
READ = ("concentration", "raised")  # what other detectors read besides WV


def is_watched(run: Run) -> bool:
    """Whether a detector looked for latent forgetting in a run."""
    own = any(f"{start}alarm" in run.rounds for start in OWN.values())
    return own or (run.folder / "diagnostics" / PROBE).is_dir()


def signals(run: Run) -> dict[str, pandas.DataFrame]:
    """A table for each detector, a row a round: `done`, `wv`, `smoothed`, `reference`, `threshold`, `alarm`, and what
    was read besides WV, `concentration`, `raised` (`ops.detect.Signal`); {} without a detector.

    The algorithm's own detector comes first (`fedmemo`: it acts on these alarms), then the diagnostic
    `latent_forgetting`, which has its own settings. Values that do not exist yet are NaN.
    """
    by_signal = {}
    columns = ["done", *COLUMNS, *READ]
    for name, start in OWN.items():
        if f"{start}alarm" in run.rounds:
            own = run.rounds.rename(columns={f"{start}{column}": column for column in (*COLUMNS, *READ)})
            by_signal[name] = own.reindex(columns=columns)
    table = run.diagnostics.get(PROBE) if is_watched(run) else None
    if table is not None and len(table):
        by_signal[PROBE] = table.sort_values("done").reindex(columns=columns)
    return by_signal


def method_of(config: Mapping[str, Any], detector: str) -> str:
    """The method of a detector of `signals` in a configuration (`tables.settings`); `moving_mean` alone compares WV
    itself, the statistics of the others have another scale."""
    if detector != PROBE:
        return str(config.get("algorithm.detector.method") or "moving_mean")
    entries = json.loads(config.get("diagnostics") or "[]")
    own = [entry for entry in entries if isinstance(entry, dict) and entry.get("name") == PROBE]
    return str(own[0].get("method", "moving_mean")) if own else "moving_mean"


def alarms(run: Run) -> dict[str, NDArray[np.int64]]:
    """The rounds with an alarm, by detector; {} without a detector."""
    return {name: table.loc[_said(table), "done"].to_numpy(np.int64) for name, table in signals(run).items()}


def of_alarms(run: Run, start: float = math.inf, stop: float = math.inf) -> dict[str, float]:
    """How well the alarms of a run detect the rounds `start <= round < stop` in which data are missing.

    Returns `OF_ALARMS` by detector, as `detect/f1@fedmemo`, over the rounds that the detector read. Without such a
    window it returns only the share of false alarms.
    """
    numbers: dict[str, float] = {}
    for name, table in signals(run).items():
        inside = ((table["done"] >= start) & (table["done"] < stop)).to_numpy()
        numbers |= {f"detect/{metric}@{name}": value for metric, value in detected(inside, _said(table)).items()}
    return numbers


def detected(labels: NDArray[np.bool_], said: NDArray[np.bool_]) -> dict[str, float]:
    """How well alarms by round, `said [R]`, detect the rounds `labels [R]`: `OF_ALARMS` without their `detect/`; only
    the share of false alarms where no round is to be detected."""
    false = false_alarms(labels, said)
    if not labels.any():
        return {"false_alarms": false}
    delay = delays(labels, said)[0]
    return {
        **scores(labels, said)._asdict(),
        "f1_adjusted": scores(labels, said, adjust=True).f1,
        "delay": delay,
        "missed": float(math.isnan(delay)),
        "on_before": float(on_before(labels, said)[0]),
        "false_alarms": false,
    }


def _said(table: pandas.DataFrame) -> NDArray[Any]:
    return table["alarm"].fillna(0).to_numpy(float) > 0
