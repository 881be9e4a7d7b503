"""How well alarms find the rounds in which something was wrong: precision, recall, F1, delay.

A detector that answers some rounds late is right about the segment and wrong about its first rounds. So both counts are
reported: by round (point), and point-adjusted, where an alarm that begins inside a segment finds all of it (the
convention of anomaly detection; Xu et al., WWW 2018). An alarm that was on before the segment began answers nothing in
it: it has no delay, and its rounds count by point alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Scores(NamedTuple):
    """Precision, recall and F1; what is undefined (no alarm, no segment) is 0."""

    precision: float
    recall: float
    f1: float


def segments(labels: Sequence[bool]) -> list[tuple[int, int]]:
    """The runs of true labels `[T]` as half-open intervals (first, last + 1)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], np.asarray(labels, bool).astype(np.int8), [0]])))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def onsets(alarms: Sequence[bool]) -> np.ndarray:
    """The rounds `[T]` in which an alarm begins: it is on, and was not in the round before."""
    said = np.asarray(alarms, bool)
    return np.diff(said.astype(np.int8), prepend=0) > 0


def adjusted(labels: Sequence[bool], alarms: Sequence[bool]) -> np.ndarray:
    """The alarms `[T]`, every round of a segment among them in which one begins."""
    flags, begun = np.array(alarms, dtype=bool), onsets(alarms)
    for start, stop in segments(labels):
        flags[start:stop] |= begun[start:stop].any()
    return flags


def scores(labels: Sequence[bool], alarms: Sequence[bool], adjust: bool = False) -> Scores:
    """Of the alarms `[T]` against the labels `[T]`; `adjust`: after point adjustment.

    Raises `ValueError` where they differ in length.
    """
    truth = np.asarray(labels, bool)
    said = adjusted(labels, alarms) if adjust else np.asarray(alarms, bool)
    if truth.shape != said.shape:
        raise ValueError(f"{len(truth)} labels and {len(said)} alarms: one of each a round")
    both = float((truth & said).sum())
    precision, recall = (both / n if n else 0.0 for n in (float(said.sum()), float(truth.sum())))
    return Scores(precision, recall, 2 * precision * recall / (precision + recall) if both else 0.0)


def delays(labels: Sequence[bool], alarms: Sequence[bool]) -> list[float]:
    """Of every segment the rounds from its start to the first alarm that begins inside it; NaN where none does: the
    segment is missed, also by an alarm that was on before (:func:`on_before`)."""
    begun = onsets(alarms)
    runs = [begun[start:stop] for start, stop in segments(labels)]
    return [float(inside.argmax()) if inside.any() else np.nan for inside in runs]


def on_before(labels: Sequence[bool], alarms: Sequence[bool]) -> list[bool]:
    """Of every segment whether an alarm was on when it began: on in the round before its first, and in that one."""
    said = np.asarray(alarms, bool)
    return [bool(start and said[start - 1] and said[start]) for start, _ in segments(labels)]


def false_alarms(labels: Sequence[bool], alarms: Sequence[bool]) -> float:
    """Share of the rounds without a label that have an alarm; NaN where every round has a label."""
    quiet = ~np.asarray(labels, bool)
    return float(np.asarray(alarms, bool)[quiet].mean()) if quiet.any() else float("nan")
