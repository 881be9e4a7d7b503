"""The bits of a run do not depend on how its cohort is cut into chunks: with samples and batches of odd sizes, whose
memory begins anywhere if the engine does not see to it."""

from pathlib import Path
from typing import Any

import pytest

import flray
from flray.engine.local_executor import LocalExecutor
from tests.support.even import EVEN
from tests.support.stopped import model


def trained(
    folder: Path, chunks: int, shape: Any, batch: int, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> bytes:
    monkeypatch.setattr(LocalExecutor, "num_chunks", chunks)
    sections = {
        **EVEN,
        "seed": 0,
        "data": {"source": "synthetic", "options": {"num_train": 80, "num_test": 40, "shape": shape, "num_classes": 4}},
        "partition": {"name": "dirichlet", "clients": 10, "alpha": 0.5, "min_size": 2},
        "algorithm": {"name": algorithm, "lr": 0.1, "local_epochs": 2, "batch_size": batch},
    }
    return model(flray.run(sections, out=folder, progress=False))


CASES = [(6, 4, "fedavg"), (13, 3, "fedavg"), ([5, 5, 1], 3, "fedntd"), ([7, 6, 3], 5, "fedavg"), (3, 5, "moon")]


@pytest.mark.parametrize(("shape", "batch", "algorithm"), CASES)
def test_one_chunk_and_several_have_the_same_bits(
    tmp_path: Path, shape: Any, batch: int, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [trained(tmp_path / str(n), n, shape, batch, algorithm, monkeypatch) for n in (1, 2, 4)]
    assert runs[0] == runs[1] == runs[2]
