"""Divergence and metrics.

A run diverges when a model, an update, a client's state or a training loss is not finite. A metric cannot make it
diverge: it may be NaN (a client has no sample of the class) or a vector (one number a class).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from flray.core.messages import Message, leaves
from flray.core.schema.errors import AlgorithmError, named, shown
from flray.metrics.names import reserved

LOSS = "train/loss"


def reported(metrics: Mapping[str, Any], method: Callable[..., Any]) -> dict[str, float | list[float]]:
    """Metrics as values of a table: numbers, and vectors as lists.

    Raises `AlgorithmError`, which names the `method` that reported them, for any other value, for a name that is not
    printable text, and for the name of one of the engine's columns.
    """
    for name in metrics:
        if not isinstance(name, str) or not name or not name.isprintable():
            raise AlgorithmError(
                f"{named(method)} reports a metric {shown(name)}; a metric's name is printable text, such as 'mine/x'"
            )
        if reserved(name):
            raise AlgorithmError(
                f"{named(method)} reports a metric {name!r}, and flray writes a column of that name; give it another "
                f"one, such as 'mine/{name.rpartition('/')[2]}'"
            )
    return {name: _plain(name, value, method) for name, value in metrics.items()}


def _plain(name: str, value: Any, method: Callable[..., Any]) -> float | list[float]:  # Any: a user's value, tried
    if isinstance(value, Tensor) and value.dim() == 1:
        return [float(x) for x in value.tolist()]
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise AlgorithmError(
            f"{named(method)} reports a metric {name!r} of {shown(value)}; report a number, or a 1-dim tensor"
        ) from None


def client_problem(update: Message, state: Message, row: Mapping[str, Any]) -> str | None:
    """Which of a client's loss, update and state is NaN or infinite, in words; None: all are finite."""
    loss = row.get(LOSS)
    if loss is not None and not math.isfinite(loss):
        return f"{LOSS} is {loss}"
    for what, message in (("update", update), ("client state", state)):
        for name in _nonfinite(message):
            return f"{what}.{name} is not finite"
    return None


def model_is_finite(model: tuple[Tensor, Tensor] | None) -> bool:
    """Whether the model of a server state (`Algorithm.model_of`) is finite; None counts as finite."""
    return not any(_nonfinite(model or ()))


def _nonfinite(message: Message) -> Iterator[str]:
    """Names of the tensors that contain a NaN or an infinity: their sum is not finite."""
    for name, leaf in leaves(message):
        floats = isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel()
        if floats and not math.isfinite(torch.sum(leaf)):
            yield name
