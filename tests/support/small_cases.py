"""A proxy data set and a context without any engine, and small seeded tensors."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flray.core.network.objective import Objective
from flray.core.protocol.clock import Clock
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import TensorProxy


class ListProxy(TensorProxy):
    """A proxy that notes every index asked for."""

    def __init__(self, x: Tensor, y: Tensor | None = None, same_labels: bool | None = None) -> None:
        super().__init__(x, y, same_labels)
        self.asked: list[np.ndarray] = []

    def inputs(self, index: np.ndarray) -> Tensor:
        self.asked.append(np.array(index))
        return super().inputs(index)


def context(module: nn.Module | Objective, proxy: Any = None, round: int = 0, **facts: Any) -> Context:
    """The server's in a round (from 0) of the only task, two of four clients; `facts` are fields of `Context`.

    With one of a client's fields it is that of client 0, but for what is given.
    """
    objective = module if isinstance(module, Objective) else Objective(module)
    clock = Clock(round=round, done=round)
    own: dict[str, Any] = {"client": 0, "num_steps": 1, "num_examples": 1, "weight": 1.0}
    of_client = facts.keys() & own
    facts = {"seed": 0, "clock": clock, "population": 4, "cohort_size": 2, **(own if of_client else {}), **facts}
    return (ClientContext if of_client else Context)(objective, proxy=proxy, **facts)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def flatten_like(objective: Objective, module: nn.Module) -> tuple[Tensor, Tensor]:
    """`(w, b)` of another module of the same architecture."""
    return objective.from_state_dict({n: t for n, t in module.state_dict().items() if t.is_floating_point()})
