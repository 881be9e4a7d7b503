"""The weighted mean (McMahan et al., AISTATS 2017, Algorithm 1): w <- sum_k p_k w_k. The default.

Weights: p_k, those of the algorithm. Statistics `b`: their mean with the same weights.
"""

from __future__ import annotations

from typing import ClassVar

from flray.core.messages import Cohort, HasModel
from flray.core.protocol.aggregation import Aggregated, Aggregation, Buffers
from flray.core.protocol.context import Context


class Mean(Aggregation, frozen=True):
    linear: ClassVar[bool] = True

    def combine(
        self, ctx: Context, own: None, before: HasModel, updates: HasModel, cohort: Cohort, buffers: Buffers
    ) -> Aggregated:
        return Aggregated(updates.w, updates.b)
