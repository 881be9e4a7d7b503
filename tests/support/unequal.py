"""Clients of unequal size, for tests in which that matters."""

from typing import Any

from tests.support.networks import Mlp, inputs
from tests.support.rounds import Data


def clients(count: int = 3) -> Data:
    """Unequal, and with batches of 4 never a batch of 2: of two samples batch norm makes +-1, and noise of their
    gradient."""
    sizes = (11, 3, 7, 8)[:count]
    x, y = inputs(Mlp, sum(sizes))
    return [((k + 1) * cx, cy) for k, (cx, cy) in enumerate(zip(x.split(sizes), y.split(sizes), strict=True))]


def pair(kind: Any, first: int = 7, second: int = 11) -> Data:
    """Two clients; with batches of 4 neither of these numbers leaves a batch of 2."""
    x, y = inputs(kind, first + second)
    return [(x[:first], y[:first]), (2 * x[first:], y[first:])]
