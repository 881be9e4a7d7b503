"""Scores of alarms against labelled rounds: precision, recall, F1, delay.

A late detector is right about a segment and wrong about its first rounds, so there are two counts: by round (point),
and point-adjusted, in which an alarm that begins inside a segment counts for all its rounds. Anomaly detection adjusts
at any alarm inside (Xu et al., WWW 2018). This is stricter: an alarm that was on before the segment has no delay and
no adjustment, else a detector that never switches off would be perfect.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Scores(NamedTuple):
    """Precision, recall and F1; 0 if undefined (no alarm, no segment)."""

    precision: float
    recall: float
    f1: float


def segments(labels: ArrayLike) -> list[tuple[int, int]]:
    """The runs of true labels `[T]` as half-open intervals (first, last + 1)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], np.asarray(labels, bool).astype(np.int8), [0]])))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def onsets(alarms: ArrayLike) -> np.ndarray:
    """The rounds `[T]` in which an alarm begins: it is on now and was off in the round before."""
    said = np.asarray(alarms, bool)
    return np.diff(said.astype(np.int8), prepend=0) > 0


def adjusted(labels: ArrayLike, alarms: ArrayLike) -> np.ndarray:
    """The alarms `[T]`; a segment in which one begins has alarms in all its rounds."""
    flags, begun = np.array(alarms, dtype=bool), onsets(alarms)
    for start, stop in segments(labels):
        flags[start:stop] |= begun[start:stop].any()
    return flags


def scores(labels: ArrayLike, alarms: ArrayLike, adjust: bool = False) -> Scores:
    """The scores of alarms `[T]` against labels `[T]`; `adjust`: after point adjustment.

    Raises `ValueError` if they differ in length.
    """
    truth = np.asarray(labels, bool)
    said = adjusted(labels, alarms) if adjust else np.asarray(alarms, bool)
    if truth.shape != said.shape:
        raise ValueError(f"{truth.size} labels and {said.size} alarms; give one of each for each round")
    both = float((truth & said).sum())
    precision, recall = (both / n if n else 0.0 for n in (float(said.sum()), float(truth.sum())))
    return Scores(precision, recall, 2 * precision * recall / (precision + recall) if both else 0.0)


def delays(labels: ArrayLike, alarms: ArrayLike) -> list[float]:
    """For each segment the rounds from its start to the first alarm that begins inside it; NaN: none does, also if an
    alarm was on before (:func:`on_before`)."""
    begun = onsets(alarms)
    runs = [begun[start:stop] for start, stop in segments(labels)]
    return [float(inside.argmax()) if inside.any() else np.nan for inside in runs]


def on_before(labels: ArrayLike, alarms: ArrayLike) -> list[bool]:
    """For each segment whether an alarm was on in its first round and in the round before."""
    said = np.asarray(alarms, bool)
    return [bool(start and said[start - 1] and said[start]) for start, _ in segments(labels)]


def false_alarms(labels: ArrayLike, alarms: ArrayLike) -> float:
    """Share of the rounds without a label that have an alarm; NaN if each round has a label."""
    quiet = ~np.asarray(labels, bool)
    return float(np.asarray(alarms, bool)[quiet].mean()) if quiet.any() else float("nan")
