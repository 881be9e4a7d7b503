"""Local steps as CUDA graphs have the bits of local steps without."""

from __future__ import annotations

import numpy as np
import pytest

from flray.contracts.played import Local
from tests.contracts.table import TABLE
from tests.contracts.traffic import short
from tests.support.devices import finish, numbers

REPEATED = {"fedavg", "fedprox", "scaffold", "fedsol", "fedsam", "moon", "fedntd", "fedprotip", "fedmemo", "fot", "ewc"}


@pytest.mark.parametrize("name", TABLE)
def test_graphs_have_the_same_bits(name, tmp_path, gpu):
    plain, repeated = (Local(short(name), tmp_path / kind, device=gpu) for kind in ("plain", "graphs"))
    steps, plain.executor.client.captured = repeated.executor.client.captured, None
    one, other = (numbers(finish(local, 3)) for local in (plain, repeated))
    assert one.keys() == other.keys()
    for key, array in one.items():
        assert np.array_equal(array, other[key], equal_nan=array.dtype.kind == "f"), key
    replays = sum(found.replays for found in steps.recorded.values())
    print(f"{name}: {replays} steps by a graph; not: {sorted(set(steps.refused.values()))}")
    assert replays or name not in REPEATED
