"""The median by coordinate (Yin et al., ICML 2018, Definition 1 and Option I of Algorithm 1).

w_j <- med{ (w_k)_j : k = 1..K }, the mean of the two middle values where K is even. Weights: none, each client counts
once. Statistics `b`: the median by coordinate too.
"""

from __future__ import annotations

from typing import ClassVar

from flray.core.messages import Cohort, HasModel, Models
from flray.core.protocol.aggregation import Aggregated, Aggregation, Buffers
from flray.core.protocol.aggregation_section import Pooled
from flray.core.protocol.context import Context
from flray.ops.robust import trimmed_mean


class Median(Aggregation[None, Models], frozen=True):
    pooled: ClassVar[Pooled] = "each"

    def combine(
        self, ctx: Context, own: None, before: HasModel, updates: Models, cohort: Cohort, buffers: Buffers
    ) -> Aggregated:
        drop = (len(updates.w) - 1) // 2  # the middle one, or the middle two, remain
        return Aggregated(trimmed_mean(updates.w, drop), trimmed_mean(updates.b, drop))
