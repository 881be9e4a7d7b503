"""`flray sweep` and `flray ablate` as a user types them: what is checked first, what is said at the end, Ctrl-C."""

import importlib.util
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from flray.cli.sweeps import _report, _suggest_after_ablation, _suggest_after_sweep
from flray.core.schema.errors import ConfigError
from tests.support.commands import interrupted, invoke, succeeded
from tests.support.iris_sweep import EXPERIMENT, iris_sweep
from tests.support.messages import assert_says, mistakes
from tests.support.sweep_folders import FakeSweep
from tests.support.tables import folder


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    (tmp_path / "iris.yaml").write_text(yaml.safe_dump({"name": "iris", **EXPERIMENT, "rounds": 1, "evaluate": {}}))
    return tmp_path / "iris.yaml"


def write_sweep(home: Path, **changes: Any) -> Path:
    (home / "tiny.yaml").write_text(iris_sweep(**{"trials": 2, "final": {"top": 1, "seeds": 2}, **changes}).yaml())
    return home / "tiny.yaml"


# ablate ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "facts"),
    mistakes("""
--metric nonsense | no column 'nonsense'; choose one of test/acc, test/acc_best
--metric val/acc | no column 'val/acc'
--metric personal/ft5/acc_mean | no column 'personal/ft5/acc_mean'; choose one of | personal/ft1/acc_mean
--against lr=7 | 'lr=7' is none of the settings: algorithm=fedsol,algorithm.lr=0.01; algorithm=fedsol,
--against rho=0 | rho
--against fedavg | fedavg
    """),
)
def test_what_an_ablation_compares_is_checked_before_anything_runs(
    experiment: Path, words: str, facts: list[str]
) -> None:
    """No validation split is held out."""
    out, asked = experiment.parent / "a", ["algorithm.lr=0.01,0.1", "evaluate.finetune_epochs=[1]"]
    refused = invoke("ablate", experiment, *asked, "--out", out, *words.split()).exception
    assert isinstance(refused, ConfigError) and not out.exists()
    assert_says(refused, *facts)


@pytest.mark.slow
def test_an_ablation_ends_with_where_it_is_and_other_commands(ray_cluster: Any, experiment: Path) -> None:
    words = ["ablate", str(experiment), "algorithm.lr=0.01,0.1", "--out", str(experiment.parent / "a")]
    done = succeeded(*words)
    proposed = done.stderr.partition("next:")[2].splitlines()
    assert f"results: {experiment.parent / 'a'}: ablation.parquet, 2 run folders" in done.stdout
    assert len(proposed) == 4 and "seed=0..4" in proposed[-1]
    for line in proposed[:-1]:  # a report, two figures
        found = line.split()[1:]
        found[-1] = str(experiment.parent / found[-1])
        again = invoke(*found)
        assert again.exit_code == 0 and found != words, again.output


@pytest.mark.parametrize("name", ["plain", "it's, ü 1"])
def test_what_an_ablation_and_a_sweep_propose_can_be_pasted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder is one word, as a shell reads it."""
    monkeypatch.chdir(tmp_path)
    root = FakeSweep(Path(name), {"val/acc": "max"}).root
    (root / "STATUS").write_text("finished")
    (root / "sweep.yaml").write_text("{name: s, objective: val/acc, trials: 4}")
    folder(root / "final" / "a", {"name": "iris", **EXPERIMENT}, [0.5])
    with caplog.at_level("INFO"):
        _suggest_after_ablation(root, ["algorithm.lr"], [0, 1, 2, 3, 4])
        _suggest_after_sweep(root)
    lines = [line.removeprefix("next:").strip() for text in caplog.messages for line in text.splitlines()]
    places = [shlex.split(line)[3 if "figure" in line else 2] for line in lines if line.startswith("flray")]
    assert places == [name, name, name, name, f"{name}/final/a/config.yaml", f"{name}/final"]


# sweep -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("top", "stopped", "best"), [("null", False, True), ("2", False, True), ("0", False, False), ("2", True, False)]
)
def test_final_runs_of_an_earlier_call_are_not_called_the_best(
    top: str, stopped: bool, best: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--resume trials=5 final.top=0`, or a Ctrl-C before the final runs: a later trial may be better."""
    sweep = FakeSweep(tmp_path / "s", {"val/acc": "max"})
    sweep.trial(sweep.study(), {"algorithm.rho": 1.0}, {"val/acc": [0.5]})
    (sweep.root / "STATUS").write_text("finished")
    with (sweep.root / "sweep.yaml").open("a") as stored:
        stored.write(f"trials: 4\nfinal: {{top: {top}}}\n")
    folder(sweep.root / "final" / "a", {"name": "iris", **EXPERIMENT}, [0.5])
    _report(sweep.root, stopped)
    said = capsys.readouterr().out
    assert ("the best again: " in said, "final runs of an earlier call" in said) == (best, not best)


@pytest.mark.slow
def test_a_sweep_ends_with_where_it_is_and_other_commands(ray_cluster: Any, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    done = succeeded("sweep", write_sweep(tmp_path), "rounds=2", "--out", folder)
    proposed = done.stderr.partition("next:")[2]
    assert f"results: {folder}: sweep.parquet, final.csv" in done.stdout
    assert f"flray sweep {folder} --resume trials=4" in proposed and f"flray compare {folder}/final" in proposed
    assert ("optuna-dashboard" in proposed) == (importlib.util.find_spec("optuna_dashboard") is not None)
    (run,) = [line.split() for line in proposed.splitlines() if "flray run" in line]
    assert Path(run[2]).exists() and run[3] == "algorithm=fedavg"
    table = (folder / "final.md").read_text()
    # one test a run: the same number three times
    assert "test acc %" in table and "best %" not in table and "last 10 tests %" not in table


@pytest.mark.slow
def test_ctrl_c_in_a_sweep_is_the_code_130_and_the_last_line_names_the_folder(ray_cluster: Any, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    stopped = interrupted(folder, "sweep", write_sweep(tmp_path, trials=50), "rounds=2000")
    last = f"warning: interrupted; finished work is in {folder}; continue with: flray sweep {folder} --resume"
    assert stopped.stderr.splitlines()[-1] == last and "next:" not in stopped.stderr
    assert not (folder / ".lock").exists()
