"""The trimmed mean by coordinate (Yin et al., ICML 2018, Definition 2 and Option II of Algorithm 1).

w_j <- the mean of { (w_k)_j : k = 1..K } without its floor(beta K) smallest and largest values. Weights: none, each
client counts once. Statistics `b`: the same by coordinate.
"""

from __future__ import annotations

from typing import ClassVar

from flray.core.messages import Cohort, HasModel, Models
from flray.core.protocol.aggregation import Aggregated, Aggregation, Buffers
from flray.core.protocol.aggregation_section import Pooled
from flray.core.protocol.algorithm_section import Setting
from flray.core.protocol.context import Context
from flray.core.schema.hp import hp
from flray.core.schema.shares import floor_share, is_less_than_one
from flray.ops.robust import trimmed_mean


class TrimmedMean(Aggregation[None, Models], frozen=True):
    pooled: ClassVar[Pooled] = "each"

    trim: float = hp(
        0.1, choice=(0.1, 0.2, 0.3), ge=0, lt=0.5, doc="share of the values left out at each end (beta); 0: the mean"
    )

    def combine(
        self, ctx: Context, own: None, before: HasModel, updates: Models, cohort: Cohort, buffers: Buffers
    ) -> Aggregated:
        drop = floor_share(self.trim, len(updates.w))
        return Aggregated(trimmed_mean(updates.w, drop), trimmed_mean(updates.b, drop))

    def unsuited(self, setting: Setting) -> tuple[str, ...]:
        if not is_less_than_one(self.trim, setting.cohort):
            return ()
        none = f"trim={self.trim:g} of {setting.cohort} clients is less than one: it leaves nothing out"
        return (f"{none}, as the uniform mean; raise it, or the clients a round",)
