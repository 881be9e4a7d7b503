"""What a probe is shown are copies, of arrays as well as of tensors."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import nn

from flray.core.messages import Record
from flray.core.protocol.probe import ClientView, Observer, Place, Probe
from tests.support.small_cases import context


class Spoils(Probe, frozen=True):
    at: ClassVar[frozenset[Place]] = frozenset({"start"})

    def observe(self, ctx, view, memory):
        view.local.w.zero_()
        view.local.order[:] = -1
        return [{"sum": float(view.broadcast.w.sum())}], None


class Held(Record):
    w: torch.Tensor
    order: np.ndarray


def test_a_probe_that_writes_into_what_it_sees_changes_nothing() -> None:
    held = Held(torch.ones(3), np.arange(3))
    observer = Observer({"spoils": Spoils()}, lambda ctx, reads: ctx)
    observer.observe(context(nn.Linear(2, 2)), ClientView("start", lambda message: None, held, (), held, (), 0))
    assert torch.equal(held.w, torch.ones(3)) and held.order.tolist() == [0, 1, 2]
    assert [row["sum"] for _, row in observer.rows] == [3.0]
