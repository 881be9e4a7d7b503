"""What travels between server, clients and store: NamedTuples of tensors, compared, copied and measured as values.

A message is a NamedTuple whose fields are tensors, numbers, `None` or messages. An algorithm that sends more than the base
messages below declares its own NamedTuple.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Metrics = Mapping[str, float | Tensor]


class ServerState(NamedTuple):
    """Global parameters `w [P]` and batch-norm statistics `b [Q]`."""

    w: Tensor
    b: Tensor


class Broadcast(NamedTuple):
    """Server -> every client of the cohort."""

    w: Tensor
    b: Tensor


class Update(NamedTuple):
    """Client -> server: the local parameters and statistics after local training."""

    w: Tensor
    b: Tensor


class Cohort(NamedTuple):
    """Who took part, in cohort order; all `[K]`, on the CPU. `weights` sum to 1 over the clients that delivered."""

    client_ids: Tensor
    num_examples: Tensor
    num_steps: Tensor
    weights: Tensor


class Batch(NamedTuple):
    """Inputs `x [B, ...]` float32 (images `[B, C, H, W]` in channels-last memory) and labels `y [B]` (int64), on the actor's device."""

    x: Tensor
    y: Tensor


def is_message(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def map_tensors(apply: Callable[[Any], Any], message: Any) -> Any:
    """The same message with `apply` on every tensor (or array); numbers and `None` stay as they are."""
    if isinstance(message, Tensor | np.ndarray):
        return apply(message)
    if is_message(message):
        return type(message)(*(map_tensors(apply, field) for field in message))
    if message == ():
        return ()
    if message is None or isinstance(message, int | float | str | bool):
        return message
    raise TypeError(f"a message holds tensors, numbers, None and NamedTuples, not {type(message).__name__}: {message!r}")


def tensors(message: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted field name -> tensor, in field order."""
    if isinstance(message, Tensor | np.ndarray):
        return {prefix or "value": message}
    if is_message(message):
        found: dict[str, Any] = {}
        for name, field in zip(message._fields, message, strict=True):
            found.update(tensors(field, f"{prefix}.{name}" if prefix else name))
        return found
    return {}


def as_tensors(message: Any, device: torch.device | str = "cpu") -> Any:
    """NumPy arrays -> tensors to **read only**: on the CPU they share the arrays' memory, which may be Ray's object store."""

    def view(array: Any) -> Tensor:
        if isinstance(array, Tensor):
            return array.to(device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch warns that the array is not writable: nothing writes to it
            return torch.from_numpy(np.asarray(array)).to(device)

    return map_tensors(view, message)


def flatten(message: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """Dotted field name -> array, numbers as 0-dim arrays: everything that a checkpoint must keep. Inverse: :func:`rebuild`."""
    if is_message(message):
        found: dict[str, np.ndarray] = {}
        for name, field in zip(message._fields, message, strict=True):
            found.update(flatten(field, f"{prefix}.{name}" if prefix else name))
        return found
    if not isinstance(message, Tensor | np.ndarray) and (message is None or message == ()):
        return {}
    return {prefix or "value": np.asarray(to_numpy(message))}


def rebuild(template: Any, arrays: Mapping[str, np.ndarray], prefix: str = "") -> Any:
    """A message of `template`'s structure from the arrays of :func:`flatten`; raises `KeyError` with the name of a missing one."""
    if is_message(template):
        names = (f"{prefix}.{name}" if prefix else name for name in template._fields)
        return type(template)(*(rebuild(field, arrays, name) for field, name in zip(template, names, strict=True)))
    if isinstance(template, Tensor | np.ndarray):
        return arrays[prefix or "value"]
    if template is None or template == ():
        return template
    return type(template)(arrays[prefix or "value"].item())


def nbytes(message: Any) -> int:
    """Bytes of the tensors in a message, and 8 for every number: what is sent."""
    if isinstance(message, Tensor | np.ndarray):
        return int(message.nbytes)
    if is_message(message):
        return sum(nbytes(field) for field in message)
    return 8 if isinstance(message, int | float) and not isinstance(message, bool) else 0


def to_numpy(message: Any) -> Any:
    """Tensors -> NumPy arrays on the CPU (Ray ships a flat array without a copy; a torch tensor costs 20 times as much)."""
    return map_tensors(lambda t: t.detach().cpu().numpy() if isinstance(t, Tensor) else t, message)


def to_torch(message: Any, device: torch.device | str = "cpu") -> Any:
    """NumPy arrays -> **copies** as tensors on `device`; an array from the object store is shared memory and read-only."""

    def copy(array: Any) -> Tensor:
        if isinstance(array, Tensor):
            return array.to(device, copy=True)
        return torch.from_numpy(np.array(array)).to(device)

    return map_tensors(copy, message)


def equal(left: Any, right: Any) -> bool:
    """Same structure, dtypes and values (NaN equals NaN), of messages of tensors or of arrays."""
    if isinstance(left, Tensor | np.ndarray) and isinstance(right, Tensor | np.ndarray):
        a, b = (np.asarray(to_numpy(side)) for side in (left, right))
        return a.dtype == b.dtype and a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    if is_message(left) and type(left) is type(right):
        return all(equal(a, b) for a, b in zip(left, right, strict=True))
    return type(left) is type(right) and bool(left == right)
