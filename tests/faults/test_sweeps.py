"""Sweeps beside each other, and sweeps whose trials crash."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import flray
from flray.tuning.drive import LOST
from flray.tuning.sweep import resume_sweep, run_sweep
from flray.tuning.sweep_file import load_sweep
from flray.tuning.trials import trials_table
from tests.support import heads
from tests.support.iris_sweep import EXPERIMENT, SPACE
from tests.support.sweeps import suggested
from tests.support.truth import assert_true

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]


# two at once -------------------------------------------------------------------------------------
def sweep_file(folder: Path, name: str, **changes: Any) -> Path:
    settings = {
        "name": name,
        "experiment": {**EXPERIMENT, "rounds": 12, "checkpoint": {"every": 4}},
        "space": SPACE,
        "trials": 4,
        "scheduler": {"name": "asha", "grace": 3, "reduction": 2},
        "concurrency": 1,
        "final": {"top": 1, "seeds": 2},
        **changes,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def started(words: list[str | Path], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "flray", "sweep", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(*processes: subprocess.Popen[str]) -> list[tuple[int, str]]:
    """(exit code, stderr) of each."""
    errors = [process.communicate(timeout=900)[1] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, errors, strict=True)]


def test_two_sweeps_on_one_ray_find_what_each_finds_alone(tmp_path: Path) -> None:
    """Two processes, one cluster, which has room for both: neither knows of the other."""
    alone, together = tmp_path / "alone", tmp_path / "together"
    with heads.ray_head(cpus=2) as head:
        shell = {**head.environment, "PYTHONPATH": str(ROOT)}
        files = [sweep_file(tmp_path, "one"), sweep_file(tmp_path, "two", seed=1)]
        words = [[path, f"experiment.address={head.address}", "--out"] for path in files]
        both = [started([*each, together / each[0].stem], **shell) for each in words]
        said = ended(*both)
        assert [code for code, _ in said] == [0, 0], said
        for each in words:
            (code, text), *_ = ended(started([*each, alone / each[0].stem], **shell))
            assert code == 0, text
    for name in ("one", "two"):
        assert (together / name / "STATUS").read_text() == "finished\n"
        assert suggested(together / name) == suggested(alone / name)
        assert assert_true(together / name) > 0
        for run in sorted(path for path in (alone / name / "final").iterdir() if path.is_dir()):
            model = (run / "model.safetensors").read_bytes()
            assert model == (together / name / "final" / run.name / "model.safetensors").read_bytes()
    assert suggested(together / "one") != suggested(together / "two")


# trials that crash -------------------------------------------------------------------------------
def crashing(log: Path, **changes: Any) -> Any:
    algorithm = {"name": "crashing", "lr": 0.05, "local_epochs": 1, "batch_size": 8, "log": str(log)}
    experiment = {**EXPERIMENT, "algorithm": algorithm, "checkpoint": {"every": 2}}
    return load_sweep(
        {
            "name": "crashing",
            "experiment": {**experiment, "imports": ["tests.faults.crashing"]},
            "space": {"algorithm.how": ["not", "raises", "dies once", "dies"]},
            "sampler": "qmc",
            "trials": 6,
            "scheduler": "none",
            "concurrency": 1,
            "final": {"top": 1, "seeds": 1},
            **changes,
        }
    )


def test_a_sweep_goes_on_when_trials_crash(
    ray_cluster: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log, folder = tmp_path / "log", tmp_path / "s"
    log.mkdir()
    run_sweep(crashing(log), folder)
    said = capfd.readouterr().err
    table = trials_table(folder).set_index("algorithm.how")
    assert {"not", "raises", "dies once", "dies"} == set(table.index), "otherwise nothing is shown"
    states = {how: set(table.loc[[how], "state"]) for how in table.index}
    assert states == {"not": {"finished"}, "raises": {"failed"}, "dies once": {"finished"}, "dies": {"failed"}}
    values = {how: set(table.loc[[how], "val/acc"].dropna()) for how in ("not", "dies once")}
    assert len(values["not"]) == 1 and values["dies once"] == values["not"], "a death cost no bit"
    assert "ArithmeticError: made up by the test" in said and "its processes were lost too often" in said
    for how, deaths in (("not", 0), ("raises", 0), ("dies once", 1), ("dies", 1 + LOST)):
        for run in table.loc[[how], "folder"]:
            assert len(list(log.glob(f"{Path(run).name} *"))) == deaths
    for run in table.loc[["raises"], "folder"]:
        assert flray.load(folder / run).status.startswith("failed: Crashing.aggregate failed in task 0, round 4: ")
    assert (folder / "STATUS").read_text() == "finished\n"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("part-*.parquet")}
    resume_sweep(folder, [], progress=False)  # a trial that failed has had its turn
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("part-*.parquet")} == before
    assert trials_table(folder).set_index("algorithm.how").equals(table)
