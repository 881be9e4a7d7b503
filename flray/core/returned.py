"""What a method of an algorithm must return, checked as it returns: the error names the method, not the line that
stumbled over it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from flray.core.errors import AlgorithmError

# by method: what it must return; a tuple of names is a plain tuple of so many values
RETURNS: dict[str, str | tuple[str, ...]] = {
    "init_server": "the first server state",
    "broadcast": "the message to the clients",
    "aggregate": ("state", "metrics"),
    "predict": "logits [B, C]",
    "init_client": "the client's first state, () for none",
    "begin": "the carry",
    "batches": "the batches of the local steps",
    "gradient": ("loss", "gradient [P]"),
    "step": "the carry",
    "end": ("update", "client state"),
    "report": "metrics",
    "personalize": "a predictor",
}
EXAMPLES = {
    "aggregate": "return state, {}",
    "gradient": "return loss, g",
    "step": "return carry",
    "end": "return Update(carry.w, carry.b), client",
}


def check_returns(kind: type) -> None:
    """From now on the methods that the class `kind` defines raise `AlgorithmError` when they return something else."""
    for name in RETURNS:
        method = vars(kind).get(name)
        if inspect.isfunction(method):
            setattr(kind, name, _checked(method, f"{kind.__name__}.{name}"))


def _checked(method: Callable[..., Any], label: str) -> Callable[..., Any]:
    wanted = RETURNS[method.__name__]

    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        found = method(*args, **options)
        if _fits(found, wanted):
            return found
        code = method.__code__
        form = f"({', '.join(wanted)})" if isinstance(wanted, tuple) else wanted
        example = f", for example: {EXAMPLES[method.__name__]}" if method.__name__ in EXAMPLES else ""
        place = f"{Path(code.co_filename).name}, line {code.co_firstlineno}"
        raise AlgorithmError(f"{label} ({place}) returned {_words(found)}; it must return {form}{example}")

    return call


def _fits(found: Any, wanted: str | tuple[str, ...]) -> bool:
    if isinstance(wanted, str):
        return isinstance(found, Mapping) if wanted == "metrics" else found is not None
    if type(found) is not tuple or len(found) != len(wanted):
        return False
    kinds = {"metrics": Mapping, "gradient [P]": Tensor}
    return all(isinstance(value, kinds.get(name, object)) for value, name in zip(found, wanted, strict=True))


def _words(found: Any) -> str:
    if found is None:
        return "None (a return is missing)"
    if type(found) is tuple:
        return f"({', '.join(type(value).__name__ for value in found)})"
    return f"a {type(found).__name__}" + (f" {list(found.shape)}" if isinstance(found, Tensor) else "")
