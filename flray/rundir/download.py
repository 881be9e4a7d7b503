"""Runs in a storage: download one to continue it, or only the files that its results need."""

from __future__ import annotations

from pathlib import Path

from flray.core.schema.errors import CheckpointError, nearest
from flray.files import atomic_folder, cache_root, checksum, writing
from flray.rundir.storage import DRIVER, SERVER, TABLES, Storage, files
from flray.rundir.uri import join, open_uri, reason, split

READER_FILES = ("config.yaml", "environment.json", "STATUS", "partition", *TABLES, "model.safetensors")


def download(uri: str, root: str | Path = "runs") -> Path:
    """Download the run `uri` to `ROOT/RUNNAME`, completely or not at all. Returns an existing run folder unchanged.

    Raises `CheckpointError` if there is no such run, or the folder is not a run folder.
    """
    base, name = split(uri)
    folder = Path(root) / name
    if (folder / "config.yaml").exists():  # `Storage.check` compares it with the mirror before the run continues
        return folder
    if folder.exists():
        raise CheckpointError(f"{folder} exists and is not a run folder; give another --out")
    with writing(folder, " and give the same command again"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(folder) as temporary:
            _existing(base, name, temporary).pull((*DRIVER, *SERVER, "STATUS"))
    return folder


def fetch(uri: str) -> Path:
    """Update a folder in flray's cache with the run's tables, partition and model. Raises `CheckpointError`."""
    base, name = split(uri)
    folder = cache_root() / "runs" / checksum(uri.encode())[:16] / name
    there = _existing(base, name, folder).pull(READER_FILES, fixed=())  # another run may have this name now
    for kind in READER_FILES:
        for file, _ in list(files(folder, kind)):
            if file not in there:
                (folder / file).unlink(missing_ok=True)
    return folder


def existing(uri: str) -> None:
    """Raises `CheckpointError` if there is no run at this URI, `ConfigError` if it is none."""
    base, name = split(uri)
    _existing(base, name, Path(f".{name}"))


def _existing(base: str, name: str, folder: Path) -> Storage:
    storage = Storage(base, name, folder)
    if "config.yaml" not in storage.names():
        raise CheckpointError(
            f"{storage.uri} is no run: it has no config.yaml{nearest(name, storage.names(storage.root))}"
        )
    return storage


def runs_at(uri: str) -> list[str]:
    """The run at this URI, or the runs directly below it. Raises `CheckpointError` if it cannot be read."""
    from pyarrow.fs import FileSelector

    fs, path = open_uri(uri)
    try:
        entries = fs.get_file_info(FileSelector(path, allow_not_found=True))
    except Exception as error:  # every file system has errors of its own
        raise CheckpointError(f"{uri} cannot be read: {reason(error)}") from error
    if any(info.base_name == "config.yaml" for info in entries):
        return [uri]
    return sorted(
        join(uri, info.base_name) for info in entries if not info.is_file and not info.base_name.startswith(".")
    )
