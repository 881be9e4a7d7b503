"""The driver: for every task, for every round (`rounds.py`): record, save, restart what died; pause, stop, finish."""

from __future__ import annotations

import time
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flray.core.errors import CheckpointError, ClientError, DataError, NonFiniteError, ResourceError
from flray.data import Dataset
from flray.engine.evaluate import evaluate_personal, personal_epochs, spread
from flray.engine.prepare import build_data, build_partition, cpus_needed
from flray.engine.progress import Progress, stage
from flray.engine.ray import alive
from flray.engine.ray.cluster import Background, connect
from flray.engine.ray.launch import launch
from flray.engine.ray.pool import Pool, ServerLostError
from flray.engine.rounds import Rounds
from flray.engine.summary import collapsed, untrained
from flray.engine.workbench import in_folder
from flray.experiment import Experiment, algorithm_name
from flray.models.weights import weights_fingerprint
from flray.rundir import checkpoint
from flray.rundir.environment import environment, write_environment
from flray.rundir.folder import RunFolder
from flray.rundir.lock import FolderLostError
from flray.rundir.parts import RowsMissingWarning
from flray.rundir.provenance import Origin
from flray.rundir.reader import Run
from flray.rundir.recorder import Recorder, write_text
from flray.rundir.storage import Storage
from flray.scenario import Partition, load_partition, partition_table

TASKS = 1  # task sequences build on this loop
RESTARTS = 3  # of the server actor in one run


def simulate(experiment: Experiment, folder: Path, **options: Any) -> None:
    """Run (or resume) an experiment into `folder`, with the options of :func:`play`. Raises `FlrayError` in one line; what is on disk stays
    readable."""
    for _ in play(experiment, folder, **options):
        pass


def play(
    experiment: Experiment,
    folder: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    partition: Partition | None = None,
    accept: Sequence[str] = (),
) -> Generator[dict[str, Any]]:
    """The rows of the rounds as they complete, as in rounds/; the run is finished when there are no more.

    Closing the iterator before that pauses the run: a checkpoint, and a STATUS that says how to go on. `overwrite`: a run that is
    in the folder is replaced once the first round of this one is done. `accept` names what a resume may find changed since the run
    began (a key of the configuration, `data`, `modules.NAME` ...); `environment.json` keeps that.
    """
    home = RunFolder.claim(folder, resume=resume, overwrite=overwrite)
    try:
        storage = Storage.of(experiment.storage, home.path, home.target.name)
        if storage is not None:
            storage.check(resume=resume, overwrite=overwrite)
        origin = Origin.of(experiment, home.path if resume else None, accept)
        needed = cpus_needed(experiment)
        starting = Background(lambda: connect(experiment.address, needed))  # Ray takes seconds to start
        with stage(f"reading data: {experiment.data.source}", progress):
            data = build_data(experiment)
            if partition is None and not resume:
                partition = build_partition(experiment, data[0], data[2])
                experiment.cohort.count(partition.num_clients)
        kind = Simulation
        if experiment.algorithm.centralized:
            from flray.engine.ray.train.driver import Centralized as kind
        run = kind(experiment, home, data, partition, storage, origin)
        with stage("starting Ray", progress and not starting.ready):
            starting.join()
        yield from run.go(progress, resume)
        if storage is not None:
            storage.check_complete()
    finally:
        home.release()


class Simulation(Rounds):
    """One run: its data, partition, actors, recorder."""

    def __init__(
        self,
        experiment: Experiment,
        home: RunFolder,
        data: tuple[Dataset, Any, Any],
        partition: Partition | None,
        storage: Storage | None,
        origin: Origin,
    ) -> None:
        """Raises `DataError` when a resume would go on with other data than the run began with."""
        self.experiment, self.home, self.storage, self.origin = experiment, home, storage, origin
        self.dataset, proxy, _ = data
        where = self.folder / "partition"
        if partition is None:
            try:
                load_partition(where)
            except DataError as error:  # it is what the configuration gives; the fingerprints tell whether it still is
                warnings.warn(f"{error}; made again from the configuration", stacklevel=2)
                partition = build_partition(experiment, self.dataset, data[2])
        if partition is not None:
            partition.save(where, experiment.partition)
            if partition.num_clients <= 10_000:  # a table of a million clients helps nobody
                table = partition_table(partition, self.dataset.train.y, self.dataset.num_classes)
                write_text(where / "table.csv", table.to_csv())
        self.partition = load_partition(where, verify=False)  # memory-mapped from here on
        self.population = self.partition.num_clients
        self.fingerprints = {
            "data": self.dataset.fingerprint,
            "partition": self.partition.hash,
            "proxy": proxy.fingerprint if proxy else None,
            "weights": weights_fingerprint(experiment.model.start.get("weights")),
        }
        origin.compare(self.fingerprints)

    @property
    def folder(self) -> Path:
        """Where to write now."""
        return self.home.path

    # the run ----------------------------------------------------------------------------------
    def go(self, progress: bool, resume: bool) -> Generator[dict[str, Any]]:
        """The rows of all rounds; restarts from the last checkpoint when the server actor dies; saves on Ctrl-C and when closed."""
        label = f"{algorithm_name(self.experiment.algorithm)} on {self.dataset.name}"
        told = 0
        for attempt in range(RESTARTS + 1):
            with stage("starting the actors", progress):
                self.pool, self.facts, self.experiment = self._launch()
            self.origin.compare({"initial_weights": self.facts.pop("initial_weights")})
            if attempt == 0 and self.storage is not None:
                self.pool.call("probe_storage")  # its node may lack what this one has
            position = self._restore(resume or attempt > 0)
            with Progress(label, self.experiment.rounds, position[2], enabled=progress) as show:
                try:
                    with alive.told(self.home.target):
                        for row in self._run(position, show):
                            if row["done"] > told:  # after a restart some rounds come again
                                told = row["done"]
                                yield row
                    return
                except ServerLostError as error:
                    if attempt == RESTARTS:
                        self._fail(error)
                        raise ResourceError(
                            f"{error}, {RESTARTS + 1} times; if memory ran out use fewer actors, then run: flray resume {self.folder}"
                        ) from error
                    self.pool.kill()
                except FolderLostError:  # whatever is there now is another's
                    raise
                except (KeyboardInterrupt, SystemExit):  # Ctrl-C; a stopped Ray job
                    self._stop("interrupted")
                    raise
                except GeneratorExit:
                    self._stop("paused")
                    raise
                except ClientError as error:
                    named = in_folder(error, self.folder)
                    self._fail(named)
                    raise named from None
                except BaseException as error:
                    self._fail(error)
                    raise

    def _launch(self) -> tuple[Pool, dict[str, Any], Experiment]:
        """(actors set up, facts about them, the experiment with what decides its bits written out)."""
        return launch(self.experiment, self.folder, self.partition, self.fingerprints, self.home.lock_id)

    def _restore(self, wanted: bool) -> tuple[int, int, int]:
        """(task, next round, rounds done), from the last good checkpoint when there is one; the recorder follows."""
        self._ahead, task_end = None, True
        position = self.pool.call("load") if wanted else None
        if position is not None and position[0] >= TASKS and position[2] < self.experiment.rounds * TASKS:
            # more rounds after the last task had ended: go on from before its end
            position, task_end = self.pool.call("load", None, False), False
            if position is None:
                raise CheckpointError(f"{self.folder} keeps no checkpoint from before its task ended; start again with more rounds")
        task, round, done = position or (0, 0, 0)
        loaded = checkpoint.Position(task, round, done, task_end=task > 0).name
        passed = [p.name for p in checkpoint.checkpoints(self.folder, task_end=task_end) if p.name > loaded] if wanted else []
        if passed:  # the server actor cannot be heard: its own warning stays in a log file
            warnings.warn(f"{self.folder}/checkpoints: {', '.join(passed)} damaged; going on after round {done}", stacklevel=2)
        if self.recorder is not None:
            self.recorder.close()
        self.recorder = Recorder(self.folder, self.home.check)
        if wanted and position is None:
            before, rows = Run(self.folder), max(self.recorder.rounds.kept, default=0)  # as it was: `every` may change now
            checkpoint.check_none_lost(self.folder, before.status, rows, before.experiment.checkpoint.every)
        self.recorder.keep_until(done, task)
        self._note_missing(done, task)
        self._write_environment()  # before config.yaml: what has one can be resumed
        write_text(self.folder / "config.yaml", self.experiment.yaml())
        self.recorder.status("running")
        self.home.begin()  # a full disk before this leaves nothing of a new run
        self._mirror()
        return task, round, done

    def _note_missing(self, done: int, task: int) -> None:
        """What the tables have lost stays lost: it is told now, and environment.json says so from here on."""
        assert self.recorder is not None
        written = ["rounds", "tasks"] + ["clients"] * (not self.experiment.algorithm.centralized)
        written += ["tests"] * self.experiment.algorithm.global_model
        written += ["personal"] * bool(personal_epochs(self.experiment))
        self._lost = self.recorder.missing(done, task, written)
        for name, text in self._lost.items():
            what = f"{self.folder / name} has lost the rows of {text}; the run goes on without them"
            warnings.warn(what, RowsMissingWarning, stacklevel=2)

    def _write_environment(self) -> None:
        assert self.recorder is not None
        self.home.check()
        facts = {**self.facts, "repeated_work": self.pool.retries}
        rows = {"rows": self.recorder.counts(), "missing_rows": self._lost}
        write_environment(self.folder, environment(actors=facts, **rows, **self.origin.record(self.experiment)))

    def _run(self, position: tuple[int, int, int], show: Progress) -> Generator[dict[str, Any]]:
        assert self.recorder is not None
        first_task, first_round, done = position
        rounds, every = self.experiment.rounds, self.experiment.checkpoint.every
        if done == 0 and self.experiment.evaluate.every and 0 not in self.recorder.tests.kept:
            cohort_size = self.experiment.cohort.count(self.population)
            self._test(self._moment(0, 0, cohort_size), {"done": 0, "round": 0})  # the initial model: where learning curves begin
        for task in range(first_task, TASKS):
            for round in range(first_round if task == first_task else 0, rounds):
                try:
                    row, clients = self._round(task, round, done + 1)
                except NonFiniteError as error:
                    if self.experiment.on_nonfinite != "stop":
                        raise
                    row, clients = {"done": done + 1, "task": task, "round": round + 1, "diverged": True}, []
                    who, _, where = str(error).splitlines()[0].partition(" failed in ")
                    self._diverged(row, clients, f"{who}: {where.partition(': ')[2]}")
                    yield row
                    return
                if row["diverged"] and self.experiment.on_nonfinite == "stop":
                    self._diverged(row, clients, "the server's state is not finite after aggregation; lower algorithm.lr")
                    yield row
                    return
                done += 1
                self.recorder.round(row, clients)
                # nothing waits for it: the server works its calls off in order
                self.pool.start("commit", task, round + 1, done)
                self._settle()
                show(row)
                if every and done % every == 0 and round + 1 < rounds:
                    self._save()
                yield row
            self._save()
            if self._task_end(task, rounds, done, show):
                self.pool.start("commit", task + 1, 0, done)
                self._save(task_end=True)
        labels = self.dataset.test.y if self.partition.held is None else self.dataset.train.y[self.partition.held]
        rows = Run(self.folder).rounds
        self._finish(untrained(rows) or collapsed(rows, labels, self.experiment.evaluate.split) or "finished")

    def _finish(self, status: str) -> None:
        assert self.recorder is not None
        self._settle()
        if self.experiment.algorithm.global_model:
            self.pool.call("save_model")
        self.recorder.close()
        self._write_environment()
        self.recorder.status(status)
        self._mirror()

    def _diverged(self, row: dict[str, Any], clients: list[dict[str, Any]], why: str) -> None:
        """Divergence is a result: its round is recorded, the checkpoint and the model are those of the last finite round."""
        assert self.recorder is not None
        self._save()
        self.recorder.round(row, clients)
        self._finish(f"diverged in round {row['round']}: {why}")

    def _task_end(self, task: int, rounds: int, done: int, show: Progress) -> bool:
        """The exchanges at the end of a task and the personalised test, over every client; False when there is no exchange."""
        assert self.recorder is not None
        row: dict[str, Any] = {
            "done": done,
            "task": task,
            "comm/up_bytes": 0,
            "comm/down_bytes": 0,
            "client_steps": 0,
            "time/server_s": 0.0,
        }
        started = time.perf_counter()
        everyone = np.arange(self.population)
        self._exchanges(task, rounds, True, everyone, row, self.population)
        if "exchanges" in row:
            self._test(self._moment(task, rounds, self.population, task_end=True), row)
        if personal_epochs(self.experiment):
            show.note("testing every client on its own data")
            began = time.perf_counter()
            people = evaluate_personal(self.pool, self.experiment, self.partition, self._moment(task, rounds, self.population))
            row.update(spread(people), **{"time/personal_s": time.perf_counter() - began})
            self.recorder.clients_tested([{"done": done, "task": task, **person} for person in people])
        row["time/task_end_s"] = time.perf_counter() - started
        self.recorder.task(row)
        return "exchanges" in row

    # the end ----------------------------------------------------------------------------------
    def _save(self, task_end: bool = False) -> int:
        """Checkpoint of the last complete round, and its rows; returns the rounds done in it."""
        assert self.recorder is not None
        self.recorder.flush()  # first: a resume drops rows behind the checkpoint, and could not make up for missing ones
        done: int = self.pool.call("save", self.experiment.checkpoint.keep, task_end)
        self._mirror()
        return done

    def _settle(self) -> None:
        """The first round is done: this run takes the place of the one that it replaces, here and in the storage."""
        if self.home.replaces:
            assert self.recorder is not None
            self.home.settle()
            self.recorder.moved(self.folder)
            self.pool.call("moved", str(self.folder.absolute()))
            if self.storage is not None:
                self.storage.moved(self.folder)
        if self.storage is not None and self.storage.replaces:
            self.storage.clear()

    def _mirror(self) -> None:
        """Bring the storage up to date; the server actor uploads what it wrote, from its own node."""
        if self.storage is not None and not self.storage.replaces and not self.home.replaces:
            self.storage.sync(self._push_server)

    def _push_server(self) -> str | None:
        try:
            problem: str | None = self.pool.call("push")
        except ServerLostError as error:  # whatever comes next finds it out as well
            return str(error)
        return problem

    def _stop(self, why: str) -> None:
        """Keep what is finished: complete rounds survive Ctrl-C, an incomplete one leaves no trace."""
        assert self.recorder is not None
        if self.home.replaces:
            self.home.give_up()
            return
        done = self._save()
        self.recorder.keep_until(done, TASKS)
        self.recorder.close()
        self.recorder.status(f"{why} after round {done}; continue with: flray resume {self.folder}")
        self._mirror()

    def _fail(self, error: BaseException) -> None:
        assert self.recorder is not None
        self.recorder.status(f"failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
        try:
            self._save()
        except Exception as second:  # the first error is the one to show
            self.recorder.status(f"failed: {error}; and no checkpoint could be written: {second}")
            self._mirror()
