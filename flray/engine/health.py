"""What is judged and what is reported are two things.

A run diverges when a model, an update, a client's state or a training loss is not finite. A metric is only reported: it
may be NaN (a client has no sample of the class), or a vector (one number a class).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from flray.core.messages import leaves

LOSS = "train/loss"


def reported(metrics: Mapping[str, Any]) -> dict[str, float | list[float]]:
    """Metrics as a table holds them: numbers, and vectors as lists. Raises `TypeError` for anything else."""
    return {name: _plain(name, value) for name, value in metrics.items()}


def _plain(name: str, value: Any) -> float | list[float]:
    if isinstance(value, Tensor) and value.dim() == 1:
        return [float(x) for x in value.tolist()]
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"metric {name!r} is neither a number nor a vector: {error}") from error


def client_problem(update: Any, state: Any, row: Mapping[str, Any]) -> str | None:
    """What of a client is NaN or infinite: its loss, its update or its state; None when all is finite."""
    loss = row.get(LOSS)
    if loss is not None and not math.isfinite(loss):
        return f"{LOSS} is {loss}"
    for what, message in (("update", update), ("client state", state)):
        for name in _nonfinite(message):
            return f"{what}.{name} is not finite"
    return None


def model_is_finite(model: tuple[Tensor, Tensor] | None) -> bool:
    """Whether the model that a server state carries (`Algorithm.point`) is; what else a state holds may be infinite."""
    return not any(_nonfinite(model or ()))


def _nonfinite(message: Any) -> Iterator[str]:
    """Names of the tensors that hold a NaN or an infinity.

    One reduction a tensor: a sum is finite only if its terms are.
    """
    for name, leaf in leaves(message):
        floats = isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel()
        if floats and not math.isfinite(torch.sum(leaf)):
            yield name
