"""What a run must be so that Gaussian noise makes it private for each client (McMahan et al., ICLR 2018): all that
depends on a client's samples reaches the server in `w` of the training update, every client counts the same."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from flray.core.messages import Cohort
from flray.core.network.frozen import reached_rows
from flray.core.network.objective import Objective
from flray.core.protocol.aggregation import Aggregation
from flray.core.protocol.aggregation_section import AggregationSection
from flray.core.protocol.algorithm import Algorithm
from flray.core.schema.errors import ConfigError
from flray.uplink.chain import Uplink

STATISTICS = "batch-norm statistics are not made private; set algorithm.buffers: keep, or a model without batch norm"
SIZES = (1, 2, 5)  # of clients, to see before round 1 a weighing by samples; each round sees its own weights
OTHERWISE = "choose another algorithm, or leave gaussian out"


def check_noise(
    uplink: Uplink, algorithm: Algorithm, rule: AggregationSection | None, objectives: list[Objective]
) -> None:
    """Raises `ConfigError`, with the reason, if `uplink` adds noise and more of a client's data is sent than that.

    `rule`: of aggregation; None: the mean. `objectives`: of the network, in each task. A client's update is looked at
    where it is sent (`travel.py`).
    """
    if uplink.gaussian is None:
        return
    reason = _unequal(algorithm, rule) if uplink.private else ""
    if not reason and not algorithm.sends_once and not (algorithm.adds_update_noise and not uplink.private):
        name = type(algorithm).__name__
        reason = f"{name} has other exchanges than local training, whose messages are not made private; {OTHERWISE}"
    if not reason and objectives[0].buffer_layout.count and getattr(algorithm, "buffers", "average") != "keep":
        reason = STATISTICS
    if not reason and any(reached_rows(objective) is not None for objective in objectives):
        reason = "the rows of the head that tasks.freeze names tell which classes clients hold; set tasks.freeze: none"
    if reason:
        raise ConfigError(f"uplink.gaussian: {reason}")


def _unequal(algorithm: Algorithm, rule: AggregationSection | None) -> str:
    """A sentence if the server half reads more of clients than a mean in which all count the same."""
    name = type(algorithm).__name__
    if algorithm.fitting_rules()[0] != "any" and not isinstance(algorithm, AggregationSection):
        return f"{name} has a server half of its own, which may read more of clients than the mean of w; {OTHERWISE}"
    asks = isinstance(rule, Aggregation) and type(rule).asks_again is not Aggregation.asks_again
    if rule is not None and (rule.pooled != "mean" or asks):
        return f"{type(rule).__name__} reads more of clients than the mean of w; take aggregation: mean, or fedadam"
    return _weighing(algorithm, algorithm.weights(torch.tensor(SIZES)))


def _weighing(algorithm: Algorithm, weights: Tensor) -> str:
    """A sentence if these `weights [K]` are not all the same."""
    if len(set(weights.tolist())) < 2:
        return ""
    name = type(algorithm).__name__
    return f"{name} weighs clients by their samples; set algorithm.weighting: uniform, or {OTHERWISE}"


class PrivateCohort(Cohort):
    """A cohort as the server half of a private run reads it: `weights [K]` alone."""

    client_ids: Tensor = dataclasses.field(init=False, repr=False)
    num_examples: Tensor = dataclasses.field(init=False, repr=False)
    num_steps: Tensor = dataclasses.field(init=False, repr=False)

    def __getattr__(self, name: str) -> Any:
        """Raises `ConfigError` for what is of single clients."""
        if name in type(self).__dataclass_fields__:
            raise ConfigError(
                f"uplink.gaussian: the server half reads cohort.{name}, which is of single clients and not made "
                "private; read cohort.weights, or leave gaussian out"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def private_cohort(algorithm: Algorithm, cohort: Cohort) -> PrivateCohort:
    """What a server half reads of the `cohort` of a private run. Raises `ConfigError` if not all clients count the
    same."""
    if reason := _weighing(algorithm, cohort.weights):
        raise ConfigError(f"uplink.gaussian: {reason}")
    return PrivateCohort(weights=cohort.weights)
