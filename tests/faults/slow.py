"""SCAFFOLD whose clients take a second each, so that a round of four on two actors takes two; the bits are
SCAFFOLD's."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from flray.algorithms import ALGORITHMS
from flray.algorithms.scaffold import Scaffold
from flray.core.messages import Batch, Metrics
from flray.core.protocol.context import Context


class Slow(Scaffold, frozen=True):
    def train(self, ctx: Context, broadcast: Any, client: Any, batches: Iterable[Batch]) -> tuple[Any, Any, Metrics]:
        time.sleep(1.0)
        return super().train(ctx, broadcast, client, batches)


ALGORITHMS.add("slow", Slow)
