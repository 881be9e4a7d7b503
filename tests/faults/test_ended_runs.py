"""A run that has ended, and whose tables are lost, torn or another program's: what reads them, and a resume."""

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import flray
from flray.cli import app
from flray.core.schema.errors import CheckpointError, FlrayError
from tests.support import tasks

TABLES = ("rounds", "clients", "tests", "tasks", "personal", "diagnostics/conflict")
FIGURES = ("curves", "tasks", "predicted", "classes", "clients", "conflict", "drift")
READERS = (
    "show {0}", "show {0} --format json", "runs {0}", "compare {0} {1}", "report {0} {1} --out {2}/report.html",
    "watch {0}", "figure ablation {0} {1} --out {2}/f.png", "figure ranks {0} {1} --out {2}/f.png",
    *(f"figure {name} {{0}} --out {{2}}/f.png" for name in FIGURES), "resume {0}",
)  # fmt: skip


def missing(table: Path) -> None:
    shutil.rmtree(table)


def empty(table: Path) -> None:
    for part in table.glob("*.parquet"):
        part.unlink()


def torn(table: Path) -> None:
    for part in table.glob("*.parquet"):
        part.write_bytes(part.read_bytes()[:-30])


def without_rows(table: Path) -> None:
    for part in table.glob("*.parquet"):
        pq.write_table(pq.read_table(part).slice(0, 0).replace_schema_metadata({}), part)


DAMAGES: tuple[Callable[[Path], None], ...] = (missing, empty, torn, without_rows)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run over two tasks."""
    probes = {"evaluate": {"finetune_epochs": [0, 1]}, "diagnostics": ["conflict"]}
    settings = tasks.experiment(rounds=2, tasks={"name": "class_incremental", "num_tasks": 2}, **probes)
    folder = tmp_path_factory.mktemp("ended") / "run"
    flray.run(settings, out=folder, progress=False)
    return folder


@pytest.mark.filterwarnings("ignore::flray.rundir.parts.RowsMissingWarning")
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("table", ["rounds", "tests"])
def test_a_resume_that_trains_nothing_leaves_status_as_it_is(
    ended: Path, tmp_path: Path, table: str, damage: Callable[[Path], None]
) -> None:
    """Its STATUS is not written at all; a lost model is written again, with the same bytes, from the checkpoint."""
    folder = Path(shutil.copytree(ended, tmp_path / "run"))
    damage(folder / table)
    (folder / "model.safetensors").unlink()
    os.utime(folder / "STATUS", ns=(7, 7))
    flray.resume(folder, progress=False)
    assert (folder / "STATUS").read_text() == "finished\n" and (folder / "STATUS").stat().st_mtime_ns == 7
    assert (folder / "model.safetensors").read_bytes() == (ended / "model.safetensors").read_bytes()


def test_a_resume_that_trains_nothing_and_fails_leaves_status_as_it_is(ended: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ended, tmp_path / "run"))
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: a folder is in its place"):
        flray.resume(folder, progress=False)
    assert flray.load(folder).status == "finished"


def test_the_table_of_tests_of_another_program_is_one_line(ended: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ended, tmp_path / "run"))
    part = next((folder / "tests").iterdir())
    for column in ("phase", "task", "set", "mode", "class_right"):
        table = pq.read_table(next((ended / "tests").iterdir())).replace_schema_metadata({})
        pq.write_table(table.drop_columns([column]), part)
        with pytest.raises(CheckpointError, match=f"has no column {column}: another program wrote it"):
            flray.load(folder).task_tests()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("table", TABLES)
def test_every_reader_of_a_damaged_table_shows_what_is_there_or_says_one_line(
    ended: Path, tmp_path: Path, table: str
) -> None:
    """Each table is lost, empty, torn, without rows, and without each of its columns."""

    def without(column: str) -> Callable[[Path], None]:
        def damage(table: Path) -> None:
            for part in table.glob("*.parquet"):
                pq.write_table(pq.read_table(part).replace_schema_metadata({}).drop_columns([column]), part)

        damage.__name__ = f"without {column}"
        return damage

    names = dict.fromkeys(name for part in (ended / table).glob("*.parquet") for name in pq.read_schema(part).names)
    wrong = []
    for damage in (*DAMAGES, *map(without, names)):
        for words in READERS:
            folder = Path(shutil.copytree(ended, tmp_path / "run"))
            damage(folder / table)
            with warnings.catch_warnings(action="ignore"):
                done = CliRunner().invoke(app, words.format(folder, ended, tmp_path).split())
            shutil.rmtree(folder)
            if not isinstance(done.exception, FlrayError | SystemExit | None) or "\n" in str(done.exception or ""):
                wrong.append((damage.__name__, words, repr(done.exception)))
    assert not wrong
