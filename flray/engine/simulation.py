"""The driver of a run: it starts the processes, runs every transaction of the schedule, and records the rows.

A transaction is a round, the beginning of a task, or its end (`rounds.py`). The driver saves checkpoints, restarts the
server when its process dies, and writes STATUS at every end of the run.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from flray.config.experiment import Experiment, method_name
from flray.core.protocol.clock import PHASES, START, Clock, Phase, Position, schedule, task_name
from flray.core.schema.errors import (
    AlgorithmError,
    CheckpointError,
    ClientError,
    ConfigError,
    FlrayError,
    NonFiniteError,
    ResourceError,
    ServerLostError,
    described,
    first_line,
    named,
    warn,
)
from flray.engine import cohort as cohorts
from flray.engine.arrivals import Participants, Participation
from flray.engine.blame import server_never_started
from flray.engine.client import in_folder
from flray.engine.counts import TestCounts, add_test_sums
from flray.engine.exchanges import Chunk, ExchangePlan, Turn
from flray.engine.flops import StepFlops, largest_client, step_kind
from flray.engine.prepare import Data, stored_scenario
from flray.engine.progress import Progress, line, stage
from flray.engine.rounds import Executor, FinishedExchange, add_sent, orders
from flray.engine.runtime import in_force
from flray.engine.server import Server
from flray.engine.summary import collapse_reason, final_tests, personal_columns, untrained_reason
from flray.engine.tickets import NobodyComesError, ServerStep
from flray.engine.trace import unprofiled
from flray.files import checksum, quoted, write_text
from flray.models.weight_files import weights_fingerprint
from flray.rundir import checkpoint, progress_file, tested
from flray.rundir.folder import RunFolder
from flray.rundir.lock import FolderLostError
from flray.rundir.parts import RowsMissingWarning, untested_rounds
from flray.rundir.provenance import Origin, environment, write_environment
from flray.rundir.reader import Run
from flray.rundir.recorder import Recorder, write_status
from flray.rundir.run_store import RunStore
from flray.rundir.storage import Storage
from flray.rundir.trackers import Trackers
from flray.scenario import Scenario, Work

RESTARTS = 3  # of the server actor in one run
CHUNKS_PER_ACTOR = 4  # of the personalised test: unequal clients even out

Launch = Callable[[Experiment, Path, Scenario, dict[str, Any], str], tuple[Executor, Experiment]]
Row = dict[str, Any]


class ExchangeWarning(UserWarning):
    """An exchange is skipped because no client takes part."""


@dataclass
class Attempt:
    """A started run; each restart of the server creates a new attempt.

    `position`: of the checkpoint that it continues from. `facts`: about model, data and processes, for
    environment.json. `missing_rows`: the rows that damaged tables have lost, by table. `flops`: of a local step, by its
    kind. `counted`: the last exchange with local steps, whose `kinds` are those without and with a stored state;
    `stored`: its clients that had one before it.
    """

    executor: Executor
    recorder: Recorder
    position: Position
    facts: dict[str, Any]
    missing_rows: dict[str, str]
    flops: dict[str, StepFlops] = field(default_factory=dict)
    counted: Clock | None = None
    kinds: Mapping[bool, str] = field(default_factory=dict)
    stored: Set[int] = frozenset()

    def step_flops(self, plan: ExchangePlan, kind: str, client: Chunk) -> StepFlops:
        """FLOPs of a local step of this kind; NaN, with a warning, where counting fails: the run may succeed."""
        try:
            return self.executor.call(Server.step_flops, kind, plan.exchange, client)
        except AlgorithmError as error:
            warn(f"client_flops of {plan.clock} are not counted: {first_line(error)}")
            return StepFlops(math.nan, math.nan)

    def record_probes(self, clock: Clock, rows: Sequence[tuple[str, Row]]) -> None:
        at = clock.complete
        when = {"done": at.done, "task": at.task, "round": at.round, "phase": at.phase}
        self.recorder.diagnosed([(name, {**when, **row}) for name, row in rows])

    def push_server(self) -> str | None:
        """Upload the files of the server's process; the error of one that died."""
        try:
            return self.executor.call_store(RunStore.push)
        except ServerLostError as error:  # the next call of the server raises it again
            return str(error)


class Simulation:
    """One run: its data, scenario, processes and tables."""

    def __init__(
        self,
        experiment: Experiment,
        home: RunFolder,
        data: Data,
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
            "cohorts": self.scenario.cohorts.hash if self.scenario.cohorts else None,
            "batch_order": self.scenario.batch_orders.hash if self.scenario.batch_orders else None,
            "devices": self.scenario.devices.hash if self.scenario.devices else None,
        }
        origin.compare(self.fingerprints)
        self.trackers = Trackers(experiment, home.path, home.check)
        self._executor: Executor | None = None
        self._process = os.getpid()
        self._resumable = False  # STATUS says `running`
        self._ended = ""  # STATUS of a run that had ended before a resume, which has no round to run
        self._versions = experiment.versions
        self._participation = Participation(experiment, self.scenario, self._planned_work, self._stateful)
        self._rounds = experiment.rounds  # of a task; those that end in time, once `until` is planned
        self._foreseen: Participants | None = None  # of the next round, see `_participants`
        self._probes_rounds = any("round" in probe.at for probe in experiment.probes().values())

    @property
    def folder(self) -> Path:
        """The folder that the run writes to at present."""
        return self.home.path

    # the run ----------------------------------------------------------------------------------
    def go(self, progress: bool, resume: bool) -> Generator[Row]:
        """Yields the rows of all rounds. Restarts from the last checkpoint when the server dies; saves on Ctrl-C and
        when the generator is closed. Its processes are given back at every end."""
        busy, reported = True, 0  # rounds: a restart repeats some
        last: Attempt | None = None  # the present attempt, or the one before it
        try:
            for attempt in range(RESTARTS + 1):
                run: Attempt | None = None  # not None: the server has the run's state, which can be saved
                try:
                    run = last = self._start(progress, resume, last)
                    self._announce(run)
                    with self._display(run, progress) as show:
                        for clock, following in self._begin(run):
                            if clock.phase != "round":
                                goes_on, row = self._task_boundary(run, clock, show), None
                            else:
                                try:
                                    row, clients = self._round(run, clock, following)
                                    why = "the server's state is not finite after aggregation; lower algorithm.lr"
                                except NonFiniteError as error:
                                    (row, why), clients = self._diverged(clock, error), []
                                goes_on = self._complete(run, clock, row, clients, why, show)
                            if row is not None and row["done"] > reported:
                                reported = row["done"]
                                yield row
                                self._check_process()
                            if not goes_on:
                                break
                        else:
                            self._finish(run, self._ended or self._outcome())
                    break
                except BaseException as error:
                    self._failed(error, attempt, run, last)
            busy = False
        except (FlrayError, GeneratorExit):
            busy = False
            raise
        finally:
            if self._executor is not None:
                self._executor.close(busy)

    def _failed(self, error: BaseException, attempt: int, run: Attempt | None, last: Attempt | None) -> None:
        """Save what can be saved, write STATUS and raise the error; returns where the server is to be started again.

        `run` and `last`: see :meth:`go`.
        """
        if isinstance(error, ServerLostError):
            if run is not None and attempt < RESTARTS:
                run.executor.kill()
                return
            if run is None:
                self._fail(never_started := server_never_started(error), run, last)
                raise never_started from error
            self._fail(error, run, last)
            raise ResourceError(
                f"{error}, {RESTARTS + 1} times; if memory ran out use fewer actors, then run: flray "
                f"resume {quoted(self.home.shown)}"
            ) from error
        if isinstance(error, FolderLostError):  # another process owns the folder: write nothing
            raise error
        if isinstance(error, KeyboardInterrupt | SystemExit):  # Ctrl-C; a stopped Ray job
            self._stop("interrupted", run, last)
        elif isinstance(error, GeneratorExit):
            if os.getpid() == self._process:
                self._stop("paused", run, last)
        elif isinstance(error, ClientError):
            located = in_folder(error, self.home.shown)
            self._fail(located, run, last)
            raise located from None
        else:
            self._fail(error, run, last)
        raise error

    def _check_process(self) -> None:
        """Raises `FolderLostError` in a process that was forked from the run's own."""
        if os.getpid() != self._process:
            raise FolderLostError(
                f"{self.home.shown} is the run of process {self._process}, from which this one was forked; only that "
                "process continues it"
            )

    def _start(self, progress: bool, resume: bool, before: Attempt | None) -> Attempt:
        """Start server and clients, and restore the run. `before`: the attempt whose server died, or None."""
        with stage("starting server and clients", progress):
            executor, self.experiment = self._launch()
        self._executor = executor
        with executor.translate_errors(self.home.target):
            return self._restored_attempt(executor, progress, resume, before)

    def _restored_attempt(self, executor: Executor, progress: bool, resume: bool, before: Attempt | None) -> Attempt:
        """The attempt of this executor, whose server has the run's state; the machine is compared with that of the run
        before a resume."""
        facts = dict(executor.facts)
        if before is None and facts["starts_from"] is not None:
            line(f"model {self.experiment.model.name} starts from {facts['starts_from']}", progress)
        self._rounds = self._rounds_in_time()
        fixed = checksum(json.dumps(facts.pop("fixed_tensors"), sort_keys=True).encode())
        clients = [p["arithmetic"] for p in facts.get("processes", ()) if "arithmetic" in p]  # the first is there
        # before the initial weights, which another processor may draw otherwise
        machine = {"torch": f"torch {facts.pop('torch')}", "arithmetic": facts.pop("arithmetic")}
        if not self.experiment.algorithm.centralized or self.experiment.resources.executor == "local":
            machine["client_arithmetic"] = (clients or [machine["arithmetic"]])[0]
        self.origin.follow(machine)
        names = {name: facts.pop(name) for name in ("initial_weights", "tensor_names")}
        self.origin.compare({**names, "fixed_tensors": fixed})
        if before is None and self.storage is not None:
            executor.call_store(RunStore.probe_storage)  # the server's node may have no credentials
        return self._restore(executor, facts, resume or before is not None, before)

    def _rounds_in_time(self) -> int:
        """The number of rounds of the run, of which the last ends at `until.virtual_s` or before.

        Raises `ConfigError` if none does; without `until`, if a trace of availability ends before the last round. Warns
        if all rounds, or all that ever end, end before.
        """
        rounds, until, devices = self.experiment.rounds, self.experiment.until, self.experiment.devices
        if not rounds or (until is None and (devices is None or devices.availability.file is None)):
            return rounds
        limit = math.inf if until is None else until.virtual_s

        def end(round: int) -> float:
            step = self._participation.step(Clock(0, round, done=round))
            if step is not None:
                return step.seconds
            return self._participation.arrivals.elapsed(Clock(0, round + 1, done=round + 1))

        in_time = list[float]()
        try:
            for seconds in itertools.takewhile(lambda seconds: seconds <= limit, map(end, range(rounds))):
                in_time.append(seconds)
        except NobodyComesError as error:
            if until is None or not in_time:
                raise
            warn(f"until.virtual_s={limit:g}: the run ends with round {len(in_time)}, at {in_time[-1]:g}: {error}")
        if not in_time:
            raise ConfigError(f"until.virtual_s={limit:g}: the first round ends at {end(0):g}; raise it")
        if until is not None and len(in_time) == rounds and in_time[-1] < limit:
            what = f"rounds={rounds} end after {in_time[-1]:g} virtual seconds"
            warn(f"{what}, before until.virtual_s={limit:g}; raise rounds")
        return len(in_time)

    def _launch(self) -> tuple[Executor, Experiment]:
        """(a ready executor, the experiment with automatic resources written out)."""
        return self.launch(self.experiment, self.folder, self.scenario, self.fingerprints, self.home.lock_id)

    def _restore(self, executor: Executor, facts: dict[str, Any], wanted: bool, before: Attempt | None) -> Attempt:
        """Continue from the last good checkpoint, if one exists and is `wanted`, and truncate the tables to it."""
        rounds, after = self._rounds, PHASES
        restored = self._load(executor) if wanted else None
        if restored is not None and restored.phase == "task_end" and restored.round < rounds:
            # the last task had ended and now has more rounds: continue from before its end
            after = ("round",)
            restored = self._load(executor, after)
            if restored is None:
                raise CheckpointError(
                    f"{self.home.shown} has no checkpoint from before its task ended; start again with more rounds"
                )
        position = restored or START
        if position.done > rounds * len(self.scenario.stages):
            raise ConfigError(
                f"resume: until ends the run after {rounds} rounds, and {self.home.shown} has {position.done}; raise it"
            )
        stored = checkpoint.checkpoints(self.folder, after=after) if wanted else []
        damaged = [path.name for path in stored if checkpoint.order(path) > position.order]
        if damaged:  # the server actor's own warning stays in a log file
            warn(f"{self.home.shown}/checkpoints: {', '.join(damaged)} damaged; going on after round {position.done}")
        status = Run(self.folder).status if wanted and before is None else ""
        # `diverged in round N` and `diverged at ...` are no end here: the resume repeats that moment, or leaves it out
        if status.startswith(("finished", "diverged: ")) and not any(
            c.phase == "round" for c in self._clocks(position)
        ):
            self._ended = status
        if before is not None:
            before.recorder.close()
        recorder = Recorder(self.folder, self.home.check, self.trackers)
        if wanted and restored is None:
            # of the configuration before this resume, which may have changed `every`
            earlier, rows = Run(self.folder), max(recorder.rounds.stored_rounds, default=0)
            checkpoint.check_none_lost(self.folder, earlier.status, rows, earlier.experiment.checkpoint.every)
        recorder.truncate(position)
        if position.done and position.phase == "round" and not self._tested_at(position.round):
            recorder.remove_last_test(position.done, [*self._test_columns(), "time/evaluate_s"])
        run = Attempt(executor, recorder, position, facts, self._missing_rows(recorder, position))
        self._write_environment(run)  # before config.yaml, with which a folder can be resumed
        write_text(self.folder / "config.yaml", self.experiment.yaml())
        return run

    def _tested_at(self, round: int) -> bool:
        """Whether a run that was stopped after the round `round` (from 1) keeps the test there: that of the last round
        goes where a resume has added rounds, and no test for a change of `every` that was accepted."""
        accepted = self.origin.record(self.experiment)["accepted"]
        changed = any(entry["what"] == "evaluate.every" for entry in accepted)
        return changed or self.experiment.evaluate.due(round - 1, self._rounds)

    def _load(self, executor: Executor, after: Sequence[Phase] = PHASES) -> Position | None:
        """Restore the newest good checkpoint after one of these phases; its position, or None if there is none."""
        return executor.call_store(RunStore.load, None, after, not self._replaces)

    def _missing_rows(self, recorder: Recorder, position: Position) -> dict[str, str]:
        """The rows that damaged tables have lost, by table. Warns of them; environment.json records them."""
        tables = ["rounds", "tasks"] + ["clients"] * (not self.experiment.algorithm.centralized)
        tables += ["tests"] * self.experiment.algorithm.global_model
        tables += ["personal"] * bool(self.experiment.personal_epochs)
        missing = recorder.missing(position, tables)
        for name, text in missing.items():
            what = f"{self.home.shown / name} has lost the rows of {text}; the run goes on without them"
            warn(what, RowsMissingWarning)
        return missing

    def _write_environment(self, run: Attempt) -> None:
        self.home.check()
        facts = {**run.facts, "repeated_work": run.executor.retries}
        rows = {"rounds": self._rounds, "rows": run.recorder.counts(), "missing_rows": run.missing_rows}
        values = environment(actors=facts, reading=self.dataset.reading, **rows, **self.origin.record(self.experiment))
        try:
            write_environment(self.folder, values)
        except CheckpointError as error:
            if not self._resumable:
                raise
            raise CheckpointError(f"{error}, and run: flray resume {quoted(self.home.shown)}") from error

    def _announce(self, run: Attempt) -> None:
        """Write `running` to STATUS. From here on the folder contains a run, also after a failure. Where rounds follow,
        removes the final model of the end before."""
        self._status(run, "running")
        self._resumable = True
        self.home.begin()  # an error before this line, such as a full disk, removes a new run
        if any(clock.phase == "round" for clock in self._clocks(run.position)):
            run.executor.call_store(RunStore.remove_model)
        self._mirror(run)

    def _status(self, run: Attempt, text: str) -> None:
        """Write STATUS and tell the trackers. The STATUS of a run that had ended before this resume stays."""
        if self._ended:
            self.trackers.status(text if text == "running" else self._ended)
        else:
            run.recorder.status(text)

    @contextlib.contextmanager
    def _display(self, run: Attempt, progress: bool) -> Iterator[Progress]:
        """A context around the rounds of an attempt, with their display."""
        label = f"{method_name(self.experiment)} on {self.dataset.name}"
        total = self._rounds * len(self.scenario.stages)
        progress_file.remove(self.folder)
        with (
            Progress(label, total, run.position.done, progress, lambda: progress_file.read(self.folder)) as show,
            run.executor.translate_errors(self.home.target),
        ):
            yield show

    def _begin(self, run: Attempt) -> Iterable[tuple[Clock, Clock | None]]:
        """Test the initial model, with which learning curves begin. Where a resume ends a run at its last round, test
        that round. Returns the transactions that are left, each with the next one if that is a round, which the server
        may plan ahead."""
        at, tests = run.position, self.experiment.algorithm.global_model
        if at == START and tests and self.experiment.evaluate.every and 0 not in run.recorder.tests.stored_rounds:
            self._record_test(run, run.executor.test(Clock(phase="task_begin")), START, {})
        ended = tests and at.phase == "round" and at.round == self._rounds
        if ended and at.done in untested_rounds(self.folder / "rounds"):
            # whatever moment a kill comes at, the row has a test only where the table of tests has its rows
            run.recorder.remove_tests(at.done)
            row: Row = {}
            self._test(run, Clock(at.task, at.round - 1, done=at.done - 1), row)
            run.recorder.flush()
            run.recorder.change_last(at.done, row)
        clocks = self._clocks(run.position)
        rounds = [clock if clock.phase == "round" else None for clock in clocks[1:]]
        return itertools.zip_longest(clocks, rounds)

    def _diverged(self, clock: Clock, error: NonFiniteError) -> tuple[Row, str]:
        """(the row of a round in which a client diverged, the reason) under `on_nonfinite: stop`; else raises the
        error."""
        if self.experiment.on_nonfinite != "stop":
            raise error
        who, _, where = first_line(error).partition(" failed in ")
        row = {"done": clock.done + 1, "task": clock.task, "round": clock.round + 1, "diverged": True}
        return row, f"{who}: {where.partition(': ')[2]}"

    def _complete(self, run: Attempt, clock: Clock, row: Row, clients: list[Row], why: str, show: Progress) -> bool:
        """Commit a round, record it, and save it where that is due. False: it diverged (`why`), which ends the run."""
        if row["diverged"] and self.experiment.on_nonfinite == "stop":
            self._finish_diverged(run, row, clients, why)
            return False
        every, position = self.experiment.checkpoint.every, clock.complete
        run.recorder.round(row, clients)
        # do not wait: the server executes its calls in order
        run.executor.start(Server.commit, position, self._participation.versions_after(clock))
        replaced = self._replace_previous_run(run)
        show(row)
        run.executor.show(row)
        if replaced or (every and position.done % every == 0 and position.round < self._rounds):
            self._save(run)
        return True

    def _outcome(self) -> str:
        result, split = Run(self.folder), self.experiment.evaluate.split
        last_test = final_tests(result.rounds, result.tests, self.scenario.stages, self.dataset, split)
        return untrained_reason(result.rounds) or collapse_reason(*last_test, split) or "finished"

    def _clocks(self, position: Position) -> list[Clock]:
        """The transactions from the position on."""
        return list(schedule(position, self._rounds, len(self.scenario.stages)))

    def _task_boundary(self, run: Attempt, clock: Clock, show: Progress) -> bool:
        """Run the beginning or the end of a task; commit and save it if it had an exchange. False: the run diverged."""
        if clock.phase == "task_end":
            self._save(run)  # a later resume with more rounds continues from before the task's end
        why = "the server's state is not finite; lower algorithm.lr"
        try:
            row = self._task(run, clock, show)
        except NonFiniteError as error:
            if self.experiment.on_nonfinite != "stop":
                raise
            row, why = {"diverged": True}, first_line(error).partition(": ")[2]
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
        if self.experiment.coordination.size is not None:
            clients, missing = self._participation.delivering(clock), 0
            run.executor.meanwhile = functools.partial(self._plan_ahead, clock.done + 1)
            row = self._empty_row(clock, len(clients))
        else:
            clients, row, missing = self._cohort(clock)
        unprofiled(self.experiment.profile, clock, clients)
        plan = run.executor.plan(clock)
        started += self._count_flops(run, plan, clients)  # before the round
        client_rows = self._transact(run, clock, clients, row, plan, missing, ahead)
        if not row.keys() & {"exchanges", "exchanges_skipped"}:
            asked = named(self.experiment.algorithm.next_exchange)
            warn(f"{asked} gave a round no exchange: nobody trains; return self.training")
        row.setdefault("clients_skipped", 0)
        row.setdefault("diverged", False)
        if self.experiment.evaluate.due(clock.round, self._rounds):
            self._test(run, clock, row)
        row["time/client_s"] = float(sum(c["time/client_s"] for c in client_rows))
        row["time/round_s"] = time.perf_counter() - started
        return row, client_rows

    def _cohort(self, clock: Clock) -> tuple[np.ndarray, Row, int]:
        """(the clients of a round that deliver, its row, the number of the drawn ones that do not)."""
        devices, coordination = self.scenario.devices, self.experiment.coordination
        # first, as the arrivals remember one round: that which is played
        elapsed = 0.0 if devices is None else self._participation.arrivals.elapsed(clock)
        found = self._participation.of_round(clock)
        row = self._empty_row(clock, found.sampled)
        if found.late and not len(found.clients):
            what = f"{clock}: no client delivers within coordination.seconds={coordination.seconds:g}; raise it"
            warn(f"{what}, or devices.speed.flops_per_second", ExchangeWarning)
        if devices is not None:
            row |= {"clients_late": found.late, "time/virtual_s": elapsed + found.seconds}
            if coordination.late == "partial":
                row["clients_partial"] = len(found.taken)
            if devices.presence is not None:
                row["clients_lost"] = found.lost
        if self.experiment.cohort.dropout:
            row["clients_dropped"] = found.dropped
        return found.clients, row, found.sampled - len(found.clients)

    def _plan_ahead(self, number: int) -> None:
        with contextlib.suppress(ConfigError):  # raised again when the step begins
            if number < self._rounds:
                self._participation.steps.step(number)

    def _planned_work(self, chunk: Chunk) -> Work:
        assert self._executor is not None
        return self._executor.call(Server.planned_work, chunk)

    def _stateful(self) -> list[int]:
        assert self._executor is not None
        return self._executor.call(Server.stateful)

    def _add_ages(self, exchanged: FinishedExchange, step: ServerStep, row: Row) -> None:
        """Add to the row of a server step, and to those of its clients, what the ages of the updates are."""
        clock = exchanged.plan.clock
        ages = [clock.done - ticket.version for ticket in step.tickets]
        for client, age in zip(exchanged.rows, ages, strict=True):
            client |= {"done": clock.done + 1, "round": clock.round + 1, "staleness": age}
        row |= {"staleness_mean": fmean(ages), "staleness_max": max(ages), "clients_stale": len(step.stale)}
        kept = len(step.held)
        row |= {"versions": kept, "versions_bytes": kept * sum(exchanged.plan.down_bytes.values())}
        row["time/virtual_s"] = step.seconds
        if self.scenario.devices is not None and self.scenario.devices.presence is not None:
            row["clients_lost"] = len(step.lost)
        unused = len(step.stale) + len(step.lost)
        add_sent(row, "down", {name: size * unused for name, size in exchanged.plan.down_bytes.items()})

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
        first: ExchangePlan | None = None,
        dropped: int = 0,
        ahead: Clock | None = None,
    ) -> list[Row]:
        """Run all exchanges of a transaction and add them to `row`. Returns the clients' rows.

        `cohort`: the sampled clients that deliver; None: all clients with samples in the task. `first`: the plan of
        the first exchange; None: not planned yet. `dropped`: the number of clients that dropped out after they had
        received the cohort's first broadcast.
        """
        executor, client_rows, at = run.executor, list[Row](), clock
        executor.foresee = functools.partial(self._foresee, run, ahead)
        plan = first or executor.plan(at)
        while plan is not None:
            self._count_flops(run, plan, cohort)
            exchanged = FinishedExchange(plan, self._turns(run, plan, cohort, row), [], [])
            at = at._replace(exchange=at.exchange + 1)
            coming = [at] if ahead is None else [at, ahead]
            for order in orders(executor, exchanged, coming):
                exchanged.results.append(executor.run(*order))
            if dropped and plan.exchange.who == "cohort":
                add_sent(row, "down", {name: size * dropped for name, size in plan.down_bytes.items()})
                dropped = 0
            exchanged.add_to(row)
            if (step := self._participation.step(plan.clock)) is not None:
                self._add_ages(exchanged, step, row)
            if plan.exchange.client is None:
                of_each = (run.flops[run.kinds[c["client"] in run.stored]].of(c) for c in exchanged.rows)
                row["client_flops"] += sum(of_each)
            client_rows += exchanged.rows
            run.record_probes(clock, exchanged.probe_rows)
            run.recorder.traced(exchanged.traces)
            plan = executor.plan(at)
        if self._probes_rounds:
            run.record_probes(clock, executor.call(Server.observe, clock))
        return client_rows

    def _turns(self, run: Attempt, plan: ExchangePlan, cohort: np.ndarray | None, row: Row) -> list[Turn]:
        """The turns of an exchange; clients without a sample, and an exchange that nobody takes part in, are noted in
        `row`."""
        found = self._participants(run, plan, cohort)
        if found.empty:
            row["clients_empty"] = row.get("clients_empty", 0) + found.empty
        if not found.turns:
            self._note_skipped(plan, found.clients, row)
        return found.turns

    def _participants(self, run: Attempt, plan: ExchangePlan, cohort: np.ndarray | None) -> Participants:
        """:meth:`Participation.of_exchange`, which may be known from the round before."""
        if self._foreseen is not None and plan.kind is not None and self._foreseen.turns[0].clock == plan.clock:
            return self._foreseen
        return self._participation.of_exchange(plan, cohort, run.executor.num_chunks)

    def _foresee(self, run: Attempt, ahead: Clock | None, plan: ExchangePlan) -> Turn | None:
        """The turn of the round `ahead`, if its plan will be of the kind of `plan`; None: it is not known."""
        self._foreseen = None
        if ahead is None or plan.kind is None or self.scenario.devices is not None:
            return None
        with contextlib.suppress(Exception):  # raised again when the round begins
            found = self._participants(run, plan._replace(clock=ahead), self._participation.delivering(ahead))
            self._foreseen = found if found.turns else None
        return None if self._foreseen is None else self._foreseen.turns[0]

    def _note_skipped(self, plan: ExchangePlan, clients: np.ndarray, row: Row) -> None:
        """Name a skipped exchange in the row: none of its `clients` can take part. Warns, except for the cohort's.

        For a cohort the row counts clients that are empty or drop out, and a warning before the run announces a drift
        that empties it.
        """
        name, who = plan.exchange.name, plan.exchange.who
        row["exchanges_skipped"] = " ".join([*row.get("exchanges_skipped", "").split(), name])
        if who == "cohort" and not len(clients) and self.experiment.cohort.sampling == "poisson":
            why = "no client was drawn for it (cohort.sampling: poisson)"
            warn(f"{plan.clock}: exchange {name!r} is skipped, {why}", ExchangeWarning)
        elif who != "cohort":
            why = "no client has a state yet" if who == "stateful" else f"none of {len(clients)} clients holds a sample"
            warn(f"{plan.clock}: exchange {name!r} is skipped, {why}", ExchangeWarning)

    def _count_flops(self, run: Attempt, plan: ExchangePlan | None, cohort: np.ndarray | None) -> float:
        """Count the FLOPs of a local step of each kind that this exchange has, once an attempt; returns the seconds
        of it."""
        if plan is None or plan.exchange.client is not None or plan.clock == run.counted:
            return 0.0
        began, stateful = time.perf_counter(), run.executor.facts["own_state"]
        algorithm, stored = in_force(self._versions, plan.clock), set[int]()
        kinds = {has: step_kind(plan, algorithm, has) for has in (False, True)}  # a stored state
        known = [run.flops.get(kind) for kind in kinds.values()]
        alike = None not in known and known[0] == known[1]  # a stored state costs nothing
        if not alike if stateful else known[0] is None:
            chunks = [chunk for turn in self._participants(run, plan, cohort).turns for chunk in turn.chunks]
            clients = [client for chunk in chunks for client in chunk.clients]
            stored = set(run.executor.call(Server.stored, clients) if stateful else ())
            for among, kind in ((set(clients) - stored, kinds[False]), (stored, kinds[True])):
                if among and kind not in run.flops:
                    run.flops[kind] = run.step_flops(plan, kind, largest_client(chunks, among))
        run.counted, run.kinds, run.stored = plan.clock, kinds, stored
        return time.perf_counter() - began

    def _empty_row(self, clock: Clock, cohort_size: int) -> Row:
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
            run.executor.call_store(RunStore.save_model)
        run.recorder.close()
        self._write_environment(run)
        self._status(run, status)
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
        position = run.executor.call_store(RunStore.save, self.experiment.checkpoint.keep)
        self._mirror(run)
        return position

    @property
    def _replaces(self) -> bool:
        """Whether the previous run is still in its place, here or in the storage."""
        return self.home.replaces or (self.storage is not None and self.storage.replaces)

    def _replace_previous_run(self, run: Attempt) -> bool:
        """Called after the first round: replace the previous run, here and in the storage. Returns whether the storage
        has no run now."""
        if self.home.replaces:
            self.home.replace_previous_run()
            run.recorder.folder_renamed(self.folder)
            run.executor.call_store(RunStore.folder_renamed, self.folder.absolute())
            if self.storage is not None:
                self.storage.folder_renamed(self.folder)
        if self.storage is None or not self.storage.replaces:
            return False
        self.storage.clear()
        return True

    def _mirror(self, run: Attempt) -> None:
        """Update the storage. The server's process uploads its own files from its own node."""
        if self.storage is not None and not self._replaces:
            self.storage.sync(run.push_server)

    def _stop(self, why: str, run: Attempt | None, last: Attempt | None) -> None:
        """Save complete rounds on Ctrl-C and drop an incomplete one. For `run` and `last` see :meth:`go`."""
        if self.home.replaces:
            self.home.give_up()
            return
        again = f"continue with: flray resume {quoted(self.home.shown)}"
        if run is None:
            if last is not None:
                what = f"{why} while the server was started again; no checkpoint could be written"
                self._status(last, f"{what}; {again}")
            return
        try:
            position = self._save(run)
            run.recorder.truncate(position)
            run.recorder.close()
        except BaseException as error:  # a full disk; a second signal
            reason = _first_line(error)
            self._status(run, f"{why}; no checkpoint could be written ({reason}); {again}")
            raise
        self._status(run, f"{why} after round {position.done}; {again}")
        self._mirror(run)

    def _fail(self, error: BaseException, run: Attempt | None, last: Attempt | None) -> None:
        """Write the reason to STATUS and save complete rounds. For `run` and `last` see :meth:`go`."""
        if last is None:  # a new run did not begin, or a resume changed nothing
            if isinstance(error, AlgorithmError) and not self.home.begun and not self.home.replaces:
                self._failed_at_once(error)
            return
        self._status(last, f"failed: {_first_line(error)}")
        try:
            if run is None:
                raise ResourceError("the server did not start again")
            run.recorder.truncate(self._save(run))  # a round may be recorded that the server did not commit
        except ServerLostError:  # the last checkpoint stays; without one a resume starts from the beginning
            if not checkpoint.checkpoints(self.folder):
                what = f"failed: {_first_line(error)}; and no checkpoint could be written: the server died"
                self._status(last, what)
        except Exception as second:  # the caller raises the first error
            first, why = _first_line(error), _first_line(second)
            same = first.startswith(why)  # such as a connection to Ray that this process has left
            self._status(last, f"failed: {first}; and no checkpoint could be written{'' if same else f': {why}'}")
            if run is not None:
                self._mirror(run)

    def _failed_at_once(self, error: AlgorithmError) -> None:
        """The user's code failed before the first round (`init_server`): keep the folder, with this STATUS."""
        write_environment(
            self.folder, environment(actors={}, reading=self.dataset.reading, **self.origin.record(self.experiment))
        )
        write_text(self.folder / "config.yaml", self.experiment.yaml())
        write_status(self.folder, f"failed: {_first_line(error)}")
        self.home.begin()


def _first_line(error: BaseException) -> str:
    if isinstance(error, FlrayError):
        return first_line(error)
    return described(error).removeprefix(f"{type(error).__name__}: ")


def evaluate_personal(executor: Executor, experiment: Experiment, scenario: Scenario, clock: Clock) -> list[Row]:
    """The personalised test: a row a client and number of fine-tuning epochs, with the size of its local share of the
    test set and the accuracy on it (FedSOL, Section 4.4, Table 9)."""
    algorithm, now = experiment.algorithm, clock._replace(phase="personal")
    clients = np.asarray(scenario.members(clock.task)[: experiment.evaluate.personal_clients], dtype=np.int64)
    num_chunks = CHUNKS_PER_ACTOR * executor.num_chunks
    turns, _ = cohorts.turns(scenario, algorithm, clients, now, algorithm.training, num_chunks)
    epochs = experiment.personal_epochs
    return [row for turn in turns for row in executor.personal(turn.clock, turn.chunks, epochs)]
