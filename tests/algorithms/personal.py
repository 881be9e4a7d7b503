"""One client by hand: its state over rounds, and its data as a personalised evaluation hands them over."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flray.core.algorithm import Context
from flray.core.clock import Clock
from flray.core.messages import Batch, Cohort, map_tensors
from flray.core.objective import Objective
from tests.algorithms.rounds import batches_of, train


class Epochs(list[Batch]):
    """`core.algorithm.ClientData`: epochs in the order of the data; `plain` is another tensor where the epochs are
    augmented."""

    def __init__(self, x: Tensor, y: Tensor, size: int, epochs: int, plain: Tensor | None = None) -> None:
        super().__init__(batches_of(x, y, size, epochs))
        self.plain = batches_of(x if plain is None else plain, y, size, 1)


def client_context(objective: Objective, x: Tensor, round: int = 0, num_steps: int = -1, client: int = 0) -> Context:
    clock = Clock(round=round)
    return Context(objective, 0, clock, 1, 1, client=client, num_steps=num_steps, num_examples=len(x), weight=1.0)


def alone(algorithm: Any, objective: Objective, x: Tensor, y: Tensor, rounds: int) -> tuple[list[Any], list[Any]]:
    """(server states, client states), one more than rounds, of a federation of one client."""
    server = Context(objective, 0, Clock(), 1, 1)
    states, clients = [algorithm.init_server(server, *objective.initial())], [algorithm.init_client(server)]
    batches = batches_of(x, y, *algorithm.local_batches)
    for round in range(rounds):
        ctx = client_context(objective, x, round, len(batches))
        down = algorithm.broadcast(server, states[-1])
        update, client, _ = train(algorithm, ctx, down, clients[-1], batches)
        cohort = Cohort(
            torch.tensor([0]), torch.tensor([len(x)]), torch.tensor([len(batches)]), torch.ones(1, dtype=torch.float64)
        )
        states.append(algorithm.aggregate(server, states[-1], map_tensors(torch.clone, update), cohort)[0])
        clients.append(client)
    return states, clients


def optimise(module: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Batch]) -> nn.Module:
    """Plain cross-entropy steps, in place; returned in eval mode."""
    module.train()
    for batch in batches:
        optimizer.zero_grad()
        cross_entropy(module(batch.x), batch.y).backward()
        optimizer.step()
    return module.eval()


def assert_same(objective: Objective, point: Any, module: nn.Module, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Parameters and statistics of a record with `w`, `b` and of a module agree."""
    found = objective.state_dict(point.w, point.b)
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(
                found[name], tensor, rtol=rtol, atol=atol, msg=lambda m, name=name: f"{name}: {m}"
            )
