"""A run folder from somebody else is data: looking at it runs no code that it names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import flray
from flray.cli import app

MODULE = "foreign_module"
LOOKS = (
    "show {folder}", "runs {parent}", "compare {folder} {folder}", "figure curves {folder} --out {parent}/curves.png",
    "report {folder} --out {parent}/report", "watch {folder} --format json",
)  # fmt: skip


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that imported a module, whose text now writes the file `ran` beside the folder when it is imported."""
    home = tmp_path_factory.mktemp("foreign")
    module, folder = home / f"{MODULE}.py", home / "run"
    module.write_text("")
    settings = {
        "rounds": 2, "imports": [MODULE], "data": {"source": "iris"}, "partition": {"name": "iid", "clients": 3},
        "algorithm": "fedavg", "model": {"name": "mlp", "hidden": [4]}, "resources": {"executor": "local"},
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(home)
        flray.run(settings, out=folder, progress=False)
        module.write_text(f"open({str(home / 'ran')!r}, 'w').close()\n")
        yield folder


@pytest.fixture(autouse=True)
def _not_imported(foreign: Path) -> None:
    sys.modules.pop(MODULE, None)
    (foreign.parent / "ran").unlink(missing_ok=True)


@pytest.mark.parametrize("words", LOOKS, ids=lambda words: words.split()[0])
def test_a_command_that_looks_imports_nothing_that_the_folder_names(foreign: Path, words: str) -> None:
    command = words.format(folder=foreign, parent=foreign.parent).split()
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert MODULE not in sys.modules and not (foreign.parent / "ran").exists()


def test_tables_are_read_without_it_and_the_experiment_is_not(foreign: Path) -> None:
    """`experiment` is a record of the algorithm's class, which the named module may define: it is imported."""
    run = flray.load(foreign)
    assert len(run.rounds) == 2 and len(run.clients) and len(run.tests) and run.status == "finished"
    assert not (foreign.parent / "ran").exists()
    assert run.experiment.imports == (MODULE,)
    assert (foreign.parent / "ran").exists()


def test_the_files_of_a_folder_are_of_kinds_that_contain_no_code(foreign: Path) -> None:
    files = [path for path in foreign.rglob("*") if path.is_file()]
    kinds = {path.suffix for path in files if not path.name.startswith("events.out.tfevents")}
    assert kinds <= {"", ".csv", ".json", ".npy", ".parquet", ".safetensors", ".yaml"}
    for path in foreign.rglob("*.npy"):
        np.load(path, allow_pickle=False)
