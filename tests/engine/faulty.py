"""Algorithms that go wrong at a place the test names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.algorithms.feddf import FedDF
from flray.core.algorithm import Context
from flray.core.hp import hp
from flray.core.messages import Batch, Metrics
from tests.contracts.own import Own


def fault(kind: str, at: str, ctx: Context, update: Any, metrics: Metrics) -> tuple[Any, Metrics]:
    if f"{ctx.round}/{ctx.exchange}/{ctx.client}" != at:
        return update, metrics
    if kind == "raise":
        raise ZeroDivisionError("made up by the test")
    if kind == "nan loss":
        return update, {**metrics, "train/loss": torch.tensor(float("nan"))}
    spoiled = update.w.clone()
    spoiled[3] = float("inf")
    return update.replace(w=spoiled), metrics


class Faulty(FedAvg, frozen=True):
    kind: Literal["raise", "nan loss", "inf update"] = hp("raise", doc="what goes wrong")
    at: str = hp("", doc="ROUND/EXCHANGE/CLIENT, from 0")

    def train(self, ctx: Context, down: Any, client: Any, batches: Iterable[Batch]) -> tuple[Any, Any, Metrics]:
        update, client, metrics = super().train(ctx, down, client, batches)
        return (*_swap(fault(self.kind, self.at, ctx, update, metrics), client),)


class FaultyStack(FedDF, frozen=True):
    kind: Literal["raise", "nan loss", "inf update"] = hp("raise", doc="what goes wrong")
    at: str = hp("", doc="ROUND/EXCHANGE/CLIENT, from 0")

    def train(self, ctx: Context, down: Any, client: Any, batches: Iterable[Batch]) -> tuple[Any, Any, Metrics]:
        update, client, metrics = super().train(ctx, down, client, batches)
        return (*_swap(fault(self.kind, self.at, ctx, update, metrics), client),)


class FaultyOwn(Own, frozen=True):
    """Own (two exchanges, client state), with a fault in either exchange, while the file `unless` does not exist."""

    kind: Literal["raise", "nan loss", "inf update"] = hp("raise", doc="what goes wrong")
    at: str = hp("", doc="ROUND/EXCHANGE/CLIENT, from 0")
    unless: str = hp("", doc="a file that repairs the fault")

    def _spoil(self, ctx: Context, update: Any, metrics: Metrics) -> tuple[Any, Metrics]:
        from pathlib import Path

        if self.unless and Path(self.unless).exists():
            return update, metrics
        return fault(self.kind, self.at, ctx, update, metrics)

    def train(self, ctx: Context, down: Any, client: Any, batches: Iterable[Batch]) -> tuple[Any, Any, Metrics]:
        update, client, metrics = super().train(ctx, down, client, batches)
        return (*_swap(self._spoil(ctx, update, metrics), client),)

    def check(self, ctx: Context, down: Any, client: Any, batches: Iterable[Batch]) -> tuple[Any, Any, Metrics]:
        update, client, metrics = super().check(ctx, down, client, batches)
        return (*_swap(self._spoil(ctx, update, metrics), client),)


class Scalar(FedAvg, frozen=True):
    """Its logits cannot be computed: the server half of a round is done, its test is not."""

    def predict(self, ctx: Context, state: Any, x: Tensor) -> Tensor:
        raise ArithmeticError("no logits")


class Overflowing(FedAvg, frozen=True):
    """Its server state becomes infinite though every client's update is finite."""

    round: int = hp(0, doc="when, from 0")

    def aggregate(self, ctx: Context, state: Any, updates: Any, cohort: Any) -> tuple[Any, Metrics]:
        state, metrics = super().aggregate(ctx, state, updates, cohort)
        return (state.replace(w=state.w * float("inf")), metrics) if ctx.round == self.round else (state, metrics)


class Chatty(FedAvg, frozen=True):
    """Nothing goes wrong, but its metrics are no plain numbers."""

    def report(self, ctx: Context, carry: Any) -> Metrics:
        vector = torch.tensor([1.0, 2.0, 3.0])
        return {**super().report(ctx, carry), "client/undefined": torch.tensor(float("nan")), "client/by_class": vector}

    def aggregate(self, ctx: Context, state: Any, updates: Any, cohort: Any) -> tuple[Any, Metrics]:
        state, metrics = super().aggregate(ctx, state, updates, cohort)
        return state, {**metrics, "server/score": float("inf")}


def _swap(pair: tuple[Any, Metrics], client: Any) -> tuple[Any, Any, Metrics]:
    return pair[0], client, pair[1]


for name, kind in (
    ("faulty", Faulty),
    ("faulty_stack", FaultyStack),
    ("faulty_own", FaultyOwn),
    ("unpredictable", Scalar),
    ("overflowing", Overflowing),
    ("chatty", Chatty),
):
    ALGORITHMS.add(name, kind)
