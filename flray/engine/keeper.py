"""What a server keeps from one transaction to the next: its state, the memory of probes, who holds which shared part,
and the clients' states; committed, rolled back, written to disk and read again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flray.core.messages import nbytes, sendable, to_numpy, to_torch
from flray.core.messages.packed import Packed
from flray.core.protocol import last_call
from flray.core.protocol.clock import PHASES, START, Clock, Phase, Position
from flray.core.schema.errors import AlgorithmError, CheckpointError
from flray.engine.blame import half
from flray.engine.client_store import ClientStore, FileStore, MemoryStore
from flray.engine.workbench import Workbench
from flray.files import atomic_write, remove
from flray.models.weights import save_weights
from flray.rundir import checkpoint
from flray.rundir import lock as locks
from flray.rundir.doing import Doing
from flray.rundir.mirrored import SERVER, STATE
from flray.rundir.storage import Storage


class Keeper:
    """The state of a server, in memory and on disk; what changes it is committed by transactions."""

    def __init__(
        self,
        bench: Workbench,
        folder: Path,
        scratch: Path | None = None,
        lock: str | None = None,
    ) -> None:
        """`scratch`: where client states are written instead of the run folder (a replay must not touch it).

        `lock`: the id under which the driver holds the folder; on a node that does not share the driver's disk the
        folder is this actor's own, and nobody holds it.
        """
        self.bench, experiment = bench, bench.experiment
        self.folder, self._replay = folder, scratch is not None
        self._driver = lock
        self._lock = lock if lock is not None and (folder / locks.NAME).exists() else None
        self.storage = Storage.of(experiment.storage, folder) if scratch is None else None
        self.store: ClientStore = (
            FileStore(folder / "client_state", scratch) if experiment.resources.store == "files" else MemoryStore()
        )
        self.doing = Doing(lambda: self.folder)
        if scratch is None:
            bench.listener = self.doing
        self.algorithm = experiment.algorithm
        with half(self.algorithm, "init_server"), last_call.at("the start of the run"):
            first = self.algorithm.init_server(self.bench.context(Clock()), *self.bench.objective.initial())
        self.state = sendable(first, self.algorithm.init_server, "server state")
        self.memory: dict[str, Any] = {}  # of the probes that look at the server, by name
        self.holders: dict[str, np.ndarray] = {}  # hash of a shared part -> the clients that have it
        self._parts: dict[Clock, dict[str, np.ndarray]] = {}  # the shared parts that a transaction's broadcasts name
        self._committed: tuple[Position, Any, dict[str, Any], dict[str, np.ndarray]] = (START, self.state, {}, {})
        self._finished: dict[Clock, dict[str, Any]] = {}  # of the running transaction: the answers of `finish`
        self._spare: list[Any] = []  # tensors that the sums of a round leave, for the next one

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
        # what is planned ahead keeps its parts; a test of the clients' own models (no phase that commits) is over
        ahead = {c: parts for c, parts in self._parts.items() if c.phase in PHASES}
        self._parts = {c: parts for c, parts in ahead.items() if c.complete.order > position.order}
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
        point = self.algorithm.model_of(self.bench.context(Clock()), self.state)
        if point is None:
            what = f"{type(self.algorithm).__name__}.model_of finds no model in its server state"
            raise AlgorithmError(f"{what}; override it, or set global_model = False")
        named = objective.state_dict(*point)
        with checkpoint.disk_errors(path, self.folder), atomic_write(path) as aside:
            save_weights(named, aside, objective.frozen, sources)
        return str(path)

    def kept(self) -> dict[str, int]:
        """What is kept at this moment, of an algorithm that says what it `keeps`: bytes of the clients' states and of
        the server's state besides the model, and the samples that clients keep by number, with their bytes."""
        samples = size = 0
        for client in self.store.clients():
            (state,) = self.store.gather([client])
            samples, size = samples + self.algorithm.num_exemplars(state), size + nbytes(state)
        model = sum(part.nbytes for part in self.algorithm.model_of(self.bench.context(Clock()), self.state) or ())
        return {
            "kept/clients": len(self.store.clients()),
            "kept/client_bytes": size,
            "kept/samples": samples,
            "kept/sample_bytes": samples * self.bench.dataset.train.x[0].nbytes,
            "kept/server_bytes": nbytes(self.state) - model,
        }

    def check_folder(self) -> None:
        """Raises `FolderLostError` when the driver no longer holds the folder."""
        if self._lock is not None:
            locks.check(self.folder, self._lock)

    def moved(self, folder: Path) -> None:
        """The run has taken the place of the one that it replaces; on a node with a disk of its own what the server
        wrote there follows."""
        if not self._shared(folder) and self.folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            for name in SERVER:  # of the run before; another's files stay
                remove(folder / name)
            for path in self.folder.iterdir():
                remove(folder / path.name)
                path.rename(folder / path.name)
            self.folder.rmdir()
        self.folder = folder
        self.store.moved(folder)
        if self.storage is not None:
            self.storage.moved(folder)

    def _shared(self, folder: Path) -> bool:
        """Whether this node sees the driver's disk: then the driver has moved the run, whatever a stale cache of NFS
        says of its old name."""
        owner = locks.owner(folder)
        return self._lock is not None or (owner is not None and owner.id == self._driver)

    def probe_storage(self) -> None:
        """Raises `CheckpointError` when this node cannot write to the storage."""
        if self.storage is not None:
            self.storage.probe()

    def push(self) -> str | None:
        """Upload checkpoints, client states and the model, as far as they changed; what hindered that, in one line."""
        return None if self.storage is None else self.storage.push(SERVER)
