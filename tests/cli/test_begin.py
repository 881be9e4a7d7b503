"""What a newcomer meets: `flray init`, `flray runs`, `flray run --dry-run`, completion in the shell."""

import json
import os
import re
import sys
import time
from pathlib import Path

import pandas
import pytest
import yaml

from flray.config.loader import load_config
from flray.core.schema.errors import ConfigError
from tests.support.commands import invoke, succeeded
from tests.support.messages import assert_says
from tests.support.processes import python

QUICK = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


@pytest.fixture
def started(tmp_path, monkeypatch):
    """An empty folder after `flray init`, as working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    succeeded("init")
    return tmp_path


@pytest.mark.slow
def test_init_writes_what_runs_and_writes_over_nothing(started, ray_cluster):
    """The own algorithm of the quickstart is FedProx: the same numbers with the same mu, on actors and in a grid."""
    assert sorted(os.listdir()) == ["my_algorithm.py", "quickstart.yaml"]
    assert load_config("quickstart.yaml") == load_config(QUICK)
    assert "configs/" not in Path("quickstart.yaml").read_text()
    small = ("rounds=2", "algorithm.mu=0.05", "partition.clients=4", "cohort.size=4", "evaluate.clients=false")
    words = ("run", "quickstart.yaml", *small, "--import", "my_algorithm", "--out")
    succeeded(*words, "alone", "algorithm=my_algorithm")
    grid = (*words, "grid", "algorithm=my_algorithm,fedprox", "seed=0,1", "resources.executor=local")
    succeeded(*grid)
    cells = [f"{name}-seed{seed}" for name in ("fedprox", "my_algorithm") for seed in (0, 1)]
    assert sorted(os.listdir("grid")) == cells
    found = {
        name: pandas.read_parquet(f"{name}/rounds")["test/acc"].tolist()
        for name in ("alone", *(f"grid/{cell}" for cell in cells))
    }
    assert found["alone"] == found["grid/my_algorithm-seed0"] == found["grid/fedprox-seed0"]
    assert found["grid/my_algorithm-seed1"] == found["grid/fedprox-seed1"]
    keeps_finished_cells(grid)
    Path("my_algorithm.py").write_text("mine")
    Path("quickstart.yaml").unlink()
    again = invoke("init")
    assert str(again.exception) == "my_algorithm.py exists already; give another folder: flray init FOLDER"
    own = str(invoke("init", "--own", "algorithm").exception)
    assert own == "my_algorithm.py exists already; give another folder: flray init FOLDER --own algorithm"
    assert Path("my_algorithm.py").read_text() == "mine" and not Path("quickstart.yaml").exists()


def keeps_finished_cells(grid: tuple[str, ...]) -> None:
    """A second call of a grid runs nothing; one of another experiment is refused."""
    stamps = {path: path.stat().st_mtime_ns for path in Path("grid").glob("*/model.safetensors")}
    again = invoke(*grid)
    assert again.exit_code == 0 and "my_algorithm" in again.output
    assert len(stamps) == 4 and stamps == {path: path.stat().st_mtime_ns for path in stamps}
    other = invoke(*grid, "algorithm.lr=0.5")
    assert_says(other.exception, "algorithm.lr", 0.05, 0.5)


def test_init_writes_a_papers_configurations_whose_commands_run(tmp_path, monkeypatch):
    """The paths of the repository hold below the new folder: `extends` of a sweep and the commands of a page."""
    monkeypatch.chdir(tmp_path)
    succeeded("init", "--paper", "fedproj", "--notebooks")
    written = {str(path) for path in Path().rglob("*") if path.is_file()}
    assert {f"configs/fedproj/{name}" for name in ("_common.yaml", "pilot_iris.yaml", "README.md")} <= written
    assert {"configs/quickstart.yaml", "configs/sweeps/fedproj.yaml", "notebooks/01_quickstart.ipynb"} <= written
    assert load_config("configs/fedproj/pilot_iris.yaml") == load_config(QUICK.parent / "fedproj" / "pilot_iris.yaml")
    dry = invoke("papers", "reproduce", "fedproj/figure1", "--dry-run")
    assert dry.exit_code == 0 and "configs/fedproj/pilot_iris.yaml" in dry.output
    again = invoke("init", "--paper", "fedproj")
    assert (
        str(again.exception)
        == "configs/quickstart.yaml exists already; give another folder: flray init FOLDER --paper fedproj"
    )


def test_a_dry_run_prints_the_configuration_or_the_cells_and_makes_nothing(started):
    done = invoke("run", "quickstart.yaml", "rounds=3", "algorithm=fedprox", "--dry-run")
    (wanted,) = load_config("quickstart.yaml", ["rounds=3", "algorithm=fedprox"])
    assert done.exit_code == 0 and yaml.safe_load(done.stdout) == wanted.dump()
    assert done.stdout.startswith("# runs/quickstart/fedprox-seed0\n")
    folder = Path("runs/quickstart/fedprox-seed1")
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(load_config("quickstart.yaml", ["algorithm=fedprox", "seed=1"])[0].yaml())
    (folder / "STATUS").write_text("finished\n")
    done = invoke("run", "quickstart.yaml", "algorithm=fedavg,fedprox", "seed=0,1", "--dry-run")
    rows = [line.split() for line in done.stdout.splitlines() if "runs/" in line]
    assert {row[0]: row[1] for row in rows} == {
        "runs/quickstart/fedavg-seed0": "new",
        "runs/quickstart/fedavg-seed1": "new",
        "runs/quickstart/fedprox-seed0": "new",
        "runs/quickstart/fedprox-seed1": "finished",
    }
    assert not list(Path("runs").rglob("rounds"))


def made(
    folder: Path, status: str, rounds: int, age_s: float, config: str = "rounds: 8\nalgorithm: {name: fedsol}\n"
) -> Path:
    (folder / "rounds").mkdir(parents=True)
    (folder / "config.yaml").write_text(config)
    (folder / "STATUS").write_text(f"{status}\n")
    accuracy = [0.05 + 0.1 * r for r in range(rounds)]
    table = pandas.DataFrame({"done": range(1, rounds + 1), "test/acc": accuracy})
    table.to_parquet(folder / "rounds" / "part-0000.parquet")
    for path in (folder / "STATUS", folder / "rounds"):
        os.utime(path, (time.time() - age_s,) * 2)
    return folder


def test_my_runs_with_status_algorithm_rounds_accuracy_and_age(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(invoke("runs").exception).startswith("no run below runs; start one with flray run CONFIG")
    made(Path("runs/a/old"), "interrupted after round 2; continue with: flray resume runs/a/old", 2, 3 * 86400 + 60)
    made(Path("runs/new"), "finished", 8, 7260)
    lost = made(Path("runs/lost"), "running", 1, 300)
    (lost / ".lock").write_text(json.dumps({"host": "h", "machine": "m", "pid": 1, "started": 0, "id": "x"}))
    os.utime(lost / ".lock", (0, 0))
    broken = made(Path("runs/broken"), "finished", 1, 86400)
    (broken / "rounds" / "part-0000.parquet").write_bytes(b"no")
    done = succeeded("runs")
    rows = [re.split(" {2,}", line) for line in done.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == ["runs/lost", "runs/new", "runs/broken", "runs/a/old"], "the newest first"
    by_name = {row[0]: row[1:] for row in rows}
    assert by_name["runs/new"] == ["finished", "FedSOL", "8/8", "75.00%", "2 h"]
    assert by_name["runs/a/old"] == ["interrupted after round 2", "FedSOL", "2/8", "15.00%", "3 d"]
    assert by_name["runs/broken"][0].startswith("damaged: ")


def test_my_runs_in_a_storage_have_no_age(tmp_path, monkeypatch):
    monkeypatch.setenv("FLRAY_CACHE", str(tmp_path / "cache"))
    made(tmp_path / "runs" / "a", "finished", 2, 60)
    (tmp_path / "runs" / "notes").mkdir()  # no run, as in a folder
    (tmp_path / "runs" / "lost").mkdir()
    (tmp_path / "runs" / "lost" / "STATUS").write_text("finished")
    base = f"file://{tmp_path}/runs"
    first, second = (re.split(" {2,}", line) for line in succeeded("runs", base).stdout.splitlines()[2:])
    assert first == [f"{base}/a", "finished", "FedSOL", "2/8", "15.00%"]
    assert second[1].startswith(f"damaged: {base}/lost is no run: it has no config.yaml")
    assert str(invoke("runs", f"{base}/none").exception).startswith(f"no run below {base}/none; ")


def test_the_shell_completes_keys_of_the_file_and_names_of_algorithms(started):
    def completed(*words: str) -> list[str]:
        asked = {
            "_FLRAY_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(["flray", *words]),
            "COMP_CWORD": str(len(words)),
        }
        answer = invoke(env=asked, prog_name="flray")
        assert not answer.stderr
        return answer.stdout.split()

    assert completed("run", "quickstart.yaml", "algorithm=fedpro") == [
        "algorithm=fedprox", "algorithm=fedproj", "algorithm=fedprotip"
    ]  # fmt: skip
    assert completed("run", "quickstart.yaml", "algorithm", "=", "fedpro") == ["fedprox", "fedproj", "fedprotip"], (
        "bash breaks words at ="
    )
    assert completed("run", "quickstart.yaml", "seed=0,1", "algorithm.l") == [
        "algorithm.lr=",
        "algorithm.local_epochs=",
        "algorithm.last_batch=",
        "algorithm.lr_decay=",
    ]
    assert completed("run", "nowhere.yaml", "see") == ["seed="]
    assert "evaluate.every=" in completed("run", "quickstart.yaml", "evaluate."), "a key that the file does not have"
    assert completed("run", "quickstart.yaml", "algorithm=fedsol", "algorithm.r") == ["algorithm.rho="]
    assert completed("run", "quickstart.yaml", "algorithm", "=", "fedsol", "algorithm.r") == ["algorithm.rho="]
    assert completed("watch", "--qui") == ["--quiet"] and completed("plan", "--nod") == []
    for key in ("data", "proxy"):
        assert {f"{key}=iris", f"{key}=hf:"} <= {*completed("run", "quickstart.yaml", f"{key}=")}
    assert {"iris", "digits"} <= {*completed("run", "quickstart.yaml", "data", "=")}
    assert {"track=mlflow", "track=wandb"} <= {*completed("run", "quickstart.yaml", "track=")}
    assert {"model=timm:", "model=torchvision:", "model=hf:"} <= {*completed("run", "quickstart.yaml", "model=")}
    assert completed("run", "quickstart.yaml", "model", "=", "timm", ":", "res") == [], "bash breaks words at :"
    assert completed("figure", "curves", "--style", "p") == ["paper"]
    assert "tip_sample" in completed("figure", "tasks", "--mode", "tip")
    assert "test/acc" in completed("compare", "runs", "--metric", "test/")
    assert "fedprox" in completed("compare", "runs", "--against", "fedp")
    assert {"fedsol/table1", "fedsol/table2"} <= {*completed("papers", "reproduce", "fedsol/")}
    assert completed("figure", "cur") == ["curves"]
    assert completed("run", "quickstart.yaml", "drift=remove") == ["drift=remove_classes"]
    assert completed("run", "quickstart.yaml", "algorithm=fedavg,fedpro") == [
        f"algorithm=fedavg,{name}" for name in ("fedprox", "fedproj", "fedprotip")
    ]
    assert completed("list", "algorithms", "fedp") == ["fedprox", "fedproj", "fedpec", "fedprotip"]
    assert completed("list", "c") == ["config"]
    assert completed("ini") == ["init"]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["algorithm", "data", "model", "partition"])
def test_a_template_runs_and_its_test_passes(part, tmp_path):
    """In a folder of its own, as the next steps say."""
    done = succeeded("init", tmp_path / "own", "--own", part)
    assert f"flray run my_{part}.yaml" in done.output and "pytest" in done.output
    assert {path.name for path in (tmp_path / "own").iterdir()} == {
        "quickstart.yaml", f"my_{part}.py", f"my_{part}.yaml", f"test_my_{part}.py"
    }  # fmt: skip
    assert "passed" in python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path / "own").stdout


def test_templates_are_apart_from_papers_and_overwrite_nothing(tmp_path):
    refused = invoke("init", tmp_path, "--own", "data", "--notebooks")
    assert isinstance(refused.exception, ConfigError) and "--own" in str(refused.exception)
    (tmp_path / "my_data.py").write_text("mine")
    refused = invoke("init", tmp_path, "--own", "data")
    assert isinstance(refused.exception, ConfigError) and "my_data.py exists already" in str(refused.exception)
    assert (tmp_path / "my_data.py").read_text() == "mine" and len(list(tmp_path.iterdir())) == 1
