"""The files of the server's process: checkpoints, client states, the final model, and their copies in a storage."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from torch import Tensor

from flray.config.experiment import Experiment
from flray.core.protocol.clock import PHASES, Phase, Position
from flray.core.schema.errors import CheckpointError
from flray.files import atomic_write, quoted, remove, writing
from flray.models.weights import save_weights
from flray.rundir import checkpoint, lock as locks
from flray.rundir.checkpoint import Snapshot
from flray.rundir.client_store import ClientStore, FileStore, MemoryStore
from flray.rundir.progress_file import ProgressFile
from flray.rundir.storage import SERVER, STATE, Storage


class FinalModel(NamedTuple):
    """The arguments of `save_weights`: all tensors, the names of the frozen ones, and the files that may hold these."""

    tensors: Mapping[str, Tensor]
    frozen: Collection[str]
    sources: Sequence[str]


class Saveable(Protocol):
    """The methods of a server that a store calls."""

    def snapshot(self) -> Snapshot:
        """The last commit. Rolls an open transaction back."""

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot."""

    def model(self) -> FinalModel:
        """The global model."""


class RunStore:
    """The run folder as the server's process writes it. `progress` shows the steps of its long work; None in a
    replay."""

    def __init__(
        self, experiment: Experiment, folder: Path, lock: str | None = None, scratch: Path | None = None
    ) -> None:
        """`lock`: the id of the driver's lock; on a node without the driver's disk the folder has none. `scratch`: a
        replay writes client states there and nothing into the run folder."""
        self.folder, self._replay = folder, scratch is not None
        self._driver, self._base = lock, experiment.storage
        self._lock = lock if lock is not None and (folder / locks.NAME).exists() else None
        self.storage = Storage.of(self._base, folder) if scratch is None else None
        self.clients: ClientStore = (
            FileStore(folder / "client_state", scratch, self.check_folder)
            if experiment.resources.store == "files"
            else MemoryStore()
        )
        self.progress = ProgressFile(lambda: self.folder) if scratch is None else None
        self._server: weakref.ref[Saveable]

    @property
    def server(self) -> Saveable:
        """The server whose state is stored; set once it is built, with these clients and this progress. Held weakly:
        its clients and progress hold this store, and in that cycle an actor would keep the model of an earlier run."""
        server = self._server()
        assert server is not None, "whoever has the store has the server"
        return server

    @server.setter
    def server(self, server: Saveable) -> None:
        self._server = weakref.ref(server)

    def check_folder(self) -> None:
        """Raises `FolderLostError` if the driver no longer has the lock."""
        if self._lock is not None:
            locks.check(self.folder, self._lock)

    # checkpoints --------------------------------------------------------------------------------
    def save(self, last: int) -> Position:
        """Write a checkpoint of the server's last commit, and remove all but the `last` ones (0: keep all). Returns its
        position."""
        self.check_folder()
        snapshot = self.server.snapshot()
        checkpoint.write(self.folder, snapshot, last)
        if isinstance(self.clients, FileStore):
            needed = []
            for path in checkpoint.checkpoints(self.folder):
                with contextlib.suppress(CheckpointError):  # a damaged checkpoint needs no client states
                    needed.append(checkpoint.read_clients(path))
            self.clients.prune(needed)
        return snapshot.position

    def load(
        self, at_most: int | None = None, after: Sequence[Phase] = PHASES, mirrored: bool = True
    ) -> Position | None:
        """Restore the newest good checkpoint after at most `at_most` rounds and after one of these phases.

        Returns its position, or None if there is no checkpoint. If this node has no good one, copies those of the
        storage first. `mirrored=False`: the storage still has another run, which this one replaces. A resume also
        removes later checkpoints of other phases, such as that of a task's end before which the run goes on.
        """
        storage = self.storage if mirrored else None
        if storage is not None and not checkpoint.checkpoints(self.folder):
            storage.pull(STATE)
        # a resume checks all client states now, while it can still choose an earlier checkpoint; a replay checks only
        # those that it reads
        check = None if self._replay else self.clients.check
        try:
            snapshot = checkpoint.latest(self.folder, at_most, after, check)
        except CheckpointError as error:
            if storage is None or isinstance(error, checkpoint.FormatError):
                raise
            for name in STATE:  # the storage's copy may be good
                with contextlib.suppress(FileNotFoundError):
                    (self.folder / name).rename(self.folder / f".damaged-{time.time_ns()}-{name}")
            storage.pull(STATE)
            snapshot = checkpoint.latest(self.folder, at_most, after, check)
        if snapshot is None:
            return None
        try:
            self.server.restore(snapshot)
        except CheckpointError as error:
            path = self.folder / "checkpoints" / snapshot.position.name
            raise CheckpointError(f"{path}: {error}") from error
        if not self._replay:
            self.check_folder()
            kept = checkpoint.checkpoints(self.folder, after=after)
            for path in set(checkpoint.checkpoints(self.folder)).difference(kept):
                if checkpoint.order(path) > snapshot.position.order:
                    remove(path)
        return snapshot.position

    def save_model(self) -> str:
        """Write `DIR/model.safetensors`, with the names of the module's own state_dict, without the frozen tensors of a
        named pretrained checkpoint. Returns the path."""
        self.check_folder()
        path, model = self.folder / "model.safetensors", self.server.model()
        with writing(path, f" and run: flray resume {quoted(self.folder)}"), atomic_write(path) as partial:
            save_weights(model.tensors, partial, model.frozen, model.sources)
        return str(path)

    def remove_model(self) -> None:
        """Remove the final model."""
        self.check_folder()
        (self.folder / "model.safetensors").unlink(missing_ok=True)

    # the folder's name --------------------------------------------------------------------------
    def folder_renamed(self, folder: Path) -> None:
        """The run has replaced the one in `folder`. A node with its own disk moves the server's files there."""
        if not self._shares_disk(folder) and self.folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            for name in SERVER:  # of the previous run; other files stay
                remove(folder / name)
            for path in self.folder.iterdir():
                remove(folder / path.name)
                path.rename(folder / path.name)
            self.folder.rmdir()
        self.folder = folder
        self.clients.folder_renamed(folder)
        if self.storage is not None:
            self.storage = Storage.of(self._base, folder)  # the mirror has the folder's name

    def _shares_disk(self, folder: Path) -> bool:
        """Whether this node sees the driver's disk, where the driver renamed the folder. NFS may cache the old name."""
        owner = locks.owner(folder)
        return self._lock is not None or (owner is not None and owner.id == self._driver)

    # the storage --------------------------------------------------------------------------------
    def probe_storage(self) -> None:
        """Raises `CheckpointError` when this node cannot write to the storage."""
        if self.storage is not None:
            self.storage.probe()

    def push(self) -> str | None:
        """Upload changed checkpoints, client states and model. Returns the problem in one line, or None."""
        return None if self.storage is None else self.storage.push(SERVER)
