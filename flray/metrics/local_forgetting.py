"""What local training forgets: the received model and the one that training made of it, on the global test set (FedSOL
Figure 7, FedNTD section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from flray.core.context import Context
from flray.core.probe import ClientView, Place, Probe, Reads, Row
from flray.metrics.classification import accuracy, per_class
from flray.metrics.reading import Sample, due, predicted


class LocalForgetting(Probe, frozen=True):
    """A row for each client: accuracy on the test set (`acc`), on what is in and out of the client's own distribution
    (`in`, `out`) and by class, each before and after its local training.

    `in` weighs the accuracy of class c by the client's share p(c) of it, `out` by (1 - p(c)) / (C - 1), C classes of
    the task; a class without test samples does not count. While a sweep tunes, the validation split is read instead.
    Where the broadcast or the update carries no model (`Algorithm.point`) there is no row.
    """

    at: ClassVar[frozenset[Place]] = frozenset({"start", "end"})

    every: int = Field(1, ge=1, description="look in every so many rounds, from the first on")
    samples: int | None = Field(1000, ge=1, description="test samples that are read, drawn once a run; none: all")

    @property
    def reads(self) -> Reads:
        return frozenset({"tests"})

    def observe(self, ctx: Context, view: ClientView, memory: Any) -> tuple[Sequence[Row], Any]:
        point = view.point(view.down if view.place == "start" else view.update) if due(ctx, self.every) else None
        if point is None or (view.place == "end" and memory is None):
            return [], memory
        sample = Sample.of(ctx, self.samples, "local forgetting")
        size = ctx.objective.at(*point)(sample.x[:1]).shape[1]
        right = np.bincount(sample.y[predicted(ctx, *point, sample) == sample.y], minlength=size)
        if view.place == "start":
            return [], right
        total = np.bincount(sample.y, minlength=size)
        held = sum(np.bincount(batch.y.cpu().numpy(), minlength=size) for batch in view.data.plain)
        row: dict[str, Any] = {}
        for when, found in (("before", memory), ("after", right)):
            inside, outside = in_and_out(found, total, held)
            row |= {f"acc_{when}": accuracy(found, total), f"in_{when}": inside, f"out_{when}": outside}
            row[f"class_{when}"] = per_class(found, total).tolist()
        return [row], memory


def in_and_out(right: ArrayLike, total: ArrayLike, held: ArrayLike) -> tuple[float, float]:
    """(in-local, out-local) accuracy of a model on a test set with `right [C]` of `total [C]` samples a class.

    `held [C]` are the client's samples of each class, p(c) their shares. In-local is sum_c p(c) acc(c), out-local
    sum_c q(c) acc(c) with q(c) = (1 - p(c)) / (C - 1) (Lee et al., NeurIPS 2022, section 3). Classes that are not
    tested are left out and the weights scaled; NaN where nothing is left.
    """
    found, have = per_class(right, total), np.asarray(held, np.float64)
    tested = ~np.isnan(found)
    share = have / have.sum() if have.sum() else have
    return _weighted(found[tested], share[tested]), _weighted(found[tested], (1 - share)[tested])


def _weighted(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    return float(values @ weights / weights.sum()) if weights.sum() > 0 else float("nan")
