"""A run's copy on any file system of pyarrow or fsspec: `storage=s3://bucket/exp` writes `s3://bucket/exp/RUNNAME`.

The run works in its local folder. The driver and the server's process each upload their own files, from their own node.
A checkpoint's meta.json contains the checksums. It is uploaded last and deleted first, so an incomplete checkpoint
never looks complete.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from flray.config.grid import difference
from flray.config.read import read_yaml
from flray.core.schema.errors import CheckpointError, ConfigError, warn
from flray.core.schema.plain import read
from flray.files import SMALL, atomic_write, quoted, regular, write_text, writing
from flray.rundir import checkpoint
from flray.rundir.parts import read_part
from flray.rundir.swap import MARK
from flray.rundir.uri import join, open_uri, reason

# the parts of a run folder that a storage mirrors
TABLES = ("rounds", "clients", "tests", "tasks", "personal", "diagnostics")
DRIVER = ("config.yaml", "environment.json", "partition", *TABLES, "tensorboard", "track", "profile")  # in this order
STATE = ("client_state", "checkpoints")  # in this order: a checkpoint needs client states
SERVER = (*STATE, "model.safetensors")
# the content of a file in these parts never changes
FIXED = ("checkpoints", "client_state", "partition")
ATOMIC_STORES = ("s3", "gcs", "abfs")  # a file appears when it is complete; other stores get a hidden name first
RETRY_S = (1.0, 4.0)  # waits before an upload is tried again
PROBE_S = 60.0
REPLACES = f"{MARK}-storage"  # a file in a run folder: the URI of the mirror that has the run before this one
TRANSFER_THREADS = 8
CHUNK = 4 * 2**20
HINT = (
    "check the bucket or folder, the credentials (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS ...) and the "
    "network"
)


class Storage:
    """The mirror of one run folder; each process that writes the folder has its own object."""

    def __init__(self, base: str, name: str, folder: Path) -> None:
        """`base/name` mirrors `folder`. Raises `ConfigError` for a URI that names no place."""
        self.folder, self.uri = folder, join(base, name)
        self.fs, self.root = open_uri(base)
        self.path = f"{self.root}/{name}"
        self.replaces = False  # the mirror contains another run, until :meth:`clear`
        self.problem: str | None = None  # of the last :meth:`sync`
        # files of the mirror: (size, mtime) of the local file that was uploaded
        self._uploaded: dict[str, tuple[int, int] | None] = {}
        self._listed: set[str] = set()  # parts whose files are in `_uploaded`
        self._healthy = True
        if self.fs.type_name == "local" and Path(self.path).resolve() == folder.resolve().with_name(name):
            what = "resume it by this URI, or give another storage (null: none)"
            raise ConfigError(f"storage: {self.uri} is the run folder itself; {what}")

    @classmethod
    def of(cls, base: str | None, folder: Path, name: str = "") -> Storage | None:
        """The mirror `base/NAME` of the run folder `.../NAME`, or None without a `base`. `name`: the run's name, if the
        folder has another one at present."""
        return None if base is None else cls(base, name or folder.absolute().name, folder)

    def folder_renamed(self, folder: Path) -> None:
        self.folder = folder

    # before the first round ---------------------------------------------------------------------
    def probe(self) -> None:
        """Write and delete a small file. Raises `CheckpointError` if that fails or takes more than a minute."""
        outcome: list[str | None] = []

        def attempt() -> None:
            try:
                path = f"{self.root}/.flray-probe-{socket.gethostname()}-{os.getpid()}"
                self._write(path, lambda sink: sink.write(b"flray"))
                self.fs.delete_file(path)
                outcome.append(None)
            except Exception as error:  # every file system has errors of its own
                outcome.append(reason(error))

        thread = threading.Thread(target=attempt, daemon=True)
        thread.start()
        thread.join(PROBE_S)
        why = outcome[0] if outcome else f"no answer within {PROBE_S:.0f} s"
        if why is not None:
            raise CheckpointError(f"storage {self.uri} cannot be written: {why}; {HINT}, or leave storage out")

    def check(self, *, resume: bool, overwrite: bool) -> None:
        """Check before the first write. Raises `CheckpointError` if the mirror contains another run or a later state of
        this one, or cannot be written."""
        self.probe()
        there = self.names()
        same = resume and not self.to_replace()
        if there and "config.yaml" not in there:
            raise CheckpointError(f"{self.uri} is not empty and not a run; give another storage or --out")
        if there and same:
            self._check_same()
        elif there and not resume and not overwrite:
            raise CheckpointError(
                f"{self.uri} already holds a run; give another storage or --out, add --overwrite, or run: flray resume "
                f"'{self.uri}'"
            )
        self.replaces = bool(there) and not same
        if self.replaces:
            write_text(self.folder / REPLACES, self.uri)
        else:
            (self.folder / REPLACES).unlink(missing_ok=True)

    def to_replace(self) -> bool:
        """Whether the run in the folder was stopped before it replaced the one in the mirror."""
        try:
            return regular(self.folder / REPLACES, SMALL).read_text(encoding="utf-8") == self.uri
        except (OSError, ValueError):
            return False

    def _check_same(self) -> None:
        with self._one_line("read"):
            theirs = read(self._read("config.yaml").decode(), f"{self.uri}/config.yaml")
            newest = max(map(checkpoint.rounds_done, map(Path, complete(self._list(("checkpoints",))))), default=0)
        key = difference(read_yaml(self.folder / "config.yaml"), theirs)
        if key is not None:
            raise CheckpointError(
                f"{self.uri} holds another experiment than {self.folder}: {key} differs; give another storage (null: "
                "none)"
            )
        done = max(map(checkpoint.rounds_done, checkpoint.checkpoints(self.folder)), default=0)
        for part in (self.folder / "rounds").glob("part-*.parquet"):
            with contextlib.suppress(ValueError):  # a run with a damaged table can be resumed
                done = max([done, *read_part(part)["done"].to_pylist()])
        if done < newest:
            raise CheckpointError(
                f"{self.uri} has round {newest}, {self.folder} only round {done}: another machine continued it; "
                f"give another --out, or remove the folder, and run: flray resume '{self.uri}'"
            )

    def names(self, path: str | None = None) -> set[str]:
        """Names at the top of the mirror, or at `path`; empty if there is none. Raises `CheckpointError`."""
        with self._one_line("read"):
            return {info.base_name for info in self._children(path or self.path)}

    def clear(self) -> None:
        """Remove the run that :meth:`check` allowed to overwrite."""
        if "config.yaml" in self.names():
            with self._one_line("removed"):
                for info in self._children(self.path):
                    if info.base_name != "config.yaml":  # last: what a kill leaves can be removed by the next command
                        (self.fs.delete_file if info.is_file else self.fs.delete_dir)(info.path)
                self.fs.delete_dir(self.path)
        (self.folder / REPLACES).unlink(missing_ok=True)
        self.replaces = False

    # up -----------------------------------------------------------------------------------------
    def sync(self, push_server: Callable[[], str | None]) -> None:
        """Upload rows, then checkpoints, which need these rows, then STATUS. Warns in place of an error."""
        self.problem = self.push(DRIVER) or push_server() or self.push(("STATUS",))
        if self.problem is not None:
            warn(f"storage {self.uri}: {self.problem}; {self.folder} has everything, the next upload catches up")

    def check_complete(self) -> None:
        """Raises `CheckpointError` if the last :meth:`sync` failed."""
        if self.problem is not None:
            raise CheckpointError(
                f"the run is complete in {self.folder}, but not in {self.uri}: {self.problem}; upload the rest with: "
                f"flray resume {quoted(self.folder)}"
            )

    def push(self, kinds: Sequence[str]) -> str | None:
        """Upload changed files of these parts. Returns the problem in one line, or None; raises nothing."""
        # do not retry if the last upload failed
        for wait in (0.0, *(RETRY_S if self._healthy else ())):
            time.sleep(wait)
            try:
                for kind in kinds:
                    self._push(kind)
                self._healthy = True
                return None
            except Exception as error:
                problem = reason(error)
        self._healthy = False
        return problem

    def _push(self, kind: str) -> None:
        local = dict(files(self.folder, kind))
        # upload files of an earlier process again, unless they are known to be the same
        if kind not in self._listed:
            there = self._list((kind,))
            known = {folder for folder in complete(there) if self._same_meta(f"{folder}/meta.json")}
            for name, info in there.items():
                same = kind in FIXED and local.get(name, (None,))[0] == info.size
                same = same and (kind != "checkpoints" or parent(name) in known)
                self._uploaded[name] = local[name] if same else None
            self._listed.add(kind)
        changed = [name for name, stamp in local.items() if self._uploaded.get(name) != stamp]
        _each(lambda name: self._upload(name, local[name]), changed)
        self._remove({name for name in self._uploaded if name.split("/")[0] == kind} - local.keys(), local)

    def _same_meta(self, name: str) -> bool:
        path = self.folder / name
        return path.exists() and path.read_bytes() == self._read(name)

    def _upload(self, name: str, stamp: tuple[int, int]) -> None:
        with (self.folder / name).open("rb") as source:
            self._write(f"{self.path}/{name}", lambda sink: shutil.copyfileobj(source, sink, CHUNK))
        self._uploaded[name] = stamp

    def _write(self, path: str, fill: Callable[[BinaryIO], Any]) -> None:
        temporary = path
        if self.fs.type_name not in ATOMIC_STORES:
            parent, _, name = path.rpartition("/")
            self.fs.create_dir(parent, recursive=True)
            temporary = f"{parent}/.{name}.part"
        with self.fs.open_output_stream(temporary) as sink:
            fill(sink)
        if temporary != path:
            self.fs.move(temporary, path)

    def _remove(self, gone: set[str], left: Iterable[str]) -> None:
        folders = {parent(name) for name in gone} - {parent(name) for name in left} - {""}
        metas = {name for name in gone if is_meta(name)}
        for some in (metas, {name for name in gone - metas if parent(name) not in folders}):
            _each(lambda name: self._delete(self.fs.delete_file, name), some)
        for folder in folders:
            self._delete(self.fs.delete_dir, folder)
        for name in gone:
            del self._uploaded[name]

    def _delete(self, delete: Callable[[str], None], name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            delete(f"{self.path}/{name}")

    # down ---------------------------------------------------------------------------------------
    def pull(self, kinds: Sequence[str], fixed: Sequence[str] = FIXED) -> set[str]:
        """Download what the folder lacks of these parts. Returns the names of all files of the mirror.

        In a `fixed` part a file of the same name and size is the same; elsewhere its time must be the same too. Raises
        `CheckpointError`.
        """
        with self._one_line(f"copied to {self.folder}"):
            listed = self._list(kinds)
            whole = complete(listed)
            there = {n: i for n, i in listed.items() if n.split("/")[0] != "checkpoints" or parent(n) in whole}
            lacking = [name for name, info in there.items() if not self._have(name, info, fixed)]
            _each(lambda name: self._download(name, there[name]), lacking)
        return set(there)

    def _have(self, name: str, info: Any, fixed: Sequence[str]) -> bool:
        try:
            status = (self.folder / name).stat()
        except FileNotFoundError:
            return False
        return status.st_size == info.size and (name.split("/")[0] in fixed or status.st_mtime_ns == info.mtime_ns)

    def _download(self, name: str, info: Any) -> None:
        path = self.folder / name
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with self.fs.open_input_stream(f"{self.path}/{name}") as source, atomic_write(path) as temporary:
            with writing(path), temporary.open("wb") as sink:
                shutil.copyfileobj(source, sink, CHUNK)
            if info.mtime_ns is not None:
                os.utime(temporary, ns=(info.mtime_ns, info.mtime_ns))

    # looking ------------------------------------------------------------------------------------
    def _list(self, kinds: Sequence[str]) -> dict[str, Any]:
        """The files of these parts: pyarrow's `FileInfo` by the name relative to the run."""
        entries = []
        for top in self._children(self.path):
            if top.base_name in kinds:
                entries += [top] if top.is_file else self._children(top.path, recursive=True)
        names = {info.path.partition(f"{self.path.strip('/')}/")[2]: info for info in entries if info.is_file}
        return {name: info for name, info in names.items() if not hidden(name)}

    def _read(self, name: str) -> bytes:
        with self.fs.open_input_stream(f"{self.path}/{name}") as file:
            content: bytes = file.read()
        return content

    def _children(self, path: str, recursive: bool = False) -> list[Any]:
        from pyarrow.fs import FileSelector

        found = self.fs.get_file_info(FileSelector(path, recursive=recursive, allow_not_found=True))
        return [info for info in found if not hidden(info.base_name)]

    @contextlib.contextmanager
    def _one_line(self, what: str) -> Iterator[None]:
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(f"storage {self.uri} cannot be {what}: {reason(error)}; {HINT}") from error


def _each(work: Callable[[str], None], names: Iterable[str]) -> None:
    """Call `work` in several threads, with the checkpoints' meta.json last. Raises the first error."""
    names = sorted(names)
    with ThreadPoolExecutor(TRANSFER_THREADS) as pool:
        for some in ([n for n in names if not is_meta(n)], [n for n in names if is_meta(n)]):
            list(pool.map(work, some))


# names of files -----------------------------------------------------------------------------------
def files(folder: Path, kind: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """(name, (size, mtime)) of the files of a part of the folder, without partial files, which are hidden."""
    root = folder / kind
    for path in [root] if root.is_file() else root.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not hidden(name):
            status = path.stat()
            yield name, (status.st_size, status.st_mtime_ns)


def complete(names: Iterable[str]) -> set[str]:
    """The checkpoint folders that have their meta.json."""
    return {parent(name) for name in names if is_meta(name)}


def is_meta(name: str) -> bool:
    return name.startswith("checkpoints/") and name.endswith("/meta.json")


def parent(name: str) -> str:
    return name.rpartition("/")[0]


def hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))
