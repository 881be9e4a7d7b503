"""The numbers of an experiment on a device, to be compared with those of the CPU."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flray.contracts.played import Local, flatten
from flray.core.protocol.clock import Clock
from flray.engine import devices
from tests.support import second_device


@contextlib.contextmanager
def using(name: str) -> Iterator[torch.device]:
    """The device of this name: `cpu`, `strict` (tests/support/second_device.py), or `cuda` as a run sets it up, without
    which the test is skipped."""
    if name == "strict":
        # in one thread: the autograd engine makes its threads once, for the devices that exist at the first backward
        with torch.autograd.set_multithreading_enabled(False):
            yield second_device.device()
        return
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU: torch.cuda.is_available() is False on this machine")
    devices.set_up(name, "fp32")
    yield torch.device(name)


def finish(local: Local, rounds: int) -> Local:
    """So many rounds; over tasks all that is left of the schedule."""
    if local.experiment.tasks is None:
        local.play(rounds)
    else:
        while (clock := next(local.schedule(), None)) is not None:
            local.exchanges(clock)
    return local


def numbers(local: Local) -> dict[str, np.ndarray]:
    """All that an experiment has shown: states of the server and the clients, the rounds' metrics, scores of the
    clients' own predictors, and the test's counts in every inference mode."""
    found = {f"server {name}": array for name, array in flatten(local.state).items()}
    for client, state in local.client_states().items():
        found |= {f"client {client} {name}": array for name, array in flatten(state).items()}
    for round, row in enumerate(local.rows):
        found |= {f"round {round} {name}": np.asarray(value) for name, value in row.items() if "time/" not in name}
    found["personal scores"] = local.personal().cpu().numpy()
    if local.experiment.algorithm.global_model:
        task, round, done, phase = local.position
        for key, counts in local.server.evaluate(Clock(task, round, phase, done=done)).items():
            found |= {f"test {key} {name}": np.asarray(getattr(counts, name)) for name in ("right", "total", "loss")}
    return found


def played(experiment: Any, folder: Path, device: str, rounds: int = 1) -> dict[str, np.ndarray]:
    """:func:`numbers` of a new run on a device."""
    with using(device) as where:
        return numbers(finish(Local(experiment, folder / device, device=where), rounds))


def assert_close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float) -> None:
    """The same names, shapes and types, and numbers that differ by at most `tolerance` (relative above 1)."""
    assert found.keys() == expected.keys()
    for name, array in found.items():
        other = expected[name]
        assert array.shape == other.shape and array.dtype == other.dtype, name
        if array.dtype.kind in "fc":
            np.testing.assert_allclose(array, other, rtol=tolerance, atol=tolerance, err_msg=name)
        else:
            assert np.array_equal(array, other), name
