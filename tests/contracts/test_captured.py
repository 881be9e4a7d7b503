"""Local steps that are recorded once and replayed have the bits of steps that are computed each time."""

from typing import ClassVar

import numpy as np
import pytest
import torch

from flray.algorithms.fedavg import FedAvg
from flray.contracts.checks import Reruns
from flray.contracts.played import Local
from flray.engine.captured import CapturedSteps
from tests.contracts.table import TABLE
from tests.contracts.traffic import short
from tests.support import second_device
from tests.support.devices import finish, numbers, using
from tests.support.kinds import KINDS, RECORDED, by_default


def same_bits(plain, recorded, graphs, rounds=3):
    """The recorded steps of the second run, after both."""
    steps = recorded.executor.client.captured = CapturedSteps(graphs)
    one, other = (numbers(finish(local, rounds)) for local in (plain, recorded))
    assert one.keys() == other.keys()
    for key, array in one.items():
        assert np.array_equal(array, other[key], equal_nan=array.dtype.kind == "f"), key
    return steps


@pytest.mark.parametrize("name", by_default((*KINDS, "moon", "er", "perfedavg"), TABLE))
def test_recorded_steps_have_the_same_bits(name, tmp_path):
    plain, recorded = Local(short(name), tmp_path / "plain"), Local(short(name), tmp_path / "recorded")
    assert same_bits(plain, recorded, Reruns()).replays or name not in RECORDED


@pytest.mark.parametrize("name", by_default(RECORDED - {"fedprotip", "fot"}, TABLE))
def test_steps_repeated_by_their_operations_alone_have_the_same_bits(name, tmp_path):
    """On the strict device, as on a GPU: no Python runs in a replay, and while a step is recorded, what the host reads
    or uploads is an error."""
    with using("strict") as device:
        plain, recorded = (Local(short(name), tmp_path / kind, device=device) for kind in ("plain", "recorded"))
        steps = same_bits(plain, recorded, second_device.Graphs(), rounds=2)
    if name in RECORDED:
        assert steps.replays and not steps.refused


class Odd(FedAvg, frozen=True):
    """A step with something that no graph can follow."""

    capturable: ClassVar[bool] = True
    what: str = "reads"

    def gradient(self, ctx, broadcast, client, local, batch):
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        if self.what == "reads":
            g.mul_(min(float(loss), 1.0))
        elif self.what == "branches":
            g = g if loss > 0 else -g
        elif self.what == "uploads":
            g.mul_(torch.ones(len(g)).to(g.device))
        return loss, g


@pytest.mark.parametrize("what", ["reads", "branches", "uploads"])
def test_a_step_with_a_value_of_the_host_is_not_recorded(what, tmp_path):
    config = short("fedavg").model_copy(update={"algorithm": Odd(lr=0.05, what=what)})
    with using("strict") as device:
        plain, recorded = (Local(config, tmp_path / kind, device=device) for kind in ("plain", "recorded"))
        steps = same_bits(plain, recorded, second_device.Graphs(), rounds=2)
    assert steps.refused and not steps.recorded and not steps.replays


def test_a_replay_reads_the_memory_of_the_recording_and_numbers_of_python_as_they_were():
    with using("strict") as device:
        x, other, factor = torch.tensor([1.0, 2.0]).to(device), torch.tensor([5.0, 5.0]).to(device), 3.0
        recording = second_device.Recording()
        with recording.block():
            y = (x * factor)[1:]
            y.add_(1.0)
        assert y.tolist() == [7.0]
        factor = 100.0
        x.copy_(other)
        recording.replay()
        assert y.tolist() == [16.0]
        x = other * 100.0
        recording.replay()
        assert y.tolist() == [16.0]
