"""The parts of a run folder that a storage mirrors, and the names of their files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

TABLES = ("rounds", "clients", "tests", "tasks", "personal", "diagnostics")
DRIVER = ("config.yaml", "environment.json", "partition", *TABLES, "tensorboard", "track", "profile")  # in this order
STATE = ("client_state", "checkpoints")  # in this order: a checkpoint needs client states
SERVER = (*STATE, "model.safetensors")
# the content of a file in these parts never changes
FIXED = ("checkpoints", "client_state", "partition")


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
