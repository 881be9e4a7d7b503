"""Runs in a storage: download one to continue it, or only the files that its results need."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from flray.core.schema.errors import CheckpointError, nearest, warn
from flray.files import atomic_folder, cache_root, checksum, quoted, writing
from flray.rundir.folder import has_run, has_sweep
from flray.rundir.storage import DRIVER, SERVER, TABLES, Storage, files
from flray.rundir.uri import join, open_uri, reason, split

READER_FILES = ("config.yaml", "environment.json", "STATUS", "partition", *TABLES, "model.safetensors")
FINAL = re.compile(r".+-\d{4,}-seed\d+")  # a sweep's name of a final run


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


def runs_at(uri: str, artifacts: Collection[str], most: int) -> list[str]:
    """The runs at this URI and below it, by the rules of :func:`flray.rundir.reader.runs_below`.

    A sweep has no file of its own in a storage: there it is two folders `final` and `trials`, with the names that a
    sweep gives to final runs. `artifacts`: names of folders that are skipped. Raises `CheckpointError` if it cannot be
    read, and for more than `most` folders.
    """
    from pyarrow.fs import FileSelector

    fs, top = open_uri(uri)
    found = dict[str, list[str]]()  # by folder: a link may lead back up, or to a folder of these

    def look(uri: str, path: str) -> list[str]:
        place = os.path.realpath(path) if fs.type_name == "local" else path
        if place not in found:
            found[place] = []
            if len(found) > most:
                raise CheckpointError(f"{top} holds more than {most:,} folders; name the folder that holds the runs")
            found[place] = read(uri, path)
        return found[place]

    def read(uri: str, path: str) -> list[str]:
        try:
            entries = fs.get_file_info(FileSelector(path, allow_not_found=True))
        except Exception as error:  # every file system has errors of its own
            raise CheckpointError(f"{uri} cannot be read: {reason(error)}") from error
        has = {info.base_name for info in entries if info.is_file}.__contains__
        if has_run(has):
            return [uri]
        inside = sorted(info.base_name for info in entries if not info.is_file and not info.base_name.startswith("."))
        inside = [name for name in inside if name not in artifacts]
        runs = {name: look(join(uri, name), f"{path}/{name}") for name in inside}
        final = runs.get("final", [])
        mirror = inside == ["final", "trials"] and all(FINAL.fullmatch(split(run)[1]) for run in final)
        if has_sweep(has) or mirror:
            if final:
                warn(f"{uri} is a sweep: the runs of final/ are read, and not those of trials/")
            return final or runs.get("trials", [])
        below = [] if has("STATUS") else list(dict.fromkeys(run for name in inside for run in runs[name]))
        return below or [uri] * (has("STATUS") or has("config.yaml"))

    return look(uri, top)
