"""Algorithms of a user's own that break the interface, each in one place, and that end their process."""

import ctypes
import os
import sys
from typing import Any

import torch
from torch import Tensor

from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.config.experiment import Experiment
from flray.config.loader import load_config
from flray.core.messages import ClientState, Record, Update
from flray.core.protocol.context import Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.modes import Mode, Prediction
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from tests.support.iris import FOUR_CLIENTS


class Breaking(FedAvg, frozen=True):
    """FedAvg that does what `what` names in the round `round`."""

    what: str = hp("", doc="what goes wrong")
    round: int = hp(0, doc="when, from 0")

    def due(self, ctx: Context) -> bool:
        return ctx.clock.round == self.round


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Logits(Breaking, frozen=True):
    """Answers of the wrong form."""

    def answer(self, logits: Tensor) -> Any:
        return {
            "narrow": logits[:, :-1],
            "few": logits[:-1],
            "none": None,
        }.get(self.what, logits)

    def predict(self, ctx: Context, published: Any, x: Tensor) -> Any:
        return self.answer(super().predict(ctx, published, x))


class PersonalLogits(Logits, frozen=True):
    def predict(self, ctx: Context, published: Any, x: Tensor) -> Any:
        return FedAvg.predict(self, ctx, published, x)

    def personalize(self, ctx: Context, broadcast: Any, client: Any, batches: Any) -> Any:
        if self.what == "no function":
            return broadcast.w
        predictor = super().personalize(ctx, broadcast, client, batches)
        return lambda x: self.answer(predictor(x))


class Reports(Breaking, frozen=True):
    """A metric that is none: `what` is its name, or its value from the second round on."""

    server: bool = hp(False, doc="the server half reports it")

    def found(self, ctx: Context) -> dict[Any, Any]:
        if self.what == "vector later":
            return {"mine/x": torch.ones(2) if self.due(ctx) else 1.0}
        if self.what == "number later":
            return {"mine/x": 1.0 if self.due(ctx) else torch.ones(2)}
        return {self.what: 7.0}

    def report(self, ctx: Context, local: Any) -> Any:
        return {**super().report(ctx, local), **({} if self.server else self.found(ctx))}

    def aggregate(self, ctx: Context, state: Any, updates: Any, cohort: Any) -> Any:
        state, metrics = super().aggregate(ctx, state, updates, cohort)
        return state, {**metrics, **(self.found(ctx) if self.server else {})}


class Kept(ClientState):
    v: Any


class Plain(Record):
    """A model in a record that does not say so by what it inherits from."""

    w: Tensor
    b: Tensor


class Messages(Breaking, frozen=True):
    """Updates and states that nothing can send, or keep."""

    def init_client(self, ctx: Context) -> Any:
        return Kept(torch.zeros(2))

    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> Any:
        if self.what == "init_server raises":
            raise ZeroDivisionError("made up by the test")
        if self.what == "init_server is unspeakable":
            raise Unspeakable
        if self.what == "init_server leaves":
            os._exit(3)
        if self.what == "init_server exits":
            sys.exit(3)
        if self.what == "init_server gives a record":
            return Plain(w, b)
        return super().init_server(ctx, w, b)

    def broadcast(self, ctx: Context, state: Any) -> Any:
        broadcast = super().broadcast(ctx, state)
        return broadcast.replace(w=broadcast.w.bfloat16()) if self.what == "bfloat16 broadcast" else broadcast

    def begin(self, ctx: Context, broadcast: Any, client: Any, data: ClientData) -> Any:
        if self.due(ctx) and self.what == "begin writes":
            broadcast.w.add_(1.0)
        return super().begin(ctx, broadcast, client, data)

    def step(self, ctx: Context, broadcast: Any, client: Any, local: Any, batch: Any) -> Any:
        if self.what == "step leaves":
            os._exit(3)
        local = super().step(ctx, broadcast, client, local, batch)
        if self.due(ctx) and self.what == "step writes":
            broadcast.w.data.add_(1.0)  # torch counts no change behind `data`
        return local

    def end(self, ctx: Context, broadcast: Any, client: Any, local: Any, data: ClientData) -> Any:
        update, client = super().end(ctx, broadcast, client, local, data)
        if not self.due(ctx):
            return update, client
        match self.what:
            case "no state":
                return update, None
            case "a record":
                return Plain(update.w, update.b), client
            case "bfloat16 state":
                return update, Kept(update.w.bfloat16())
            case "sparse state":
                return update, Kept(update.w.to_sparse())
            case "bfloat16 update":
                return update.replace(w=update.w.bfloat16()), client
            case "sparse update":
                return update.replace(w=update.w.to_sparse()), client
            case "gradient":
                return Update(update.w.clone().requires_grad_(), update.b), Kept(update.w.clone().requires_grad_())
            case "unspeakable":
                raise Unspeakable
            case "escapes":
                raise ValueError("\x1b[31mred\x1b[0m \x07 and\rover")
            case "end writes":
                broadcast.w.zero_()
            case "exits":
                sys.exit(3)
            case "leaves":
                os._exit(3)
            case "crashes":
                ctypes.string_at(0)
        return update, client

    def aggregate(self, ctx: Context, state: Any, updates: Any, cohort: Any) -> Any:
        if self.due(ctx) and self.what == "aggregate leaves":
            os._exit(3)
        if self.due(ctx) and self.what == "aggregate is unspeakable":
            raise Unspeakable
        state, metrics = super().aggregate(ctx, state, updates, cohort)
        return (state.replace(w=state.w.bfloat16()) if self.what == "bfloat16 server" else state), metrics


class FirstStep(Messages, frozen=True):
    """The same, by a client's first method: the server calls it too, to count FLOPs."""

    def begin(self, ctx: Context, broadcast: Any, client: Any, data: ClientData) -> Any:
        if self.what == "begin exits":
            sys.exit(3)
        return super().begin(ctx, broadcast, client, data)


class Work(Messages, frozen=True):
    """A second exchange with a function of its own for the clients."""

    def next_exchange(self, ctx: Context, state: Any) -> Any:
        if ctx.clock.phase == "round" and ctx.clock.exchange == 1:
            return Exchange("look", self.broadcast, self.looked, self.look)
        return super().next_exchange(ctx, state)

    def look(self, ctx: Context, broadcast: Any, client: Any, data: ClientData) -> Any:
        if self.what == "look writes":
            broadcast.w.mul_(2.0)
        if self.what == "look gives two":
            return Update(broadcast.w, broadcast.b), client
        if self.what == "look gives no metrics":
            return Update(broadcast.w, broadcast.b), client, None
        if self.what == "look gives no update":
            return None, client, {}
        if self.what == "look leaves":
            os._exit(4)
        return Update(broadcast.w, broadcast.b), client, ({"round": 1.0} if self.what == "look reports round" else {})

    def looked(self, ctx: Context, state: Any, updates: Any, cohort: Any) -> Any:
        return state if self.what == "looked gives a state" else (state, {})


class Plans(Breaking, frozen=True):
    """What the engine asks to plan, weigh, build and test: `what` is the method that raises, or `METHOD returns`."""

    def asked(self, method: str, answer: Any, wrong: Any = None) -> Any:
        if self.what == method:
            raise ZeroDivisionError("made up by the test")
        return wrong if self.what == f"{method} returns" else answer

    def weights(self, num_examples: Tensor) -> Any:
        return self.asked("weights", super().weights(num_examples))

    def local_steps(self, sizes: Any) -> Any:
        return self.asked("local_steps", super().local_steps(sizes), 3)

    def init_client(self, ctx: Context) -> Any:
        return self.asked("init_client", super().init_client(ctx))

    def module(self, model: Any, inputs: Any) -> Any:
        return self.asked("module", super().module(model, inputs))

    def networks(self, model: Any, inputs: Any) -> Any:
        return self.asked("networks", super().networks(model, inputs))

    def modes(self, ctx: Context) -> Any:
        return {**self.asked("modes", super().modes(ctx)), "odd": Mode(self.odd)}

    def odd(self, ctx: Context, published: Any, x: Tensor) -> Any:
        return self.asked("odd", Prediction(self.predict(ctx, published, x)))

    def predict(self, ctx: Context, published: Any, x: Tensor) -> Any:
        return self.asked("predict", super().predict(ctx, published, x))

    def broadcast(self, ctx: Context, state: Any) -> Any:
        return self.asked("broadcast", super().broadcast(ctx, state))

    def published(self, ctx: Context, state: Any) -> Any:
        return self.asked("published", super().published(ctx, state))


for name, kind in (
    ("logits", Logits),
    ("personal_logits", PersonalLogits),
    ("reports", Reports),
    ("messages", Messages),
    ("first_step", FirstStep),
    ("own_work", Work),
    ("plans", Plans),
):
    ALGORITHMS.add(f"misbehaving_{name}", kind)


def experiment(name: str, what: str = "", round: int = 0, rounds: int = 2, **sections: Any) -> Experiment:
    """Iris with the algorithm `misbehaving_NAME` of this module, which does `what` in the round `round`, from 0."""
    algorithm = {"lr": 0.05, "local_epochs": 1, "batch_size": 8, "what": what, "round": round}
    base = {
        **FOUR_CLIENTS,
        "rounds": rounds,
        "imports": ["tests.support.misbehaving"],
        "algorithm": {"name": f"misbehaving_{name}", **algorithm, **sections.pop("options", {})},
        "checkpoint": {"every": 1},
    }
    return load_config({**base, **sections})[0]
