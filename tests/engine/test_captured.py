"""What decides whether a local step is recorded, and whether its record still holds; the bits: `contracts/`."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch

from flray.algorithms.fedavg import FedAvg
from flray.contracts.played import Local
from flray.core.messages import Broadcast
from flray.engine import captured
from flray.engine.captured import CapturedSteps
from tests.contracts.table import experiment
from tests.support.rerun import Rerun


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


def played(tmp_path, algorithm, rounds=3, **options):
    """(the global model, its steps), with recorded steps and without."""
    found = []
    for kind in ("plain", "recorded"):
        known = isinstance(algorithm, str)
        config = experiment(algorithm if known else "fedavg", options)
        config = config if known else config.model_copy(update={"algorithm": algorithm})
        local = Local(config, tmp_path / kind)
        steps = local.executor.client.captured = CapturedSteps(Rerun) if kind == "recorded" else None
        local.play(rounds)
        found.append(local.server.state.w.numpy().copy())
    return found[0], found[1], steps


def replays(steps):
    return sum(recorded.replays for recorded in steps.recorded.values())


def test_a_learning_rate_that_changes_every_round_is_the_one_of_the_round(tmp_path):
    plain, recorded, steps = played(tmp_path, "fedavg", lr_decay=0.5)
    assert np.array_equal(plain, recorded) and replays(steps) > 0
    assert len({found.reads["clock"].round for found in steps.recorded.values()}) == 3


def test_a_number_in_the_broadcast_is_the_one_of_the_round(tmp_path):
    plain, recorded, steps = played(tmp_path, RoundInBroadcast(lr=0.01))
    assert np.array_equal(plain, recorded) and replays(steps) > 0


def test_kinds_without_end_do_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(captured, "KINDS", 3)
    plain, recorded, steps = played(tmp_path, RoundInBroadcast(lr=0.01), rounds=5)
    assert np.array_equal(plain, recorded) and steps.begun > 0


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
