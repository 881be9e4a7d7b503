"""Run folders of every released version are read by this one (`released/VERSION/`; the promise in CHANGELOG.md).

The expected numbers are counted from the stored Parquet and safetensors files with pyarrow and NumPy.
"""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

import flray
from tests.support.commands import succeeded

RELEASED = Path(__file__).parent / "released"
FOLDERS = sorted(path.parent for path in RELEASED.glob("*/*/config.yaml"))
NAMES = [str(path.relative_to(RELEASED)) for path in FOLDERS]


def test_every_release_has_folders() -> None:
    assert FOLDERS and {path.parent.name for path in FOLDERS} == {path.name for path in RELEASED.iterdir()}


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_tables_have_the_stored_rows_and_accuracies(folder: Path) -> None:
    run = flray.load(folder)
    counts = pq.read_table(folder / "tests").to_pydict()
    columns = (counts[name] for name in ("set", "phase", "mode", "done", "right", "total"))
    accuracy = {
        done: right / total
        for name, phase, mode, done, right, total in zip(*columns, strict=True)
        if (name, phase, mode) == ("test", "round", "global")
    }
    accuracy.pop(0, None)  # of the initial model, which has no round
    assert accuracy and run.status == "finished"
    read = run.rounds.set_index("done")["test/acc"].dropna()
    assert read.to_dict() == pytest.approx(accuracy)
    for name in ("rounds", "clients", "tests", "tasks"):
        assert len(getattr(run, name)) == pq.read_table(folder / name).num_rows


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_the_configuration_runs_from_the_stored_model(folder: Path, ray_cluster: object, tmp_path: Path) -> None:
    overrides = ("rounds=1", f"model.weights={folder}")
    again = flray.run(folder / "config.yaml", *overrides, out=tmp_path / "again", progress=False)
    stored = load_file(folder / "model.safetensors")
    assert sum(map(np.size, stored.values())) == again.environment["actors"]["parameters"]


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
@pytest.mark.parametrize(
    "command", ["show {}", pytest.param("report {} --out {out}/report.html", marks=pytest.mark.slow)]
)
def test_commands_read_it(folder: Path, command: str, tmp_path: Path) -> None:
    succeeded(*command.format(folder, out=tmp_path).split())
