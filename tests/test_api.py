"""flray from Python: grids, figures, reports, ablations and sweeps, with the names and defaults of the command line."""

import functools
import importlib
import inspect
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.main import get_command

import flray
from flray.algorithms.fedsol import FedSOL
from flray.cli import app
from flray.config.loader import load_config
from flray.core.schema.errors import FlrayError
from flray.results.notebook import Runs
from tests.support.commands import succeeded
from tests.support.iris import TOY
from tests.support.processes import python


def hidden(run: flray.Run) -> list[int]:
    return list(yaml.safe_load((run.folder / "config.yaml").read_text())["model"]["hidden"])


def losses(runs: Iterable[flray.Run]) -> list[list[float]]:
    return [run.rounds["train/loss"].tolist() for run in runs]


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    runs = flray.run(
        TOY, algorithm=["fedavg", "fedprox"], seed=range(3), out=tmp_path_factory.mktemp("grid"), progress=False
    )
    assert isinstance(runs, Runs)
    return runs


@pytest.mark.slow
def test_a_grid_has_the_runs_of_single_calls(grid: Runs, tmp_path: Path) -> None:
    """Folders in the order of the values, with the numbers that each has alone."""
    names = [f"{name}-seed{seed}" for name in ("fedavg", "fedprox") for seed in range(3)]
    assert [run.folder.name for run in grid] == names
    alone = flray.run(TOY, algorithm="fedprox", seed=1, out=tmp_path / "alone", progress=False)
    assert isinstance(alone, flray.Run) and losses([alone]) == losses([grid[names.index("fedprox-seed1")]])


@pytest.mark.slow
def test_a_second_call_repeats_nothing_however_the_values_are_written(grid: Runs, tmp_path: Path) -> None:
    """As text, as a list, a range or a tuple, and on the command line; a list of one value gives a list of one run."""
    root = grid[0].folder.parent
    marks = {run.folder: (run.folder / "STATUS").stat().st_mtime_ns for run in grid}
    again = flray.run(TOY, "algorithm=fedavg,fedprox", seed=(0, 1, 2), out=root, progress=False)
    one = flray.run(TOY, algorithm="fedavg", seed=[1], out=root, progress=False)
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(TOY))
    succeeded("run", tmp_path / "toy.yaml", "algorithm=fedavg,fedprox", "seed=0..2", "--out", root)
    array = flray.run(TOY, algorithm=np.array(["fedavg", "fedprox"]), seed=np.arange(3), out=root, progress=False)
    assert losses(array) == losses(grid) and len(grid[4:4]) == 0 and losses(grid[1:3]) == losses(grid)[1:3]
    assert losses(again) == losses(grid) and isinstance(one, Runs) and losses(one) == losses(grid[1:2])
    assert {folder: (folder / "STATUS").stat().st_mtime_ns for folder in marks} == marks


def test_a_key_of_lists_keeps_its_list(tmp_path: Path) -> None:
    one = flray.run(TOY, **{"model.hidden": [4, 5]}, out=tmp_path / "one", progress=False)
    assert isinstance(one, flray.Run) and hidden(one) == [4, 5]
    assert len(load_config(TOY, {"model.hidden": [[4], [4, 5]]})) == 2


@pytest.mark.slow
def test_what_a_module_registers_is_given_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of flray, and those of a user's module, which config.yaml names, so that a resume finds them."""
    (tmp_path / "halves.py").write_text(
        "import numpy as np\n"
        "from flray.algorithms import ALGORITHMS\nfrom flray.algorithms.fedavg import FedAvg\n"
        "from flray.scenario import PARTITIONS\n"
        "class Slow(FedAvg, frozen=True):\n    pass\n"
        "def halves(labels, num_classes, config, draws, group):\n"
        "    return np.array_split(draws.permutation(len(labels)), config.clients)\n"
        "ALGORITHMS.add('slow', Slow)\nPARTITIONS.add('halves', halves)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    halves = importlib.import_module("halves")
    partition = {"partition": halves.halves, "partition.clients": 3}
    run = flray.run(TOY, algorithm=halves.Slow, **partition, out=tmp_path / "run", progress=False)
    written = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert (written["algorithm"]["name"], written["partition"]["name"]) == ("slow", "halves")
    assert written["imports"] == ["halves", "halves"] or written["imports"] == ["halves"]
    named = flray.run(TOY, "partition=halves", "partition.clients=3", out=tmp_path / "named", progress=False)
    assert losses([run]) == losses([named]), "FedAvg by another name"
    code = f"import flray; print(flray.resume({str(run.folder)!r}, rounds=2, progress=False).status)"
    assert python("-c", code, cwd=tmp_path).stdout.strip() == "finished"
    (one,) = load_config(TOY, {"algorithm": {"name": halves.Slow, "lr": 0.2}})
    assert one.dump()["algorithm"]["name"] == "slow" and one.algorithm.lr == 0.2 and "halves" in one.imports
    cells = load_config(TOY, {"algorithm": [FedSOL, "fedavg", halves.Slow]})
    assert [cell.dump()["algorithm"]["name"] for cell in cells] == ["fedsol", "fedavg", "slow"]
    assert [cell.imports for cell in cells] == [cells[0].imports] * 3 and "halves" in cells[0].imports


def test_a_figure_is_drawn_and_written(grid: Runs, tmp_path: Path) -> None:
    """The figure of the command line is the picture of the same runs."""
    drawn = flray.figure("curves", grid, tmp_path / "curves.png", x="bytes")
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert [text.get_text() for text in drawn.axes[0].get_legend().get_texts()] == ["FedAvg", "FedProx"]
    sent = grid[0].rounds[["comm/up_bytes", "comm/down_bytes"]].to_numpy().sum()
    assert drawn.axes[0].lines[0].get_xdata()[-1] == pytest.approx(sent / 1000), "kB"
    flray.figure("curves", grid, tmp_path / "paper.png", style="paper")
    assert {path.suffix for path in tmp_path.glob("paper.*")} == {".png", ".pdf", ".svg"}


def test_a_report_is_one_page(grid: Runs, tmp_path: Path) -> None:
    page = flray.report(grid, tmp_path / "report.html")
    assert page == tmp_path / "report.html" and "fedprox" in page.read_text()
    assert flray.report([grid[0], grid[1].folder], tmp_path / "report.md").read_text().startswith("#")


def test_an_ablation_is_that_of_the_command_line(grid: Runs, tmp_path: Path) -> None:
    """In the folder of the grid, whose runs are there already."""
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(TOY))
    root = grid[0].folder.parent
    ours = flray.ablate(tmp_path / "toy.yaml", algorithm=["fedavg", "fedprox"], seed=range(3), out=root, progress=False)
    written = (root / "ablation.yaml").read_text()
    assert yaml.safe_load(written) == {"against": "fedavg-seed0", "metric": "test/acc", "axes": ["algorithm"]}
    succeeded("ablate", tmp_path / "toy.yaml", "algorithm=fedavg,fedprox", "seed=0..2", "--out", root)
    assert (root / "ablation.yaml").read_text() == written
    last = np.array([run.rounds["test/acc"].iloc[-1] for run in ours.runs])  # the first three are FedAvg's
    assert ours.differences is not None
    assert ours.differences["diff"].tolist()[1] == pytest.approx((last[3:] - last[:3]).mean())


class Called:
    def __call__(self) -> None: ...


BAD = {
    "no such figure": (lambda runs: flray.figure("curve", runs), "did you mean 'curves'?"),
    "the figures of a sweep": (lambda runs: flray.figure("sweep", runs), "`flray figure sweep FOLDER`"),
    "an option of another figure": (lambda runs: flray.figure("curves", runs, mode="a"), "its options are metric, x"),
    "a style of no file": (lambda runs: flray.figure("curves", runs, style="paper"), "give out, too"),
    "no such runs": (lambda runs: flray.report(["nowhere"]), "nowhere"),
    "no such setting": (lambda runs: flray.compare(runs, against="fedsoll"), "unknown reference 'fedsoll'"),
    "nothing varies": (lambda runs: flray.ablate(TOY, seed=0), "give a key several values"),
    "values of an option": (
        lambda runs: flray.run(TOY, model="resnet8", **{"model.projection": [4, 8]}),
        "projection=4,8",
    ),
    "no value": (lambda runs: flray.run(TOY, seed=np.arange(0)), "override seed=[]: no value"),
    "a function of another signature": (
        lambda runs: flray.run(TOY, partition=functools.partial(np.array_split)),
        "partial takes (ary, indices_or_sections, axis), and is called with 5 arguments; write def f(labels,",
    ),
    "an object that can be called": (
        lambda runs: flray.run(TOY, algorithm=Called()),
        "give a class that inherits from Algorithm of flray.core.protocol.algorithm",
    ),
    "a table for runs": (lambda runs: flray.compare(runs.table), "a DataFrame [6, "),
    "nothing for runs": (lambda runs: flray.figure("curves", None), "None"),
    "a page of another form": (lambda runs: flray.report(runs, "a.htm"), "unknown report format 'htm'"),
    "a number for runs": (lambda runs: flray.report([runs[0], 3]), "no run and no folder"),
    "values that are equal": (lambda runs: flray.run(TOY, seed=[1, 1]), "1 is given twice"),
    "a sweep in two folders": (lambda runs: flray.sweep("runs/s", out="x", resume=True), "in its own folder"),
    "a sweep that is none": (lambda runs: flray.sweep("nowhere", resume=True), "nowhere"),
    "no file of a sweep": (lambda runs: flray.sweep({"name": "a"}), "has no section `experiment`"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_one_line(grid: Runs, name: str) -> None:
    call, words = BAD[name]
    with pytest.raises(FlrayError) as refused:
        call(grid)
    assert words in str(refused.value)


@pytest.mark.parametrize("name", ["run", "resume", "ablate", "sweep", "compare", "figure", "report"])
def test_names_and_defaults_are_those_of_the_command_line(name: str) -> None:
    """Those of the shell alone, and those that a method of Python has in another way, are left out."""
    ours = inspect.signature(getattr(flray, name)).parameters
    shell = {"dry_run", "format", "style", "stats", "rounds", "accept", "imports"}
    for option in get_command(app).commands[name].params:  # type: ignore[attr-defined]
        if option.param_type_name == "option" and option.name not in shell and option.name in ours:
            theirs = option.default if option.default is not None else None
            default = ours[str(option.name)].default
            assert str(default) == str(theirs) or option.name == "out", f"{name}: {option.name}"


def test_an_error_names_the_arguments_of_the_function(tmp_path: Path) -> None:
    """As `flray run` names its options."""
    flray.run(TOY, out=tmp_path / "run", progress=False)
    with pytest.raises(FlrayError, match="already holds a run; give another out=, add overwrite=True, or") as refused:
        flray.run(TOY, out=tmp_path / "run", progress=False)
    assert "--" not in str(refused.value)


@pytest.mark.parametrize(
    ("words", "here"),
    [
        (["resources.executor=calls"], True),
        pytest.param(["resources.executor=local"], False, marks=pytest.mark.slow),
        pytest.param(["address=10.0.0.1:6379"], False, marks=pytest.mark.slow),
        # where another run may be
        pytest.param(["resources.executor=calls", "out=."], False, marks=pytest.mark.slow),
    ],
)
def test_ray_starts_before_torch_is_imported(words, here):
    """A process that has imported neither spends the seconds of both once."""
    values, out = [word for word in words if word != "out=."], "." if "out=." in words else None
    code = (
        "import sys, flray, flray.api as api\n"
        "def start(experiment): sys.exit(f'{experiment.name} {\"torch\" in sys.modules}')\n"
        "def simulate(*given, **options): sys.exit('not yet')\n"
        "api.start_ray, api.simulate = start, simulate\n"
        f"flray.run({TOY!r}, *{values!r}, out={out!r})"
    )
    done = python("-c", code, status=None)
    assert done.stderr.splitlines()[-1:] == [f"{load_config(TOY)[0].name} False" if here else "not yet"]


def test_a_module_that_fails_runs_once(tmp_path):
    """The early start of Ray reads the configuration, and what it names, before the run does."""
    (tmp_path / "broken.py").write_text("print('runs')\nraise RuntimeError('as asked')\n")
    code = f"import flray\nflray.run({TOY!r}, 'resources.executor=calls', imports=iter(['broken']))"
    done = python("-c", code, status=1, cwd=tmp_path)
    assert done.stdout == "runs\n" and "as asked" in done.stderr.splitlines()[-1]


def test_a_run_in_a_temporary_folder_of_rays_says_so(tmp_path):
    """Python that runs in a Ray task has the working directory of the job or the trial."""
    folder = tmp_path / "session_2026-11-29_23-01-50_736211_11537" / "trial"
    with pytest.warns(UserWarning, match=f"^{folder} lies in Ray's temporary folder"):
        flray.run(TOY, "rounds=1", "resources.executor=local", out=folder, progress=False)
