"""The driver of a run: it starts the processes, runs every transaction of the schedule, and records the rows.

A transaction is a round, the beginning of a task, or its end (`rounds.py`). The driver saves checkpoints, restarts the
server when its process dies, and writes STATUS at every end of the run.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from flray.config.experiment import Experiment, algorithm_name
from flray.core.protocol.clock import PHASES, START, Clock, Position, schedule, task_name
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
from flray.engine import cohort as cohorts
from flray.engine.blame import Deaths
from flray.engine.client import in_folder
from flray.engine.counts import TestCounts, add_test_sums
from flray.engine.evaluate import evaluate_personal, personal_columns
from flray.engine.flops import StepFlops, largest_client, step_kind
from flray.engine.prepare import stored_scenario
from flray.engine.progress import Progress, line, stage
from flray.engine.rounds import Executor, add_sent, transact
from flray.engine.server import ExchangePlan, Server
from flray.engine.stored_server import StoredServer
from flray.engine.summary import collapse_reason, final_tests, untrained_reason
from flray.engine.trace import unprofiled
from flray.models.weight_files import weights_fingerprint
from flray.rundir import checkpoint, progress_file, tested
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
Row = dict[str, Any]


class ExchangeWarning(UserWarning):
    """An exchange is skipped because no client takes part."""


@dataclass
class Attempt:
    """A started run; each restart of the server creates a new attempt.

    `position`: of the checkpoint that it continues from. `facts`: about model, data and processes, for
    environment.json. `missing_rows`: the rows that damaged tables have lost, by table.
    """

    executor: Executor
    recorder: Recorder
    position: Position
    facts: dict[str, Any]
    missing_rows: dict[str, str]


class Simulation:
    """One run: its data, scenario, processes and tables."""

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
        """Raises `DataError` if a resume would continue with other data."""
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
        self.trackers = Trackers(experiment, home.path, home.check)
        self._resumable = False  # STATUS says `running`
        self._deaths = Deaths()
        self._flops: dict[tuple[Any, ...], StepFlops] = {}  # of a local step, by its kind
        self._probes_rounds = any("round" in probe.at for probe in experiment.probes().values())

    @property
    def folder(self) -> Path:
        """The folder that the run writes to at present."""
        return self.home.path

    # the run ----------------------------------------------------------------------------------
    def go(self, progress: bool, resume: bool) -> Generator[Row]:
        """Yields the rows of all rounds. Restarts from the last checkpoint when the server dies; saves on Ctrl-C and
        when the generator is closed."""
        reported = 0  # rounds
        last: Attempt | None = None  # the present attempt, or the one before it
        for attempt in range(RESTARTS + 1):
            run: Attempt | None = None  # not None: the server has the run's state, which can be saved
            try:
                run = self._start(attempt, progress, resume, last)
                last = run
                self._announce(run)
                for row in self._rounds(run, progress):
                    if row["done"] > reported:  # a restart repeats rounds
                        reported = row["done"]
                        yield row
                return
            except ServerLostError as error:
                if (ended := self._deaths.record(error.call)) is not None:
                    ended = in_folder(ended, self.folder)
                    self._fail(ended, run, last)
                    raise ended from error
                if run is None:
                    self._fail(error, run, last)
                    raise
                if attempt == RESTARTS:
                    self._fail(error, run, last)
                    raise ResourceError(
                        f"{error}, {RESTARTS + 1} times; if memory ran out use fewer actors, then run: flray "
                        f"resume {self.folder}"
                    ) from error
                run.executor.kill()
            except FolderLostError:  # another process owns the folder: write nothing
                raise
            except (KeyboardInterrupt, SystemExit):  # Ctrl-C; a stopped Ray job
                self._stop("interrupted", run, last)
                raise
            except GeneratorExit:
                self._stop("paused", run, last)
                raise
            except ClientError as error:
                named = in_folder(error, self.folder)
                self._fail(named, run, last)
                raise named from None
            except BaseException as error:
                self._fail(error, run, last)
                raise

    def _start(self, attempt: int, progress: bool, resume: bool, before: Attempt | None) -> Attempt:
        """Start server and clients, and restore the run. `before`: the attempt whose server died, or None."""
        with stage("starting server and clients", progress):
            executor, self.experiment = self._launch()
        facts = dict(executor.facts)
        if attempt == 0 and facts["starts_from"] is not None:
            line(f"model {self.experiment.model.name} starts from {facts['starts_from']}", progress)
        self.origin.compare({"initial_weights": facts.pop("initial_weights")})
        if attempt == 0 and self.storage is not None:
            executor.call_store(StoredServer.probe_storage)  # the server's node may have no credentials
        return self._restore(executor, facts, resume or attempt > 0, before)

    def _launch(self) -> tuple[Executor, Experiment]:
        """(a ready executor, the experiment with automatic resources written out)."""
        return self.launch(self.experiment, self.folder, self.scenario, self.fingerprints, self.home.lock_id)

    def _restore(self, executor: Executor, facts: dict[str, Any], wanted: bool, before: Attempt | None) -> Attempt:
        """Continue from the last good checkpoint, if one exists and is `wanted`, and truncate the tables to it."""
        rounds, after = self.experiment.rounds, PHASES
        restored = executor.call_store(StoredServer.load) if wanted else None
        if restored is not None and restored.phase == "task_end" and restored.round < rounds:
            # the last task had ended and now has more rounds: continue from before its end
            after = ("round",)
            restored = executor.call_store(StoredServer.load, None, after)
            if restored is None:
                raise CheckpointError(
                    f"{self.folder} has no checkpoint from before its task ended; start again with more rounds"
                )
        position = restored or START
        stored = checkpoint.checkpoints(self.folder, after=after) if wanted else []
        damaged = [path.name for path in stored if checkpoint.order(path) > position.order]
        if damaged:  # the server actor's own warning stays in a log file
            warnings.warn(
                f"{self.folder}/checkpoints: {', '.join(damaged)} damaged; going on after round {position.done}",
                stacklevel=2,
            )
        if before is not None:
            before.recorder.close()
        recorder = Recorder(self.folder, self.home.check, self.trackers)
        if wanted and restored is None:
            # of the configuration before this resume, which may have changed `every`
            earlier, rows = Run(self.folder), max(recorder.rounds.stored_rounds, default=0)
            checkpoint.check_none_lost(self.folder, earlier.status, rows, earlier.experiment.checkpoint.every)
        recorder.truncate(position)
        run = Attempt(executor, recorder, position, facts, self._missing_rows(recorder, position))
        self._write_environment(run)  # before config.yaml, with which a folder can be resumed
        write_text(self.folder / "config.yaml", self.experiment.yaml())
        return run

    def _missing_rows(self, recorder: Recorder, position: Position) -> dict[str, str]:
        """The rows that damaged tables have lost, by table. Warns of them; environment.json records them."""
        tables = ["rounds", "tasks"] + ["clients"] * (not self.experiment.algorithm.centralized)
        tables += ["tests"] * self.experiment.algorithm.global_model
        tables += ["personal"] * bool(self.experiment.personal_epochs)
        missing = recorder.missing(position, tables)
        for name, text in missing.items():
            what = f"{self.folder / name} has lost the rows of {text}; the run goes on without them"
            warnings.warn(what, RowsMissingWarning, stacklevel=2)
        return missing

    def _write_environment(self, run: Attempt) -> None:
        self.home.check()
        facts = {**run.facts, "repeated_work": run.executor.retries}
        rows = {"rows": run.recorder.counts(), "missing_rows": run.missing_rows}
        values = environment(actors=facts, **rows, **self.origin.record(self.experiment))
        try:
            write_environment(self.folder, values)
        except CheckpointError as error:
            if not self._resumable:
                raise
            raise CheckpointError(f"{error}, and run: flray resume {self.folder}") from error

    def _announce(self, run: Attempt) -> None:
        """Write `running` to STATUS. From here on the folder contains a run, also after a failure."""
        run.recorder.status("running")
        self._resumable = True
        self.home.begin()  # an error before this line, such as a full disk, removes a new run
        self._mirror(run)

    def _rounds(self, run: Attempt, progress: bool) -> Generator[Row]:
        """Yields the rows of the rounds from the attempt's position on, with a progress display."""
        label = f"{algorithm_name(self.experiment.algorithm)} on {self.dataset.name}"
        total = self.experiment.rounds * len(self.scenario.stages)
        progress_file.remove(self.folder)
        with (
            Progress(label, total, run.position.done, progress, lambda: progress_file.read(self.folder)) as show,
            run.executor.translate_errors(self.home.target),
        ):
            yield from self._schedule(run, show)

    def _schedule(self, run: Attempt, show: Progress) -> Generator[Row]:
        """Run every transaction from the attempt's position on; yields the rows of the rounds."""
        every, rounds, position = self.experiment.checkpoint.every, self.experiment.rounds, run.position
        evaluate = self.experiment.evaluate.every and self.experiment.algorithm.global_model
        if position == START and evaluate and 0 not in run.recorder.tests.stored_rounds:
            # the initial model is the first point of learning curves
            self._record_test(run, run.executor.test(Clock(phase="task_begin")), START, {})
        clocks = list(schedule(position, rounds, len(self.scenario.stages)))
        for clock, following in itertools.zip_longest(clocks, clocks[1:]):
            if clock.phase != "round":
                if clock.phase == "task_end":
                    self._save(run)  # a later resume with more rounds continues from before the task's end
                if not self._task_boundary(run, clock, show):
                    return
                continue
            ahead = following if following is not None and following.phase == "round" else None
            try:
                row, clients = self._round(run, clock, ahead)
            except NonFiniteError as error:
                if self.experiment.on_nonfinite != "stop":
                    raise
                row = {"done": clock.done + 1, "task": clock.task, "round": clock.round + 1, "diverged": True}
                who, _, where = str(error).splitlines()[0].partition(" failed in ")
                self._finish_diverged(run, row, [], f"{who}: {where.partition(': ')[2]}")
                yield row
                return
            if row["diverged"] and self.experiment.on_nonfinite == "stop":
                why = "the server's state is not finite after aggregation; lower algorithm.lr"
                self._finish_diverged(run, row, clients, why)
                yield row
                return
            position = clock.complete
            run.recorder.round(row, clients)
            # do not wait: the server executes its calls in order
            run.executor.start(Server.commit, position)
            self._replace_previous_run(run)
            show(row)
            run.executor.show(row)
            if every and position.done % every == 0 and position.round < rounds:
                self._save(run)
            yield row
        result, split = Run(self.folder), self.experiment.evaluate.split
        last_test = final_tests(result.rounds, result.tests, self.scenario.stages[-1], self.dataset, split)
        self._finish(run, untrained_reason(result.rounds) or collapse_reason(*last_test, split) or "finished")

    def _task_boundary(self, run: Attempt, clock: Clock, show: Progress) -> bool:
        """Run the beginning or the end of a task; commit and save it if it had an exchange. False: the run diverged."""
        why = "the server's state is not finite; lower algorithm.lr"
        try:
            row = self._task(run, clock, show)
        except NonFiniteError as error:
            if self.experiment.on_nonfinite != "stop":
                raise
            row, why = {"diverged": True}, str(error).splitlines()[0].partition(": ")[2]
        if row.get("diverged") and self.experiment.on_nonfinite == "stop":
            self._save(run)
            self._finish(run, f"diverged at the {clock.phase.removeprefix('task_')} of {task_name(clock.task)}: {why}")
            return False
        if "exchanges" in row:
            run.executor.start(Server.commit, clock.complete)
            self._save(run)
        return True

    # one transaction --------------------------------------------------------------------------
    def _round(self, run: Attempt, clock: Clock, ahead: Clock | None) -> tuple[Row, list[Row]]:
        """(the round's row, the rows of its clients). `ahead`: the next round, which the server may plan already."""
        started = time.perf_counter()
        sampled, clients = cohorts.draw_cohort(self.experiment, clock, self.scenario.members(clock.task))
        row = self._empty_row(clock, len(sampled))
        if self.experiment.cohort.dropout:
            row["clients_dropped"] = len(sampled) - len(clients)
        unprofiled(self.experiment.profile, clock, clients)
        client_rows = self._transact(run, clock, clients, row, len(sampled) - len(clients), ahead)
        row.setdefault("clients_skipped", 0)
        row.setdefault("diverged", False)
        if self.experiment.evaluate.due(clock.round, self.experiment.rounds):
            self._test(run, clock, row)
        row["time/client_s"] = float(sum(c["time/client_s"] for c in client_rows))
        row["time/round_s"] = time.perf_counter() - started
        return row, client_rows

    def _task(self, run: Attempt, clock: Clock, show: Progress) -> Row:
        """The row of a task's beginning or end, with the personalised test at its end.

        A row without `exchanges`: the state has not changed.
        """
        row: Row = {"done": clock.done, "task": clock.task, "phase": clock.phase, **self._costs()}
        started = time.perf_counter()
        show.note(str(clock))  # a server that generates data may take minutes
        client_rows = self._transact(run, clock, None, row)
        if "exchanges" in row or (clock.phase == "task_end" and self.scenario.stages[clock.task].tells_tasks_apart):
            self._test(run, clock, row)
        if clock.phase == "task_end" and self.experiment.personal_epochs:
            show.note("testing every client on its own data")
            began = time.perf_counter()
            people = evaluate_personal(run.executor, self.experiment, self.scenario, clock)
            row.update(personal_columns(people), **{"time/personal_s": time.perf_counter() - began})
            run.recorder.clients_tested(
                [{"done": clock.done, "task": clock.task, "phase": clock.phase, **p} for p in people]
            )
        if clock.phase == "task_end" and self.experiment.algorithm.keeps:
            row.update(run.executor.call(Server.stored_sizes))
        row[f"time/{clock.phase}_s"] = time.perf_counter() - started
        if clock.phase == "task_end" or "exchanges" in row:
            run.recorder.task(row, client_rows)
        return row

    def _transact(
        self,
        run: Attempt,
        clock: Clock,
        cohort: np.ndarray | None,
        row: Row,
        dropped: int = 0,
        ahead: Clock | None = None,
    ) -> list[Row]:
        """Run all exchanges of a transaction and add them to `row`. Returns the clients' rows.

        `cohort`: the sampled clients that deliver; None: all clients with samples in the task. `dropped`: the number
        of clients that dropped out after they had received the cohort's first broadcast.
        """
        members = self.scenario.members(clock.task)

        def turns(plan: ExchangePlan, now: Clock) -> list[cohorts.Turn]:
            exchange = plan.exchange
            drawn = np.asarray(members, dtype=np.int64) if cohort is None else cohort
            stateful = functools.partial(run.executor.call, Server.stateful)
            clients = cohorts.participants(exchange, now, drawn, members, stateful, self.experiment.seed)
            result, empty = cohorts.turns(
                self.scenario, self.experiment.algorithm, clients, now, exchange, run.executor.num_chunks
            )
            if empty:
                row["clients_empty"] = row.get("clients_empty", 0) + empty
            if not result:
                self._note_skipped(plan, clients, row)
            elif exchange.client is None and result[0].chunks:
                self._count_flops(run, plan, result[0])
            return result

        client_rows: list[Row] = []
        for exchanged in transact(run.executor, clock, turns, ahead):
            if dropped and exchanged.plan.exchange.who == "cohort":
                add_sent(row, "down", {name: size * dropped for name, size in exchanged.plan.down_bytes.items()})
                dropped = 0
            exchanged.add_to(row)
            if exchanged.plan.exchange.client is None and exchanged.rows:
                row["client_flops"] += self._flops[step_kind(exchanged.plan)].of(exchanged.rows)
            client_rows += exchanged.rows
            self._record_probes(run, clock, exchanged.probe_rows)
            run.recorder.traced(exchanged.traces)
        if self._probes_rounds:
            self._record_probes(run, clock, run.executor.call(Server.observe, clock))
        return client_rows

    def _note_skipped(self, plan: ExchangePlan, clients: np.ndarray, row: Row) -> None:
        """Name a skipped exchange in the row: none of its `clients` can take part. Warns, except for the cohort's.

        For a cohort the row counts clients that are empty or drop out, and a warning before the run announces a drift
        that empties it.
        """
        name, who = plan.exchange.name, plan.exchange.who
        row["exchanges_skipped"] = " ".join([*row.get("exchanges_skipped", "").split(), name])
        if who != "cohort":
            why = "no client has a state yet" if who == "stateful" else f"none of {len(clients)} clients holds a sample"
            warnings.warn(f"{plan.clock}: exchange {name!r} is skipped, {why}", ExchangeWarning, stacklevel=2)

    def _count_flops(self, run: Attempt, plan: ExchangePlan, turn: cohorts.Turn) -> None:
        """Count the FLOPs of a local step of this kind, once in each run or resume."""
        which = step_kind(plan)
        if which not in self._flops:
            try:
                self._flops[which] = run.executor.call(Server.step_flops, plan.exchange, largest_client(turn.chunks))
            except AlgorithmError as error:  # the run itself may succeed
                self._flops[which] = StepFlops(math.nan, math.nan)
                why = str(error).partition("\n")[0]
                warnings.warn(f"client_flops of {turn.clock} are not counted: {why}", stacklevel=2)

    def _record_probes(self, run: Attempt, clock: Clock, rows: Sequence[tuple[str, Row]]) -> None:
        """Add rows of probes to their tables, below `diagnostics/`."""
        at = clock.complete
        when = {"done": at.done, "task": at.task, "round": at.round, "phase": at.phase}
        run.recorder.diagnosed([(name, {**when, **row}) for name, row in rows])

    def _empty_row(self, clock: Clock, cohort_size: int) -> Row:
        """The columns of a round's row, before the round."""
        row: Row = {"done": clock.done + 1, "task": clock.task, "round": clock.round + 1}
        row.update(**self._test_columns(), **{"train/loss": None}, cohort_size=cohort_size)
        return {**row, **self._costs(), "proxy_examples": 0.0}

    @staticmethod
    def _costs() -> dict[str, float]:
        return {"comm/up_bytes": 0, "comm/down_bytes": 0, "client_steps": 0, "client_flops": 0.0, "time/server_s": 0.0}

    def _test_columns(self) -> dict[str, None]:
        names = ("acc", "loss", *(["acc_sources"] if self.scenario.stages[0].by_source else []))
        return {f"{self.experiment.evaluate.split}/{name}": None for name in names}

    def _test(self, run: Attempt, clock: Clock, row: Row) -> None:
        """Test the global model on the test set or the validation split, if the algorithm has a global model."""
        if self.experiment.algorithm.global_model:
            began = time.perf_counter()
            self._record_test(run, run.executor.test(clock), clock.complete, row)
            row["time/evaluate_s"] = time.perf_counter() - began

    def _record_test(self, run: Attempt, counts: TestCounts, at: Position, row: Row) -> None:
        """Add the counts of a test to `tests/`, and the accuracy of the first test set and mode to `row`."""
        counts = add_test_sums(self.scenario.stages[at.task].tests, counts)
        run.recorder.tested(
            tested.rows_of_test(counts, {"done": at.done, "task": at.task, "round": at.round, "phase": at.phase})
        )
        (name, mode), first = next(iter(counts.items()))
        numbers, stage = [first.accuracy, first.loss], self.scenario.stages[at.task]
        if stage.by_source:
            numbers.append(fmean(counts[part, mode].accuracy for part in stage.tests[name].parts))
        row.update(zip(self._test_columns(), numbers, strict=True))

    # the end ----------------------------------------------------------------------------------
    def _finish(self, run: Attempt, status: str) -> None:
        self._replace_previous_run(run)
        if self.experiment.algorithm.global_model:
            run.executor.call_store(StoredServer.save_model)
        run.recorder.close()
        self._write_environment(run)
        run.recorder.status(status)
        self._mirror(run)

    def _finish_diverged(self, run: Attempt, row: Row, clients: list[Row], why: str) -> None:
        """End a run that diverged: record its last round; checkpoint and model are those of the last finite round."""
        self._save(run)
        run.recorder.round(row, clients)
        self._finish(run, f"diverged in round {row['round']}: {why}")

    def _save(self, run: Attempt) -> Position:
        """Write the rows, then a checkpoint of the last commit. Returns its position."""
        # rows first: a resume removes rows after the checkpoint's position, and cannot restore missing ones
        run.recorder.flush()
        position = run.executor.call_store(StoredServer.save, self.experiment.checkpoint.keep)
        self._mirror(run)
        return position

    def _replace_previous_run(self, run: Attempt) -> None:
        """Called after the first round: replace the previous run, here and in the storage."""
        if self.home.replaces:
            self.home.replace_previous_run()
            run.recorder.folder_renamed(self.folder)
            run.executor.call_store(StoredServer.folder_renamed, self.folder.absolute())
            if self.storage is not None:
                self.storage.folder_renamed(self.folder)
        if self.storage is not None and self.storage.replaces:
            self.storage.clear()

    def _mirror(self, run: Attempt) -> None:
        """Update the storage. The server's process uploads its own files from its own node."""
        if self.storage is not None and not self.storage.replaces and not self.home.replaces:
            self.storage.sync(lambda: self._push_server(run))

    def _push_server(self, run: Attempt) -> str | None:
        try:
            return run.executor.call_store(StoredServer.push)
        except ServerLostError as error:  # the next call of the server raises it again
            return str(error)

    def _stop(self, why: str, run: Attempt | None, last: Attempt | None) -> None:
        """Save complete rounds on Ctrl-C and drop an incomplete one. For `run` and `last` see :meth:`go`."""
        if self.home.replaces:
            self.home.give_up()
            return
        again = f"continue with: flray resume {self.folder}"
        if run is None:
            if last is not None:
                what = f"{why} while the server was started again; no checkpoint could be written"
                last.recorder.status(f"{what}; {again}")
            return
        try:
            position = self._save(run)
            run.recorder.truncate(position)
            run.recorder.close()
        except BaseException as error:  # a full disk; a second signal
            reason = _first_line(error)
            run.recorder.status(f"{why}; no checkpoint could be written ({reason}); {again}")
            raise
        run.recorder.status(f"{why} after round {position.done}; {again}")
        self._mirror(run)

    def _fail(self, error: BaseException, run: Attempt | None, last: Attempt | None) -> None:
        """Write the reason to STATUS and save complete rounds. For `run` and `last` see :meth:`go`."""
        if last is None:  # a new run did not begin, or a resume changed nothing
            if isinstance(error, AlgorithmError) and not self.home.begun and not self.home.replaces:
                self._failed_at_once(error)
            return
        last.recorder.status(f"failed: {_first_line(error)}")
        try:
            if run is None:
                raise ResourceError("the server did not start again")
            self._save(run)
        except ServerLostError:  # the last checkpoint stays; without one a resume starts from the beginning
            if not checkpoint.checkpoints(self.folder):
                what = f"failed: {_first_line(error)}; and no checkpoint could be written: the server died"
                last.recorder.status(what)
        except Exception as second:  # the caller raises the first error
            what = f"failed: {_first_line(error)}; and no checkpoint could be written: {_first_line(second)}"
            last.recorder.status(what)
            if run is not None:
                self._mirror(run)

    def _failed_at_once(self, error: AlgorithmError) -> None:
        """The user's code failed before the first round (`init_server`): keep the folder, with this STATUS."""
        write_environment(self.folder, environment(actors={}, **self.origin.record(self.experiment)))
        write_text(self.folder / "config.yaml", self.experiment.yaml())
        write_status(self.folder, f"failed: {_first_line(error)}")
        self.home.begin()


def _first_line(error: BaseException) -> str:
    if isinstance(error, FlrayError) and str(error):
        return str(error).splitlines()[0]
    return described(error).removeprefix(f"{type(error).__name__}: ")
