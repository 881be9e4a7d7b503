"""What decides whether a local step is recorded, and whether its record still holds; the bits: `contracts/`."""

from typing import ClassVar

import numpy as np
import pytest
import torch

from flray.algorithms.fedavg import FedAvg, LocalStatistics, SGDState
from flray.contracts.checks import Reruns
from flray.contracts.played import Local
from flray.core.messages import Batch, Broadcast
from flray.engine import captured
from flray.engine.captured import CapturedSteps
from tests.contracts.table import experiment


class Numbered(Broadcast):
    round: int


class RoundInBroadcast(FedAvg[object, Numbered], frozen=True):
    """A step that reads a number of the broadcast."""

    capturable: ClassVar[bool] = True

    def broadcast(self, ctx, state):
        return Numbered(state.w, state.b, ctx.clock.round)

    def gradient(self, ctx, broadcast, client, local, batch):
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        return loss, g.mul_(1 + broadcast.round)


class Silent(RoundInBroadcast, frozen=True):
    """The same without a word on whether its steps can be recorded."""


class KeepsBatch(FedAvg, frozen=True):
    capturable: ClassVar[bool] = True

    def step(self, ctx, broadcast, client, local, batch):
        local = super().step(ctx, broadcast, client, local, batch)
        return local.replace(loss=batch.x.flatten()[0])


class Dropped(FedAvg, frozen=True):
    capturable: ClassVar[bool] = True

    def local_gradient(self, ctx, local, batch):
        x = batch.x + 0.01 * torch.randn_like(batch.x)
        return super().local_gradient(ctx, local, batch.replace(x=x))


class Before(SGDState):
    other: torch.Tensor


class Remembers(FedAvg[object, Broadcast, object, object, Before], frozen=True):
    """w <- w - lr g + 0.5 (w - w of the step before), each a new tensor: two tensors of the state change places."""

    capturable: ClassVar[bool] = True

    def begin(self, ctx, broadcast, client, data):
        local = super().begin(ctx, broadcast, client, data)
        return Before.of(local, other=local.w.clone())

    def step(self, ctx, broadcast, client, local, batch):
        _, g = self.local_gradient(ctx, local, batch)
        return local.replace(w=local.w - self.lr * g + 0.5 * (local.w - local.other), other=local.w)


class Overlaps(Remembers, frozen=True):
    """A state with a part of another tensor of it."""

    capturable: ClassVar[bool] = True

    def begin(self, ctx, broadcast, client, data):
        local = super().begin(ctx, broadcast, client, data)
        w = local.w.clone()
        return local.replace(w=w, other=w[4:20])

    def step(self, ctx, broadcast, client, local, batch):
        _, g = self.local_gradient(ctx, local, batch)
        local.w.add_(g, alpha=-self.lr)
        local.other.mul_(0.9)
        return local


class Old(Batch):
    """A batch of another class."""


class TwoClasses(FedAvg, frozen=True):
    """A step that asks what class its batch has."""

    capturable: ClassVar[bool] = True

    def batches(self, ctx, broadcast, client, local, data):
        for i, batch in enumerate(super().batches(ctx, broadcast, client, local, data)):
            yield Old.of(batch) if i % 2 else batch

    def gradient(self, ctx, broadcast, client, local, batch):
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        return loss, g.mul_(0.5 if isinstance(batch, Old) else 1.0)


class InScratch(FedAvg, frozen=True):
    """The sum of the gradients in scratch, which no field of the state names."""

    capturable: ClassVar[bool] = True

    def begin(self, ctx, broadcast, client, data):
        ctx.objective.scratch("sum", broadcast.w).zero_()
        return super().begin(ctx, broadcast, client, data)

    def gradient(self, ctx, broadcast, client, local, batch):
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        ctx.objective.scratch("sum", g).add_(g)
        return loss, g

    def end(self, ctx, broadcast, client, local, data):
        local.w.add_(ctx.objective.scratch("sum", local.w), alpha=-0.01)
        return super().end(ctx, broadcast, client, local, data)


class DrawsTwice(FedAvg, frozen=True):
    """A step that draws from torch's generator, and then from its own."""

    capturable: ClassVar[bool] = True

    def local_gradient(self, ctx, local, batch):
        noise = 0.01 * torch.randn_like(batch.x)
        more = float(ctx.rng("more", local.moments.steps).random())
        return super().local_gradient(ctx, local, batch.replace(x=batch.x + more * noise))


class Listed(SGDState):
    rates: list


class HasList(FedAvg[object, Broadcast, object, object, Listed], frozen=True):
    """A state with a value that no message may have."""

    capturable: ClassVar[bool] = True

    def begin(self, ctx, broadcast, client, data):
        return Listed.of(super().begin(ctx, broadcast, client, data), rates=[1.0])


class CountsDown(FedAvg, frozen=True):
    """A number of the state that becomes 0."""

    capturable: ClassVar[bool] = True

    def begin(self, ctx, broadcast, client, data):
        return Left.of(super().begin(ctx, broadcast, client, data), left=4)

    def gradient(self, ctx, broadcast, client, local, batch):
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        return loss, g.mul_(0.1 if local.left == 0 else 1.0)

    def step(self, ctx, broadcast, client, local, batch):
        local = super().step(ctx, broadcast, client, local, batch)
        return local.replace(left=local.left - 1 if local.left else 0)


class Shared(SGDState):
    number: int
    own: torch.Tensor


class SharesClient(FedAvg[object, Broadcast, object, LocalStatistics, Shared], frozen=True):
    """A state with a tensor of the client's own, to which a step writes, and a whole number that is no count."""

    capturable: ClassVar[bool] = True

    def init_client(self, ctx):
        return LocalStatistics(torch.zeros(ctx.objective.layout.size))

    def begin(self, ctx, broadcast, client, data):
        return Shared.of(super().begin(ctx, broadcast, client, data), number=ctx.num_examples, own=client.b)

    def gradient(self, ctx, broadcast, client, local, batch):
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        return loss, g.add_(local.own.add_(g, alpha=0.1)).div_(local.number / 20)

    def end(self, ctx, broadcast, client, local, data):
        return super().end(ctx, broadcast, client, local, data)[0], LocalStatistics(local.own.clone())


class Left(SGDState):
    left: int


def played(tmp_path, algorithm, rounds=3, **options):
    """(the global model, its steps), with recorded steps and without."""
    found = []
    for kind in ("plain", "recorded"):
        known = isinstance(algorithm, str)
        config = experiment(algorithm if known else "fedavg", options)
        config = config if known else config.model_copy(update={"algorithm": algorithm})
        local = Local(config, tmp_path / kind)
        steps = local.executor.client.captured = CapturedSteps(Reruns()) if kind == "recorded" else None
        local.play(rounds)
        found.append(local.server.state.w.numpy().copy())
    return found[0], found[1], steps


def test_a_learning_rate_that_changes_every_round_is_the_one_of_the_round(tmp_path):
    plain, recorded, steps = played(tmp_path, "fedavg", lr_decay=0.5)
    assert np.array_equal(plain, recorded) and steps.replays > 0
    assert len({found.reads["clock"].round for found in steps.recorded.values()}) == 3


def test_a_number_in_the_broadcast_is_the_one_of_the_round(tmp_path):
    plain, recorded, steps = played(tmp_path, RoundInBroadcast(lr=0.01))
    assert np.array_equal(plain, recorded) and steps.replays > 0


def test_kinds_without_end_do_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(captured, "KEPT", 0)
    monkeypatch.setattr(captured, "GRAPHS", 2)
    plain, recorded, steps = played(tmp_path, RoundInBroadcast(lr=0.01), rounds=5)
    assert np.array_equal(plain, recorded) and steps.graphs.renewed > 0


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        (Silent(lr=0.01), None),
        (FedAvg(optimizer="adam"), None),
        (KeepsBatch(), "its local state keeps the batch"),
        (Dropped(), "it draws random numbers"),
    ],
)
def test_what_is_not_recorded(algorithm, why, tmp_path):
    plain, recorded, steps = played(tmp_path, algorithm)
    assert np.array_equal(plain, recorded) and not steps.recorded
    assert set(steps.refused.values()) == ({why} if why else set())


RECORDED = (Remembers, TwoClasses, InScratch, CountsDown, SharesClient)


@pytest.mark.parametrize("kind", [*RECORDED, Overlaps, DrawsTwice, HasList])
def test_states_that_are_not_what_flray_s_own_are(kind, tmp_path):
    plain, recorded, steps = played(tmp_path, kind(lr=0.05, local_epochs=5, batch_size=8))
    assert np.array_equal(plain, recorded) and (steps.replays > 0) == (kind in RECORDED)
