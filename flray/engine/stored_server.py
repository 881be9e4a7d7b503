"""A server and the run store of its folder, in one process: what the driver asks of both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from flray.core.protocol.clock import PHASES, Phase, Position
from flray.engine.server import Server
from flray.rundir.run_store import RunStore


class StoredServer(NamedTuple):
    """The driver calls these methods by `Executor.call_store`, wherever the server is."""

    server: Server
    store: RunStore

    def save(self, last: int) -> Position:
        """Write a checkpoint; see :meth:`RunStore.save`."""
        return self.store.save(self.server, last)

    def load(
        self, at_most: int | None = None, after: Sequence[Phase] = PHASES, mirrored: bool = True
    ) -> Position | None:
        """Restore a checkpoint; see :meth:`RunStore.load`."""
        return self.store.load(self.server, at_most, after, mirrored)

    def save_model(self) -> str:
        """Write the final model; see :meth:`RunStore.save_model`."""
        return self.store.save_model(self.server)

    def folder_renamed(self, folder: Path) -> None:
        """The run folder has another name now; see :meth:`RunStore.folder_renamed`."""
        self.store.folder_renamed(folder)

    def probe_storage(self) -> None:
        """Raises `CheckpointError` when the server's node cannot write to the storage."""
        self.store.probe_storage()

    def push(self) -> str | None:
        """Upload the files of the server's process; see :meth:`RunStore.push`."""
        return self.store.push()
