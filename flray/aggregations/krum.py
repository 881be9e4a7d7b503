"""Krum (Blanchard et al., NeurIPS 2017, section 4): the model of the one client whose nearest neighbours are nearest.

s(k) = sum of norm(w_k - w_j)^2 over the K - f - 2 clients j nearest to k, f the number of clients that may be faulty;
w <- w_k of the smallest s(k). Weights: none. Statistics `b`: those of the same client.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from flray.core.messages import Cohort, HasModel, Models
from flray.core.protocol.aggregation import Aggregated, Aggregation, Buffers
from flray.core.protocol.aggregation_section import Pooled
from flray.core.protocol.algorithm_section import Setting
from flray.core.protocol.context import Context
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.core.schema.shares import floor_share, is_less_than_one
from flray.ops.robust import krum_scores


class Krum(Aggregation[None, Models], frozen=True):
    pooled: ClassVar[Pooled] = "each"

    faulty: float = hp(
        0.2, choice=(0.1, 0.2, 0.3, 0.4), ge=0, lt=0.5, doc="share of the cohort that may be faulty (f / K)"
    )

    def initial(self, ctx: Context, w: Tensor, b: Tensor) -> None:
        """Raises `ConfigError` for a cohort in which Krum tolerates fewer faulty clients (2 f + 2 < K, Prop. 4.2)."""
        size, f = ctx.cohort_size, floor_share(self.faulty, ctx.cohort_size)
        if f and 2 * f + 2 >= size:
            raise ConfigError(
                f"aggregation.faulty: {self.faulty:g} of {size} clients are {f}, of which Krum tolerates "
                f"{max((size - 3) // 2, 0)} (2 f + 2 < K); lower it, or raise cohort.size (buffered: coordination.size)"
            )

    def combine(
        self, ctx: Context, own: None, before: HasModel, updates: Models, cohort: Cohort, buffers: Buffers
    ) -> Aggregated:
        best = int(self.scores(updates).argmin())
        return Aggregated(updates.w[best], updates.b[best])

    def unsuited(self, setting: Setting) -> tuple[str, ...]:
        if not is_less_than_one(self.faulty, setting.cohort):
            return ()
        none = f"faulty={self.faulty:g} of {setting.cohort} clients is less than one: none counts as faulty"
        return (f"{none}; raise it, or the clients a round",)

    def scores(self, updates: Models) -> Tensor:
        """s `[K]`."""
        return krum_scores(updates.w, floor_share(self.faulty, len(updates.w)))
