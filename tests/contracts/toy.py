"""An algorithm that needs all that the interface has, over tasks: what continual learning will ask of the engine.

A state that grows by task, a second exchange that depends on the first, a generator network, a wrapped module,
exemplars by sample number, an update pooled in each of the three ways, two label sets in one step, clients without
data of the task, a shared part of a broadcast, two inference modes, and a probe with memory on the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg, SGDState
from flray.core.messages import Batch, Broadcast, ClientState, Cohort, Metrics, Record, ServerState, Update
from flray.core.messages.fields import each, shared, sum
from flray.core.protocol.algorithm import ClientData, Context, Exchange
from flray.core.protocol.inputs import Inputs
from flray.core.protocol.modes import Mode
from flray.core.protocol.probe import FinishView, Place, Probe, Row
from flray.metrics.probes import PROBES
from flray.ops.losses import cross_entropy, kl

KEPT = 3  # exemplars of a task


class Scaled(nn.Module):
    """The configured network with one more parameter, a scale of its logits."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.scale = inner, nn.Parameter(torch.rand(1) + 0.5)

    @property
    def head(self) -> nn.Module:
        return self.inner.head

    def features(self, x: Tensor) -> Tensor:
        return self.inner.features(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.inner(x)


class ToyState(ServerState):
    generator: Tensor
    images: Tensor  # [n, d], made by the generator at the beginning of each task
    bases: dict[str, Tensor]  # one a task, whose width the clients decide
    alarm: bool
    samples: float


class ToyDown(Broadcast):
    images: Tensor = shared()
    alarm: bool = False


class ToyClient(ClientState):
    exemplars: Tensor  # sample numbers


class ToyUpdate(Update):
    samples: Tensor = sum()
    sketch: Tensor = each()  # [classes held, P'], ragged
    exemplars: Tensor | None = each()


class Count(Record):
    exemplars: Tensor = sum()


class Toy(FedAvg, frozen=True):
    keeps_exemplars: ClassVar[bool] = True

    # networks
    def module(self, model: nn.Module, inputs: Inputs) -> nn.Module:
        return Scaled(model)

    def networks(self, model: nn.Module, inputs: Inputs) -> Mapping[str, nn.Module]:
        return {"generator": nn.Linear(3, 64)}

    # when
    def next_exchange(self, ctx: Context, state: Any) -> Exchange | None:
        phase, number = ctx.clock.phase, ctx.clock.exchange
        if phase == "round":
            repair = Exchange("repair", self.broadcast, self.repaired, self.repair, who=2)
            return [self.training, repair if state.alarm else None, None][number]
        if phase == "task_begin":
            make = Exchange("make", self.ask, self.make, self.answer, who="task")
            return make if number == 0 else None
        count = Exchange("count", self.ask, self.counted, self.answer, who="stateful")
        return count if number == 0 else None

    # server
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> Any:
        generator = ctx.net["generator"].initial()[0]
        return ToyState(w, b, generator, torch.zeros(0, 64), {}, False, 0.0)

    def broadcast(self, ctx: Context, state: Any) -> Any:
        return ToyDown(state.w, state.b, state.images, state.alarm)

    def aggregate(self, ctx: Context, state: Any, updates: Any, cohort: Cohort) -> tuple[Any, Metrics]:
        rank = {f"task {ctx.clock.task}": torch.cat([s.mean(0, keepdim=True) for s in updates.sketch])}
        alarm = float((updates.w - state.w).norm()) > 0.5
        changed = state.replace(w=updates.w, b=updates.b, alarm=alarm, samples=state.samples + float(updates.samples))
        return changed.replace(bases={**state.bases, **rank}), {"toy/rank": next(iter(rank.values())).norm()}

    def repaired(self, ctx: Context, state: Any, updates: Any, cohort: Cohort) -> tuple[Any, Metrics]:
        return state.replace(w=0.5 * (state.w + updates.w), alarm=False), {"toy/repaired": 1.0}

    def ask(self, ctx: Context, state: Any) -> Any:
        return Record()

    def make(self, ctx: Context, state: Any, updates: Any, cohort: Cohort) -> tuple[Any, Metrics]:
        z = torch.from_numpy(ctx.rng("images").normal(size=(8, 3))).float()
        return state.replace(images=ctx.net["generator"].at(state.generator, state.b[:0])(z)), {}

    def counted(self, ctx: Context, state: Any, updates: Any, cohort: Cohort) -> tuple[Any, Metrics]:
        return state, {"toy/exemplars": updates.exemplars, "toy/without_data": (cohort.num_examples == 0).sum()}

    def modes(self, ctx: Context) -> Mapping[str, Mode]:
        return {"global": Mode(self.predict), "seen": Mode(self.of_seen)}

    def of_seen(self, ctx: Context, published: Any, x: Tensor) -> Tensor:
        """Logits of all classes, those of classes that no task had so far as low as can be."""
        logits = self.predict(ctx, published, x)
        low = torch.full_like(logits, -1e9)
        return low.index_copy(1, ctx.classes.seen.index, ctx.classes.seen.narrow(logits))

    # client
    def init_client(self, ctx: Context) -> Any:
        return ToyClient(torch.zeros(0, dtype=torch.int64))

    def batches(self, ctx: Context, broadcast: Any, client: Any, local: SGDState, data: ClientData) -> Iterable[Batch]:
        return data.with_samples(client.exemplars.numpy()).batches(self.batch_size, steps=5)

    def gradient(self, ctx: Context, broadcast: Any, client: Any, local: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy over the classes seen, and the KL to the global model over the old ones, from one pass."""
        seen, old = ctx.classes.seen, ctx.classes.old
        with torch.no_grad():
            target = old.narrow(ctx.objective.at(broadcast.w, broadcast.b)(batch.x))

        def loss(f: Any) -> Tensor:
            logits = f(batch.x)
            value = cross_entropy(logits, batch.y, seen)
            return value + kl(target, old.narrow(logits), 2.0) if len(old) else value

        return ctx.objective.value_and_grad(loss, local.w, local.b, out=local.grad)

    def end(self, ctx: Context, broadcast: Any, client: Any, local: Any, data: ClientData) -> tuple[Any, Any]:
        labels = torch.cat([batch.y for batch in data.plain])
        sketch = torch.stack([torch.full((4,), float((labels == y).sum())) for y in labels.unique()])
        kept = client
        if data.previous is not None:  # the first round of a new task: what of the one before is kept
            before = data.previous.numbers
            chosen = ctx.rng("exemplars").choice(before, min(KEPT, len(before)), replace=False)
            kept = ToyClient(torch.cat([client.exemplars, torch.from_numpy(chosen.astype(np.int64))]))
        held = kept.exemplars if len(kept.exemplars) else None
        images = broadcast.images.mean() if len(broadcast.images) else 0.0
        update = ToyUpdate(local.w, local.b, torch.tensor([float(len(labels))]) + images, sketch, held)
        return update, kept

    def repair(self, ctx: Context, broadcast: Any, client: Any, data: ClientData) -> tuple[Any, Any, Metrics]:
        return Update(broadcast.w * 0.99, broadcast.b), client, {"toy/noise": ctx.rng("repair").random()}

    def answer(self, ctx: Context, broadcast: Any, client: Any, data: ClientData) -> tuple[Any, Any, Metrics]:
        return Count(torch.tensor([float(len(client.exemplars))])), client, {}


class Movement(Probe, frozen=True):
    """The distance of the global model from where it was two finished exchanges ago."""

    at: ClassVar[frozenset[Place]] = frozenset({"finish"})

    def observe(self, ctx: Context, view: FinishView, memory: Any) -> tuple[Sequence[Row], Any]:
        torch.rand(3)  # its own draws are its own
        before = view.before.w if memory is None else memory["w"]
        return [{"moved": float((view.after.w - before).norm())}], {"w": view.before.w}


ALGORITHMS.add("toy", Toy)
PROBES.add("toy_movement", Movement)
