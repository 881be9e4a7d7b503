"""The only store of client states: gathered before a round, scattered after `aggregate` succeeded.

The store is in the server's process. States are messages of NumPy arrays. A client that was never in a cohort, or whose
state is `()`, has none.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flray.core.messages import is_none, map_tensors
from flray.core.messages.packed import Packed
from flray.core.schema.errors import CheckpointError, message_of
from flray.files import atomic_write, file_checksum, quoted, remove, writing

INDEX = "index"  # the key that the data of files has, and that of memory has not
READ_THREADS = 8  # that read client states at a resume


class ClientStore(ABC):
    """The methods of a store that the engine calls."""

    def __init__(self) -> None:
        self._index: dict[int, Any] = {}  # the state of each client that has one, or what names it
        self._undo: dict[int, Any] = {}  # of the clients scattered since the last commit: what the index had

    @abstractmethod
    def gather(self, clients: Iterable[int]) -> list[Any]:
        """The states of these clients, in their order; None for a client without one."""

    @abstractmethod
    def scatter(self, clients: Sequence[int], states: Sequence[Any], stamp: int) -> None:
        """Replace the states of these clients; None and `()` leave the old one.

        `stamp`: the `Position.order` of the states.
        """

    def __contains__(self, client: int) -> bool:
        return client in self._index

    def clients(self) -> list[int]:
        """Ids of the clients that have a state, ascending."""
        return sorted(self._index)

    def commit(self) -> None:
        """The round is complete."""
        self._undo = {}

    def rollback(self) -> None:
        """Undo every scatter since the last commit."""
        for client, before in self._undo.items():
            if before is None:
                self._index.pop(client, None)
            else:
                self._index[client] = before
        self._undo = {}

    @abstractmethod
    def save(self) -> Packed:
        """The store's data for a checkpoint."""

    @abstractmethod
    def load(self, saved: Packed) -> None:
        """Restore the data that :meth:`save` returned. Raises `CheckpointError` for the data of another store."""

    def check(self, saved: Packed) -> None:  # noqa: B027
        """Raises `CheckpointError` if files that the data of :meth:`save` name are missing or damaged."""

    def prune(self, checkpoints: Sequence[Packed]) -> None:  # noqa: B027
        """Remove files that neither the present states nor these checkpoints need."""

    def folder_renamed(self, run_folder: Path) -> None:  # noqa: B027
        """The run folder has another name now."""


def _other_store(was: str, now: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint has client states of resources.store: {was}, and config.yaml says {now}; put config.yaml back"
    )


class MemoryStore(ClientStore):
    """All states in the memory of the server's process; a checkpoint contains all of them."""

    def gather(self, clients: Iterable[int]) -> list[Any]:
        return [self._index.get(client) for client in clients]

    def scatter(self, clients: Sequence[int], states: Sequence[Any], stamp: int) -> None:
        for client, state in zip(clients, states, strict=True):
            if not is_none(state):
                self._undo.setdefault(client, self._index.get(client))
                # a copy, because an array in Ray's object store pins the delivery that it came in
                self._index[client] = map_tensors(np.array, state)

    def save(self) -> Packed:
        return Packed.of({str(client): state for client, state in self._index.items()})

    def load(self, saved: Packed) -> None:
        states = saved.message()
        if INDEX in states:
            raise _other_store("files", "memory")
        self._index = {int(client): state for client, state in states.items()}


class FileStore(ClientStore):
    """A file for each client and round in which it took part, `FOLDER/123/000000123.r000020.safetensors`.

    An index names each client's current file and its checksum. A checkpoint contains the index, about 200 bytes a
    client. A file stays while a checkpoint names it, so a resume is exact.
    """

    def __init__(
        self, folder: Path, scratch: Path | None = None, check_folder: Callable[[], None] = lambda: None
    ) -> None:
        """`scratch` (for a replay): files are written there; a file that is not there is read from `folder`.

        `check_folder` is called before files are written. It raises if the run no longer owns the folder.
        """
        super().__init__()
        self.folder, self.scratch, self._check_folder = folder, scratch, check_folder
        self._saved, self._changed = _Arrays.of([]), set[int]()  # the last saved index, and the clients since then
        self._left: set[tuple[int, int]] | None = None  # (client, stamp) of files out of use; None: to be looked for
        self._damage: CheckpointError | None = None

    def _path(self, client: int, stamp: int, home: Path | None = None) -> Path:
        return (home or self.folder) / f"{client % 1000:03d}" / f"{client:09d}.r{stamp:06d}.safetensors"

    def gather(self, clients: Iterable[int]) -> list[Any]:
        return [self._read(client, self._index[client]) if client in self._index else None for client in clients]

    def _read(self, client: int, file: _File) -> Any:
        path = self._path(client, file.stamp, self.scratch)
        if not path.exists():
            path = self._path(client, file.stamp)
        try:
            _check_file(path, file)
            packed = Packed.read(path)
        except Exception as error:
            self._damage = self._damaged(client, path, error)
            raise self._damage from error
        try:
            return packed.message()
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from error

    def _damaged(self, client: int, path: Path, error: Exception) -> CheckpointError:
        why = getattr(error, "strerror", None) or message_of(error)
        return CheckpointError(
            f"the state of client {client} in {path} is damaged ({why}); "
            f"go on from the last checkpoint without it: flray resume {quoted(self.folder.parent)}"
        )

    def scatter(self, clients: Sequence[int], states: Sequence[Any], stamp: int) -> None:
        self._check_folder()
        for client, state in zip(clients, states, strict=True):
            if is_none(state):
                continue
            path = self._path(client, stamp, self.scratch)
            with writing(path, f" and run: flray resume {quoted(self.folder.parent)}"):
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(path) as temporary:
                    Packed.of(state).write(temporary)
                    digest = bytes.fromhex(file_checksum(temporary))
            self._undo.setdefault(client, self._index.get(client))
            self._note_old_file(client)
            self._index[client] = _File(stamp, digest)

    def _note_old_file(self, client: int) -> None:
        """The client gets another file, or none."""
        self._changed.add(client)
        if self._left is not None and client in self._index:
            self._left.add((client, self._index[client].stamp))

    def rollback(self) -> None:
        for client in self._undo:
            self._note_old_file(client)
        super().rollback()

    def save(self) -> Packed:
        """Raises `CheckpointError` after a damaged state was read, so no bad checkpoint replaces a good one."""
        if self._damage is not None:
            raise self._damage
        changed = [(client, self._index[client]) for client in self._changed if client in self._index]
        self._saved = self._saved.without(self._changed).merged(_Arrays.of(changed))
        self._changed = set()
        return Packed.of({INDEX: self._saved.files, "checksums": self._saved.checksums})

    def load(self, saved: Packed) -> None:
        self._damage, self._left, self._changed = None, None, set()
        for folder in () if self.scratch is None else self.scratch.glob("*"):  # the replay's, of another position
            remove(folder)
        self._saved = _Arrays.read(saved)
        self._index = dict(_indexed_files(saved))

    def check(self, saved: Packed) -> None:
        def differs(item: tuple[int, _File]) -> CheckpointError | None:
            client, file = item
            path = self._path(client, file.stamp)
            try:
                _check_file(path, file)
            except (OSError, ValueError) as error:
                return self._damaged(client, path, error)
            return None

        with ThreadPoolExecutor(READ_THREADS) as pool:
            for damage in pool.map(differs, _indexed_files(saved)):
                if damage is not None:
                    pool.shutdown(cancel_futures=True)
                    raise damage

    def folder_renamed(self, run_folder: Path) -> None:
        self.folder = run_folder / self.folder.name

    def prune(self, checkpoints: Sequence[Packed]) -> None:
        """See :meth:`ClientStore.prune`. Looks through the folder the first time; later, at the files out of use."""
        if self._left is None:
            self._remove_unknown(checkpoints)
            self._left = {(c, stamp) for saved in checkpoints for c, stamp in _Arrays.read(saved).files.tolist()}
        left = [at for at in self._left if at[0] not in self._index or self._index[at[0]].stamp != at[1]]
        needed = np.zeros(len(left), bool)
        for saved in checkpoints:
            needed |= _Arrays.read(saved).has(np.array(left, np.int64).reshape(-1, 2))
        self._left = {at for at, kept in zip(left, needed.tolist(), strict=True) if kept}
        for (client, stamp), kept in zip(left, needed.tolist(), strict=True):
            if not kept:
                with contextlib.suppress(OSError):
                    self._path(client, stamp).unlink()

    def _remove_unknown(self, checkpoints: Sequence[Packed]) -> None:
        needed = {self._path(client, file.stamp) for client, file in self._index.items()}
        for saved in checkpoints:
            needed |= {self._path(client, file.stamp) for client, file in _indexed_files(saved)}
        for path in self.folder.glob("*/*"):
            if path not in needed:
                with contextlib.suppress(OSError):  # a user's folder stays
                    path.unlink()


class _File(NamedTuple):
    """The file of a client's state: the `Position.order` of the state, and the file's checksum (16 bytes)."""

    stamp: int
    checksum: bytes


class _Arrays(NamedTuple):
    """An index as in a checkpoint: `files` int64 `[n, 2]`, (client, stamp) by ascending client, and `checksums` uint8
    `[n, 16]`."""

    files: np.ndarray
    checksums: np.ndarray

    @classmethod
    def of(cls, files: Sequence[tuple[int, _File]]) -> _Arrays:
        files = sorted(files)
        named = np.array([(client, file.stamp) for client, file in files], np.int64).reshape(-1, 2)
        return cls(named, np.frombuffer(b"".join(file.checksum for _, file in files), np.uint8).reshape(-1, 16))

    @classmethod
    def read(cls, saved: Packed) -> _Arrays:
        arrays = saved.message()
        if INDEX not in arrays:
            raise _other_store("memory", "files")
        return cls(arrays[INDEX], arrays["checksums"])

    def without(self, clients: Iterable[int]) -> _Arrays:
        stays = ~np.isin(self.files[:, 0], list(clients))
        return _Arrays(self.files[stays], self.checksums[stays])

    def merged(self, other: _Arrays) -> _Arrays:
        """Both; they have no client in common."""
        files = np.concatenate([self.files, other.files])
        order = np.argsort(files[:, 0], kind="stable")
        return _Arrays(files[order], np.concatenate([self.checksums, other.checksums])[order])

    def has(self, files: np.ndarray) -> np.ndarray:
        """Whether the index names each of the files, (client, stamp) `[m, 2]`."""
        if not len(self.files):
            return np.zeros(len(files), bool)
        at = np.searchsorted(self.files[:, 0], files[:, 0]).clip(max=len(self.files) - 1)
        named: np.ndarray = (self.files[at] == files).all(axis=1)
        return named


def _check_file(path: Path, file: _File) -> None:
    """Raises `ValueError` if the checksum differs, `OSError` if the file cannot be read."""
    if file_checksum(path) != file.checksum.hex():
        raise ValueError("its checksum is not the one that was written")


def _indexed_files(saved: Packed) -> list[tuple[int, _File]]:
    """The index in a checkpoint's data: (client, file)."""
    arrays = _Arrays.read(saved)
    rows = zip(arrays.files.tolist(), arrays.checksums, strict=True)
    return [(client, _File(stamp, value.tobytes())) for (client, stamp), value in rows]
