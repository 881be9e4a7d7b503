"""The only home of persistent client state: gathered before a round, scattered after `aggregate` succeeded.

Lives in the server actor. States are messages of NumPy arrays; a client that was never in a cohort has none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from flray.core.errors import CheckpointError
from flray.core.messages import flatten, is_message, map_tensors, rebuild
from flray.engine.checkpoint import disk_errors


class ClientStore(Protocol):
    """What the engine needs of a store."""

    def gather(self, clients: Iterable[int]) -> list[Any]:
        """States in the order asked for; None for a client without one."""

    def scatter(self, clients: Sequence[int], states: Sequence[Any], stamp: int) -> None:
        """Replace the states of these clients; None and `()` leave the old one. `stamp` counts the rounds done."""

    def commit(self) -> None:
        """The round is complete."""

    def rollback(self) -> None:
        """Undo every scatter since the last commit."""

    def save(self) -> dict[str, np.ndarray]:
        """What a checkpoint has to keep, as named arrays."""

    def load(self, arrays: Mapping[str, np.ndarray], template: Any) -> None:
        """Back to what :meth:`save` returned; `template` is a state of the right structure."""

    def prune(self, kept: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Drop what neither the present nor these saved checkpoints need."""


class MemoryStore:
    """Every state in the server actor's memory; a checkpoint holds them all."""

    def __init__(self) -> None:
        self._states: dict[int, Any] = {}
        self._undo: dict[int, Any] = {}

    def gather(self, clients: Iterable[int]) -> list[Any]:
        return [self._states.get(client) for client in clients]

    def scatter(self, clients: Sequence[int], states: Sequence[Any], stamp: int) -> None:
        for client, state in zip(clients, states, strict=True):
            if is_message(state):
                self._undo.setdefault(client, self._states.get(client))
                # a copy: one array from the object store would pin the whole delivery that it came in
                self._states[client] = map_tensors(np.array, state)

    def commit(self) -> None:
        self._undo = {}

    def rollback(self) -> None:
        _undo(self._states, self._undo)

    def save(self) -> dict[str, np.ndarray]:
        return {f"{client}/{name}": array for client, state in self._states.items() for name, array in flatten(state).items()}

    def load(self, arrays: Mapping[str, np.ndarray], template: Any) -> None:
        rows: dict[int, dict[str, np.ndarray]] = {}
        for key, array in arrays.items():
            client, _, name = key.partition("/")
            rows.setdefault(int(client), {})[name] = array
        self._states = {client: rebuild(template, row) for client, row in rows.items()}

    def prune(self, kept: Sequence[Mapping[str, np.ndarray]]) -> None:
        pass


class FileStore:
    """One file per client and round it took part in, `FOLDER/000123.r000020.safetensors`; an index says which one is current.

    Memory: 16 bytes per client seen. Older files stay while a kept checkpoint refers to them, so a resume is exact.
    """

    def __init__(self, folder: Path, scratch: Path | None = None) -> None:
        """`scratch`: write there, and read from `folder` what is not there (a replay leaves the run alone)."""
        self.folder, self.scratch = folder, scratch
        self._index: dict[int, int] = {}
        self._undo: dict[int, int | None] = {}
        self._template: Any = None

    def _path(self, client: int, stamp: int, home: Path | None = None) -> Path:
        return (home or self.folder) / f"{client % 1000:03d}" / f"{client:09d}.r{stamp:06d}.safetensors"

    def gather(self, clients: Iterable[int]) -> list[Any]:
        from safetensors.numpy import load_file

        found = []
        for client in clients:
            stamp = self._index.get(client)
            if stamp is None:
                found.append(None)
                continue
            path = self._path(client, stamp, self.scratch)
            if not path.exists():
                path = self._path(client, stamp)
            try:
                found.append(rebuild(self._template, load_file(path)))
            except Exception as error:
                raise CheckpointError(
                    f"state of client {client} in {path} cannot be read ({error}); resume from an earlier checkpoint"
                ) from error
        return found

    def scatter(self, clients: Sequence[int], states: Sequence[Any], stamp: int) -> None:
        from safetensors.numpy import save_file

        for client, state in zip(clients, states, strict=True):
            if not is_message(state):
                continue
            self._template = state
            path = self._path(client, stamp, self.scratch)
            aside = path.with_suffix(".tmp")
            with disk_errors(path, self.folder.parent):
                path.parent.mkdir(parents=True, exist_ok=True)
                save_file({name: np.asarray(array, order="C") for name, array in flatten(state).items()}, aside)
                aside.rename(path)
            self._undo.setdefault(client, self._index.get(client))
            self._index[client] = stamp

    def commit(self) -> None:
        self._undo = {}

    def rollback(self) -> None:
        _undo(self._index, self._undo)

    def save(self) -> dict[str, np.ndarray]:
        return {"index": np.array(sorted(self._index.items()), dtype=np.int64).reshape(-1, 2)}

    def load(self, arrays: Mapping[str, np.ndarray], template: Any) -> None:
        self._template = template
        self._index = {int(client): int(stamp) for client, stamp in arrays["index"]}

    def prune(self, kept: Sequence[Mapping[str, np.ndarray]]) -> None:
        needed = {self._path(client, stamp) for client, stamp in self._index.items()}
        for arrays in kept:
            needed |= {self._path(int(client), int(stamp)) for client, stamp in arrays.get("index", ())}
        for path in self.folder.glob("*/*"):
            if path not in needed:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()


def _undo(values: dict[int, Any], before: dict[int, Any]) -> None:
    """Give the clients in `before` the values that they had; None: they had none."""
    for client, value in before.items():
        if value is None:
            values.pop(client, None)
        else:
            values[client] = value
    before.clear()
