"""The server: holds the global state and the client store; broadcasts, aggregates, tests, saves."""

from __future__ import annotations

import contextlib
import shutil
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from flray.core.algorithm import Context, Exchange
from flray.core.disk import array_checksum, whole
from flray.core.errors import AlgorithmError, CheckpointError, FlrayError
from flray.core.messages import Cohort, is_none, map_tensors, nbytes, to_numpy, to_torch
from flray.core.packed import Packed
from flray.engine.client_store import ClientStore, FileStore, MemoryStore
from flray.engine.counts import Tally
from flray.engine.health import model_is_finite, reported
from flray.engine.workbench import Delivery, Moment, Workbench
from flray.experiment import Experiment
from flray.models.weights import save_weights
from flray.ops.pooling import pooled
from flray.rundir import checkpoint
from flray.rundir import lock as locks
from flray.rundir.mirrored import SERVER, STATE
from flray.rundir.storage import Storage


class Plan(NamedTuple):
    """One exchange as the driver needs it; `last` is true for the round's last one."""

    exchange: Exchange
    last: bool
    down_bytes: int


class Server:
    """The server actor's body; a plain object, so that it is tested without Ray."""

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        device: torch.device | str = "cpu",
        scratch: Path | None = None,
        held: np.ndarray | None = None,
        lock: str | None = None,
    ) -> None:
        """`scratch`: where client states are written instead of the run folder (a replay must not touch it).

        `held`: training samples to test on, instead of the test set. `lock`: the id under which the driver holds the folder; on a node
        that does not share the driver's disk the folder is this actor's own, and nobody holds it.
        """
        self.bench = Workbench(experiment, device, held)
        self.folder, self._replay = folder, scratch is not None
        self._lock = lock if lock is not None and (folder / locks.NAME).exists() else None
        self.storage = Storage.of(experiment.storage, folder) if scratch is None else None
        self.store: ClientStore = FileStore(folder / "client_state", scratch) if experiment.resources.store == "files" else MemoryStore()
        self.algorithm = experiment.algorithm
        ctx = self._context(Moment(0, 0, 0, False, 0, 0, 0))
        self.state = self.algorithm.init_server(ctx, *self.bench.objective.initial())

        self._committed = (0, 0, 0, self.state)
        self._spare: list[Any] = []  # tensors that the sums of a round leave, for the next one

    def _context(self, moment: Moment) -> Context:
        return self.bench.server_context(moment)

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
            "stateful": not is_none(self.algorithm.init_client(self._context(Moment(0, 0, 0, False, 0, 0, 0)))),
        }

    # one exchange -----------------------------------------------------------------------------
    def plan(self, moment: Moment) -> tuple[Any, Plan | None]:
        """(message down as NumPy arrays, the exchange) of this moment; None for both when there is none (a task's end without any)."""
        ctx = self._context(moment)
        with self._half("task_end" if moment.task_end else "exchanges", moment):
            exchanges = list((self.algorithm.task_end if moment.task_end else self.algorithm.exchanges)(ctx, self.state))
        if moment.exchange >= len(exchanges):
            return None, None
        exchange = exchanges[moment.exchange]
        with self._half("broadcast", moment):
            down = exchange.broadcast(ctx, self.state)
        return to_numpy(down), Plan(exchange, moment.exchange == len(exchanges) - 1, nbytes(down))

    def states(self, clients: Sequence[int]) -> list[Any]:
        return self.store.gather(clients)

    def aggregate(self, moment: Moment, exchange: Exchange, cohort: Cohort, *deliveries: Delivery) -> dict[str, Any]:
        """Complete the tree, run the server half, then scatter the client states. Returns the metrics.

        `cohort` and the deliveries hold NumPy arrays. The state changes only when everything succeeded.
        """
        ctx = self._context(moment)
        self.bench.seed_modules(ctx)  # a student with dropout
        cohort = to_torch(cohort)
        new_states = [state for d in deliveries for state in d.states]
        delivered = torch.tensor([state is not None for state in new_states])
        share = float(cohort.weights[delivered].sum())
        metrics: dict[str, Any] = {"clients_skipped": int((~delivered).sum())}
        if delivered.any():
            if not delivered.all():
                cohort = map_tensors(lambda field: field[delivered], cohort)
                cohort = cohort.replace(weights=cohort.weights / share)
            sent = [delivery.sent for delivery in deliveries]
            up_bytes = sum(sum(run.nbytes.values()) for run in sent)
            updates = pooled(sent, None if delivered.all() else share, self.bench.objective.device, self._spare)
            with self._half(getattr(exchange.server, "__name__", "server half"), moment):
                state, extra = exchange.server(ctx, self.state, updates, cohort)
                state = map_tensors(torch.Tensor.detach, state)
                metrics.update(reported(extra), **{"comm/up_bytes": up_bytes})
            clients = cohort.client_ids.tolist()
            if isinstance(self.store, FileStore):
                self.check_folder()
            self.store.scatter(clients, [s for s in new_states if s is not None], moment.round + 1 + 1_000_000 * moment.task)
            self.state = state
        else:
            metrics["comm/up_bytes"] = 0
        metrics["diverged"] = not model_is_finite(self.state)
        return metrics

    # testing ----------------------------------------------------------------------------------
    def published(self, moment: Moment) -> Any:
        """All that testing reads, as NumPy arrays, for the client actors."""
        with self._half("published", moment):
            return to_numpy(self.algorithm.published(self._context(moment), self.state))

    def evaluate(self, moment: Moment) -> Tally:
        """All tests of the global model, on the server."""
        published = self.published(moment)
        with self._half("predict", moment):
            return self.bench.evaluate(published, self._context(moment))

    @contextlib.contextmanager
    def _half(self, method: str, moment: Moment) -> Iterator[None]:
        """An error in the algorithm's server half says where it happened and brings its traceback, which ends at this process."""
        try:
            yield
        except FlrayError:
            raise
        except Exception as error:
            where = f"{type(self.algorithm).__name__}.{method} failed in task {moment.task}, round {moment.round + 1}"
            text = f"{where}: {type(error).__name__}: {error}\n{traceback.format_exc()}"
            raise AlgorithmError(text.rstrip()) from None

    # disk -------------------------------------------------------------------------------------
    def commit(self, task: int, round: int, done: int) -> None:
        """The round is complete: from here a checkpoint, or an interrupted round, goes back no further. `round` is the next one."""
        self._committed = (task, round, done, self.state)
        self.store.commit()

    def rollback(self) -> None:
        """Back to the last complete round: a round that was interrupted between two exchanges leaves no trace."""
        self.state = self._committed[3]
        self.store.rollback()

    def save(self, keep: int, task_end: bool = False) -> int:
        """Write a checkpoint of the last complete round; returns the number of rounds done in it."""
        self.check_folder()
        self.rollback()
        task, round, done, state = self._committed
        checkpoint.write(self.folder, checkpoint.Position(task, round, done, task_end), Packed.of(state), self.store.save(), keep)
        if isinstance(self.store, FileStore):
            kept = []
            for path in checkpoint.checkpoints(self.folder):
                with contextlib.suppress(CheckpointError):  # a damaged one is of no use, and no reason to end the run
                    kept.append(checkpoint.read_clients(path))
            self.store.prune(kept)
        return done

    def load(self, at_most: int | None = None, task_end: bool = True) -> tuple[int, int, int] | None:
        """Restore the newest good checkpoint: (task, next round, rounds done); None when there is none.

        `task_end=False` passes over those from after a task's last exchange. Where this node has no good one, they come from the storage.
        """
        if self.storage is not None and not checkpoint.checkpoints(self.folder):
            self.storage.pull(STATE)
        # a replay compares the states that it reads, a resume all that it counts on: it can still go back to an earlier checkpoint
        check = None if self._replay else self.store.check
        try:
            saved = checkpoint.latest(self.folder, at_most, task_end, check)
        except checkpoint.FormatError:
            raise
        except CheckpointError:
            if self.storage is None:
                raise
            for name in STATE:  # what is damaged here may be good there
                with contextlib.suppress(FileNotFoundError):
                    (self.folder / name).rename(self.folder / f".damaged-{time.time_ns()}-{name}")
            self.storage.pull(STATE)
            saved = checkpoint.latest(self.folder, at_most, task_end, check)
        if saved is None:
            return None
        try:
            self.state = to_torch(saved.server.message(), self.bench.objective.device)
            self.store.load(saved.clients)
        except CheckpointError as error:
            raise CheckpointError(f"{saved.path}: {error}") from error
        self.commit(saved.task, saved.round, saved.done)
        return saved.task, saved.round, saved.done

    def save_model(self) -> str:
        """`DIR/model.safetensors`: names and shapes of the module's own state_dict, without what a named checkpoint holds."""
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
        """The run has taken the place of the one that it replaces; on a node with a disk of its own that is still to be done."""
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
