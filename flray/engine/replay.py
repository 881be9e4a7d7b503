"""Repeat any part of a finished or failed run in this process, without Ray, to the same bits.

A round needs only the state before it, because draws are addressed. A replay starts from the nearest earlier checkpoint
and repeats the rounds from there.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flray.config.launch_context import started_in
from flray.core.messages import Message, to_torch
from flray.core.messages.shared import join
from flray.core.protocol.clock import START, Clock, schedule
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.probe import Observer, Probe, RoundView
from flray.core.schema.errors import CheckpointError, ClientError, ConfigError, warn
from flray.data import load_dataset
from flray.engine import devices
from flray.engine.arrivals import Delivery, Participation
from flray.engine.client import ClientRun, in_folder
from flray.engine.devices import arithmetic
from flray.engine.exchanges import Chunk, ExchangePlan, Turn
from flray.engine.local_executor import LocalExecutor
from flray.engine.prepare import with_drift, with_files
from flray.engine.rounds import transact
from flray.engine.runtime import Runtime, TaskSummary
from flray.engine.server import Server
from flray.engine.this_process import as_in_a_run, compute
from flray.rundir import checkpoint
from flray.rundir.provenance import changed_sources, module_fingerprints
from flray.rundir.reader import Run, load_federated
from flray.rundir.run_store import RunStore
from flray.scenario import Scenario

WITHOUT_BITS = ("name", "evaluate.every", "diagnostics")  # keys whose changes no replayed number depends on


class Replay:
    """A run's server and clients in one process. `state` is the server state after `round` rounds."""

    @as_in_a_run
    def __init__(self, folder: str | Path, device: torch.device | str | None = None) -> None:
        """`device`: where it computes; None: on a GPU if the run did and this machine has one, else on the CPU."""
        run = load_federated(folder)
        self.folder, self.experiment, self._run, self._rounds = run.folder, run.experiment, run, run.task_rounds
        facts = run.environment["actors"]
        # for the replay's client states; it writes nothing into the run folder
        self._scratch = tempfile.TemporaryDirectory(prefix="flray-replay-")
        self.scenario, self.runtime = runtime_of(run, device)
        store = RunStore(self.experiment, run.folder.absolute(), scratch=Path(self._scratch.name))
        self.server = compute(facts["threads"], lambda: Server(self.runtime, store.clients))
        self.executor = LocalExecutor(self.server, store, facts["client_threads"], facts["threads"])
        data, before = self.runtime.dataset.fingerprint, run.environment["fingerprints"]["data"]
        if data != before:
            warn(
                f"{folder}: the data have changed since the run (fingerprint {data}, was {before}); a replay may differ"
            )
        here = arithmetic(self.runtime.objective.device)
        computed = run.environment["fingerprints"].get("client_arithmetic", here)
        if computed != here:
            warn(f"{folder}: the run computed with {computed}, this replay with {here}: its bits differ")
        self._changes = [
            entry
            for entry in run.environment.get("accepted", ())
            if entry.get("done") and not entry["what"].startswith(WITHOUT_BITS)
        ]
        # the files may be those of before again
        present = {**module_fingerprints(self.experiment, loaded=False), "data": data}
        self._now = {entry["what"]: present.get(entry["what"], entry["is"]) for entry in self._changes}
        self.position = START
        self._participation = Participation(
            self.experiment,
            self.scenario,
            lambda chunk: self.executor.call(Server.planned_work, chunk),
            self.server.stateful,
        )
        self._initial = self.server.snapshot()

    @property
    def state(self) -> Any:
        return self.server.state

    @property
    def round(self) -> int:
        """Rounds done, over all tasks."""
        return self.position.done

    @property
    def last_round(self) -> int:
        """The rounds of the run, over all tasks."""
        return self._rounds * len(self.scenario.stages)

    @as_in_a_run
    def goto(self, round: int) -> Replay:
        """Go to the state after `round` rounds (over all tasks), from the nearest earlier checkpoint.

        Raises `CheckpointError` if its tensors would be read under other names than the run's.
        """
        if round < 0 or round > self.last_round:
            raise ConfigError(f"the state after {round} rounds: the run has {self.last_round}")
        if checkpoint.checkpoints(self.folder, at_most=round):
            check_names(self._run, self.runtime)
        saved = self.executor.call_store(RunStore.load, at_most=round)
        beyond = saved is not None and (
            saved.phase != "round" if saved.done == round else saved.phase == "task_end" and saved.round < self._rounds
        )
        if beyond:  # saved after this task's end, which may be a former one, or at the next task's beginning
            saved = self.executor.call_store(RunStore.load, at_most=round, after=("round",))
        if saved is not None:
            self.position = saved
        elif beyond or round < self.round or self.position.phase != "round":
            self.server.restore(self._initial)
            self.position = START
        while self.round < round:
            self._step()
        return self

    def cohort(self) -> np.ndarray:
        """Ids `[K]` of the clients that deliver in the next round, in cohort order."""
        return self._participation.delivering(self.next_round())

    def clients(self, only: int | None = None) -> Iterator[tuple[int, Any, dict[str, Any]]]:
        """Yields (client, update, row) of the next round's first exchange with clients; `only`: of this client.

        The next client overwrites the update's tensors: clone them to keep them. Raises the client's own `ClientError`,
        and `ConfigError` if the client `only` is not in the cohort.
        """
        clock = self.next_round()
        self._say_changes()
        while next(self._schedule()).phase != "round":
            self._step()  # the end of a task and the beginning of the next one come before its first round
        members = self._participation.delivering(clock)
        if only is not None and only not in members:
            raise ConfigError(
                f"client {only} is not in the cohort of round {self.round + 1}: {', '.join(map(str, members))}"
            )
        plan = self.executor.plan(clock)
        while plan is not None and plan.exchange.who == "nobody":  # the server's own work comes before the clients'
            self.executor.run(plan, self._turns(plan, members)[0])
            clock = clock._replace(exchange=clock.exchange + 1)
            plan = self.executor.plan(clock)
        if plan is None:
            return
        for turn in self._turns(plan, members):
            broadcast = self._broadcast(turn.clock, plan.exchange)
            for chunk in turn.chunks:
                if chunk.version is not None:
                    broadcast = self._broadcast(turn.clock, plan.exchange, chunk.version)
                for i, number in enumerate(chunk.clients):
                    if only in (None, number):
                        yield number, *self._client(chunk, i, plan.exchange, broadcast)

    @as_in_a_run
    def _broadcast(self, clock: Clock, exchange: Exchange, version: int | None = None) -> Message:
        """What the clients have, on the device: the state's broadcast, or that of the server step `version`."""
        if version is not None:
            return to_torch(self.server.version(version), self.runtime.objective.device)
        sent = self.server.broadcast(clock, exchange)[0]
        return to_torch(join(sent, self.server.parts()), self.runtime.objective.device)

    def _client(
        self, chunk: Chunk, i: int, exchange: Exchange, broadcast: Message
    ) -> tuple[Message | None, dict[str, Any]]:

        def work() -> ClientRun:
            client, stored = self.executor.client, self.server.states([chunk.clients[i]])[0]
            with contextlib.suppress(torch.OutOfMemoryError):
                return client.run_client(chunk, i, exchange, broadcast, stored)
            return client.run_again(chunk, i, exchange, broadcast, stored)

        try:
            run = compute(self.executor.client_threads, work)
        except ClientError as error:
            raise in_folder(error, self.folder) from None
        return run.update, run.report.row

    def next_round(self) -> Clock:
        """The moment of the next round. Raises `ConfigError` after the last one."""
        clock = next((clock for clock in self._schedule() if clock.phase == "round"), None)
        if clock is None:
            raise ConfigError(f"round {self.round + 1}: the run has rounds 1 to {self.round}")
        return clock

    def observe(self, probe: Probe) -> list[dict[str, Any]]:
        """The rows of a probe that observes rounds (`at` contains `round`), for the present state.

        The probe gets no earlier state and no memory. Raises `ConfigError` for a probe that does not observe rounds.
        """
        observer, ctx = Observer({"asked": probe}, self.runtime.reveal), self.runtime.context(self.here())
        if not observer.wants("round"):
            where = ", ".join(sorted(probe.at))
            raise ConfigError(f"{type(probe).__name__} observes {where} only; set it in the diagnostics of a run")
        model_of = functools.partial(self.runtime.algorithm.model_of, ctx)
        view = RoundView("round", model_of, None, self.state)
        compute(self.executor.server_threads, lambda: observer.observe(ctx, view))
        return [row for _, row in observer.rows]

    def here(self) -> Clock:
        """The moment of the present state: its last round."""
        return Clock(self.position.task, max(self.position.round - 1, 0), done=max(self.round - 1, 0))

    def _schedule(self) -> Iterator[Clock]:
        return schedule(self.position, self._rounds, len(self.scenario.stages))

    def deliveries(self, rounds: int) -> list[list[Delivery]]:
        """The work of clients on the virtual clock in the first rounds. Raises `ConfigError` for a run without it."""
        if self.scenario.devices is None:
            raise ConfigError("the run has no virtual clock; set devices, e.g. devices={speed: equal}")
        return list(self._participation.deliveries(rounds))

    def _turns(self, plan: ExchangePlan, cohort: np.ndarray | None) -> list[Turn]:
        return self._participation.of_exchange(plan, cohort, self.executor.num_chunks).turns

    def _say_changes(self) -> None:
        """Warn of each change that a resume accepted later: the run computed the next round without it, this replay
        computes it with it."""
        later = [entry for entry in self._changes if entry["done"] > self.round]
        for what, entry in {entry["what"]: entry for entry in reversed(later)}.items():  # the next change of each
            if (now := self._now[what]) != entry["was"]:
                was = f"{what} was {entry['was']} up to round {entry['done']} and is {now} now"
                warn(f"{self.folder}: {was}, also in this replay of earlier rounds; what follows from it may differ")
                self._changes = [entry for entry in self._changes if entry["what"] != what]

    def _step(self) -> None:
        """The next transaction: a round, the beginning or the end of a task."""
        self._say_changes()
        clock = next(self._schedule())
        cohort = self._participation.delivering(clock) if clock.phase == "round" else None
        for _ in transact(self.executor, clock, lambda plan: self._turns(plan, cohort)):
            pass
        self.position = clock.complete
        self.server.commit(self.position, self._participation.versions_after(clock))


@as_in_a_run
def runtime_of(run: Run, device: torch.device | str | None = None) -> tuple[Scenario, Runtime]:
    """(the scenario, the runtime) of a stored run on a device; None: the kind that it used, if this machine has one,
    else the CPU, with a warning. Warns if the user's code has changed since the run."""
    if device is None:
        used = run.environment["actors"]["device"].partition(":")[0]
        device = "cuda" if used == "cuda" and torch.cuda.is_available() else "cpu"
        if device != used:
            warn(
                f"{run.folder}: the run computed on {used}, and this machine has none: this computes on the CPU, "
                "whose numbers differ in rounding"
            )
    folder, experiment = run.folder.absolute(), run.experiment  # before the working directory changes
    with started_in(folder):  # for relative paths to data
        dataset = load_dataset(experiment.data)
        stored = Scenario.load(folder / "partition", dataset.num_classes)
        scenario = with_drift(experiment, dataset, with_files(experiment, stored))
        if torch.device(device).type == "cuda":
            devices.set_up("cuda", experiment.precision)  # as in the run
        runtime = Runtime(experiment, TaskSummary.of(scenario), device)
    for text in changed_sources(experiment, run.folder).values():
        warn(f"{text}; what is computed here may differ")
    return scenario, runtime


def check_names(run: Run, runtime: Runtime) -> None:
    """Raises `CheckpointError` if the flat vectors of a run's checkpoints would be read under other names than those of
    their tensors. A run without a record is left as it is."""
    try:
        known = run.environment["fingerprints"]["tensor_names"]
    except (CheckpointError, KeyError):
        return
    if known != runtime.tensor_names():
        raise CheckpointError(
            f"{run.place}: the tensors of {run.experiment.model.name} or of the algorithm's networks have other names, "
            "shapes or another order now than in the run, so its checkpoints would be read under wrong names; restore "
            "the source"
        )


def at_failure(folder: str | Path) -> int:
    """Rounds done in the newest checkpoint. The round after it failed, or would be the next one."""
    saved = checkpoint.checkpoints(Path(folder))
    return checkpoint.rounds_done(saved[-1]) if saved else 0
