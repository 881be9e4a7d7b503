"""`track:`: names and options, what a tracker gets and when, trackers that fail or hang, MLflow and wandb for real."""

import json
import os
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import flray
from flray.config.loader import load_config
from flray.config.tracking import TRACKERS, Mlflow, Tracker
from flray.core.schema.errors import ConfigError
from flray.rundir import trackers
from flray.rundir.reader import runs_below
from tests.support.iris import TOY
from tests.support.messages import facts

BASE = {**TOY, "rounds": 3, "resources": {"executor": "local"}}


class Notebook:
    """A tracker that writes down what it is asked for, in the order in which it is asked."""

    package = "json"
    asked: list[tuple[Any, ...]]
    fails_at, hangs = -1, False

    def __init__(self, options: Mlflow) -> None:
        self.options = options

    def begin(self, id: str | None, name: str, experiment: Any) -> str:
        if self.hangs:
            time.sleep(1.0)
        self.asked.append(("begin", id, name))
        return id or "one"

    def log(self, done: int, numbers: dict[str, float]) -> None:
        if done == self.fails_at:
            raise RuntimeError("the server\nis down")
        self.asked.append(("log", done, numbers))

    def log_files(self, files: list[Path]) -> None:
        self.asked.append(("log_files", *(path.name for path in files)))

    def end(self, status: str) -> None:
        self.asked.append(("end", status.partition(";")[0]))


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Notebook]]:
    kind = type("Notebook", (Notebook,), {"asked": []})
    monkeypatch.setitem(TRACKERS._table, "notebook", "flray.config.tracking:Mlflow")
    monkeypatch.setitem(trackers.BACKENDS, "notebook", kind)
    yield kind


def test_names_and_options_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    found = load_config({**BASE, "track": ["mlflow", {"name": "wandb", "mode": "offline"}]})[0]
    assert list(found.trackers()) == ["mlflow", "wandb"] and found.trackers()["wandb"].mode == "offline"  # type: ignore[attr-defined]
    assert load_config(found.dump())[0] == found and load_config(BASE)[0].track == ()
    for wrong, line in (
        (
            "mlfow",
            "unknown tracker 'mlfow' (did you mean 'mlflow'?); a module of your own is imported with --import MODULE",
        ),
        ({"name": "wandb", "mod": "offline"}, "track.wandb.mod: unknown key (did you mean 'mode'?)"),
        (["wandb", "wandb"], "track: wandb is there twice; remove one of them"),
    ):
        with pytest.raises(ConfigError) as error:
            load_config({**BASE, "track": wrong})
        assert str(error.value) == line


def test_a_package_that_is_absent_is_one_line_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers.MlflowRun, "package", "no_such_package")
    with pytest.raises(ConfigError) as error:
        flray.run({**BASE, "track": "mlflow"}, out=tmp_path / "run", progress=False)
    assert str(error.value) == "track: mlflow is not installed; pip install 'flray[mlflow]', or leave it out of track"
    assert not (tmp_path / "run").exists()


def test_a_tracker_gets_what_the_tables_hold_and_a_resume_goes_on(tmp_path: Path, notebook: type[Notebook]) -> None:
    run = flray.run({**BASE, "track": "notebook"}, out=tmp_path / "run", progress=False)
    names = [what[0] for what in notebook.asked]
    assert notebook.asked[0] == ("begin", None, "run") and notebook.asked[1] == ("log_files", "config.yaml")
    assert names == ["begin", "log_files", "log", "log", "log", "log", "log_files", "end"]
    assert notebook.asked[-2:] == [("log_files", "environment.json", "model.safetensors"), ("end", "finished")]
    logged = [what for what in notebook.asked if what[0] == "log"]
    assert [done for _, done, _ in logged] == [0, 1, 2, 3] and list(logged[0][2]) == ["test/acc"]
    for (_, _, numbers), (_, row) in zip(logged[1:], run.rounds.iterrows(), strict=True):
        assert all(numbers[name] == row[name] for name in numbers) and "comm/up_bytes" in numbers
    notebook.asked.clear()
    flray.resume(tmp_path / "run", rounds=5, progress=False)
    assert notebook.asked[0] == ("begin", "one", "run")
    assert [what[1] for what in notebook.asked if what[0] == "log"] == [4, 5]
    assert json.loads((tmp_path / "run" / "track" / "notebook.json").read_text()) == {"run": "one", "last": 5}


@pytest.mark.parametrize("note", ["", "{}", "[3]", '{"run": "one", "last": null}'])
def test_a_damaged_note_begins_the_trackers_run_anew(tmp_path: Path, notebook: type[Notebook], note: str) -> None:
    run = flray.run({**BASE, "track": "notebook"}, out=tmp_path / "run", progress=False)
    (run.folder / "track" / "notebook.json").write_text(note)
    notebook.asked.clear()
    flray.resume(run.folder, rounds=4, progress=False)
    assert notebook.asked[0] == ("begin", None, "run")
    assert [what[1] for what in notebook.asked if what[0] == "log"] == [1, 2, 3, 4]


def test_one_that_fails_is_told_of_once_and_gets_the_rest_with_a_resume(
    tmp_path: Path, notebook: type[Notebook]
) -> None:
    notebook.fails_at = 2
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run = flray.run({**BASE, "track": "notebook"}, out=tmp_path / "run", progress=False)
    said = [str(warning.message) for warning in told if "track" in str(warning.message)]
    assert said == ["track: notebook failed (the server is down); the run goes on without it"]
    assert run.status == "finished" and len(run.rounds) == 3
    notebook.fails_at, _ = -1, notebook.asked.clear()
    flray.resume(tmp_path / "run", rounds=4, progress=False)
    assert [what[1] for what in notebook.asked if what[0] == "log"] == [2, 3, 4]


def test_one_that_hangs_is_left(tmp_path: Path, notebook: type[Notebook], monkeypatch: pytest.MonkeyPatch) -> None:
    notebook.hangs = True
    monkeypatch.setattr(trackers, "WAIT_S", 0.01)
    experiment = load_config({**BASE, "track": "notebook"})[0]
    found = trackers.Trackers(experiment, tmp_path, lambda: None)
    found.status("running")
    with pytest.warns(UserWarning, match=facts("notebook", "no answer within 0 s", "goes on")):
        found.status("finished")


@pytest.mark.parametrize("call", ["begin", "log_files", "log", "end"])
def test_one_that_ends_its_process_ends_no_run(
    tmp_path: Path, notebook: type[Notebook], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sys.exit` of a library is no `Exception`; under `-W error` the warning itself is an error in that thread."""

    def leaves(*_: Any) -> None:
        raise SystemExit(3)

    monkeypatch.setattr(notebook, call, leaves)
    with pytest.warns(UserWarning, match=facts("notebook failed", "SystemExit: 3", "goes on without it")) as told:
        run = flray.run({**BASE, "track": "notebook"}, out=tmp_path / "run", progress=False)
    assert run.status == "finished" and len(told) == 1


def test_only_single_numbers_are_sent() -> None:
    row = {"done": 3, "task": 0, "round": 3, "test/acc": 0.5, "diverged": False, "who": "1 2", "v": [1.0], "no": None}
    assert trackers.numbers(row) == {"test/acc": 0.5, "diverged": 0.0}


@pytest.mark.slow
def test_mlflow_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its local database: parameters, a metric's history over a resume, artifacts, and how the run ended."""
    mlflow = pytest.importorskip("mlflow", reason="pip install 'flray[mlflow]'")
    monkeypatch.setattr(trackers, "WAIT_S", 250.0)  # importing it may take long
    monkeypatch.chdir(tmp_path)  # artifacts go below mlruns/
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    values = {**BASE, "name": "iris", "track": [{"name": "mlflow", "uri": uri}]}
    flray.run(values, out=tmp_path / "run", progress=False)
    run = flray.resume(tmp_path / "run", rounds=5, progress=False)
    client = mlflow.MlflowClient(tracking_uri=uri)
    (found,) = client.search_runs([client.get_experiment_by_name("iris").experiment_id])
    id = found.info.run_id
    assert (found.info.status, found.info.run_name, found.data.tags["algorithm"]) == ("FINISHED", "run", "fedavg")
    assert found.data.params["algorithm.lr"] == "0.1" and found.data.params["data.source"] == "iris"
    history = {metric.step: metric.value for metric in client.get_metric_history(id, "test/acc")}
    assert history == dict(zip(range(6), [run.initial("test/acc"), *run.rounds["test/acc"]], strict=True))
    assert len(client.get_metric_history(id, "train/loss")) == 5
    names = {file.path for file in client.list_artifacts(id)}
    assert names == {"config.yaml", "environment.json", "model.safetensors"}


@pytest.mark.slow
def test_mlflows_own_files_lie_beside_the_run_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes begin at once, in another working directory; `--overwrite` renames the run folder meanwhile."""
    pytest.importorskip("mlflow", reason="pip install 'flray[mlflow]'")
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "iris.json").write_text(json.dumps({**BASE, "name": "iris", "track": "mlflow"}))
    word = "import sys, flray; flray.run(sys.argv[1], out=sys.argv[2], overwrite=True, progress=False)"
    for _ in range(2):
        started = [
            subprocess.Popen(
                [sys.executable, "-c", word, tmp_path / "iris.json", tmp_path / "runs" / name],
                cwd=tmp_path / "elsewhere",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                stderr=subprocess.PIPE,
                text=True,
            )
            for name in ("a", "b")
        ]
        said = [process.communicate()[1] for process in started]
        assert not any("track: mlflow failed" in text for text in said), said
        assert all(process.returncode == 0 for process in started), said
    assert not list((tmp_path / "elsewhere").iterdir())
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/runs/mlflow.db")
    found = client.search_runs([client.get_experiment_by_name("iris").experiment_id])
    assert [run.info.status for run in found] == ["FINISHED"] * 4
    assert sorted(run.info.run_name for run in found) == ["a", "a", "b", "b"]
    for run in found:
        assert {file.path for file in client.list_artifacts(run.info.run_id)} >= {"config.yaml", "model.safetensors"}
    assert [Path(folder).name for folder in runs_below(tmp_path / "runs")] == ["a", "b"]


def records(file: bytes) -> Iterator[bytes]:
    """What wandb wrote, LevelDB's log format: blocks of 32 KiB, in which a part has 4 bytes of checksum, 2 of length, 1
    of kind (1 whole, 2 first, 3 middle, 4 last); the first block begins with 7 bytes of wandb's own."""
    place, found = 7, b""
    while place + 7 <= len(file):
        if 2**15 - place % 2**15 < 7:  # too little for a part
            place += 2**15 - place % 2**15
            continue
        size, kind = struct.unpack("<HB", file[place + 4 : place + 7])
        found += file[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):
            yield found
            found = b""


@pytest.mark.slow
def test_wandb_offline_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own files, read back: two parts of one run, the configuration, every round once."""
    pytest.importorskip("wandb", reason="pip install 'flray[wandb]'")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setattr(trackers, "WAIT_S", 250.0)  # importing it may take long
    monkeypatch.chdir(tmp_path)
    flray.run({**BASE, "track": [{"name": "wandb", "mode": "offline"}]}, out=tmp_path / "run", progress=False)
    run = flray.resume(tmp_path / "run", rounds=5, progress=False)
    steps: dict[int, float] = {}
    ids, config = set(), {}
    for path in sorted(tmp_path.glob("wandb/offline-run-*/*.wandb")):
        for data in records(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                ids.add(record.run.run_id)
                config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            for item in record.history.item:
                if "/".join([item.key, *item.nested_key]).strip("/") == "test/acc":
                    assert record.history.step.num not in steps
                    steps[record.history.step.num] = json.loads(item.value_json)
    assert len(ids) == 1 and config["algorithm"]["lr"] == 0.1
    assert steps == pytest.approx(dict(zip(range(6), [run.initial("test/acc"), *run.rounds["test/acc"]], strict=True)))


class Unfinished(Tracker):
    """A tracker of somebody's own that has no backend."""

    package: ClassVar[str] = ""

    def backend(self) -> Any:
        return None


def test_one_of_your_own_that_cannot_begin_stops_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRACKERS._table, "unfinished", Unfinished)
    with pytest.warns(UserWarning, match=facts("track: unfinished failed", "Unfinished.backend", "goes on")):
        run = flray.run({**BASE, "track": "unfinished"}, out=tmp_path / "run", progress=False)
    assert run.status == "finished"
    monkeypatch.setattr(Unfinished, "package", "no_such_package.cloud")
    with pytest.raises(ConfigError) as error:
        flray.run({**BASE, "track": "unfinished"}, out=tmp_path / "other", progress=False)
    assert str(error.value).startswith("track: unfinished needs no_such_package.cloud; pip install")


OWN = """
from flray.config.tracking import Tracker
from flray.data import Split, Splits
import numpy as np


class Lines(Tracker):
    file: str

    def backend(self):
        return Run(self.file)


class Run:
    def __init__(self, file):
        self.file = file

    def write(self, *words):
        with open(self.file, "a") as lines:
            print(*words, file=lines)

    def begin(self, id, name, experiment):
        self.write("begin", name)
        return "1"

    def log(self, done, numbers):
        self.write(done, numbers["test/acc"])

    def log_files(self, files):
        pass

    def end(self, status):
        self.write("end", status.split()[0])


def halves(config):
    x = np.linspace(-1, 1, 90, dtype=np.float32)[:, None]
    return Splits(Split(x, (x[:, 0] > 0).astype(np.int64)), None, ("low", "high"))
"""


def test_a_tracker_and_a_source_of_an_installed_package(tmp_path, monkeypatch):
    """As pip leaves a package: a module beside its `.dist-info` with entry points."""
    from flray.data import SOURCES

    (tmp_path / "own_tracker_package.py").write_text(OWN)
    about = tmp_path / "own_tracker_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own-tracker-package\nVersion: 1.0\n")
    points = {"trackers": "lines = own_tracker_package:Lines", "sources": "halves = own_tracker_package:halves"}
    (about / "entry_points.txt").write_text("".join(f"[flray.{group}]\n{line}\n" for group, line in points.items()))
    monkeypatch.syspath_prepend(tmp_path)
    for table in (TRACKERS, SOURCES):
        monkeypatch.setattr(table, "_scanned", False)
        monkeypatch.setattr(table, "_table", dict(table._table))
    track = [{"name": "lines", "file": str(tmp_path / "lines.txt")}]
    result = flray.run({**BASE, "data": "halves", "track": track}, out=tmp_path / "run", progress=False)
    lines = (tmp_path / "lines.txt").read_text().splitlines()
    assert lines[0] == "begin run" and lines[-1] == "end finished"
    rows = result.rounds[["done", "test/acc"]].itertuples(index=False)
    assert set(lines[1:-1]) >= {f"{done} {acc}" for done, acc in rows}
    with pytest.raises(ConfigError, match=r"track.lines.*file"):
        load_config({**BASE, "track": ["lines"]})
