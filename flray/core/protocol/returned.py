"""Checks of the values that an algorithm's methods return. The error names the method, not the engine's line."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from flray.core.protocol import last_call
from flray.core.schema.errors import AlgorithmError, named, place

# by method: what it must return; a tuple of names is a plain tuple of so many values
RETURNS: dict[str, str | tuple[str, ...]] = {
    "init_server": "the first server state",
    "broadcast": "the message to the clients",
    "aggregate": ("state", "metrics"),
    "predict": "logits [B, C]",
    "init_client": "the client's first state, () for none",
    "begin": "the local state",
    "batches": "the batches of the local steps",
    "gradient": ("loss", "gradient [P]"),
    "step": "the local state",
    "end": ("update", "client state"),
    "report": "metrics",
    "personalize": "a predictor",
}
EXAMPLES = {
    "aggregate": "return state, {}",
    "gradient": "return loss, g",
    "step": "return local",
    "end": "return Update(local.w, local.b), client",
}


def check_returns(kind: type) -> None:
    """Wrap the methods that the class `kind` defines: they raise `AlgorithmError` for a wrong return value."""
    for name in RETURNS:
        method = vars(kind).get(name)
        if inspect.isfunction(method):
            setattr(kind, name, _checked(method, f"{kind.__name__}.{name}"))


def _checked(method: Callable[..., Any], label: str) -> Callable[..., Any]:
    wanted, name = RETURNS[method.__name__], f"{label}{place(method)}"
    entered = last_call.label(name)

    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        before = last_call.enter(entered)
        try:
            result = method(*args, **options)
        finally:
            last_call.enter(before)
        if _fits(result, wanted):
            return result
        raise _wrong(name, result, wanted, method.__name__)

    return call


def check(result: Any, wanted: tuple[str, ...], method: Callable[..., Any]) -> None:
    """Raises `AlgorithmError` unless `result`, returned by `method`, is a tuple of the `wanted` values.

    For functions that an exchange names, and for methods of flray's own algorithms.
    """
    if not _fits(result, wanted):
        raise _wrong(named(method), result, wanted, method.__name__)


def check_logits(result: Any, samples: int, classes: int, method: Callable[..., Any]) -> None:
    """Raises `AlgorithmError` unless `result`, returned by `method`, is logits `[samples, classes]`."""
    if not isinstance(result, Tensor) or result.shape != (samples, classes):
        form = f"[{samples}, {classes}]: one for each of {classes} classes, of {samples} samples"
        raise AlgorithmError(f"{named(method)} returned {_words(result)}; it must return logits {form}")


@functools.cache
def label(kind: type, method: str) -> bytes:
    """The argument of `last_call.enter` for a method of the class `kind`."""
    return last_call.label(f"{kind.__name__}.{method}{place(getattr(kind, method))}")


def _wrong(label: str, result: Any, wanted: str | tuple[str, ...], method: str) -> AlgorithmError:
    form = f"({', '.join(wanted)})" if isinstance(wanted, tuple) else wanted
    example = f", for example: {EXAMPLES[method]}" if method in EXAMPLES else ""
    return AlgorithmError(f"{label} returned {_words(result)}; it must return {form}{example}")


def _fits(result: Any, wanted: str | tuple[str, ...]) -> bool:
    if isinstance(wanted, str):
        return _is(result, wanted)
    return type(result) is tuple and len(result) == len(wanted) and all(map(_is, result, wanted))


def _is(value: Any, wanted: str) -> bool:
    kinds = {"metrics": Mapping, "gradient [P]": Tensor, "a predictor": Callable}
    if wanted in kinds:
        return isinstance(value, kinds[wanted])  # type: ignore[arg-type]  # a Callable is a class to isinstance
    return value is not None or wanted == "client state"  # None: nothing is stored


def _words(result: Any) -> str:
    if result is None:
        return "None (a return is missing)"
    if type(result) is tuple:
        return f"({', '.join('None' if value is None else type(value).__name__ for value in result)})"
    return f"a {type(result).__name__}" + (f" {list(result.shape)}" if isinstance(result, Tensor) else "")
