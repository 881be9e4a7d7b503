"""FedAvg whose broadcast has a table of 8 MB as a shared part: one for rounds 1 and 2, another for those after them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.core.messages import Broadcast
from flray.core.messages.fields import shared
from flray.core.protocol.algorithm import Context

TABLE = 2_000_000  # float32 numbers


class WithTableDown(Broadcast):
    table: Tensor = shared()


class WithTable(FedAvg[Any, WithTableDown], frozen=True):
    def broadcast(self, ctx: Context, state: Any) -> WithTableDown:
        later = float(ctx.clock.round >= 2)
        return WithTableDown(state.w, state.b, torch.arange(TABLE, dtype=torch.float32) + later)


ALGORITHMS.add("with_table", WithTable)
