"""Alarms of latent forgetting in a run: when there was one, what it was made of, and how well it found the drift."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flray.metrics.detection import delays, false_alarms, scores
from flray.metrics.names import OF_ALARMS
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas

PROBE = "latent_forgetting"
OWN = "memo/"  # columns of `rounds/` of an algorithm with a detector of its own: FedMemo
COLUMNS = ("wv", "smoothed", "reference", "threshold", "alarm")


def is_watched(run: Run) -> bool:
    """Whether somebody looked for latent forgetting in a run."""
    return (run.folder / "diagnostics" / PROBE).is_dir() or f"{OWN}alarm" in run.rounds


def signal(run: Run) -> pandas.DataFrame | None:
    """A row a round: `done`, `wv`, `smoothed`, `reference`, `threshold`, `alarm`; None where nobody looked.

    As the probe `latent_forgetting` has it, or else the algorithm's own detector. What there was not yet is NaN.
    """
    if not is_watched(run):
        return None
    table = run.diagnostics.get(PROBE)
    if table is not None and len(table):
        return table.sort_values("done").reindex(columns=["done", *COLUMNS])
    if f"{OWN}alarm" not in run.rounds:
        return None
    own = run.rounds.rename(columns={f"{OWN}{name}": name for name in COLUMNS})
    return own.reindex(columns=["done", *COLUMNS])


def alarms(run: Run) -> NDArray[np.int64] | None:
    """The rounds with an alarm; None where nobody looked."""
    table = signal(run)
    return None if table is None else table.loc[_said(table), "done"].to_numpy(np.int64)


def of_alarms(run: Run, start: float = math.inf, stop: float = math.inf) -> dict[str, float]:
    """How well the alarms of a run find the rounds `start <= round < stop` in which data are missing, `OF_ALARMS`.

    The rounds are those that were watched. Without such a round there is only the share of false alarms; {} where
    nobody looked.
    """
    table = signal(run)
    if table is None:
        return {}
    said, done = _said(table), table["done"].to_numpy(float)
    labels = (done >= start) & (done < stop)
    false = {"detect/false_alarms": false_alarms(labels.tolist(), said.tolist())}
    if not labels.any():
        return false
    point, after = (scores(labels.tolist(), said.tolist(), adjust) for adjust in (False, True))
    found = {
        "detect/precision": point.precision,
        "detect/recall": point.recall,
        "detect/f1": point.f1,
        "detect/f1_adjusted": after.f1,
        "detect/delay": delays(labels.tolist(), said.tolist())[0],
        **false,
    }
    return {name: found[name] for name in OF_ALARMS}


def _said(table: pandas.DataFrame) -> NDArray[Any]:
    return table["alarm"].fillna(0).to_numpy(float) > 0
