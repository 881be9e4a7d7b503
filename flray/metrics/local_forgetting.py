"""Forgetting by local training and recovery by aggregation: the received, the local and the aggregated model on the
global test set (FedSOL Figure 7, FedNTD section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field
from torch import Tensor

from flray.core.protocol.context import SERVER, Context
from flray.core.protocol.probe import ClientView, FinishView, Place, Probe, Reads, Row
from flray.metrics.classification import accuracy, is_right, per_class
from flray.metrics.reading import ProbeSample, average, due, predicted


class LocalForgetting(Probe, frozen=True):
    """A row for each client: accuracy on the test set (`acc`), inside and outside of the client's own distribution
    (`in`, `out`) and by class, each before and after its local training; `held`: its samples by class.

    A row for each round (place `finish`): the same for the clients' aggregate (`acc_average`, `class_average`) and for
    the new global model, after the server's distillation or repair (`acc_global`, `class_global`).
    `results.diagnoses.recovery` joins both.

    `in` weighs the accuracy of class c by the client's share p(c), `out` by (1 - p(c)) / (C - 1), for the C classes of
    the task; classes without test samples do not count. A sweep reads the validation split instead. There is no row if
    the broadcast or the update has no model (`Algorithm.model_of`).
    """

    at: ClassVar[frozenset[Place]] = frozenset({"start", "end", "finish"})

    every: int = Field(1, ge=1, description="rounds between two observations, from the first on")
    samples: int | None = Field(1000, ge=1, description="test samples, drawn once in a run; none: all")

    @property
    def reads(self) -> Reads:
        return frozenset({"tests"})

    def observe(self, ctx: Context, view: ClientView | FinishView, memory: Any) -> tuple[Sequence[Row], Any]:
        if not due(ctx, self.every):
            return [], memory
        if isinstance(view, FinishView):
            return self._aggregate(ctx, view), memory
        point = view.model_of(view.broadcast if view.place == "start" else view.update)
        if point is None or (view.place == "end" and memory is None):
            return [], memory
        right, total = self._right(ctx, *point)
        if view.place == "start":
            return [], right
        size = len(total)
        samples = sum(np.bincount(batch.y.cpu().numpy(), minlength=size) for batch in view.data.plain)
        row: dict[str, Any] = {"held": np.asarray(samples).tolist()}
        for when, counts in (("before", memory), ("after", right)):
            inside, outside = in_and_out(counts, total, samples)
            row |= {f"acc_{when}": accuracy(counts, total), f"in_{when}": inside, f"out_{when}": outside}
            row[f"class_{when}"] = per_class(counts, total).tolist()
        return [row], memory

    def _right(self, ctx: Context, w: Tensor, b: Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(right predictions, samples) of each class `[C]`."""
        sample = ProbeSample.of(ctx, self.samples, "local forgetting")
        size = ctx.objective.at(w, b)(sample.x[:1]).shape[1]
        right = sample.y[is_right(predicted(ctx, w, b, sample), sample.y, ctx.meanings)]
        return np.bincount(right, minlength=size), np.bincount(sample.y, minlength=size)

    def _aggregate(self, ctx: Context, view: FinishView) -> list[Row]:
        """The server's row; none in other phases, in later exchanges, or without models."""
        pooled, after = average(view), view.model_of(view.after)
        if ctx.clock.phase != "round" or ctx.clock.exchange or pooled is None or after is None:
            return []
        row: dict[str, Any] = {"client": SERVER}
        for name, point in (("average", pooled), ("global", after)):
            right, total = self._right(ctx, *point)
            row |= {f"acc_{name}": accuracy(right, total), f"class_{name}": per_class(right, total).tolist()}
        return [row]


def in_and_out(right: ArrayLike, total: ArrayLike, counts: ArrayLike) -> tuple[float, float]:
    """(in-local, out-local) accuracy of a model on a test set with `right [C]` of `total [C]` samples of each class.

    `counts [C]` are the client's samples of each class, p(c) their shares. In-local is sum_c p(c) acc(c), out-local
    sum_c q(c) acc(c) with q(c) = (1 - p(c)) / (C - 1) (Lee et al., NeurIPS 2022, section 3). Classes without
    tests are left out and the weights rescaled; NaN without any.
    """
    return shares_in_and_out(per_class(right, total), counts)


def shares_in_and_out(accuracies: ArrayLike, counts: ArrayLike) -> tuple[float, float]:
    """:func:`in_and_out` from accuracies by class `[C]`, NaN for classes without tests."""
    values, have = np.asarray(accuracies, np.float64), np.asarray(counts, np.float64)
    tested = ~np.isnan(values)
    share = have / have.sum() if have.sum() else have
    return _weighted(values[tested], share[tested]), _weighted(values[tested], (1 - share)[tested])


def _weighted(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    return float(values @ weights / weights.sum()) if weights.sum() > 0 else float("nan")
