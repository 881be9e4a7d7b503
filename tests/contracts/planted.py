"""Algorithms with one mistake each, as users make them, under the name of the contract that must find it; two without,
and one that may be right or wrong. `flray check tests.contracts.planted`."""

import os
import time
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from flray.aggregations import AGGREGATIONS
from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.core.messages import ClientState, ServerState
from flray.core.protocol.aggregation import Aggregated, Aggregation
from flray.core.schema.hp import hp

COUNT: dict[str, Any] = {"steps": 0, "updates": []}  # what a module should not keep


class Right(FedAvg, frozen=True):
    mu: float = hp(0.1, log=(1e-3, 1.0), ge=0, doc="weight of the proximal term")

    def gradient(self, ctx: Any, broadcast: Any, client: Any, local: Any, batch: Any) -> Any:
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        return loss, g.add_(local.w - broadcast.w, alpha=self.mu)


class Clips(FedAvg, frozen=True):
    """Right, and recorded: the norm is compared on the device."""

    capturable: ClassVar[bool] = True

    def gradient(self, ctx: Any, broadcast: Any, client: Any, local: Any, batch: Any) -> Any:
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        return loss, g / torch.clamp(g.norm(), min=1.0)


class ClipsOnTheHost(FedAvg, frozen=True):
    """Right, and never recorded: it asks the device for the norm."""

    capturable: ClassVar[bool] = True

    def gradient(self, ctx: Any, broadcast: Any, client: Any, local: Any, batch: Any) -> Any:
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        return loss, g / g.norm() if float(g.norm()) > 1 else g


class Visits(ClientState):
    visits: Tensor


class Stateful(FedAvg, frozen=True):
    """The step gets smaller with each visit of a client."""

    def init_client(self, ctx: Any) -> Visits:
        return Visits(torch.zeros(1))

    def gradient(self, ctx: Any, broadcast: Any, client: Any, local: Any, batch: Any) -> Any:
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        return loss, g / (1 + client.visits)

    def end(self, ctx: Any, broadcast: Any, client: Any, local: Any, data: Any) -> Any:
        update, _ = super().end(ctx, broadcast, client, local, data)
        return update, Visits(client.visits + 1)


class FromNumpy(FedAvg, frozen=True):
    """Noise of a generator that no address seeds."""

    def gradient(self, ctx: Any, broadcast: Any, client: Any, local: Any, batch: Any) -> Any:
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        return loss, g + float(np.random.default_rng().normal())


class FromTheSystem(FedAvg, frozen=True):
    def gradient(self, ctx: Any, broadcast: Any, client: Any, local: Any, batch: Any) -> Any:
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        return loss, g * (1 + os.urandom(1)[0] / 256)


class FromTheClock(FedAvg, frozen=True):
    def aggregate(self, ctx: Any, state: Any, updates: Any, cohort: Any) -> Any:
        after, metrics = super().aggregate(ctx, state, updates, cohort)
        return after.replace(w=after.w * (1 - 1e-3 * (time.time() % 1))), metrics


class ByHash(FedAvg, frozen=True):
    """A set of names has another order in another process."""

    def aggregate(self, ctx: Any, state: Any, updates: Any, cohort: Any) -> Any:
        after, metrics = super().aggregate(ctx, state, updates, cohort)
        first = next(iter({f"layer{number}" for number in range(64)}))
        return after.replace(w=after.w * (1 - 1e-3 * int(first.removeprefix("layer")))), metrics


class InTheModule(FedAvg, frozen=True):
    """A counter of the process: other actors have others."""

    def gradient(self, ctx: Any, broadcast: Any, client: Any, local: Any, batch: Any) -> Any:
        COUNT["steps"] += 1
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        return loss, g / (1 + 0.1 * COUNT["steps"])


class Smuggled(FedAvg, frozen=True):
    """Clients leave their models in the module, and the server reads them there."""

    def end(self, ctx: Any, broadcast: Any, client: Any, local: Any, data: Any) -> Any:
        COUNT["updates"].append(local.w.clone())
        return super().end(ctx, broadcast, client, local, data)

    def aggregate(self, ctx: Any, state: Any, updates: Any, cohort: Any) -> Any:
        after, metrics = super().aggregate(ctx, state, updates, cohort)
        found, COUNT["updates"] = COUNT["updates"], []
        return (after.replace(w=torch.stack(found).median(0).values) if found else after), metrics


class ServersMemory(FedAvg, frozen=True):
    """A momentum in the module: a resume has lost it."""

    def aggregate(self, ctx: Any, state: Any, updates: Any, cohort: Any) -> Any:
        after, metrics = super().aggregate(ctx, state, updates, cohort)
        m = 0.5 * COUNT.get("m", torch.zeros_like(state.w)) + (state.w - after.w)
        COUNT["m"] = m
        return after.replace(w=state.w - m), metrics


class ChangesTheBroadcast(FedAvg, frozen=True):
    def gradient(self, ctx: Any, broadcast: Any, client: Any, local: Any, batch: Any) -> Any:
        broadcast.w.mul_(0.999)
        return super().gradient(ctx, broadcast, client, local, batch)


class ChangesTheState(FedAvg, frozen=True):
    def aggregate(self, ctx: Any, state: Any, updates: Any, cohort: Any) -> Any:
        state.w.sub_(0.1 * (state.w - updates.w))
        return state, {}


class ChangesTheClient(Stateful, frozen=True):
    def end(self, ctx: Any, broadcast: Any, client: Any, local: Any, data: Any) -> Any:
        client.visits.add_(1)
        update, _ = super().end(ctx, broadcast, client, local, data)
        return update, client


class NotRead(FedAvg, frozen=True):
    beta: float = hp(0.5, ge=0, doc="read nowhere")


class NotANumber(FedAvg, frozen=True):
    def aggregate(self, ctx: Any, state: Any, updates: Any, cohort: Any) -> Any:
        after, metrics = super().aggregate(ctx, state, updates, cohort)
        return after.replace(w=after.w / (after.w - after.w)), metrics


class History(ServerState):
    past: Tensor


class Grows(FedAvg, frozen=True):
    def init_server(self, ctx: Any, w: Tensor, b: Tensor) -> Any:
        return History(w, b, past=torch.zeros(0))

    def aggregate(self, ctx: Any, state: Any, updates: Any, cohort: Any) -> Any:
        past = torch.cat([state.past, updates.w[:1]])
        return History(updates.w, self.statistics(state, updates.b), past=past), {}


class Vanishes(Grows, frozen=True):
    """What it kept is gone after the second round."""

    def aggregate(self, ctx: Any, state: Any, updates: Any, cohort: Any) -> Any:
        past = torch.ones(2 if ctx.clock.done < 1 else 1)
        return History(updates.w, self.statistics(state, updates.b), past=past), {}


class ChangesType(Grows, frozen=True):
    def init_server(self, ctx: Any, w: Tensor, b: Tensor) -> Any:
        return History(w, b, past=torch.zeros(2))

    def aggregate(self, ctx: Any, state: Any, updates: Any, cohort: Any) -> Any:
        past = state.past.double() if ctx.clock.done else state.past
        return History(updates.w, self.statistics(state, updates.b), past=past), {}


class DrawnRule(Aggregation, frozen=True):
    """A rule that draws what it keeps."""

    def combine(self, ctx: Any, own: Any, state: Any, pooled: Any, cohort: Any, buffers: Any) -> Any:
        return Aggregated(pooled.w * (1 + torch.from_numpy(np.random.default_rng().normal(size=1)).float()), pooled.b)


PLANTED = {
    "right": (Right, None),
    "clips": (Clips, None),
    "clips-on-the-host": (ClipsOnTheHost, None),
    "stateful": (Stateful, None),
    "from-numpy": (FromNumpy, "same bits again"),
    "from-the-system": (FromTheSystem, "same bits again"),
    "from-the-clock": (FromTheClock, "same bits again"),
    "by-hash": (ByHash, "same bits again"),
    "in-the-module": (InTheModule, "any number of actors"),
    "smuggled": (Smuggled, "any number of actors"),
    "servers-memory": (ServersMemory, "resume"),
    "changes-the-broadcast": (ChangesTheBroadcast, "runs"),
    "changes-the-state": (ChangesTheState, "runs"),
    "changes-the-client": (ChangesTheClient, "changes no argument"),
    "not-read": (NotRead, "option beta"),
    "not-a-number": (NotANumber, "runs"),
    "grows": (Grows, None),
    "vanishes": (Vanishes, "form of the state"),
    "changes-type": (ChangesType, "form of the state"),
    "drawn-rule": (DrawnRule, "same bits again"),
}
for name, (kind, _) in PLANTED.items():
    (AGGREGATIONS if issubclass(kind, Aggregation) else ALGORITHMS).add(name, kind)
