"""FedAsync (Xie et al., 2019, Algorithm 1): w <- (1 - alpha s) w + alpha s w_k, of one client's model at a time, with s
the weight of its age (`coordination.staleness`).

It needs `coordination: {name: buffered, size: 1}`. Weights: none. Statistics `b`: the client's.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from flray.core.messages import Cohort, HasModel
from flray.core.protocol.aggregation import Aggregated, Aggregation, Buffers
from flray.core.protocol.context import Context
from flray.core.schema.hp import hp


class FedAsync(Aggregation, frozen=True):
    mixes: ClassVar[bool] = True

    alpha: float = hp(0.6, log=(0.05, 1.0), gt=0, le=1, doc="mixing weight of a client's model (alpha)")

    def combine(
        self, ctx: Context, own: None, before: HasModel, updates: HasModel, cohort: Cohort, buffers: Buffers
    ) -> Aggregated:
        # the engine gives w + s (w_k - w)
        return Aggregated(torch.lerp(before.w, updates.w, self.alpha), updates.b)
