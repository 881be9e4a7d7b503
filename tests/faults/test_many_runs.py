"""A driver of many runs that is killed at a named moment: in a grid, an ablation, a sweep.

The same command again ends with the models and rows of the one that nothing happened to, and trains no finished run
again.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import flray
from flray.tuning.trials import trials_table
from tests.faults.moments import Moment
from tests.support.truth import assert_true

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
DISPLAY = "flray.tuning.display:Display"
SWEEP = "flray.tuning.sweep"
CELLS = {
    "before the first cell": Moment("before", "flray.tuning.processes:run_jobs"),
    "a cell has ended": Moment("before", f"{DISPLAY}.ended_with"),
    "the second cell has ended": Moment("after", f"{DISPLAY}.ended_with", 1),
    "before the table": Moment("before", "flray.tuning.ablate:compare"),
}
ABLATION = {
    "a cell has ended": Moment("after", f"{DISPLAY}.ended_with"),
    "before its files": Moment("before", "flray.tuning.comparison:write_ablation"),
}
# three trials end before the final runs
OF_SWEEP = {
    "a trial has reported": Moment("after", f"{SWEEP}:StudySearcher.on_trial_result", 1),
    "a trial has ended": Moment("before", f"{SWEEP}:StudySearcher.on_trial_complete", 1),
    "before the final stage": Moment("before", f"{SWEEP}:_final"),
    "before its list is written": Moment("before", f"{SWEEP}:_drop_others"),
    "its list is written": Moment("after", f"{SWEEP}:_drop_others"),
    "before its first run": Moment("before", f"{SWEEP}:run_cells"),
    "its first run has ended": Moment("after", f"{DISPLAY}.ended_with", 3),
    "its runs have ended": Moment("after", f"{SWEEP}:run_cells"),
    "before the figures": Moment("before", f"{SWEEP}:write_report"),
    "before STATUS": Moment("before", f"{SWEEP}:write_status", 1),
}


def many(kind: str, folder: Path, home: Path, moment: Moment | None = None) -> int:
    words = [sys.executable, "-m", "tests.faults.many", kind, str(folder)]
    words += [] if moment is None else [moment.where, moment.function, str(moment.call)]
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "RAY_TMPDIR": str(home)}, capture_output=True, text=True, timeout=900
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
    return done.returncode


def facts(folder: Path) -> dict[str, Any]:
    """Of every run: its model's bytes and its rows without times."""
    found = {}
    for config in sorted(folder.rglob("config.yaml")):
        run = flray.load(config.parent)
        rows = run.rounds[[name for name in run.rounds if not name.startswith("time/")]]
        name = config.parent.relative_to(folder).as_posix()
        found[name] = (run.status, (run.folder / "model.safetensors").read_bytes(), rows.to_dict("list").__repr__())
    return found


def stamps(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("model.safetensors")}


@pytest.fixture(scope="module", params=["grid", "ablate", "sweep"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    """(kind, facts of the undisturbed one, its folder)."""
    root = tmp_path_factory.mktemp(request.param)
    home = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "whole"
    home.mkdir(parents=True, exist_ok=True)
    assert many(request.param, root / "w", home) == 0
    return request.param, facts(root / "w"), root / "w"


OF_COMMAND = {"grid": CELLS, "ablate": ABLATION, "sweep": OF_SWEEP}
MOMENTS = [(kind, name) for kind, moments in OF_COMMAND.items() for name in moments]


@pytest.mark.parametrize("name", [f"{kind}: {name}" for kind, name in MOMENTS])
def test_a_driver_killed_at_a_moment_changes_nothing(
    whole: tuple[str, dict[str, Any], Path], tmp_path: Path, home: Path, name: str
) -> None:
    kind, expected, undisturbed = whole
    if not name.startswith(f"{kind}: "):
        pytest.skip("of another command")
    moment = OF_COMMAND[kind][name.removeprefix(f"{kind}: ")]
    assert many(kind, tmp_path / "w", home, moment) == -signal.SIGKILL
    before = stamps(tmp_path / "w")
    assert many(kind, tmp_path / "w", home) == 0
    assert facts(tmp_path / "w") == expected
    assert before.items() <= stamps(tmp_path / "w").items(), "a finished run was trained again"
    if kind == "sweep":
        drop = ["seconds"]
        assert trials_table(tmp_path / "w").drop(columns=drop).equals(trials_table(undisturbed).drop(columns=drop))
        assert (tmp_path / "w" / "STATUS").read_text() == "finished\n" and assert_true(tmp_path / "w") > 0
        assert (tmp_path / "w" / "final.csv").exists()
    if kind == "ablate":
        assert {path.name for path in (tmp_path / "w").iterdir() if path.is_file()} >= {"ablation.parquet"}
