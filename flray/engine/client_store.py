"""The only home of persistent client state: gathered before a round, scattered after `aggregate` succeeded.

Lives in the server actor. States are messages of NumPy arrays; a client that was never in a cohort has none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from flray.core.disk import checksum, file_checksum, whole
from flray.core.errors import CheckpointError
from flray.core.messages import Record, flatten, map_tensors, rebuild
from flray.rundir.checkpoint import disk_errors

THREADS = 8  # that read client states at a resume


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

    def check(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Raises `CheckpointError` when files that :meth:`save` counted on are missing or damaged."""

    def prune(self, kept: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Drop what neither the present nor these saved checkpoints need."""

    def moved(self, run_folder: Path) -> None:
        """The run folder has another name now."""


class MemoryStore:
    """Every state in the server actor's memory; a checkpoint holds them all."""

    def __init__(self) -> None:
        self._states: dict[int, Any] = {}
        self._undo: dict[int, Any] = {}

    def gather(self, clients: Iterable[int]) -> list[Any]:
        return [self._states.get(client) for client in clients]

    def scatter(self, clients: Sequence[int], states: Sequence[Any], stamp: int) -> None:
        for client, state in zip(clients, states, strict=True):
            if isinstance(state, Record):
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

    def check(self, arrays: Mapping[str, np.ndarray]) -> None:
        pass

    def prune(self, kept: Sequence[Mapping[str, np.ndarray]]) -> None:
        pass

    def moved(self, run_folder: Path) -> None:
        pass


class FileStore:
    """One file per client and round it took part in, `FOLDER/000123.r000020.safetensors`; an index says which one is current.

    The index, and so a checkpoint, holds every file's checksum, which is compared when the file is read; a resume reads all of them
    once (0.1 ms each, or what the disk gives). Memory: some 200 bytes per client seen. Older files stay while a kept checkpoint
    refers to them, so a resume is exact.
    """

    def __init__(self, folder: Path, scratch: Path | None = None) -> None:
        """`scratch`: write there, and read from `folder` what is not there (a replay leaves the run alone)."""
        self.folder, self.scratch = folder, scratch
        self._index: dict[int, _File] = {}
        self._undo: dict[int, _File | None] = {}
        self._template: Any = None
        self._damage: CheckpointError | None = None

    def _path(self, client: int, stamp: int, home: Path | None = None) -> Path:
        return (home or self.folder) / f"{client % 1000:03d}" / f"{client:09d}.r{stamp:06d}.safetensors"

    def gather(self, clients: Iterable[int]) -> list[Any]:
        return [self._read(client, self._index[client]) if client in self._index else None for client in clients]

    def _read(self, client: int, file: _File) -> Any:
        from safetensors.numpy import load

        path = self._path(client, file.stamp, self.scratch)
        if not path.exists():
            path = self._path(client, file.stamp)
        try:
            content = path.read_bytes()
            if checksum(content) != file.checksum.hex():
                raise ValueError("its checksum is not the one that was written")
            return rebuild(self._template, load(content))
        except Exception as error:
            self._damage = self._damaged(client, path, error)
            raise self._damage from error

    def _damaged(self, client: int, path: Path, error: Exception) -> CheckpointError:
        why = getattr(error, "strerror", None) or " ".join(str(error).split())
        return CheckpointError(
            f"the state of client {client} in {path} is damaged ({why}); "
            f"go on from the last checkpoint without it: flray resume {self.folder.parent}"
        )

    def scatter(self, clients: Sequence[int], states: Sequence[Any], stamp: int) -> None:
        from safetensors.numpy import save_file

        for client, state in zip(clients, states, strict=True):
            if not isinstance(state, Record):
                continue
            self._template = state
            path = self._path(client, stamp, self.scratch)
            with disk_errors(path, self.folder.parent):
                path.parent.mkdir(parents=True, exist_ok=True)
                with whole(path) as aside:
                    save_file({name: np.asarray(array, order="C") for name, array in flatten(state).items()}, aside)
                    found = bytes.fromhex(file_checksum(aside))
            self._undo.setdefault(client, self._index.get(client))
            self._index[client] = _File(stamp, found)

    def commit(self) -> None:
        self._undo = {}

    def rollback(self) -> None:
        _undo(self._index, self._undo)

    def save(self) -> dict[str, np.ndarray]:
        """Raises `CheckpointError` once a state was found damaged: a checkpoint that counts on it would push out a good one."""
        if self._damage is not None:
            raise self._damage
        files = sorted(self._index.items())
        return {
            "index": np.array([(client, file.stamp) for client, file in files], np.int64).reshape(-1, 2),
            "checksums": np.frombuffer(b"".join(file.checksum for _, file in files), np.uint8).reshape(-1, 16),
        }

    def load(self, arrays: Mapping[str, np.ndarray], template: Any) -> None:
        self._template, self._damage = template, None
        self._index = dict(_files(arrays))

    def check(self, arrays: Mapping[str, np.ndarray]) -> None:
        def differs(item: tuple[int, _File]) -> CheckpointError | None:
            client, file = item
            path = self._path(client, file.stamp)
            try:
                if file_checksum(path) != file.checksum.hex():
                    raise ValueError("its checksum is not the one that was written")
            except (OSError, ValueError) as error:
                return self._damaged(client, path, error)
            return None

        with ThreadPoolExecutor(THREADS) as pool:
            for damage in pool.map(differs, _files(arrays)):
                if damage is not None:
                    pool.shutdown(cancel_futures=True)
                    raise damage

    def moved(self, run_folder: Path) -> None:
        self.folder = run_folder / self.folder.name

    def prune(self, kept: Sequence[Mapping[str, np.ndarray]]) -> None:
        needed = {self._path(client, file.stamp) for client, file in self._index.items()}
        for arrays in kept:
            needed |= {self._path(client, file.stamp) for client, file in _files(arrays)}
        for path in self.folder.glob("*/*"):
            if path not in needed:
                with contextlib.suppress(OSError):  # what is no file of ours may stay
                    path.unlink()


class _File(NamedTuple):
    """Which file holds a client's state: the rounds done when it was written, and its checksum (16 bytes)."""

    stamp: int
    checksum: bytes


def _files(arrays: Mapping[str, np.ndarray]) -> list[tuple[int, _File]]:
    """The index that a checkpoint holds. Raises `CheckpointError` for one without."""
    missing = {"index", "checksums"} - arrays.keys()
    if missing:
        raise CheckpointError(f"the checkpoint has no {min(missing)} of client states: it is of another version of flray")
    rows = zip(arrays["index"].tolist(), arrays["checksums"], strict=True)
    return [(client, _File(stamp, value.tobytes())) for (client, stamp), value in rows]


def _undo(values: dict[int, Any], before: dict[int, Any]) -> None:
    """Give the clients in `before` the values that they had; None: they had none."""
    for client, value in before.items():
        if value is None:
            values.pop(client, None)
        else:
            values[client] = value
    before.clear()
