"""Algorithms that go wrong at a place the test names."""

from typing import Any, Literal

import torch
from torch import Tensor

from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.algorithms.feddf import FedDF
from flray.core.messages import Metrics
from flray.core.protocol.context import Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from tests.contracts.own import Own


def due(at: str, ctx: Context) -> bool:
    """Whether `at` names this client's exchange."""
    return at == f"{ctx.clock.round}/{ctx.clock.exchange}/{ctx.client}"


def spoiled(kind: str, update: Any) -> Any:
    """What becomes of the update. Raises `ZeroDivisionError` where that is the fault."""
    if kind == "raise":
        raise ZeroDivisionError("made up by the test")
    if kind == "nan loss":
        return update
    w = update.w.clone()
    w[3] = float("inf")
    return update.replace(w=w)


class Fault(FedAvg, frozen=True):
    """Something goes wrong in local training."""

    kind: Literal["raise", "nan loss", "inf update"] = hp("raise", doc="what goes wrong")
    at: str = hp("", doc="ROUND/EXCHANGE/CLIENT, from 0")

    def fails(self, ctx: Context) -> bool:
        return due(self.at, ctx)

    def end(self, ctx: Context, broadcast: Any, client: Any, local: Any, data: ClientData) -> tuple[Any, Any]:
        update, client = super().end(ctx, broadcast, client, local, data)
        return spoiled(self.kind, update) if self.fails(ctx) else update, client

    def report(self, ctx: Context, local: Any) -> Metrics:
        lost = {"train/loss": torch.tensor(float("nan"))} if self.kind == "nan loss" and self.fails(ctx) else {}
        return {**super().report(ctx, local), **lost}


class Faulty(Fault, frozen=True):
    pass


class FaultyStack(Fault, FedDF, frozen=True):
    pass


class FaultyOwn(Fault, Own, frozen=True):
    """Own (two exchanges, client state), with a fault in either exchange, while the file `unless` does not exist."""

    unless: str = hp("", doc="a file that repairs the fault")

    def fails(self, ctx: Context) -> bool:
        from pathlib import Path

        return super().fails(ctx) and not (self.unless and Path(self.unless).exists())

    def check(self, ctx: Context, broadcast: Any, client: Any, data: ClientData) -> tuple[Any, Any, Metrics]:
        update, client, metrics = super().check(ctx, broadcast, client, data)
        return spoiled(self.kind, update) if self.fails(ctx) else update, client, metrics


class Scalar(FedAvg, frozen=True):
    """Its logits cannot be computed: the server half of a round is done, its test is not."""

    def predict(self, ctx: Context, state: Any, x: Tensor) -> Tensor:
        raise ArithmeticError("no logits")


class Overflowing(FedAvg, frozen=True):
    """Its server state becomes infinite though every client's update is finite."""

    round: int = hp(0, doc="when, from 0")

    def aggregate(self, ctx: Context, state: Any, updates: Any, cohort: Any) -> tuple[Any, Metrics]:
        state, metrics = super().aggregate(ctx, state, updates, cohort)
        return (state.replace(w=state.w * float("inf")), metrics) if ctx.clock.round == self.round else (state, metrics)


class OverflowingEnd(Overflowing, frozen=True):
    """The same in an exchange at the end of a task, whose `round` is the number of its rounds."""

    def next_exchange(self, ctx: Context, state: Any) -> Exchange | None:
        if ctx.clock.phase == "task_end" and ctx.clock.exchange == 0:
            return self.training
        return super().next_exchange(ctx, state)


class Chatty(FedAvg, frozen=True):
    """Nothing goes wrong, but its metrics are no plain numbers."""

    def report(self, ctx: Context, local: Any) -> Metrics:
        vector = torch.tensor([1.0, 2.0, 3.0])
        return {**super().report(ctx, local), "client/undefined": torch.tensor(float("nan")), "client/by_class": vector}

    def aggregate(self, ctx: Context, state: Any, updates: Any, cohort: Any) -> tuple[Any, Metrics]:
        state, metrics = super().aggregate(ctx, state, updates, cohort)
        return state, {**metrics, "server/score": float("inf")}


for name, kind in (
    ("faulty", Faulty),
    ("faulty_stack", FaultyStack),
    ("faulty_own", FaultyOwn),
    ("unpredictable", Scalar),
    ("overflowing", Overflowing),
    ("overflowing_end", OverflowingEnd),
    ("chatty", Chatty),
):
    ALGORITHMS.add(name, kind)
