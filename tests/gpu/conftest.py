"""What only a GPU can show: `python -m pytest -m gpu`, with the contracts of every algorithm on it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.devices import using

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """The GPU, on which convolutions compute in float32, not in TF32."""
    with using("cuda") as device:
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
        monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
        yield device
