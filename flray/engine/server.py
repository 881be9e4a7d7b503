"""The server: holds the global state and the client store; plans exchanges, finishes them, tests, saves.

A plain object without Ray.

A round, the beginning and the end of a task are transactions: what their exchanges change is staged, read by the later
exchanges of the same transaction, and committed together.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from flray.core.clock import PHASES, START, Clock, Phase, Position
from flray.core.context import Context
from flray.core.disk import array_checksum, whole
from flray.core.errors import AlgorithmError, CheckpointError, FlrayError
from flray.core.exchange import Exchange
from flray.core.messages import Cohort, is_none, map_tensors, nbytes, to_numpy, to_torch
from flray.core.packed import Packed
from flray.core.probe import FinishView, Looking, RoundView
from flray.core.shared import join, received, split
from flray.engine.client import Delivery
from flray.engine.client_store import ClientStore, FileStore, MemoryStore
from flray.engine.counts import Tally
from flray.engine.health import model_is_finite, reported
from flray.engine.workbench import Workbench
from flray.models.weights import save_weights
from flray.ops.pooling import pooled
from flray.rundir import checkpoint
from flray.rundir import lock as locks
from flray.rundir.mirrored import SERVER, STATE
from flray.rundir.storage import Storage


class Plan(NamedTuple):
    """One exchange as the driver needs it: when, what, and the bytes of its broadcast for one client.

    `shared`: the hashes of the parts of the broadcast that travel by content; their bytes are counted by `finish`.
    """

    clock: Clock
    exchange: Exchange
    down_bytes: int
    shared: tuple[str, ...] = ()


class Server:
    """The server half of an experiment."""

    def __init__(
        self,
        bench: Workbench,
        folder: Path,
        scratch: Path | None = None,
        lock: str | None = None,
    ) -> None:
        """`scratch`: where client states are written instead of the run folder (a replay must not touch it).

        `lock`: the id under which the driver holds the folder; on a node
        that does not share the driver's disk the folder is this actor's own, and nobody holds it.
        """
        self.bench, experiment = bench, bench.experiment
        self.folder, self._replay = folder, scratch is not None
        self._lock = lock if lock is not None and (folder / locks.NAME).exists() else None
        self.storage = Storage.of(experiment.storage, folder) if scratch is None else None
        self.store: ClientStore = (
            FileStore(folder / "client_state", scratch) if experiment.resources.store == "files" else MemoryStore()
        )
        self.algorithm = experiment.algorithm
        self.state = self.algorithm.init_server(self.bench.context(Clock()), *self.bench.objective.initial())
        self.memory: dict[str, Any] = {}  # of the probes that look at the server, by name
        self.holders: dict[str, np.ndarray] = {}  # hash of a shared part -> the clients that have it
        self._parts: dict[Clock, dict[str, np.ndarray]] = {}  # the shared parts that a transaction's broadcasts name
        self._committed: tuple[Position, Any, dict[str, Any], dict[str, np.ndarray]] = (START, self.state, {}, {})
        self._finished: dict[Clock, dict[str, Any]] = {}  # of the running transaction: the answers of `finish`
        self._spare: list[Any] = []  # tensors that the sums of a round leave, for the next one

    def facts(self) -> dict[str, Any]:
        """What the driver prints and records about the model and the data."""
        layout, buffers = self.bench.objective.layout, self.bench.objective.buffer_layout
        return {
            "parameters": layout.count,
            "buffers": buffers.count,
            "threads": torch.get_num_threads(),
            "device": str(self.bench.objective.device),
            "evaluation_batch": self.bench.block,
            "initial_weights": array_checksum(*(part.cpu().numpy() for part in self.bench.objective.initial())),
            "stateful": not is_none(self.algorithm.init_client(self.bench.context(Clock()))),
        }

    # one exchange -----------------------------------------------------------------------------
    def plan(self, clock: Clock) -> tuple[Any, Plan | None]:
        """(broadcast as NumPy arrays, the exchange) of this moment; None for both when the transaction is over."""
        ctx = self.bench.context(clock)
        with self._half("next_exchange", clock):
            exchange = self.algorithm.next_exchange(ctx, self.state)
            if exchange is not None and not isinstance(exchange, Exchange):
                raise TypeError(
                    f"it returned a {type(exchange).__name__}; it must return an Exchange, or None when the phase is "
                    "over"
                )
        return (None, None) if exchange is None else self.broadcast(clock, exchange)

    def broadcast(self, clock: Clock, exchange: Exchange) -> tuple[Any, Plan]:
        """(the exchange's broadcast as NumPy arrays, its plan): in a sequential exchange it is asked anew for every
        hop.

        Shared parts stay here, see :meth:`part`; the broadcast names them.
        """
        with self._half("broadcast", clock):
            down = exchange.broadcast(self.bench.context(clock), self.state)
        rest, parts = split(to_numpy(down))
        self._parts.setdefault(clock.transaction, {}).update(parts)
        return rest, Plan(clock, exchange, nbytes(join(rest, dict.fromkeys(parts))), tuple(parts))

    def parts(self) -> dict[str, np.ndarray]:
        """The shared parts of the broadcasts of this transaction, and of the one that is planned ahead, by hash."""
        return {hash: array for named in self._parts.values() for hash, array in named.items()}

    def part(self, hash: str) -> np.ndarray:
        """One of :meth:`parts`."""
        return self.parts()[hash]

    def states(self, clients: Sequence[int]) -> list[Any]:
        return self.store.gather(clients)

    def stateful(self) -> list[int]:
        """Numbers of the clients that have a state, ascending."""
        return self.store.clients()

    def finish(self, plan: Plan, cohort: Cohort, *deliveries: Delivery) -> dict[str, Any]:
        """Complete the tree, run the server half, then scatter the client states. Returns the metrics.

        `cohort` and the deliveries hold NumPy arrays. The state changes only when everything succeeded, and once: asked
        again at a moment that is finished (the answer got lost with an actor) it returns the same answer.
        """
        if plan.clock not in self._finished:
            self._finished[plan.clock] = self._finish(plan, to_torch(cohort), deliveries)
        return dict(self._finished[plan.clock])

    def finished(self, clock: Clock) -> bool:
        """Whether this moment of the running transaction is finished."""
        return clock in self._finished

    def _finish(self, plan: Plan, cohort: Cohort, deliveries: Sequence[Delivery]) -> dict[str, Any]:
        clock, exchange = plan.clock, plan.exchange
        ctx = self.bench.context(clock)
        self.bench.seed_modules(ctx)  # a student with dropout
        new_states = [state for d in deliveries for state in d.states]
        delivered = torch.tensor([state is not None for state in new_states], dtype=torch.bool)
        metrics: dict[str, Any] = {"clients_skipped": int((~delivered).sum()), "comm/up_bytes": 0}
        if plan.shared:
            named = {hash: self.part(hash) for hash in plan.shared}
            metrics["comm/shared_bytes"], self.holders = received(named, cohort.client_ids.numpy(), self.holders)
        if delivered.any():
            share, sent = float(cohort.weights[delivered].sum()), [delivery.sent for delivery in deliveries]
            metrics["comm/up_bytes"] = sum(sum(run.nbytes.values()) for run in sent)
            updates = pooled(sent, None if delivered.all() else share, self.bench.objective.device, self._spare)
            steps = torch.tensor([taken for d in deliveries for taken in d.steps])
            cohort = Cohort(cohort.client_ids, cohort.num_examples, steps, cohort.weights)
            if not delivered.all():
                cohort = map_tensors(lambda part: part[delivered], cohort)
                cohort = cohort.replace(weights=cohort.weights / share)
            with self._half(getattr(exchange.finish, "__name__", "server half"), clock):
                state, extra = exchange.finish(ctx, self.state, updates, cohort)
                state = map_tensors(torch.Tensor.detach, state)
                metrics.update(reported(extra))
            point = functools.partial(self.algorithm.point, ctx)
            self._look(ctx, FinishView("finish", point, self.state, updates, state, cohort), metrics)
            if isinstance(self.store, FileStore):
                self.check_folder()
            kept = [state for state in new_states if state is not None]
            self.store.scatter(cohort.client_ids.tolist(), kept, clock.complete.order)
            self.state = state
        metrics["diverged"] = not model_is_finite(self.state)
        return metrics

    def _look(self, ctx: Context, view: FinishView | RoundView, metrics: dict[str, Any]) -> None:
        """What the server's probes see goes to `metrics["probes"]`; their memory is staged as the state is."""
        looking = Looking(self.bench.probes, self.memory)
        if looking.wants(view.place):
            with self._half("diagnostics", ctx.clock):
                looking.look(ctx, view)
            self.memory = looking.memory
            metrics["probes"] = looking.rows

    def observe(self, clock: Clock) -> list[tuple[str, dict[str, Any]]]:
        """(probe, row) of those that look at a whole transaction, before it is committed."""
        ctx, found = self.bench.context(clock), {}
        point = functools.partial(self.algorithm.point, ctx)
        self._look(ctx, RoundView("round", point, self._committed[1], self.state), found)
        return found.get("probes", [])

    # testing ----------------------------------------------------------------------------------
    def published(self, clock: Clock) -> Any:
        """All that testing reads, as NumPy arrays, for the client actors."""
        with self._half("published", clock):
            return to_numpy(self.algorithm.published(self.bench.context(clock), self.state))

    def evaluate(self, clock: Clock) -> Tally:
        """All tests of the global model, on the server."""
        published = self.published(clock)
        with self._half("predict", clock):
            return self.bench.evaluate(published, self.bench.context(clock))

    @contextlib.contextmanager
    def _half(self, method: str, clock: Clock) -> Iterator[None]:
        """An error in the algorithm's server half says where it happened and brings its traceback, which ends at this
        process."""
        try:
            yield
        except FlrayError:
            raise
        except Exception as error:
            where = f"{type(self.algorithm).__name__}.{method} failed in {clock}"
            text = f"{where}: {type(error).__name__}: {error}\n{traceback.format_exc()}"
            raise AlgorithmError(text.rstrip()) from None

    # disk -------------------------------------------------------------------------------------
    def commit(self, position: Position) -> None:
        """The transaction is complete: from here a checkpoint, or an interrupted round, goes back no further.

        Said again, it changes nothing: the driver repeats it where an answer got lost.
        """
        if position == self._committed[0]:
            return
        # what no broadcast of a whole round has named is dropped by everybody
        named = {hash for clock, parts in self._parts.items() if clock.complete == position for hash in parts}
        if position.phase == "round":
            self.holders = {hash: held for hash, held in self.holders.items() if hash in named}
        self._parts = {clock: parts for clock, parts in self._parts.items() if clock.complete.order > position.order}
        self._stand_at(position)

    def _stand_at(self, position: Position) -> None:
        self._committed = (position, self.state, self.memory, self.holders)
        self._finished = {}
        self.store.commit()

    def rollback(self) -> None:
        """Back to the last commit: a round that was interrupted between two exchanges leaves no trace."""
        _, self.state, self.memory, self.holders = self._committed
        self._finished = {}
        self.store.rollback()

    def save(self, keep: int) -> Position:
        """Write a checkpoint of the last commit; returns its position."""
        self.check_folder()
        self.rollback()
        position, state, memory, holders = self._committed
        engine = Packed.of({"probes": to_numpy(memory), "holders": holders})
        checkpoint.write(self.folder, position, Packed.of(state), self.store.save(), keep, engine)
        if isinstance(self.store, FileStore):
            kept = []
            for path in checkpoint.checkpoints(self.folder):
                with contextlib.suppress(CheckpointError):  # a damaged one is of no use, and no reason to end the run
                    kept.append(checkpoint.read_clients(path))
            self.store.prune(kept)
        return position

    def load(self, at_most: int | None = None, after: Sequence[Phase] = PHASES) -> Position | None:
        """Restore the newest good checkpoint, of those after at most `at_most` rounds and after one of these phases;
        None: there is none.

        Where this node has no good one, they come from the storage.
        """
        if self.storage is not None and not checkpoint.checkpoints(self.folder):
            self.storage.pull(STATE)
        # a replay compares the states that it reads, a resume all that it counts on: it can still go back to an earlier
        # checkpoint
        check = None if self._replay else self.store.check
        try:
            saved = checkpoint.latest(self.folder, at_most, after, check)
        except checkpoint.FormatError:
            raise
        except CheckpointError:
            if self.storage is None:
                raise
            for name in STATE:  # what is damaged here may be good there
                with contextlib.suppress(FileNotFoundError):
                    (self.folder / name).rename(self.folder / f".damaged-{time.time_ns()}-{name}")
            self.storage.pull(STATE)
            saved = checkpoint.latest(self.folder, at_most, after, check)
        if saved is None:
            return None
        try:
            self.state = to_torch(saved.server.message(), self.bench.objective.device)
            self.store.load(saved.clients)
            engine = saved.engine.message()
            self.memory = to_torch(engine["probes"], self.bench.objective.device)
            self.holders = engine["holders"]
        except CheckpointError as error:
            raise CheckpointError(f"{saved.path}: {error}") from error
        self._stand_at(saved.position)
        return saved.position

    def save_model(self) -> str:
        """`DIR/model.safetensors`: names and shapes of the module's own state_dict, without what a named checkpoint
        holds."""
        self.check_folder()
        path = self.folder / "model.safetensors"
        objective, sources = self.bench.objective, self.bench.experiment.model.sources
        named = objective.state_dict(self.state.w, self.state.b)
        with checkpoint.disk_errors(path, self.folder), whole(path) as aside:
            save_weights(named, aside, objective.frozen, sources)
        return str(path)

    def check_folder(self) -> None:
        """Raises `FolderLostError` when the driver no longer holds the folder."""
        if self._lock is not None:
            locks.check(self.folder, self._lock)

    def moved(self, folder: Path) -> None:
        """The run has taken the place of the one that it replaces; on a node with a disk of its own that is still to be
        done."""
        if self.folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
            self.folder.rename(folder)
        self.folder = folder
        self.store.moved(folder)
        if self.storage is not None:
            self.storage.moved(folder)

    def probe_storage(self) -> None:
        """Raises `CheckpointError` when this node cannot write to the storage."""
        if self.storage is not None:
            self.storage.probe()

    def push(self) -> str | None:
        """Upload checkpoints, client states and the model, as far as they changed; what hindered that, in one line."""
        return None if self.storage is None else self.storage.push(SERVER)
