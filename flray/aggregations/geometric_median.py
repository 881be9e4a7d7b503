"""The geometric median (RFA; Pillutla, Kakade and Harchaoui, IEEE TSP 2022), by the smoothed Weiszfeld algorithm.

min_v sum_k p_k norm(v - w_k), smoothed by nu. From v = sum_k p_k w_k, `steps` times (Algorithm 2):
beta_k = p_k / max(nu, norm(v - w_k));   v <- sum_k beta_k w_k / sum_k beta_k.
Weights: p_k, those of the algorithm. Statistics `b`: their mean with the last beta.
"""

from __future__ import annotations

from typing import ClassVar

from flray.core.messages import Cohort, HasModel, StreamedModels
from flray.core.protocol.aggregation import Aggregated, Aggregation, Buffers
from flray.core.protocol.aggregation_section import Pooled
from flray.core.protocol.context import Context
from flray.core.schema.hp import hp
from flray.ops.average import tree_mean
from flray.ops.robust import weiszfeld_weights


class GeometricMedian(Aggregation[None, StreamedModels], frozen=True):
    pooled: ClassVar[Pooled] = "streamed"

    steps: int = hp(3, choice=(1, 3, 10, 30), ge=1, doc="steps of the smoothed Weiszfeld algorithm (R)")
    nu: float = hp(1e-6, log=(1e-8, 1e-2), gt=0, doc="smallest distance that a step divides by (nu)")

    def combine(
        self, ctx: Context, own: None, before: HasModel, updates: StreamedModels, cohort: Cohort, buffers: Buffers
    ) -> Aggregated:
        beta = weiszfeld_weights(updates.w, cohort.weights, self.nu, self.steps)
        return Aggregated(tree_mean(updates.w, beta), tree_mean(updates.b, beta))
