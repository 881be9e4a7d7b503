"""Runs in a storage: download one to continue it, or only the files that its results need."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from flray.core.schema.errors import CheckpointError, nearest
from flray.files import atomic_folder, cache_root, checksum, quoted, writing
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
        if Storage(base, name, folder).to_replace():
            raise CheckpointError(
                f"{folder} is another run, which replaces {uri} once it goes on; give another --out, or continue that "
                f"one: flray resume {quoted(folder)}"
            )
        return folder
    if folder.exists():
        raise CheckpointError(f"{folder} exists and is not a run folder; give another --out")
    with writing(folder, " and give the same command again"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(folder) as temporary:
            existing(uri, temporary).pull((*DRIVER, *SERVER, "STATUS"))
    return folder


def fetch(uri: str) -> Path:
    """Update a folder in flray's cache with the run's tables, partition and model. Raises `CheckpointError`."""
    folder = cache_root() / "runs" / checksum(uri.encode())[:16] / split(uri)[1]
    there = existing(uri, folder).pull(READER_FILES, fixed=())  # another run may have this name now
    for kind in READER_FILES:
        for file, _ in list(files(folder, kind)):
            if file not in there:
                (folder / file).unlink(missing_ok=True)
    return folder


def existing(uri: str, folder: Path | None = None) -> Storage:
    """The mirror of a run, of which `folder` is a copy. Raises `CheckpointError` if there is no run at this URI,
    `ConfigError` if it is none."""
    base, name = split(uri)
    storage = Storage(base, name, folder or Path(f".{name}"))
    if "config.yaml" not in storage.names():
        raise CheckpointError(
            f"{storage.uri} is no run: it has no config.yaml{nearest(name, storage.names(storage.root))}"
        )
    return storage


def listing(top: str) -> Callable[[str], tuple[object, set[str], dict[str, str]]]:
    """A function of the URI of a folder at or below `top`: (what it is known by, the names of its files, its folders by
    name). A hidden folder is left out. The function raises `CheckpointError` if the storage cannot be read."""
    from pyarrow.fs import FileSelector

    fs, path = open_uri(top)
    paths = {top: path}

    def entries(uri: str) -> tuple[object, set[str], dict[str, str]]:
        try:
            found = fs.get_file_info(FileSelector(paths[uri], allow_not_found=True))
        except Exception as error:  # every file system has errors of its own
            raise CheckpointError(f"{uri} cannot be read: {reason(error)}") from error
        names = sorted(info.base_name for info in found if not info.is_file and not info.base_name.startswith("."))
        folders = {name: join(uri, name) for name in names}
        paths.update({place: f"{paths[uri]}/{name}" for name, place in folders.items()})
        key = os.path.realpath(paths[uri]) if fs.type_name == "local" else paths[uri]
        return key, {info.base_name for info in found if info.is_file}, folders

    return entries
