"""The values of one parameter of a sweep: a range, a choice, or a constant."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import to_jsonable_python

from flray.core.schema.errors import ConfigError, unknown
from flray.core.schema.hp import SearchDomain

if TYPE_CHECKING:
    from optuna.trial import BaseTrial


class Range(NamedTuple):
    """`low <= x <= high`, both integers or both floats."""

    low: Any
    high: Any
    log: bool

    def probes(self) -> tuple[Any, ...]:
        """Values that stand for all of them when an experiment is checked."""
        return self.low, self.high

    def size(self) -> int | None:
        """The number of values; None: without end."""
        return self.high - self.low + 1 if isinstance(self.low, int) else None

    def checked(self, where: str, values: Sequence[Any]) -> Range:
        """The same with its probes as the experiment reads them (`"1e-4"` is a number).

        Raises `ConfigError` where it is empty.
        """
        if not all(is_number(v) and math.isfinite(v) for v in values):
            raise ConfigError(
                f"space.{where}: {show(self.low)} to {show(self.high)} is no range of numbers; write a list of values"
            )
        low, high = map(float, values) if any(isinstance(v, float) for v in values) else values
        if not low < high:
            raise ConfigError(
                f"space.{where}: the range from {show(low)} to {show(high)} is empty; write the lower end first"
            )
        if self.log and low <= 0:
            raise ConfigError(
                f"space.{where}: a log range begins above 0, not at {show(low)}; raise it, or write {{linear: ...}}"
            )
        return Range(low, high, self.log)

    def suggest(self, trial: BaseTrial, name: str) -> Any:
        if isinstance(self.low, int):
            return trial.suggest_int(name, self.low, self.high, log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)

    def value(self, name: str, stored: Any) -> Any:
        """What the experiment gets for `stored`, a study's value of parameter `name`."""
        inside = is_number(stored) and self.low <= stored <= self.high
        if not inside or (isinstance(self.low, int) and stored % 1):
            raise ConfigError(f"trial: {name}={show(stored)} is not in {self}, so it is of another sweep")
        return stored

    def numbers(self) -> tuple[Any, Any, bool]:
        return tuple(self)

    def dump(self) -> Any:
        return {"log" if self.log else "linear": [self.low, self.high]}

    def __str__(self) -> str:
        return f"{'log ' if self.log else ''}{show(self.low)} to {show(self.high)}"


class Choice(NamedTuple):
    """A list of values. A study stores values that it does not know (lists, sections) as JSON."""

    values: tuple[Any, ...]

    @property
    def labels(self) -> list[Any]:
        """The values as the study stores them."""
        return [v if v is None or isinstance(v, bool | int | float | str) else json.dumps(v) for v in self.values]

    def probes(self) -> tuple[Any, ...]:
        return self.values

    def size(self) -> int | None:
        return len(self.values)

    def checked(self, where: str, values: Sequence[Any]) -> Choice:
        choice = Choice(tuple(values))
        labels = choice.labels
        twice = [label for number, label in enumerate(labels) if label in labels[:number]]
        if twice:
            raise ConfigError(f"space.{where}: {show(twice[0])} is listed twice")
        return choice

    def suggest(self, trial: BaseTrial, name: str) -> Any:
        return trial.suggest_categorical(name, self.labels)

    def value(self, name: str, stored: Any) -> Any:
        labels = self.labels
        if stored not in labels:
            raise ConfigError(f"trial: {name}={show(stored)} is not in {self}, so it is of another sweep")
        return self.values[labels.index(stored)]

    def numbers(self) -> list[Any] | None:
        return list(self.values) if all(map(is_number, self.values)) else None

    def dump(self) -> Any:
        return {"choice": list(self.values)}

    def __str__(self) -> str:
        return ", ".join(map(show, self.values))


class Fixed(NamedTuple):
    """A constant: part of every trial's experiment, not a parameter of the study."""

    constant: Any

    def probes(self) -> tuple[Any, ...]:
        return (self.constant,)

    def size(self) -> int | None:
        return 1

    def checked(self, where: str, values: Sequence[Any]) -> Fixed:
        return Fixed(values[0])

    def value(self, name: str, stored: Any) -> Any:
        return self.constant

    def numbers(self) -> None:
        return None

    def dump(self) -> Any:
        return self.constant

    def __str__(self) -> str:
        return show(self.constant)


Domain = Range | Choice | Fixed


def written(where: str, form: Any) -> Domain:
    """Reads one parameter of a sweep, in the forms of :func:`flray.tuning.space.resolve`."""
    kind = "choice"
    if isinstance(form, Mapping):
        if len(form) != 1:
            raise ConfigError(f"space.{where}: {show(dict(form))}: write one of choice, log, linear")
        ((kind, form),) = form.items()
        if kind not in ("choice", "log", "linear"):
            raise unknown("kind of space", str(kind), ("choice", "log", "linear"), f"space.{where}")
    elif not isinstance(form, list | tuple):
        return Fixed(form)
    if kind == "choice":
        if not isinstance(form, list | tuple) or not form:
            raise ConfigError(f"space.{where}: no values to choose from; write a list of at least one")
        return Choice(tuple(form))
    if not isinstance(form, list | tuple) or len(form) != 2:
        raise ConfigError(f"space.{where}: {kind}: {show(form)}; write the two ends, {kind}: [lo, hi]")
    return Range(form[0], form[1], kind == "log")


def check_within(where: str, domain: Domain, declared: SearchDomain, algorithm: str) -> None:
    """Raises `ConfigError` unless a sweep's values lie inside an algorithm's declared ones."""
    options = to_jsonable_python(declared.values)
    text = ", ".join(map(show, options))
    if all(map(is_number, options)):
        outside = [v for v in domain.probes() if not is_number(v) or not min(options) <= v <= max(options)]
        text = text if declared.kind == "choice" else f"{declared.kind} {show(options[0])} to {show(options[1])}"
    else:
        outside = [v for v in domain.probes() if v not in options]
    if outside:
        more = "; a constant outside of it belongs in the experiment" if isinstance(domain, Fixed) else ""
        what = f"{show(outside[0])} is outside of what {algorithm} declares ({text})"
        raise ConfigError(f"space.{where}: {what}; a sweep may narrow it, not widen it{more}")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def show(value: Any) -> str:
    """A value in the syntax of a sweep file."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)
