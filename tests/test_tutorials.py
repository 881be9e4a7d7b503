"""The tutorials: every command of a page, in order, in a folder that has what the page asks for, and what a reader then
sees. Runs have fewer rounds, clients or epochs than the page's where it takes minutes; a number that a page prints is
that of the whole run."""

import re
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pandas
import pytest
import yaml

import flray
from flray.config.loader import load_config
from flray.core.schema.errors import ConfigError
from flray.results.rendering import heading
from tests.support.commands import succeeded
from tests.support.heads import ray_head
from tests.support.pages import blocks, commands

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "pages" / "tutorials"
HERE = ["resources.executor=local"]
SMALL = [*HERE, "partition.clients=4", "cohort.size=3", "algorithm.local_epochs=1"]
TRAINS = ("run", "sweep", "ablate")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
Output = dict[str, str]  # a command as typed on the page: what it printed


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A reader's folder: the current one, with flray's `configs/` in it."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # of the modules that `--import` names
    return tmp_path


def typed(words: list[str], *more: str) -> str:
    """What a command prints. An exit code other than 0 fails the test."""
    return succeeded(*words, *more).output


def followed(page: str, shorter: Callable[[list[str]], list[str]]) -> Output:
    """Type the commands of a page; `shorter` gives the overrides of one that trains, for keys that it does not set."""
    output = {}
    for words in (words[1:] for words in commands(PAGES / f"{page}.md")):
        given = {word.partition("=")[0] for word in words}
        more = [word for word in shorter(words) if word.partition("=")[0] not in given]
        output[" ".join(words)] = typed(words, *(more if words[0] in TRAINS else []))
    return output


def in_python(page: str, monkeypatch: pytest.MonkeyPatch, *shorter: str) -> None:
    """Run the scripts of a page; those who train get the overrides `shorter`, for keys that they do not set."""
    for verb in TRAINS:
        real = getattr(flray, verb)

        def trained(config, *overrides, real=real, **values):
            given = {*values, *(text.partition("=")[0] for text in overrides)}
            return real(
                config, *overrides, *(text for text in shorter if text.partition("=")[0] not in given), **values
            )

        monkeypatch.setattr(flray, verb, trained)
    for code in blocks((PAGES / f"{page}.md").read_text(), "python"):
        name = re.match(r"# (\w+\.py)\n", code)
        assert name, "a block that is a file of its own"
        Path(name[1]).write_text(code)
        runpy.run_path(name[1])


def of(output: Output, start: str) -> str:
    """The output of the one command that begins so."""
    (found,) = [text for words, text in output.items() if words.startswith(start)]
    return found


def settings(page: str) -> dict[str, object]:
    """The first block of YAML of a page."""
    return yaml.safe_load(blocks((PAGES / f"{page}.md").read_text(), "yaml")[0])


def test_first_run(folder, ray_cluster, monkeypatch):
    """The whole run, with the accuracy that the page prints."""
    shutil.rmtree("configs")  # "in an empty folder"
    output = followed("first_run", lambda words: HERE if words == ["run", "quickstart.yaml"] else [*SMALL, "rounds=1"])
    said = r"round 30: test accuracy (\S+)%, loss"
    promised, found = (
        float(re.search(said, text)[1])
        for text in ((PAGES / "first_run.md").read_text(), output["run quickstart.yaml"])
    )
    assert found == pytest.approx(promised, abs=1)  # another torch build rounds otherwise
    assert "results: runs/quickstart/fedavg-seed0" in output["run quickstart.yaml"]
    written = yaml.safe_load(Path("quickstart.yaml").read_text())
    assert {key: written[key] for key in settings("first_run")} == settings("first_run")
    assert Path("my_algorithm.py").exists()
    assert len(list(Path("runs/alpha").glob("*/STATUS"))) == 6, "two values, three seeds"
    with pytest.raises(ConfigError, match="fedsol"):
        load_config("quickstart.yaml", ["algorithm=fedsoll"])
    run = ["run", "runs/quickstart/fedavg-seed0/config.yaml", "--out", "runs/again"]
    typed(run)
    models = [Path(out, "model.safetensors").read_bytes() for out in ("runs/quickstart/fedavg-seed0", "runs/again")]
    assert models[0] == models[1]
    in_python("first_run", monkeypatch, *SMALL, "rounds=1")
    assert Path("runs/quickstart/fedavg-seed0-2/STATUS").exists(), "a run of its own; the grid is not repeated"


def test_read_result(folder, ray_cluster, monkeypatch):
    """After the first run, whose folder it reads."""
    typed(["init"])
    typed(["run", "quickstart.yaml"], *SMALL, "rounds=2")
    output = followed("read_result", lambda words: [*SMALL, "rounds=2"])
    assert "runs/quickstart/fedavg-seed0" in output["runs"]
    assert Path("curves.png").stat().st_size and Path("report.html").stat().st_size
    assert set(flray.load("runs/watched").diagnostics) == {"local_forgetting"}
    table = of(output, "compare runs/grid")
    assert all(name in table for name in ("FedAvg", "FedSOL", "FedProj"))
    in_python("read_result", monkeypatch, *SMALL, "rounds=2")
    last = flray.load("runs/first").tests.iloc[-1]
    assert len(last["class_right"]) == 10, "digits"


def test_own_algorithm(folder):
    """All three examples; the page runs the first."""
    text = (PAGES / "own_algorithm.md").read_text() + (ROOT / "flray" / "algorithms" / "README.md").read_text()
    examples = {re.match(r"# (\w+)\.py\n", code)[1]: code for code in blocks(text, "python") if code[0] == "#"}
    for name in ("confident", "server_momentum", "nostalgia"):
        Path(f"{name}.py").write_text(examples[name])
    typed(["init"])
    followed("own_algorithm", lambda words: [*HERE, "algorithm.local_epochs=1", "rounds=3"])
    assert Path("runs/quickstart/my_algorithm-seed0/STATUS").exists()
    assert Path("runs/quickstart/confident-seed0/config.yaml").exists()
    run = ["run", "quickstart.yaml", *SMALL, "rounds=2"]
    typed([*run, "--import", "server_momentum", "algorithm=server-momentum"])
    typed([*run, "--import", "nostalgia", "algorithm=nostalgia"])
    assert (flray.load("runs/quickstart/server-momentum-seed0").rounds["momentum/norm"].iloc[1:] > 0).all()


def test_tasks(folder, ray_cluster, monkeypatch):
    output = followed("tasks", lambda words: [*SMALL, "rounds=1"])
    table = of(output, "compare")
    text = (PAGES / "tasks.md").read_text()
    named = re.findall(r"^\| ([\w ]+) \| ", text.partition("## What the table says")[2], re.M)[1:]
    assert named == ["ACC", "FT", "BWT", "right task"]
    assert all(f"{name} %" in table for name in named) and "global" in table and "task_aware" in table
    assert flray.load("runs/tasks/fot").tasks["task"].nunique() == 5
    assert Path(of(output, "figure").split()[-1]).exists()
    in_python("tasks", monkeypatch, *SMALL, "rounds=1")
    assert Path("tasks.png").exists()


def test_drift(folder, ray_cluster, monkeypatch):
    """All rounds, since the window's lie among them."""
    output = followed("drift", lambda words: SMALL)
    rows = re.findall(r"^\| (.+?) \| `(\S+)` \|", (PAGES / "drift.md").read_text(), re.M)
    assert len(rows) == 4 and all(head in of(output, "compare") for head, _ in rows)
    assert all(heading(name.partition("@")[0]) == head for head, name in rows)
    assert Path(of(output, "figure").split()[-1]).exists()
    in_python("drift", monkeypatch, *SMALL)
    assert Path("drift.png").exists()


def test_sweep(folder, ray_cluster, monkeypatch):
    def shorter(words):
        return [*SMALL, "rounds=8", *(["final.seeds=2"] if words[0] == "sweep" else [])]

    followed("sweep", shorter)
    shown, real = settings("sweep"), yaml.safe_load(Path("configs/sweeps/fedsol_rho.yaml").read_text())
    assert {**real, **shown, "experiment": {}} == {**real, "experiment": {}}
    assert len(pandas.read_parquet("runs/fedsol_rho/sweep.parquet")) == 6
    assert Path("runs/fedsol_rho/trials/0003/config.yaml").exists() and Path("report.html").exists()
    typed(["sweep", "runs/fedsol_rho", "--resume"])
    in_python("sweep", monkeypatch, *SMALL, "rounds=8")
    assert len(pandas.read_parquet("runs/fedsol_rho-2/sweep.parquet")) == 6


def test_cluster(folder, ray_cluster):
    """On a head on this machine, with ports of its own. Left out, because it needs several machines or their software:
    `ray job submit` to `http://HEAD:8265`, `flray run CONFIG address=auto` on a node, Kubernetes, Docker, `ray up`,
    SLURM, Grafana. tests/test_jobs.py stops a job and resumes it."""
    followed("cluster", lambda words: [])
    (line,) = re.findall(r"^ray job submit .* -- (flray .*)$", (PAGES / "cluster.md").read_text(), re.M)
    words = line.replace("/tmp/digits", str(folder / "digits")).split()
    with ray_head() as head:
        job = head.job("submit", "--working-dir", str(folder), "--", *words, "rounds=2")
        assert job.returncode == 0 and "succeeded" in job.stdout, job.stdout
    assert flray.load(folder / "digits").rounds["round"].max() == 2


def test_every_tutorial_has_its_test():
    pages = {page.stem for page in PAGES.glob("*.md")} - {"index"}
    assert {f"test_{name}" for name in pages} <= set(vars(sys.modules[__name__]))
