"""An algorithm of a user's own, registered from outside: it uses all that the engine offers and no built-in algorithm
needs yet.

* client state with a tensor and a number (SCAFFOLD-like control variates),
* two exchanges in a round: training (mean), then a check of the new model (each client's own),
* a sequential exchange at the task's end, in which every client sees what the one before it added.
"""

from typing import Any

import torch
from torch import Tensor

from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.core.messages import Batch, Broadcast, ClientState, Cohort, Metrics, Record, ServerState, Update
from flray.core.messages.fields import each
from flray.core.protocol.context import Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from flray.ops.losses import cross_entropy


class OwnState(ServerState):
    control: Tensor
    checks: Tensor  # [rounds' last cohort]
    chain: Tensor  # [3]
    visits: int


class OwnClient(ClientState):
    control: Tensor
    rounds: int


class Down(Broadcast):
    control: Tensor


class Up(Update):
    control: Tensor


class Check(Record):
    loss: Tensor = each()
    rounds: int = each()


class Chain(Record):
    chain: Tensor


class Own(FedAvg, frozen=True):
    strength: float = hp(1.0, linear=(0.0, 1.0), ge=0, doc="how much of the correction is applied; 0: FedAvg's client")

    def next_exchange(self, ctx: Context, state: Any) -> Exchange | None:
        check = Exchange("check", self.show, self.note, self.check)
        chain = Exchange("chain", self.pass_on, self.receive, self.extend, order="sequential")
        planned = {"task_begin": [], "round": [self.training, check], "task_end": [chain]}[ctx.clock.phase]
        return planned[ctx.clock.exchange] if ctx.clock.exchange < len(planned) else None

    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> Any:
        return OwnState(w, b, torch.zeros_like(w), torch.zeros(0, device=w.device), torch.zeros(3, device=w.device), 0)

    def init_client(self, ctx: Context) -> Any:
        return OwnClient(torch.zeros_like(ctx.objective.initial()[0]), 0)

    # first exchange
    def broadcast(self, ctx: Context, state: Any) -> Any:
        return Down(state.w, state.b, state.control)

    def gradient(self, ctx: Context, broadcast: Any, client: Any, local: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        return loss, g.add_(broadcast.control - client.control, alpha=self.strength)

    def end(self, ctx: Context, broadcast: Any, client: Any, local: Any, data: ClientData) -> tuple[Any, Any]:
        control = (
            client.control - broadcast.control + (broadcast.w - local.w) / (ctx.num_steps * self.learning_rate(ctx))
        )
        return Up(local.w, local.b, control - client.control), OwnClient(control, client.rounds + 1)

    def aggregate(self, ctx: Context, state: Any, updates: Any, cohort: Cohort) -> tuple[Any, Metrics]:
        share = ctx.cohort_size / ctx.population
        control = state.control + share * updates.control
        return state.replace(w=updates.w, b=self.statistics(state, updates.b), control=control), {
            "own/control": control.norm()
        }

    # second exchange
    def show(self, ctx: Context, state: Any) -> Any:
        return Down(state.w, state.b, state.control)

    def check(self, ctx: Context, broadcast: Any, client: Any, data: ClientData) -> tuple[Any, Any, Metrics]:
        model = ctx.objective.at(broadcast.w, broadcast.b)
        batch = next(iter(data.batches(self.batch_size, self.local_epochs)))
        with torch.no_grad():
            loss = cross_entropy(model(batch.x), batch.y)
        return Check(loss.reshape(1), client.rounds), client.replace(rounds=client.rounds + 100), {"own/check": loss}

    def note(self, ctx: Context, state: Any, updates: Any, cohort: Cohort) -> tuple[Any, Metrics]:
        return state.replace(checks=torch.cat(updates.loss)), {}

    # the task's end
    def pass_on(self, ctx: Context, state: Any) -> Any:
        return Chain(state.chain)

    def extend(self, ctx: Context, broadcast: Any, client: Any, data: ClientData) -> tuple[Any, Any, Metrics]:
        draw = float(ctx.rng("chain").random())
        added = torch.tensor([float(ctx.client), float(client.rounds), draw], device=broadcast.chain.device)
        return Chain(0.5 * broadcast.chain + added), client.replace(rounds=client.rounds + 10_000), {}

    def receive(self, ctx: Context, state: Any, updates: Any, cohort: Cohort) -> tuple[Any, Metrics]:
        return state.replace(chain=updates.chain, visits=state.visits + 1), {}


ALGORITHMS.add("own", Own)
