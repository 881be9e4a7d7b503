"""The driver: for every transaction of the schedule (`rounds.py`): record, save, restart what died; pause, stop,
finish."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from flray.config.experiment import Experiment, algorithm_name
from flray.core.protocol.clock import PHASES, START, Clock, Position, schedule
from flray.core.schema.errors import (
    AlgorithmError,
    CheckpointError,
    ClientError,
    FlrayError,
    NonFiniteError,
    ResourceError,
    ServerLostError,
    described,
)
from flray.data import Dataset
from flray.engine.blame import Deaths
from flray.engine.client import in_folder
from flray.engine.evaluate import personal_epochs
from flray.engine.prepare import stored_scenario
from flray.engine.progress import Progress, line, stage
from flray.engine.rounds import Executor
from flray.engine.server import Server
from flray.engine.summary import collapsed, judged, untrained
from flray.engine.transactions import Transactions
from flray.models.weights import weights_fingerprint
from flray.rundir import checkpoint, progress_file
from flray.rundir.environment import environment, write_environment
from flray.rundir.folder import RunFolder
from flray.rundir.lock import FolderLostError
from flray.rundir.parts import RowsMissingWarning
from flray.rundir.provenance import Origin
from flray.rundir.reader import Run
from flray.rundir.recorder import Recorder, write_status, write_text
from flray.rundir.storage import Storage
from flray.rundir.trackers import Trackers
from flray.scenario import Scenario

RESTARTS = 3  # of the server actor in one run


Launch = Callable[[Experiment, Path, Scenario, dict[str, Any], str], tuple[Executor, Experiment]]


class Simulation(Transactions):
    """One run: its data, partition, actors, recorder."""

    def __init__(
        self,
        experiment: Experiment,
        home: RunFolder,
        data: tuple[Dataset, Any, Any],
        scenario: Scenario | None,
        storage: Storage | None,
        origin: Origin,
        launch: Launch,
    ) -> None:
        """Raises `DataError` when a resume would go on with other data than the run began with."""
        self.experiment, self.home, self.storage, self.origin, self.launch = experiment, home, storage, origin, launch
        self.dataset, proxy, _ = data
        self.scenario = stored_scenario(experiment, data, scenario, self.folder / "partition")
        self.fingerprints = {
            "data": self.dataset.fingerprint,
            "partition": self.scenario.fingerprint,
            "proxy": proxy.fingerprint if proxy else None,
            "weights": weights_fingerprint(experiment.model.start.get("weights")),
        }
        origin.compare(self.fingerprints)
        self.recorder: Recorder | None = None
        self._restored = False  # the server has the state where the run goes on: it can be saved
        self._running = False  # STATUS says so
        self._flops = {}
        self._deaths = Deaths()
        self.trackers = Trackers(experiment, home.path, home.check)
        self._looks_at_rounds = any("round" in probe.at for probe in experiment.probes().values())

    @property
    def folder(self) -> Path:
        """Where to write now."""
        return self.home.path

    # the run ----------------------------------------------------------------------------------
    def go(self, progress: bool, resume: bool) -> Generator[dict[str, Any]]:
        """The rows of all rounds; restarts from the last checkpoint when the server dies; saves on Ctrl-C and when
        closed."""
        label = f"{algorithm_name(self.experiment.algorithm)} on {self.dataset.name}"
        told = 0
        for attempt in range(RESTARTS + 1):
            self._restored = False
            try:
                position = self._start(attempt, progress, resume)
                total = self.experiment.rounds * len(self.scenario.stages)
                progress_file.remove(self.folder)
                with (
                    Progress(label, total, position.done, progress, lambda: progress_file.read(self.folder)) as show,
                    self.executor.translate_errors(self.home.target),
                ):
                    for row in self._run(position, show):
                        if row["done"] > told:  # after a restart some rounds come again
                            told = row["done"]
                            yield row
                return
            except ServerLostError as error:
                if (ended := self._deaths.heard(error.call)) is not None:
                    ended = in_folder(ended, self.folder)
                    self._fail(ended)
                    raise ended from error
                if not self._restored:
                    self._fail(error)
                    raise
                if attempt == RESTARTS:
                    self._fail(error)
                    raise ResourceError(
                        f"{error}, {RESTARTS + 1} times; if memory ran out use fewer actors, then run: flray "
                        f"resume {self.folder}"
                    ) from error
                self.executor.kill()
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

    def _start(self, attempt: int, progress: bool, resume: bool) -> Position:
        """Start server and clients, and restore the run; returns how far it is."""
        with stage("starting server and clients", progress):
            self.executor, self.experiment = self._launch()
        self.facts = dict(self.executor.facts)
        if attempt == 0 and self.facts["starts_from"] is not None:
            line(f"model {self.experiment.model.name} starts from {self.facts['starts_from']}", progress)
        self.origin.compare({"initial_weights": self.facts.pop("initial_weights")})
        if attempt == 0 and self.storage is not None:
            self.executor.probe_storage()  # its node may lack what this one has
        return self._restore(resume or attempt > 0)

    def _launch(self) -> tuple[Executor, Experiment]:
        """(an executor, ready; the experiment with what decides its bits written out)."""
        return self.launch(self.experiment, self.folder, self.scenario, self.fingerprints, self.home.lock_id)

    def _restore(self, wanted: bool) -> Position:
        """How far the run is, by its last good checkpoint when there is one; the recorder follows."""
        rounds, after = self.experiment.rounds, PHASES
        position = self.executor.load() if wanted else None
        if position is not None and position.phase == "task_end" and position.round < rounds:
            # more rounds after the last task had ended: go on from before its end
            after = ("round",)
            position = self.executor.load(None, after)
            if position is None:
                raise CheckpointError(
                    f"{self.folder} keeps no checkpoint from before its task ended; start again with more rounds"
                )
        found, position = position, position or START
        there = checkpoint.checkpoints(self.folder, after=after) if wanted else []
        passed = [path.name for path in there if checkpoint.order(path) > position.order]
        if passed:  # the server actor cannot be heard: its own warning stays in a log file
            warnings.warn(
                f"{self.folder}/checkpoints: {', '.join(passed)} damaged; going on after round {position.done}",
                stacklevel=2,
            )
        if self.recorder is not None:
            self.recorder.close()
        self.recorder = Recorder(self.folder, self.home.check, self.trackers)
        if wanted and found is None:
            # as it was: `every` may change now
            before, rows = Run(self.folder), max(self.recorder.rounds.kept, default=0)
            checkpoint.check_none_lost(self.folder, before.status, rows, before.experiment.checkpoint.every)
        self.recorder.keep_until(position)
        self._note_missing(position)
        self._write_environment()  # before config.yaml: what has one can be resumed
        write_text(self.folder / "config.yaml", self.experiment.yaml())
        self._restored = True
        self.recorder.status("running")
        self._running = True
        self.home.begin()  # a full disk before this leaves nothing of a new run
        self._mirror()
        return position

    def _note_missing(self, position: Position) -> None:
        """What the tables have lost stays lost: it is told now, and environment.json says so from here on."""
        assert self.recorder is not None
        written = ["rounds", "tasks"] + ["clients"] * (not self.experiment.algorithm.centralized)
        written += ["tests"] * self.experiment.algorithm.global_model
        written += ["personal"] * bool(personal_epochs(self.experiment))
        self._lost = self.recorder.missing(position, written)
        for name, text in self._lost.items():
            what = f"{self.folder / name} has lost the rows of {text}; the run goes on without them"
            warnings.warn(what, RowsMissingWarning, stacklevel=2)

    def _write_environment(self) -> None:
        assert self.recorder is not None
        self.home.check()
        facts = {**self.facts, "repeated_work": self.executor.retries}
        rows = {"rows": self.recorder.counts(), "missing_rows": self._lost}
        values = environment(actors=facts, **rows, **self.origin.record(self.experiment))
        try:
            write_environment(self.folder, values)
        except CheckpointError as error:
            if not self._running:  # nothing to resume
                raise
            raise CheckpointError(f"{error}, and run: flray resume {self.folder}") from error

    def _run(self, position: Position, show: Progress) -> Generator[dict[str, Any]]:
        assert self.recorder is not None
        every, rounds = self.experiment.checkpoint.every, self.experiment.rounds
        evaluate = self.experiment.evaluate.every and self.experiment.algorithm.global_model
        if position == START and evaluate and 0 not in self.recorder.tests.kept:
            # the initial model: where learning curves begin
            self._tested(self.executor.test(Clock(phase="task_begin")), START, {})
        for clock, following in itertools.pairwise([*schedule(position, rounds, len(self.scenario.stages)), None]):
            assert clock is not None
            if clock.phase != "round":
                if clock.phase == "task_end":
                    self._save()  # more rounds may follow one day, from before the task's end
                if not self._bounded(clock, show):
                    return
                continue
            ahead = following if following is not None and following.phase == "round" else None
            try:
                row, clients = self._round(clock, ahead)
            except NonFiniteError as error:
                if self.experiment.on_nonfinite != "stop":
                    raise
                row, clients = (
                    {"done": clock.done + 1, "task": clock.task, "round": clock.round + 1, "diverged": True},
                    [],
                )
                who, _, where = str(error).splitlines()[0].partition(" failed in ")
                self._diverged(row, clients, f"{who}: {where.partition(': ')[2]}")
                yield row
                return
            if row["diverged"] and self.experiment.on_nonfinite == "stop":
                self._diverged(row, clients, "the server's state is not finite after aggregation; lower algorithm.lr")
                yield row
                return
            position = clock.complete
            self.recorder.round(row, clients)
            # nothing waits for it: the server works its calls off in order
            self.executor.start(Server.commit, position)
            self._settle()
            show(row)
            if every and position.done % every == 0 and position.round < rounds:
                self._save()
            yield row
        run, split = Run(self.folder), self.experiment.evaluate.split
        tested = judged(run.rounds, run.tests, self.scenario.stages[-1], self.dataset, split)
        self._finish(untrained(run.rounds) or collapsed(*tested, split) or "finished")

    def _bounded(self, clock: Clock, show: Progress) -> bool:
        """The beginning or the end of a task, committed and saved if it changed anything; False: the run diverged."""
        why = "the server's state is not finite; lower algorithm.lr"
        try:
            row = self._task(clock, show)
        except NonFiniteError as error:
            if self.experiment.on_nonfinite != "stop":
                raise
            row, why = {"diverged": True}, str(error).splitlines()[0].partition(": ")[2]
        if row.get("diverged") and self.experiment.on_nonfinite == "stop":
            self._save()
            self._finish(f"diverged at the {clock.phase.removeprefix('task_')} of task {clock.task}: {why}")
            return False
        if "exchanges" in row:
            self.executor.start(Server.commit, clock.complete)
            self._save()
        return True

    # the end ----------------------------------------------------------------------------------
    def _finish(self, status: str) -> None:
        assert self.recorder is not None
        self._settle()
        if self.experiment.algorithm.global_model:
            self.executor.save_model()
        self.recorder.close()
        self._write_environment()
        self.recorder.status(status)
        self._mirror()

    def _diverged(self, row: dict[str, Any], clients: list[dict[str, Any]], why: str) -> None:
        """Divergence is a result: its round is recorded, the checkpoint and the model are those of the last finite
        round."""
        assert self.recorder is not None
        self._save()
        self.recorder.round(row, clients)
        self._finish(f"diverged in round {row['round']}: {why}")

    def _save(self) -> Position:
        """Checkpoint of the last commit, and its rows; returns the position in it."""
        assert self.recorder is not None
        # first: a resume drops rows behind the checkpoint, and could not make up for missing ones
        self.recorder.flush()
        position = self.executor.save(self.experiment.checkpoint.keep)
        self._mirror()
        return position

    def _settle(self) -> None:
        """The first round is done: this run takes the place of the one that it replaces, here and in the storage."""
        if self.home.replaces:
            assert self.recorder is not None
            self.home.settle()
            self.recorder.folder_renamed(self.folder)
            self.executor.folder_renamed(self.folder.absolute())
            if self.storage is not None:
                self.storage.folder_renamed(self.folder)
        if self.storage is not None and self.storage.replaces:
            self.storage.clear()

    def _mirror(self) -> None:
        """Bring the storage up to date; the server actor uploads what it wrote, from its own node."""
        if self.storage is not None and not self.storage.replaces and not self.home.replaces:
            self.storage.sync(self._push_server)

    def _push_server(self) -> str | None:
        try:
            problem = self.executor.push()
        except ServerLostError as error:  # whatever comes next finds it out as well
            return str(error)
        return problem

    def _stop(self, why: str) -> None:
        """Keep what is finished: complete rounds survive Ctrl-C, an incomplete one leaves no trace."""
        if self.home.replaces:
            self.home.give_up()
            return
        again = f"continue with: flray resume {self.folder}"
        if not self._restored:
            if self._running:  # an earlier attempt
                assert self.recorder is not None
                what = f"{why} while the server was started again; no checkpoint could be written"
                self.recorder.status(f"{what}; {again}")
            return
        assert self.recorder is not None
        try:
            position = self._save()
            self.recorder.keep_until(position)
            self.recorder.close()
        except BaseException as error:  # a full disk; a second signal
            reason = _first_line(error)
            self.recorder.status(f"{why}; no checkpoint could be written ({reason}); {again}")
            raise
        self.recorder.status(f"{why} after round {position.done}; {again}")
        self._mirror()

    def _fail(self, error: BaseException) -> None:
        if not (self._running or self._restored):  # the run did not begin, or a resume left it as it was
            if isinstance(error, AlgorithmError) and not self.home.begun and not self.home.replaces:
                self._failed_at_once(error)
            return
        assert self.recorder is not None
        self.recorder.status(f"failed: {_first_line(error)}")
        try:
            if not self._restored:
                raise ResourceError("the server did not start again")
            self._save()
        except ServerLostError:  # the last checkpoint stays
            pass
        except Exception as second:  # the first error is the one to show
            what = f"failed: {_first_line(error)}; and no checkpoint could be written: {_first_line(second)}"
            self.recorder.status(what)
            if self._restored:
                self._mirror()

    def _failed_at_once(self, error: AlgorithmError) -> None:
        """The user's own code failed before the first round (`init_server`): that is a run, whose STATUS says so."""
        write_environment(self.folder, environment(actors={}, **self.origin.record(self.experiment)))
        write_text(self.folder / "config.yaml", self.experiment.yaml())
        write_status(self.folder, f"failed: {_first_line(error)}")
        self.home.begin()


def _first_line(error: BaseException) -> str:
    if isinstance(error, FlrayError) and str(error):
        return str(error).splitlines()[0]
    return described(error).removeprefix(f"{type(error).__name__}: ")
