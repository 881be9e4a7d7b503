"""Multi-Krum (Blanchard et al., NeurIPS 2017, section 4): the plain mean of the m models with the smallest Krum scores.

Weights: none, each of the m clients counts once. Statistics `b`: the mean of the same clients.
"""

from __future__ import annotations

from flray.aggregations.krum import Krum
from flray.core.messages import Cohort, HasModel, Models
from flray.core.protocol.aggregation import Aggregated, Buffers
from flray.core.protocol.context import Context
from flray.core.schema.hp import hp
from flray.core.schema.shares import floor_share
from flray.ops.average import tree_mean


class MultiKrum(Krum, frozen=True):
    models: int | None = hp(None, ge=1, doc="number of models averaged (m), at most K; none: K - f")

    def combine(
        self, ctx: Context, own: None, before: HasModel, updates: Models, cohort: Cohort, buffers: Buffers
    ) -> Aggregated:
        K = len(updates.w)
        m = K - floor_share(self.faulty, K) if self.models is None else min(self.models, K)
        best = sorted(self.scores(updates).argsort(stable=True)[:m].tolist())
        return Aggregated(tree_mean([updates.w[k] for k in best]), tree_mean([updates.b[k] for k in best]))
