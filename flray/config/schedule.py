"""The section `schedule`: hyper-parameters of the algorithm that change from a round on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field, model_validator

from flray.core.schema.errors import ConfigError, nearest, shown
from flray.core.schema.section import Section, by_alias, one_line

if TYPE_CHECKING:
    from flray.core.protocol.algorithm import Algorithm


class Change(Section, frozen=True):
    """New values of hyper-parameters, `{from_round: 50, algorithm.optimizer: adam, algorithm.lr: 0.001}`."""

    from_round: int = Field(ge=1, description="first round with these values, from 1, over all tasks")
    algorithm: dict[str, Any] = Field(
        min_length=1,
        description="hyper-parameters and their new values; a new lr_decay counts from this round, a new lr "
        "alone stays under the lr_decay that runs",
    )

    @model_validator(mode="before")
    @classmethod
    def _dotted(cls, data: Any) -> Any:
        """`algorithm.lr: 0.1` is `algorithm: {lr: 0.1}`."""
        if not isinstance(data, Mapping):
            return data
        values = {key: value for key, value in data.items() if not str(key).startswith("algorithm.")}
        own = {str(key)[len("algorithm.") :]: data[key] for key in data if key not in values}
        if own and not isinstance(values.get("algorithm", {}), Mapping):
            raise ConfigError(f"schedule: algorithm is {shown(values['algorithm'])}; write algorithm.KEY: VALUE")
        return {**values, "algorithm": {**values.get("algorithm", {}), **own}} if own else values

    def __str__(self) -> str:
        return f"from round {self.from_round}: " + ", ".join(f"{key} {value}" for key, value in self.algorithm.items())


class Version(NamedTuple):
    """The algorithm in force from a round on; rounds count from 1 over all tasks."""

    from_round: int
    algorithm: Algorithm


def versions(algorithm: Algorithm, name: str, changes: Sequence[Change], tasks: int = 1) -> tuple[Version, ...]:
    """The algorithm, and its version after each of the changes, in the order of the rounds.

    `lr_decay` of a change counts from its round: the rate there is `lr`, in the k-th round after it lr lr_decay^k. A
    change of `lr` alone does not change from where it counts.
    Raises `ConfigError` for rounds that do not ascend, for keys that cannot change, and for wrong values.
    """
    aliases = by_alias(algorithm)
    result, values, begins = [Version(1, algorithm)], algorithm.model_dump(by_alias=aliases, round_trip=True), 0
    may = sorted(algorithm.changes_midrun)
    for change in changes:
        where = f"schedule, from_round {change.from_round}"
        if not may:
            raise ConfigError(
                f"{where}: algorithm {name} has no key that can change in mid-run; leave the schedule out"
            )
        if change.from_round <= result[-1].from_round and len(result) > 1:
            raise ConfigError(f"{where}: comes after {result[-1].from_round}; write the rounds in ascending order")
        for key in change.algorithm:
            if key in type(algorithm).model_fields and key not in may:
                raise ConfigError(f"{where}: algorithm.{key} cannot change in mid-run; choose from {', '.join(may)}")
            if key not in may:
                raise ConfigError(f"{where}: algorithm {name} has no {shown(key)}{nearest(key, may)}")
        if "lr_decay" in change.algorithm:
            if tasks > 1:
                raise ConfigError(f"{where}: lr_decay begins anew in every task; write lr at each round instead")
            begins = change.from_round - 1
        values |= change.algorithm
        with one_line(where, type(algorithm)):
            checked = type(algorithm)(**values)
            values = checked.model_dump(by_alias=aliases, round_trip=True)
            # FedAvg's rate in round r (from 0) is lr lr_decay^r
            decays = begins and is_factor(values.get("lr"), values.get("lr_decay"))
            rate = {"lr": _undecayed(values, begins, where)} if decays else {}
            result.append(Version(change.from_round, type(algorithm)(**values | rate)))
    return tuple(result)


def is_factor(lr: Any, decay: Any) -> bool:
    """Whether `lr_decay` can be a factor of `lr`, as FedAvg's is; an algorithm of one's own may have other values, as
    the rounds between two steps."""
    numbers = isinstance(lr, int | float) and isinstance(decay, int | float) and not isinstance(decay, bool)
    return numbers and 0 < decay <= 1


def _undecayed(values: Mapping[str, Any], rounds: int, where: str) -> float:
    """The rate that is `lr` after so many rounds of `lr_decay`. Raises `ConfigError` if it is no floating-point number,
    as for a decay of 0.5 from round 1100 on."""
    decayed = values["lr_decay"] ** rounds
    rate: float = values["lr"] / decayed if decayed else math.inf
    if math.isinf(rate):
        raise ConfigError(
            f"{where}: lr_decay={values['lr_decay']:g} is too small there; write lr at each round instead"
        )
    return rate
