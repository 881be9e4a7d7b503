"""Checks of the values that an algorithm's methods return. The error names the method, not the engine's line."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from flray.core.messages import (
    Batch,
    Broadcast,
    ClientState,
    Cohort,
    Message,
    Published,
    Record,
    ServerState,
    Update,
)
from flray.core.protocol.modes import Mode
from flray.core.schema.errors import AlgorithmError, kind_of, named, place, shown

if TYPE_CHECKING:
    from flray.core.network.objective import Objective

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
    "published": "the message that tests read",
    "modes": "the inference modes by name",
    "weights": "aggregation weights [K]",
    "local_steps": "steps [K]",
    "epoch_batches": "batches [K]",
    "model_of": "(w, b) of a message, None for none",
    "step_cost": "a number above 0",
    "num_exemplars": "a number of samples",
    "unsuited": "sentences, () for none",
    "local_batches": "(batch size, local epochs)",
}
EXAMPLES = {
    "aggregate": "return state, {}",
    "gradient": "return loss, g",
    "step": "return local",
    "end": "return Update(local.w, local.b), client",
    "modes": "return {'global': Mode(self.predict)}",
}
OTHER_ROLES = (ServerState, Broadcast, Update, ClientState, Published, Cohort, Batch)  # no local state


def check_returns(kind: type) -> None:
    """Wrap the methods that the class `kind` defines: they raise `AlgorithmError` for a wrong return value."""
    for name in RETURNS:
        method = vars(kind).get(name)
        if inspect.isfunction(method):
            setattr(kind, name, _checked(method, kind, name))
        elif isinstance(method, property) and method.fget is not None:
            setattr(kind, name, property(_checked(method.fget, kind, name), doc=method.__doc__))


def _checked(method: Callable[..., Any], kind: type, hook: str) -> Callable[..., Any]:
    wanted, name = RETURNS[hook], f"{kind.__name__}.{hook}{place(method)}"
    problem = _PROBLEMS.get(hook)

    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        result = method(*args, **options)
        if not _fits(result, wanted):
            raise _wrong(name, result, wanted, hook)
        if problem is not None and (why := problem(result, *args)):
            raise AlgorithmError(f"{name} returned {why}")
        return result

    # an exchange names its methods to other processes, whatever function the class has under this name
    call.__name__, call.__qualname__ = hook, f"{kind.__qualname__}.{hook}"
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
        raise AlgorithmError(f"{named(method)} returned {kind_of(result)}; it must return logits {form}")


def check_model(model: Any, objective: Objective, method: Callable[..., Any], what: str) -> None:
    """Raises `AlgorithmError`, which names the `method` that returned a message (`what` it is), unless its `model` is
    None, or the tensors `(w [P], b [Q])` of the network, of its type."""
    if model is None:
        return
    sizes = (objective.layout.size, objective.buffer_layout.size)
    for name, part, size in zip("wb", model, sizes, strict=True):
        if problem := not_vector(part, size, objective.dtype):
            is_given, wanted = problem
            raise AlgorithmError(f"{named(method)} returned {is_given} as {name} of its {what}; {name} is {wanted}")


def not_vector(part: Any, size: int, dtype: torch.dtype) -> tuple[str, str] | None:
    """In words, what `part` is and what it should be, unless it is a tensor `[size]` of that type."""
    if isinstance(part, Tensor) and part.shape == (size,) and part.dtype == dtype:
        return None
    of = f" of {str(part.dtype).removeprefix('torch.')}" if isinstance(part, Tensor) else ""
    return f"{kind_of(part)}{of}", f"a {str(dtype).removeprefix('torch.')} tensor [{size}], as in init_server"


def _wrong(label: str, result: Any, wanted: str | tuple[str, ...], method: str) -> AlgorithmError:
    form = f"({', '.join(wanted)})" if isinstance(wanted, tuple) else wanted
    example = f", for example: {EXAMPLES[method]}" if method in EXAMPLES else ""
    return AlgorithmError(f"{label} returned {kind_of(result)}; it must return {form}{example}")


def _fits(result: Any, wanted: str | tuple[str, ...]) -> bool:
    if isinstance(wanted, str):
        return _is(result, wanted)
    return type(result) is tuple and len(result) == len(wanted) and all(map(_is, result, wanted))


def _is(value: Any, wanted: str) -> bool:
    if wanted == "a predictor":
        return callable(value)
    kinds: dict[str, type] = {"metrics": Mapping, "gradient [P]": Tensor, str(RETURNS["modes"]): Mapping}
    if wanted in kinds:
        return isinstance(value, kinds[wanted])
    return value is not None or wanted in ("client state", RETURNS["model_of"])  # None: nothing is stored, no model


# what each value must be; in words what was returned and what to return, "" for a right one ---------------------
def _flrays(algorithm: Any, method: str) -> bool:
    """Whether a method is flray's, which reads the fields of its own messages."""
    return str(getattr(type(algorithm), method).__module__).startswith("flray.")


def _gradient_problem(result: Any, algorithm: Any, ctx: Any, *_: Any) -> str:
    loss, g = result
    if not isinstance(loss, int | float) and not (isinstance(loss, Tensor) and loss.dim() == 0):
        return f"{kind_of(loss)} as loss; it is one number: loss.mean()"
    objective = getattr(ctx, "objective", None)
    if objective is not None and g.shape != (objective.layout.size,):
        return f"a gradient {list(g.shape)}; it is [{objective.layout.size}], as local.w"
    if objective is not None and g.device != objective.device:
        return f"a gradient on {g.device}; local.w is on {objective.device}"
    return ""


def _local_problem(result: Any, *_: Any) -> str:
    if isinstance(result, Record) and not isinstance(result, OTHER_ROLES):
        return ""
    return f"{kind_of(result)}; return the local state, a record that inherits from LocalState (in FedAvg: SGDState)"


def _broadcast_problem(result: Message, algorithm: Any, *_: Any) -> str:
    right = isinstance(result, Record) or not _flrays(algorithm, "begin")
    return "" if right else f"{kind_of(result)}; return a Broadcast(w, b), or a record that inherits from it"


def _end_problem(result: Any, algorithm: Any, *_: Any) -> str:
    right = isinstance(result[0], Record) or not _flrays(algorithm, "aggregate")
    return "" if right else f"{kind_of(result[0])} as update; return an Update(w, b), or a record that inherits from it"


def _published_problem(result: Message, algorithm: Any, *_: Any) -> str:
    right = isinstance(result, Record) or not _flrays(algorithm, "predict")
    return "" if right else f"{kind_of(result)}; return a record with w and b, such as Published(w, b)"


def _modes_problem(result: Mapping[Any, Any], *_: Any) -> str:
    if not result:
        return "no inference mode; return at least one, {'global': Mode(self.predict)}"
    for name, mode in result.items():
        if not isinstance(name, str) or not isinstance(mode, Mode):
            return f"{kind_of(mode)} as mode {shown(name)}; return modes by name, {{'global': Mode(self.predict)}}"
    return ""


def _weights_problem(result: Any, algorithm: Any, num_examples: Tensor, *_: Any) -> str:
    count = len(num_examples)
    if not isinstance(result, Tensor) or result.shape != (count,) or result.dtype != torch.float64:
        dtype = f" of {str(result.dtype).removeprefix('torch.')}" if isinstance(result, Tensor) else ""
        return f"{kind_of(result)}{dtype}; return a float64 tensor [{count}], a weight for each client"
    if not bool((result >= 0).all()) or abs(float(result.sum()) - 1) > 1e-6:
        return f"weights {shown(result.tolist())}; none is negative, and their sum is 1: w / w.sum()"
    return ""


def _steps_problem(result: Any, algorithm: Any, num_examples: Any, *_: Any) -> str:
    steps, sizes = np.asarray(result), np.asarray(num_examples)
    if steps.shape != sizes.shape:
        return f"an array {list(steps.shape)}; it must return steps [{len(sizes)}]"
    if steps.dtype.kind not in "iu" or (steps < 0).any():
        return f"{shown(result)}; steps are integers, 0 or more"
    return ""


def _model_problem(result: Any, *_: Any) -> str:
    pair = type(result) is tuple and len(result) == 2 and all(isinstance(part, Tensor | tuple) for part in result)
    return "" if result is None or pair else f"{kind_of(result)}; return {RETURNS['model_of']}"


def _cost_problem(result: Any, *_: Any) -> str:
    right = isinstance(result, int | float) and math.isfinite(result) and result > 0
    return "" if right else f"{shown(result)}; it must return {RETURNS['step_cost']}"


def _exemplars_problem(result: Any, *_: Any) -> str:
    right = isinstance(result, int | np.integer) and result >= 0
    return "" if right else f"{shown(result)}; it must return {RETURNS['num_exemplars']}"


def _sentences_problem(result: Any, *_: Any) -> str:
    right = isinstance(result, tuple | list) and all(isinstance(sentence, str) for sentence in result)
    return "" if right else f"{shown(result)}; return a tuple of sentences: ('...',)"


def _batches_problem(result: Any, *_: Any) -> str:
    right = type(result) is tuple and len(result) == 2 and all(isinstance(part, int) and part > 0 for part in result)
    return "" if right else f"{shown(result)}; return {RETURNS['local_batches']}, two integers above 0"


@functools.cache
def _never_none(kind: type) -> dict[str, str]:
    """The fields of a record that are declared as one plain type, which has no None, and its name."""
    try:
        hints = typing.get_type_hints(kind)
    except Exception:  # of a name that only a type checker imports
        return {}
    plain = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    return {name: hint.__name__ for name, hint in plain.items() if hint in (Tensor, int, float, str)}


def _client_problem(result: Any, *_: Any) -> str:
    if not isinstance(result, Record):
        return ""
    kind: type = type(result)
    for name, declared in _never_none(kind).items():
        if getattr(result, name) is None:
            example = ", for example to torch.zeros_like(ctx.objective.initial()[0])" if declared == "Tensor" else ""
            return (
                f"{kind_of(result)} whose {name} is None and is declared {declared}; set it{example}, or declare "
                f"{name}: {declared} | None"
            )
    return ""


_PROBLEMS: dict[str, Callable[..., str]] = {
    "init_client": _client_problem,
    "gradient": _gradient_problem,
    "begin": _local_problem,
    "step": _local_problem,
    "broadcast": _broadcast_problem,
    "end": _end_problem,
    "published": _published_problem,
    "modes": _modes_problem,
    "weights": _weights_problem,
    "local_steps": _steps_problem,
    "epoch_batches": _steps_problem,
    "model_of": _model_problem,
    "step_cost": _cost_problem,
    "num_exemplars": _exemplars_problem,
    "unsuited": _sentences_problem,
    "local_batches": _batches_problem,
}
