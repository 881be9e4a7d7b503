"""A sweep's folder on a full disk, and with each of its files damaged: one line, or the right trials and values."""

import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas
import pytest

import flray
from flray.core.schema.errors import FlrayError
from flray.rundir.parts import RowsMissingWarning
from flray.tuning.studies import Studies
from flray.tuning.sweep import StudySearcher, resume_sweep, run_sweep
from flray.tuning.trials import trials_table
from tests.faults.many import SWEEP
from tests.support.iris_sweep import ended, iris_sweep

Disk = tuple[Path, Callable[[], None], Callable[[], None]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


# a full study journal ----------------------------------------------------------------------------
def searcher_of(folder: Path, trials: int = 12) -> StudySearcher:
    folder.mkdir(exist_ok=True)
    sweep = iris_sweep(trials=trials)
    (folder / "sweep.yaml").write_text(sweep.yaml())
    return StudySearcher(Studies(sweep, folder), lambda *suggested: {"suggested": suggested}, lambda: False)


def trials_of(searcher: StudySearcher) -> Iterator[tuple[str, dict[str, Any]]]:
    """Runs the trials to the end, or to the searcher's error."""
    while searcher.studies.error is None and (found := searcher.suggest("a")) != StudySearcher.FINISHED:
        key, overrides, _ = found["suggested"]
        searcher.on_trial_result("a", {"round": 2, "val/acc": overrides["algorithm.rho"] / 10})
        yield key, overrides
        searcher.on_trial_complete("a", ended(overrides["algorithm.rho"] / 5))


@pytest.mark.parametrize("at", [0, 1, 4, 7])
def test_a_journal_that_is_full_is_one_line_and_goes_on_with_room(disk: Disk, tmp_path: Path, at: int) -> None:
    """A real ENOSPC from trial number `at` on (the journal's last block has some room): no other trial begins, and the
    resumed sweep has the suggestions and values of one on a disk with room."""
    home, fill, make_room = disk
    expected = list(trials_of(searcher_of(tmp_path / "whole")))
    searcher = searcher_of(home / "s")
    begun = 0
    for begun, _ in enumerate(trials_of(searcher), start=1):
        if begun == at + 1:
            fill()
    error = searcher.studies.error
    said = str(error)
    assert isinstance(error, FlrayError) and "\n" not in said and "study.journal cannot be used" in said
    assert "No space left" in said and said.endswith(f"free some space and run: flray sweep {home / 's'} --resume")
    assert at + 1 <= begun < len(expected)
    make_room()
    list(trials_of(searcher_of(home / "s")))
    # a driver that fails while it asks for a trial uses its number up
    one, other = (trials_table(folder).drop(columns=["trial", "folder"]) for folder in (home / "s", tmp_path / "whole"))
    assert one.equals(other) and set(one["state"]) == {"finished"} and len(one) == len(expected)


# damaged files -----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def whole(ray_cluster: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep with rungs."""
    from flray.tuning.sweep_file import load_sweep

    folder = tmp_path_factory.mktemp("sweep") / "s"
    rule = {"name": "asha", "grace": 2, "reduction": 2}
    run_sweep(load_sweep({**SWEEP, "scheduler": rule, "final": {"top": 1, "seeds": 1}}), folder, progress=False)
    return folder


def facts(folder: Path) -> tuple[Any, Any]:
    """The trials without times, and the final table's accuracy."""
    table = trials_table(folder).drop(columns=["seconds"])
    finals = sorted(path.parent for path in (folder / "final").glob("*/config.yaml"))
    # lost rows are said, and such a run is in no table
    with warnings.catch_warnings(action="error", category=RowsMissingWarning):
        return table.to_dict("records").__repr__(), [flray.load(path).rounds["test/acc"].iloc[-1] for path in finals]


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        junk = {"truncated": content[: len(content) // 2], "empty": b"", "junk": b"\x07\xff{" * 100}
        path.write_bytes(junk[how])


FILES = ["sweep.yaml", "beginning.json", "study.journal", "rungs.json", "STATUS", "sweep.parquet", "final.csv"]
FILES += ["final.md", "final/.made"]
OF_RUNS = ["config.yaml", "STATUS", "environment.json", "model.safetensors", "rounds/part-0000.parquet"]
OF_RUNS = [f"{home}/{name}" for home in ("trials/0000", "final/*") for name in OF_RUNS]


@pytest.mark.parametrize("how", ["truncated", "junk", "empty", "missing"])
@pytest.mark.parametrize("name", FILES + OF_RUNS)
def test_a_damaged_file_of_a_sweep_is_one_line_or_changes_nothing(
    ray_cluster: ModuleType, whole: Path, tmp_path: Path, name: str, how: str
) -> None:
    expected, folder = facts(whole), tmp_path / "s"
    shutil.copytree(whole, folder)
    (path,) = folder.glob(name)
    damage(path, how)
    try:
        resume_sweep(folder, [], progress=False)
        found = facts(folder)
    except (FlrayError, RowsMissingWarning) as error:
        assert "\n" not in str(error) and str(error).isprintable()
        return
    assert found == expected
    assert pandas.read_parquet(folder / "sweep.parquet")["val/acc"].equals(trials_table(folder)["val/acc"])
