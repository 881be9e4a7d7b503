"""One client's personalised evaluation by hand: its data as the engine hands them over, and the loop in plain torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flray.core.messages import Batch
from flray.core.network.objective import Objective
from flray.core.protocol.context import Context
from tests.support.rounds import batches_of
from tests.support.small_cases import context


class Epochs(list[Batch]):
    """`core.samples.FineTuning`: epochs in the order of the data; `plain` is another tensor where the epochs are
    augmented."""

    def __init__(self, x: Tensor, y: Tensor, size: int, epochs: int, plain: Tensor | None = None) -> None:
        super().__init__(batches_of(x, y, size, epochs))
        self.plain = batches_of(x if plain is None else plain, y, size, 1)


def client_context(objective: Objective, x: Tensor, **where: Any) -> Context:
    """Of the only client, with samples `x`, or of another number."""
    facts = {"population": 1, "cohort_size": 1, "client": 0, "num_examples": len(x), "weight": 1.0}
    return context(objective, **{**facts, **where})


def optimise(module: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Batch]) -> nn.Module:
    """Plain cross-entropy steps, in place; returned in eval mode."""
    module.train()
    for batch in batches:
        optimizer.zero_grad()
        cross_entropy(module(batch.x), batch.y).backward()
        optimizer.step()
    return module.eval()
