"""After a divergence a rate is proposed that finished in a run beside it, or that flray's configuration has."""

from __future__ import annotations

from pathlib import Path

from flray.results.working_rates import working_rate
from flray.rundir.reader import Run
from tests.support.tables import config, folder


def beside(root: Path, lr: float, accuracy: float, status: str = "finished", source: str = "digits") -> Run:
    name = f"{lr}-{source}-{status[:4]}"
    return Run(folder(root / name, config(lr=lr, data={"source": source}), [accuracy], status))


def test_the_best_finished_rate_below_its_own_of_the_same_setting(tmp_path: Path) -> None:
    lost = beside(tmp_path, 3.0, 0.1, "diverged in round 1: loss is nan")
    beside(tmp_path, 0.1, 0.8)
    beside(tmp_path, 0.3, 0.9)
    beside(tmp_path, 4.0, 0.95)  # above its own
    beside(tmp_path, 0.2, 0.99, source="iris")
    beside(tmp_path, 1.0, 0.99, "diverged in round 2: loss is nan")
    other = config(lr=0.25, data={"source": "digits"}, partition={"name": "iid", "clients": 4})
    folder(tmp_path / "other_partition", other, [0.98], "finished")
    found = working_rate(lost)
    assert found is not None and found.lr == 0.3 and found.where.startswith("90.00% in ")


def test_alone_the_rate_of_flrays_own_configuration_of_the_data(tmp_path: Path) -> None:
    found = working_rate(beside(tmp_path, 3.0, 0.1, "diverged in round 1: loss is nan"))
    assert found is not None and (found.lr, found.where) == (0.05, "the rate of configs/quickstart.yaml")
    assert working_rate(beside(tmp_path / "b", 3.0, 0.1, "diverged in round 1: x", source="nowhere")) is None
