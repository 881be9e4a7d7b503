"""Exact checkpoints: safetensors and JSON with checksums. A damaged checkpoint is skipped with a warning."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flray.core.protocol.clock import PHASES, Phase, Position
from flray.core.schema.errors import CheckpointError, described, warn
from flray.files import (
    atomic_folder,
    clear_partial,
    file_checksum,
    quoted,
    read_checksummed,
    remove,
    with_checksum,
    writing,
)

if TYPE_CHECKING:
    from flray.core.messages.packed import Packed

FILES = ("server.safetensors", "clients.safetensors", "engine.safetensors")
FORMAT = 2  # of a checkpoint; 1 had no structure beside its arrays and did not say its format
NAME = re.compile(r"round-(\d{6,})(-task-end|-task-begin)?")


class Snapshot(NamedTuple):
    """The content of a checkpoint: the server's state, the client store's data, the engine's data."""

    position: Position
    server: Packed
    clients: Packed
    engine: Packed


class FormatError(CheckpointError):
    """A checkpoint of another version of flray. Every checkpoint of the run has this format, so none is skipped."""


def write(folder: Path, snapshot: Snapshot, last: int) -> Path:
    """Write `FOLDER/checkpoints/round-DONE`, and remove all but the `last` ones (0: keep all).

    A good checkpoint of the same position has the same bits and stays. Raises `CheckpointError` when the disk is full
    or not writable; earlier checkpoints stay.
    """
    at, *parts = snapshot
    root = folder / "checkpoints"
    final = root / at.name
    clear_partial(root)  # of a killed process
    if final.exists():
        try:
            read(final)
            return final
        except CheckpointError:
            remove(final)
    with writing(final, f" and run: flray resume {quoted(folder)}"):
        root.mkdir(parents=True, exist_ok=True)
        with atomic_folder(final, durable=True) as temporary:
            for name, packed in zip(FILES, parts, strict=True):
                packed.write(temporary / name)
            meta = {
                "format": FORMAT,
                **at._asdict(),
                "checksums": {name: file_checksum(temporary / name) for name in FILES},
            }
            (temporary / "meta.json").write_text(with_checksum(meta))
    if last:
        for old in checkpoints(folder)[:-last]:
            remove(old)
    return final


def checkpoints(folder: Path, at_most: int | None = None, after: Sequence[Phase] = PHASES) -> list[Path]:
    """Folders with a checkpoint's name, oldest first: after at most `at_most` rounds and after one of these phases."""
    root = folder / "checkpoints"
    folders = sorted((p for p in root.glob("round-*") if NAME.fullmatch(p.name)), key=order) if root.is_dir() else []
    return [p for p in folders if (at_most is None or rounds_done(p) <= at_most) and _phase(p) in after]


def rounds_done(path: Path) -> int:
    return int(path.name.split("-")[1])


def _phase(path: Path) -> Phase:
    return next(phase for phase in PHASES[::-1] if phase == "round" or path.name.endswith(phase.replace("_", "-")))


def position(path: Path) -> Position:
    """The position in a checkpoint folder's name, with 0 for task and round."""
    return Position(0, 0, rounds_done(path), _phase(path))


def order(path: Path) -> int:
    return position(path).order


def read(path: Path) -> Snapshot:
    """The snapshot at `path`. Raises `CheckpointError` for a missing or damaged file and for a wrong folder name."""
    meta, server, clients, engine = _open(path, FILES)
    return Snapshot(Position(*(meta[field] for field in Position._fields)), server, clients, engine)


def read_clients(path: Path) -> Packed:
    """The client store's data in a checkpoint. Raises `CheckpointError` as :func:`read` does."""
    packed: Packed = _open(path, FILES[1:2])[1]
    return packed


def _anew(run: Path) -> str:
    return f"start again with: flray run {quoted(run / 'config.yaml')} --out {quoted(run)} --overwrite"


def _open(path: Path, names: Sequence[str]) -> tuple[Any, ...]:
    """(the values of `meta.json`, the content of each of these files), if all checksums and the folder's name match."""
    from flray.core.messages.packed import Packed  # imports torch, which readers of names do not need

    try:
        meta = read_checksummed(path / "meta.json")
        if meta.get("format") != FORMAT:
            run = path.parent.parent
            raise FormatError(
                f"checkpoint {path} has format {meta.get('format', 1)}, this version of flray reads {FORMAT}; use the "
                f"version in {run / 'environment.json'}, or {_anew(run)}"
            )
        for name in FILES:
            if file_checksum(path / name) != meta["checksums"][name]:
                raise CheckpointError(f"{path / name} is damaged: its checksum is not the one that was written")
        own = Position(*(meta[field] for field in Position._fields)).name
        if own != path.name:
            raise CheckpointError(f"checkpoint {path} is {own} under another name")
        return meta, *(Packed.read(path / name) for name in names)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {described(error)}") from error


def latest(
    folder: Path,
    at_most: int | None = None,
    after: Sequence[Phase] = PHASES,
    check: Callable[[Packed], None] | None = None,
) -> Snapshot | None:
    """The newest good checkpoint of :func:`checkpoints`, or None if there are none. Warns of each damaged one.

    `check(packed)` raises `CheckpointError` if the client states that a checkpoint names are damaged. Raises
    `CheckpointError` if every checkpoint is damaged, `FormatError` for one of another version of flray.
    """
    candidates = checkpoints(folder, at_most, after)
    why = ""
    for path in reversed(candidates):
        try:
            saved = read(path)
            if check is not None:
                check(saved.clients)
            return saved
        except FormatError:
            raise
        except CheckpointError as error:
            why = why or str(error)
            warn(f"{error}; falling back to the checkpoint before {path.name}")
    if candidates:
        raise CheckpointError(
            f"every checkpoint in {folder / 'checkpoints'} is damaged (the newest: {why}); {_anew(folder)}"
        )
    return None


def check_none_lost(folder: Path, status: str, rows: int, every: int) -> None:
    """Raises `CheckpointError` for a run that has lost its checkpoints, which a resume would repeat from the beginning.

    It had some if its STATUS says that it saved, or if its table has more `rows` than one in `every` rounds.
    """
    saved = status.startswith(("finished", "diverged", "interrupted", "paused")) or (
        status.startswith("failed") and rows > 0
    )
    if (saved and "no checkpoint could be written" not in status) or 0 < every < rows:
        raise CheckpointError(
            f"{folder / 'checkpoints'} has no checkpoint, but the run had some (STATUS: {status.partition(';')[0]}); "
            f"put one back, or {_anew(folder)}"
        )
