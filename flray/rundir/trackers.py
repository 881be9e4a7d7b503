"""`track: [mlflow, wandb]`: experiment trackers get the rows of `rounds/`.

Each tracker works in its own thread; the run waits for it only at the end. A tracker that fails causes one warning, and
the run continues without it. A resume sends the rounds that a tracker missed, from the tables. `track/NAME.json` in the
run folder stores the id of the tracker's run and the last round that the tracker has.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import queue
import re
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from flray.config.experiment import Experiment, algorithm_name
from flray.config.grid import dotted
from flray.config.tracking import Mlflow, Tracker, Wandb
from flray.core.schema.errors import CheckpointError, ConfigError, described, kind_of, named, single_line, warn
from flray.files import SMALL, atomic_write, locked, regular
from flray.rundir.parts import read_part

TRACK_FOLDER = "track"
WAIT_S = 60.0  # for a tracker to finish, at the end
RENAME_WAIT_S = 1.0  # between two tries while the run folder gets its final name
AT_START, AT_END = ("config.yaml",), ("environment.json", "model.safetensors")  # artifacts
METHODS = ("begin", "log", "log_files", "end")  # of a `Backend`
NOT_METRICS = ("done", "task", "round")
Row = Mapping[str, Any]


class Backend(Protocol):
    """One tracker's own run."""

    package: ClassVar[str]

    def begin(self, id: str | None, name: str, experiment: Experiment) -> str:
        """Begin a run of this name, or continue the one of this id. Returns its id."""

    def log(self, done: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers of a round; `done` counts rounds."""

    def log_files(self, files: Sequence[Path]) -> None:
        """Upload files as artifacts."""

    def end(self, status: str) -> None:
        """End the run with the line of its STATUS."""


class Trackers:
    """All trackers of a run; without any, every method does nothing."""

    def __init__(self, experiment: Experiment, folder: Path, check: Callable[[], None]) -> None:
        """`check()` raises if the run no longer owns the folder."""
        self._workers = [
            _Worker(name, functools.partial(backend, name, options, folder), experiment, folder, check)
            for name, options in experiment.trackers().items()
        ]

    def rounds(self, rows: Iterable[tuple[int, Row]]) -> None:
        """Send rows (rounds done, row) that are on disk now."""
        rows = list(rows)
        for worker in self._workers:
            worker.ask(functools.partial(worker.log, rows))

    def status(self, text: str) -> None:
        """Send the line of STATUS: `running` begins or continues the tracker's run, any other line ends it."""
        running, until = text == "running", time.monotonic() + WAIT_S
        for worker in self._workers:
            worker.ask(worker.begin if running else functools.partial(worker.end, text))
        for worker in () if running else self._workers:
            worker.wait(until)

    def folder_renamed(self, folder: Path) -> None:
        for worker in self._workers:
            worker.folder = folder


def check(experiment: Experiment) -> None:
    """Raises `ConfigError` if the package of a configured tracker is not installed."""
    for name, options in experiment.trackers().items():
        if name in BACKENDS:
            package, install = BACKENDS[name].package, f"flray[{name}]"
        else:
            assert isinstance(options, Tracker)  # of every other entry of the table
            package = install = options.package
        if package and importlib.util.find_spec(package.partition(".")[0]) is None:
            says = "is not installed" if name in BACKENDS else f"needs {package}"
            raise ConfigError(f"track: {name} {says}; pip install {shlex.quote(install)}, or leave it out of track")


def backend(name: str, options: Any, folder: Path) -> Backend:
    """A new run of the tracker `name`, for the run folder `folder`."""
    if name == "mlflow":
        return MlflowRun(options, folder.absolute().parent)
    if name in BACKENDS:
        run: Backend = BACKENDS[name](options)
        return run
    made: Backend = options.backend()
    if isinstance(made, type) or not all(callable(getattr(made, method, None)) for method in METHODS):
        form = f"return an object with the methods {', '.join(METHODS)} (flray.rundir.trackers.Backend)"
        raise ConfigError(f"{named(options.backend)} returned {kind_of(made)}; {form}")
    return made


class _Worker:
    """A tracker and the thread that it works on."""

    def __init__(
        self, name: str, make: Callable[[], Backend], experiment: Experiment, folder: Path, check: Callable[[], None]
    ) -> None:
        self.name, self.make, self.experiment, self.folder, self.check = name, make, experiment, folder, check
        self._asked: queue.Queue[Callable[[], Any]] = queue.Queue()
        self._broken = self._begun = self._ended = False
        self._id: str | None = None
        self._last = -1  # rounds done in the tracker's last row; 0: the initial model
        threading.Thread(target=self._work, daemon=True, name=f"flray-track-{name}").start()

    def ask(self, what: Callable[[], Any]) -> None:
        self._asked.put(what)

    def wait(self, until: float) -> None:
        """Wait until the tracker has done its work, at most until the time `until`; then warn."""
        asked, left = self._asked, max(until - time.monotonic(), 0.0)
        with asked.all_tasks_done:
            done = asked.all_tasks_done.wait_for(lambda: not asked.unfinished_tasks, left)
        if not done:
            self._fail(f"no answer within {WAIT_S:.0f} s")

    def _work(self) -> None:
        while True:
            what = self._asked.get()
            try:
                if not self._broken:
                    what()
            except BaseException as error:  # every tracker has errors of its own, and some call sys.exit
                text = single_line(str(error)) if isinstance(error, Exception) else described(error)
                self._fail(text[:300] or type(error).__name__)
            finally:
                self._asked.task_done()

    def _fail(self, why: str) -> None:
        if not self._broken:
            self._broken = True
            with contextlib.suppress(Warning):  # under -W error it would end the tracker's thread
                warn(f"track: {self.name} failed ({why}); the run goes on without it")

    # on its own thread --------------------------------------------------------------------------
    def begin(self) -> None:
        """Begin or continue the tracker's run, once a process, with the rounds on disk that it lacks."""
        if self._begun:
            return
        self._begun = True
        tables = [read_part(path) for path in sorted((self.folder / "rounds").glob("part-*.parquet"))]
        try:
            saved = json.loads(regular(self.folder / TRACK_FOLDER / f"{self.name}.json", SMALL).read_text())
            before_id, self._last = saved["run"], int(saved["last"])
        except (OSError, ValueError, KeyError, TypeError):  # none, or damaged
            before_id, self._last = None, -1
        self.backend = self.make()
        id = self.backend.begin(before_id, self.folder.absolute().name.removesuffix(".new"), self.experiment)
        if not isinstance(id, str):
            raise ConfigError(f"{named(self.backend.begin)} returned {kind_of(id)}; return its run's id, a text")
        self._id = id
        self._save_progress()
        self.backend.log_files(self._existing(AT_START))
        self.log([(row["done"], row) for table in tables for row in table.to_pylist()])

    def log(self, rows: Iterable[tuple[int, Row]]) -> None:
        """Send the rounds that the tracker does not have. A resume repeats rounds with the same numbers."""
        try:
            for done, row in rows:
                if done > self._last:
                    self.backend.log(done, numbers(row))
                    self._last = done
        finally:
            self._save_progress()

    def end(self, status: str) -> None:
        if self._begun and not self._ended:
            self._ended = True
            self.backend.log_files(self._existing(AT_END))
            self.backend.end(status)

    def _save_progress(self) -> None:
        for left in (2, 1, 0):
            try:
                self.check()
                path = self.folder / TRACK_FOLDER / f"{self.name}.json"
                path.parent.mkdir(exist_ok=True)
                with atomic_write(path) as temporary:
                    temporary.write_text(json.dumps({"run": self._id, "last": self._last}))
                return
            except (OSError, CheckpointError):
                if not left:
                    raise
                time.sleep(RENAME_WAIT_S)

    def _existing(self, names: Iterable[str]) -> list[Path]:
        return [path for name in names if (path := self.folder / name).exists()]


def numbers(row: Row) -> dict[str, float]:
    """The metrics of a row that are numbers, without vectors and texts."""
    metrics = {name: value for name, value in row.items() if name not in NOT_METRICS}
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}


class MlflowRun:
    """A run of MLflow's tracking API. Without a named store, `mlflow.db` and `mlartifacts/` lie beside the run folder:
    one store for all runs of a grid."""

    package: ClassVar[str] = "mlflow"

    def __init__(self, options: Mlflow, beside: Path) -> None:
        self.options, self.beside = options, beside

    def begin(self, id: str | None, name: str, experiment: Experiment) -> str:
        import mlflow

        if self.options.uri is not None or mlflow.is_tracking_uri_set():
            return self._begin(self.options.uri, id, name, experiment)
        with locked(self.beside / "mlflow.lock"):  # two processes that make the database's tables at once both fail
            return self._begin(f"sqlite:///{self.beside}/mlflow.db", id, name, experiment, self.beside / "mlartifacts")

    def _begin(
        self, uri: str | None, id: str | None, name: str, experiment: Experiment, artifacts: Path | None = None
    ) -> str:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self.client = MlflowClient(tracking_uri=uri)
        if id is not None:
            self.client.update_run(id, status="RUNNING")
            self.id = id
            return id
        title = self.options.experiment or experiment.name
        existing = self.client.get_experiment_by_name(title)
        place = None if artifacts is None else str(artifacts)
        home = self.client.create_experiment(title, place) if existing is None else existing.experiment_id
        tags = {"algorithm": algorithm_name(experiment.algorithm)}
        self.id = str(self.client.create_run(home, run_name=name, tags=tags).info.run_id)
        values = [Param(key, str(value)[:500]) for key, value in dotted(experiment.dump()).items()]
        for first in range(0, len(values), 100):  # the most that one request may have
            self.client.log_batch(self.id, params=values[first : first + 100])
        return self.id

    def log(self, done: int, numbers: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.client.log_batch(self.id, metrics=[Metric(_name(key), value, now, done) for key, value in numbers.items()])

    def log_files(self, files: Sequence[Path]) -> None:
        for path in files:
            self.client.log_artifact(self.id, str(path))

    def end(self, status: str) -> None:
        self.client.set_tag(self.id, "status", status)
        good, bad = status.startswith(("finished", "diverged")), status.startswith("failed")
        self.client.set_terminated(self.id, "FINISHED" if good else "FAILED" if bad else "KILLED")


def _name(key: str) -> str:
    """A column's name in the characters that MLflow takes."""
    return re.sub(r"[^A-Za-z0-9_\-. /]", "_", key)


class WandbRun:
    """A run of Weights & Biases."""

    package = "wandb"

    def __init__(self, options: Wandb) -> None:
        self.options = options

    def begin(self, id: str | None, name: str, experiment: Experiment) -> str:
        import wandb

        self.run = wandb.init(
            project=self.options.project or experiment.name,
            entity=self.options.entity,
            mode=self.options.mode,
            name=name,
            id=id or secrets.token_hex(4),
            resume="allow",
            reinit="create_new",  # a sweep has several runs in one process
            config=experiment.dump(),
            settings=wandb.Settings(console="off", silent=True),
        )
        return str(self.run.id)

    def log(self, done: int, numbers: Mapping[str, float]) -> None:
        self.run.log(dict(numbers), step=done)

    def log_files(self, files: Sequence[Path]) -> None:
        import wandb

        for path in files:
            artifact = wandb.Artifact(f"{self.run.id}-{path.name}", type="flray")
            artifact.add_file(str(path))
            self.run.log_artifact(artifact)

    def end(self, status: str) -> None:
        self.run.summary["status"] = status
        self.run.finish(exit_code=0 if status.startswith(("finished", "diverged")) else 1)


BACKENDS: dict[str, Any] = {"mlflow": MlflowRun, "wandb": WandbRun}  # of flray's names of `tracking.TRACKERS`
