"""Small runs side by side without Ray: the bits of a run alone, a lost process, errors, interruptions."""

import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import flray
from flray.config.experiment import Experiment
from flray.config.loader import load_config
from flray.running import simulate
from flray.tuning.display import Display
from flray.tuning.processes import Job, _answers, _show_warning, at_once, run_jobs
from tests.support.iris_sweep import EXPERIMENT
from tests.support.runs import model

BASE = {**EXPERIMENT, "rounds": 3, "evaluate": {"clients": False}, "resources": {"server": {"threads": 1}}}
# a client kills its process in round `at` while the file does not exist, in every process without a file
DYING = """
import os, signal
from pathlib import Path
from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.core.schema.hp import hp

class Dying(FedAvg):
    at: int = hp(1, doc="round")
    mark: str = hp("", doc="file")

    def begin(self, ctx, down, state, data):
        if ctx.clock.round == self.at and not (self.mark and os.path.exists(self.mark)):
            if self.mark:
                Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().begin(ctx, down, state, data)

ALGORITHMS.add("dying", Dying)
"""


def cells(*words: str) -> list[Experiment]:
    return load_config(BASE, list(words))


def together(experiments: Sequence[Experiment], home: Path, processes: int = 2, overwrite: bool = False) -> Display:
    jobs = [Job.of(home / str(place), one, overwrite) for place, one in enumerate(experiments)]
    with Display("grid", len(jobs), 0, {}, enabled=False) as display:
        run_jobs(jobs, processes, display)
    return display


def test_runs_side_by_side_have_the_bits_of_runs_alone(tmp_path: Path) -> None:
    """The second is begun, and goes on from its checkpoint; the third is replaced."""
    seeds = cells("seed=0..2")
    for place, one in enumerate(cells("seed=0..2", "resources.executor=local")):
        simulate(one, tmp_path / "alone" / str(place))
    home = tmp_path / "grid"
    rounds = flray.running.play(cells("seed=1", "resources.executor=local")[0], home / "1")
    next(rounds)
    rounds.close()
    first = [path.name for path in (home / "1" / "checkpoints").iterdir()]
    simulate(cells("seed=7", "resources.executor=local")[0], home / "2")
    jobs = [Job.of(home / str(place), one, overwrite=place == 2) for place, one in enumerate(seeds)]
    with Display("grid", 3, 0, {}, enabled=False) as display:
        run_jobs(jobs, 2, display)
    assert display.ended == ["finished"] * 3
    assert [model(home / str(place)) for place in range(3)] == [
        model(tmp_path / "alone" / str(place)) for place in range(3)
    ]
    assert first == ["round-000001"]
    assert len(flray.load(home / "1").rounds) == 3


def test_a_warning_of_a_process_is_shown_by_the_one_that_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Once, by its `showwarning`, which is the command's for its one line; with the place that Python shows; by its
    filters."""
    text = "import warnings\nwarnings.warn('of a cell', FutureWarning)\nwarnings.warn('silenced', UserWarning)\n"
    text += (
        "exec(compile('warnings.warn(\"of a script\", FutureWarning)', 'script.py', 'exec'))\n"  # which no module has
    )
    (tmp_path / "warning_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(FutureWarning):
        both = cells("imports=[warning_module]", "seed=0,1", "rounds=1")
    shown = []
    monkeypatch.setattr("warnings.showwarning", lambda *warning: shown.append(warnings.formatwarning(*warning[:4])))
    warnings.filterwarnings("ignore", category=UserWarning, module="warning_module$")
    display = together(both, tmp_path / "grid")
    place = f"{tmp_path / 'warning_module.py'}:2"
    assert display.ended == ["finished"] * 2
    assert shown == [
        f"{place}: FutureWarning: of a cell\n  warnings.warn('of a cell', FutureWarning)\n",
        "script.py:1: FutureWarning: of a script\n",
    ]
    assert "of a cell" not in capfd.readouterr().err


class Mine(FutureWarning):
    """Takes no text."""

    def __init__(self, one: str, two: str) -> None:
        self.both = one, two

    def __str__(self) -> str:
        return " and ".join(self.both)


@pytest.mark.parametrize(
    ("action", "filtered", "copies"),
    [
        ("default", {}, 1), ("always", {}, 2), ("error", {}, 2), ("ignore", {"category": Mine}, 0),
        ("ignore", {"category": FutureWarning}, 0), ("ignore", {"category": UserWarning}, 1),
        ("ignore", {"message": "one and"}, 0), ("ignore", {"module": "mine$"}, 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("own", [(__name__, "Mine"), ("not.imported", "Mine")])
def test_a_warning_of_two_processes_is_shown_by_the_filters_of_the_user(
    own: tuple[str, str], action: Any, filtered: dict[str, Any], copies: int
) -> None:
    """Without one once; "error" is no error of the grid: the run has gone on in its process."""
    lineage, warned = [own, ("builtins", "FutureWarning"), ("builtins", "Warning")], dict[Any, Any]()
    if filtered.get("category") is Mine and own[0] != __name__:
        copies = 1  # no filter can name it
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        warnings.filterwarnings(action, **filtered)
        for _ in range(2):
            _show_warning(warned, "one and two", lineage, "a/mine.py", 2, "mine")
    assert [(str(each.message), each.category.__name__) for each in shown] == [("one and two", "Mine")] * copies


@pytest.fixture
def dying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that is imported from a folder of `sys.path`, as a notebook's own is."""
    (tmp_path / "dying_clients.py").write_text(DYING)
    monkeypatch.syspath_prepend(tmp_path)
    return "dying_clients"


def test_a_name_that_a_module_registers_which_the_configuration_does_not_import(tmp_path: Path, dying: str) -> None:
    """The script has imported it; nobody dies in round 9."""
    importlib.import_module(dying)
    named = load_config(BASE, ["algorithm={name: dying, at: 9, lr: 0.05, local_epochs: 1, batch_size: 8}"])
    assert together(named, tmp_path / "grid", 1).ended == ["finished"]
    same = cells("algorithm={name: fedavg, lr: 0.05, local_epochs: 1, batch_size: 8}", "resources.executor=local")[0]
    simulate(same, tmp_path / "fedavg")
    assert model(tmp_path / "grid" / "0") == model(tmp_path / "fedavg")


def test_a_configuration_that_another_process_cannot_read_is_the_runs_error(tmp_path: Path) -> None:
    job = Job.of(tmp_path / "0", cells()[0], overwrite=False)
    (answer,) = _answers(job._replace(experiment={**job.experiment, "imports": ["module_of_nobody"]}))
    assert answer["done"] and answer["status"].startswith("failed: --import module_of_nobody: cannot import")


@pytest.mark.slow
def test_a_lost_process_is_replaced_and_the_run_goes_on(tmp_path: Path, dying: str) -> None:
    words = [f"imports=[{dying}]", "algorithm={name: dying, lr: 0.05, local_epochs: 1, batch_size: 8}"]
    marked = load_config(BASE, [*words, f"algorithm.mark={tmp_path / 'mark'}"])
    assert together([*marked, *cells("algorithm=fedavg")], tmp_path / "grid", 1).ended == ["finished"] * 2
    same = cells("algorithm={name: fedavg, lr: 0.05, local_epochs: 1, batch_size: 8}", "resources.executor=local")[0]
    simulate(same, tmp_path / "fedavg")
    assert model(tmp_path / "grid" / "0") == model(tmp_path / "fedavg")


@pytest.mark.slow
def test_a_run_that_loses_every_process_and_one_with_an_error_keep_no_other_back(tmp_path: Path, dying: str) -> None:
    words = [f"imports=[{dying}]", "algorithm={name: dying, lr: 0.05, local_epochs: 1, batch_size: 8}"]
    wrong = cells("model.weights=none.safetensors")
    ended = together([*load_config(BASE, words), *wrong, *cells()], tmp_path / "grid", 1).ended
    assert ended[0] == "failed: its process was lost 3 times, the last time with exit status -9"
    assert ended[1].startswith("failed: model.weights") and "none.safetensors" in ended[1] and "\n" not in ended[1]
    assert ended[2] == "finished"


@pytest.mark.parametrize(
    "number",
    [pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)],
)
def test_an_interrupted_grid_leaves_no_process_and_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    """Its processes pause their runs: what the same command ends with has the bits of a run alone."""
    quick = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
    words = [str(quick), "seed=0,1", "rounds=40", "resources.server.threads=1", "evaluate.clients=false"]
    command = [sys.executable, "-m", "flray", "run", *words, "--out", str(tmp_path / "grid")]
    known = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    begun = subprocess.Popen(command, env=known, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    folders = [tmp_path / "grid" / f"fedavg-seed{seed}" for seed in (0, 1)]
    _until(lambda: any(list(folder.glob("checkpoints/round-*")) for folder in folders))
    lists = [file.read_text() for file in Path(f"/proc/{begun.pid}/task").glob("*/children")]
    children = [Path("/proc") / number for line in lists for number in line.split()]
    begun.send_signal(number)
    said = begun.communicate(timeout=60)[1]
    if number != signal.SIGKILL:
        assert begun.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
        assert "the same command continues" in said.splitlines()[-1]
    assert children
    _until(lambda: not any(child.exists() for child in children))
    assert not all((folder / "model.safetensors").exists() for folder in folders)
    done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    alone = load_config(quick, [*words[1:], "resources.executor=local"])
    simulate(alone[1], tmp_path / "alone")
    assert model(folders[1]) == model(tmp_path / "alone")


def _until(reached: object, seconds: float = 60.0) -> None:
    limit = time.monotonic() + seconds
    while not reached():  # type: ignore[operator]
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_as_many_at_a_time_as_cores_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flray.tuning.processes.cores", lambda: 8)
    monkeypatch.setattr("flray.tuning.processes.memory", lambda: 2**40)
    assert at_once(cells()[0], "auto") == 8
    assert at_once(cells("resources.client.num_cpus=3")[0], "auto") == 2
    assert at_once(cells("resources.client.num_cpus=16")[0], "auto") == 1
    assert at_once(cells()[0], 3) == 3
    monkeypatch.setattr("flray.tuning.processes.memory", lambda: 2**30)
    assert at_once(cells()[0], "auto") == 4


def test_a_process_that_cannot_start_is_the_status_of_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nobody waits for an answer."""

    def full(function: str) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("flray.tuning.processes.forked.fork", full)
    display = together(cells("seed=0..2"), tmp_path)
    assert len(display.ended) == 3 and all("Too many open files" in status for status in display.ended)


@pytest.mark.slow
def test_after_an_answer_that_is_none_the_next_run_has_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads no answer to the run before."""
    real, calls = json.loads, itertools.count()

    def first_fails(text: str) -> Any:
        if next(calls) == 0:
            raise ValueError("no answer")
        return real(text)

    monkeypatch.setattr("flray.tuning.processes.json.loads", first_fails)
    display = together(cells("seed=0,1"), tmp_path, processes=1)
    assert "no answer" in display.ended[0] and display.ended[1] == "finished"
    simulate(cells("seed=1")[0], tmp_path / "alone")
    assert model(tmp_path / "1") == model(tmp_path / "alone")
