"""One run takes the place of another: two folders exchange their names, and a kill at any moment loses no run.

`NAME` contains the previous run, `NAME.new` the new one. A file `.swap` in each says which it is, so flray removes only
folders that it created. With renameat2 and RENAME_EXCHANGE (Linux, most local file systems) both names change in one
step; elsewhere (NFS) the previous run has the hidden name `.NAME.old-flray-ID` in between. :func:`repair` finishes or
undoes a swap that a kill interrupted.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Literal

from flray.files import PARTIAL, SMALL, atomic_write, exchange, regular
from flray.rundir.lock import NAME as LOCK, holder

MARK = ".swap"
HIDDEN = re.compile(r"\.(.+)\.old-flray-[0-9a-f]{16}")

Role = Literal["old", "new"]


def staging_folder(target: Path) -> Path:
    """The folder of a run that is to replace the one at `target`."""
    return target.with_name(f"{target.name}.new")


def mark(folder: Path, role: Role, target: Path) -> None:
    """Mark `folder` as the `old` or the `new` run in a swap at `target`."""
    with atomic_write(folder / MARK) as temporary:
        temporary.write_text(json.dumps({"role": role, "of": target.name}))


def unmark(folder: Path) -> None:
    """Remove the mark of a swap."""
    (folder / MARK).unlink(missing_ok=True)


def role(folder: Path, target: Path) -> Role | None:
    """The role of `folder` in a swap at `target`; None: it has no mark of this swap."""
    try:
        record = json.loads(regular(folder / MARK, SMALL).read_text())
        return record["role"] if record["of"] == target.name and record["role"] in ("old", "new") else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def hidden(target: Path) -> list[Path]:
    """The hidden folders of replaced runs of `target`."""
    try:
        names = [(HIDDEN.fullmatch(path.name), path) for path in target.parent.iterdir()]
        return sorted(path for name, path in names if name is not None and name[1] == target.name)
    except OSError:
        return []


def is_hidden(folder: Path) -> bool:
    """Whether a folder has the hidden name of a replaced run."""
    return HIDDEN.fullmatch(folder.name) is not None


def is_replaced(folder: Path) -> bool:
    """Whether another run has replaced the one in `folder`, and a kill prevented its removal."""
    match = HIDDEN.fullmatch(folder.name)
    target = folder.with_name(match[1] if match else folder.name.removesuffix(".new"))
    return target != folder and os.path.exists(target) and (match is not None or role(folder, target) == "old")


def swap(target: Path, staging: Path) -> Path:
    """Move the run at `staging` to `target`; returns the new folder of the previous run. Raises `OSError` if a rename
    fails; both runs then have their former names."""
    old = _hidden_name(target)
    mark(target, "old", target)
    try:
        if exchange(target, staging):
            staging.rename(old)
        else:
            target.rename(old)
            try:
                staging.rename(target)
            except OSError:
                old.rename(target)
                raise
    except OSError:
        unmark(target)
        raise
    unmark(target)
    return old


def discard(folder: Path, target: Path) -> None:
    """Remove a folder of a swap at `target`. After a kill :func:`repair` removes the rest."""
    if not is_hidden(folder):
        hidden_one = _hidden_name(target)
        folder.rename(hidden_one)
        folder = hidden_one
    unmark(folder)  # first: a folder with a mark is complete
    shutil.rmtree(folder, ignore_errors=True)


def repair(target: Path) -> str:
    """Finish or undo a swap at `target` that a kill interrupted, unless a live process has one of the locks; returns a
    line if the previous run is back, else "". Raises `OSError` if a rename fails."""
    staging, olds = staging_folder(target), hidden(target)
    in_swap = [path for path in (target, staging, *olds) if is_hidden(path) or role(path, target) is not None]
    if not in_swap or any(holder(path) is not None for path in in_swap):
        return ""
    message = ""
    with contextlib.suppress(FileNotFoundError):  # another process repairs it too
        if not os.path.lexists(target):
            complete = [path for path in (staging, *olds) if role(path, target) == "old"]
            if complete:
                complete[0].rename(target)
                message = f"{target}: a kill interrupted its replacement; the previous run is back in its place"
        if target.is_dir():
            unmark(target)
            if role(staging, target) == "old":
                discard(staging, target)
        for path in olds:
            if path.is_dir() and (target.is_dir() or role(path, target) is None):
                discard(path, target)
    return message


def interrupted(target: Path) -> list[Path]:
    """The folders with the runs of an interrupted swap after which `target` does not exist; empty: there was none."""
    if os.path.lexists(target):
        return []
    roles = {path: role(path, target) for path in (staging_folder(target), *hidden(target))}
    return [path for path, in_swap in roles.items() if in_swap is not None] if "old" in roles.values() else []


def is_free(staging: Path, target: Path) -> bool:
    """Whether a run that replaces `target` may use `staging`: it does not exist, is empty, or has a mark."""
    if not os.path.lexists(staging):
        return True
    if not staging.is_dir() or staging.is_symlink():
        return False
    return role(staging, target) is not None or all(
        item.name.startswith((LOCK, MARK)) or PARTIAL.fullmatch(item.name) for item in staging.iterdir()
    )


def _hidden_name(target: Path) -> Path:
    return target.with_name(f".{target.name}.old-flray-{secrets.token_hex(8)}")
