"""Centralized training (no federation): SGD on the clients' samples in one place, the upper bound of comparison tables.

A round is `local_epochs` epochs over the union of the clients' samples, each sample once, without a `proxy` holdout and
the validation split. Each batch is one step; one optimiser takes the steps of all rounds.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from torch import Tensor

from flray.algorithms.persistent_optimizer import PersistentOptimizer
from flray.core.protocol.algorithm_section import ServerRule
from flray.core.protocol.context import Context
from flray.core.schema.hp import hp


class Centralized(PersistentOptimizer, frozen=True):
    server_reason: ClassVar[str] = "there are no clients"
    server_rule: ClassVar[ServerRule] = "own"
    centralized: ClassVar[bool] = True
    buffers: ClassVar[Literal["average", "keep", "local"]] = "average"  # type: ignore[misc]
    # without merge: all shards of a batch have one size, so the last batch cannot take more samples
    last_batch: Literal["keep", "drop"] = hp(
        "keep", doc="an epoch's last, short batch: keep or drop it; an only one stays"
    )
    shards: int = hp(
        4, ge=1, doc="parts of a batch, computed in parallel by at most this number of workers; the bits depend on it"
    )

    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> Any:
        return self.initial_model(ctx)
