"""Client rows to a round's row, rounds to the run's outcome."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.results.tables import LAST

if TYPE_CHECKING:
    import pandas

ROW_FACTS = ("client", "exchange", "position", "num_examples", "num_steps", "skipped", "time/client_s")


def summarise(rows: Sequence[dict[str, Any]], weights: dict[int, float]) -> dict[str, float]:
    """Mean of the clients' metrics by aggregation weight, and the 10th percentile of their own accuracy."""
    kept = [row for row in rows if not row["skipped"]]
    if not kept:
        return {}
    share = np.array([weights[row["client"]] for row in kept])
    share = share / share.sum()
    found = {
        name: float(np.dot(share, [row[name] for row in kept]))
        for name in kept[0]
        if name not in ROW_FACTS and all(row.get(name) is not None for row in kept)
    }
    if "client/acc_after" in found:
        found["client/acc_p10"] = float(np.percentile([row["client/acc_after"] for row in kept], 10))
    return found


def collapsed(rounds: pandas.DataFrame, labels: np.ndarray, split: str) -> str | None:
    """Why a run whose numbers are all finite counts as diverged: the mean of its last tests is chance level (spec 13), and not for want of
    training: it had been well above before, or its loss is twice that of knowing nothing. `labels` are those of the split (val or test)."""
    acc, loss = f"{split}/acc", f"{split}/loss"
    tested = rounds.dropna(subset=acc) if acc in rounds else rounds.iloc[:0]
    if not len(tested):
        return None
    counts = np.bincount(labels)
    chance, nothing = counts.max() / len(labels), math.log(len(counts))
    last, best = tested.tail(LAST), tested.loc[tested[acc].idxmax()]
    accuracy, final = last[acc].mean(), last[loss].iloc[-1]
    if accuracy > 1.05 * chance or (best[acc] < 1.5 * chance and final < 2 * nothing):
        return None
    return (
        f"diverged: the last {len(last)} tests have an accuracy of {accuracy:.2%}, chance level, and a loss of {final:.3g} "
        f"(best accuracy {best[acc]:.2%} in round {best['round']:.0f}); lower algorithm.lr"
    )
