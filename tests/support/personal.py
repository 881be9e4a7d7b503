"""One client's personalised evaluation by hand: its data as the engine hands them over, and the loop in plain torch."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flray.core.messages import Batch
from flray.core.network.objective import Objective
from flray.core.protocol.context import Context
from flray.core.protocol.seeding import rng
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


def plain_loss(module: nn.Module, batch: Batch) -> Tensor:
    return cross_entropy(module(batch.x), batch.y)


def optimise(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Any],
    loss: Callable[[nn.Module, Any], Tensor] = plain_loss,
    clip: float | None = None,
    training: bool = True,
) -> nn.Module:
    """Steps of `loss(module, batch)`, in place; returned in eval mode."""
    module.train(training)
    for batch in batches:
        optimizer.zero_grad()
        loss(module, batch).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
    return module.eval()


def distilling(round: int, size: int) -> list[np.ndarray]:
    """Samples of the proxy in the batches of 4 of a round's two epochs of distillation, at flray's addresses."""
    orders = [rng(0, 0, round, 0, -1, "distill", epoch).permutation(size) for epoch in range(2)]
    return [order[i : i + 4] for order in orders for i in range(0, size, 4)]


def assert_predicts(predictor: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(predictor(x), module(x), rtol=1e-5, atol=1e-6)
