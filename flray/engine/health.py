"""Divergence and metrics.

A run diverges when a model, an update, a client's state or a training loss is not finite. A metric cannot make it
diverge: it may be NaN (a client has no sample of the class) or a vector (one number a class).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from flray.core.messages import Message, leaves
from flray.core.messages.host import to_host
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
    values = zip(metrics, to_host(metrics.values()), strict=True)
    return {name: _plain(name, value, method) for name, value in values}


def _plain(name: str, value: Any, method: Callable[..., Any]) -> float | list[float]:  # Any: a user's value, tried
    if isinstance(value, Tensor) and value.dim() == 1:
        return [float(x) for x in value.tolist()]
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise AlgorithmError(
            f"{named(method)} reports a metric {name!r} of {shown(value)}; report a number, or a 1-dim tensor"
        ) from None


def sums(messages: Mapping[str, Message]) -> dict[str, Tensor]:
    """The sum of every tensor of floats in the messages, by its name: it is finite if all of the tensor is."""
    return {
        f"{what}.{name}": torch.sum(leaf, dtype=torch.promote_types(leaf.dtype, torch.float32))
        for what, message in messages.items()
        for name, leaf in leaves(message)
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel()
    }


def client_problem(judged: Mapping[str, Tensor], row: Mapping[str, Any]) -> str | None:
    """What of a client is NaN or infinite, in words: its loss, or one of the :func:`sums` of its update and state.

    None: all are finite.
    """
    loss = row.get(LOSS)
    if loss is not None and not math.isfinite(loss):
        return f"{LOSS} is {loss}"
    return next((f"{name} is not finite" for name, value in judged.items() if not math.isfinite(value)), None)


def model_is_finite(model: tuple[Tensor, Tensor] | None) -> bool:
    """Whether the model of a server state (`Algorithm.model_of`) is finite; None counts as finite."""
    return all(map(math.isfinite, to_host(sums({"model": model or ()}).values())))
