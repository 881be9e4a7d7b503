"""Local steps that are recorded once and replayed have the bits of steps that are computed each time."""

from __future__ import annotations

import numpy as np
import pytest

from flray.contracts.checks import Reruns
from flray.contracts.played import Local
from flray.engine.captured import CapturedSteps
from tests.contracts.table import TABLE
from tests.contracts.traffic import short
from tests.support.devices import finish, numbers
from tests.support.kinds import KINDS, RECORDED, by_default


@pytest.mark.parametrize("name", by_default((*KINDS, "moon", "er", "perfedavg"), TABLE))
def test_recorded_steps_have_the_same_bits(name, tmp_path):
    plain, recorded = Local(short(name), tmp_path / "plain"), Local(short(name), tmp_path / "recorded")
    steps = recorded.executor.client.captured = CapturedSteps(Reruns())
    one, other = (numbers(finish(local, 3)) for local in (plain, recorded))
    assert one.keys() == other.keys()
    for key, array in one.items():
        assert np.array_equal(array, other[key], equal_nan=array.dtype.kind == "f"), key
    assert steps.replays or name not in RECORDED
