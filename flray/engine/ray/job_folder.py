"""What `ray job submit --working-dir DIR` uploads, by Ray's own rules: found out in a moment, not after Ray has hashed
and zipped it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from flray.core.schema.errors import ConfigError
from flray.engine.ray.versions import CHANGED, fall_back
from flray.files import write_text

MOST = 0.9  # share of a folder from which on the part is named, not the folder

RAYIGNORE = """\
# Not uploaded by `ray job submit --working-dir .`; patterns as in .gitignore, which counts as well.
# Ray leaves out .git and .venv itself.
# Data belong where every node sees them (data.root=...), results to --out on shared disk or to storage=URI.
/data/
/runs/
/wandb/
/mlruns/
*.parquet
*.safetensors
*.ckpt
*.pt
*.pth
*.npz
*.zip
*.tar
*.tar.*
*.tgz
*.ipynb
.ipynb_checkpoints/
.cache/
.hypothesis/
.mypy_cache/
.pytest_cache/
.ruff_cache/
.tox/
*.egg-info/
/build/
/dist/
"""


class Upload(NamedTuple):
    """`files` of together `bytes`, of which Ray takes `limit`; `largest`: the paths below the folder that hold most,
    with their bytes, largest first."""

    files: int
    bytes: int
    limit: int
    largest: list[tuple[str, int]]


def working_dir(folder: Path) -> Upload | None:
    """What would be uploaded of `folder`; None, and one line, where this Ray does not say.

    Raises `ConfigError` when it is no folder.
    """
    if not folder.is_dir():
        raise ConfigError(f"--working-dir {folder}: no such folder")
    top, sizes = folder.absolute(), dict[str, int]()

    def count(path: Path) -> None:
        if path.is_file():
            sizes[path.relative_to(top).as_posix()] = path.stat().st_size

    try:
        from flray.engine.ray.private.upload import KNOWS_RAYIGNORE, LIMIT, visit

        if not KNOWS_RAYIGNORE:
            fall_back(".rayignore", "write the same lines into .gitignore")
        visit(top, count)
    except CHANGED as error:
        fall_back("the size of --working-dir", "`ray job submit` says what it uploads", error)
        return None
    # the archive is not compressed: each file and its name twice, once in the directory at the end
    total = 22 + sum(size + 76 + 2 * len(name.encode()) for name, size in sizes.items())
    return Upload(len(sizes), total, LIMIT, _largest(sizes))


def _largest(sizes: dict[str, int]) -> list[tuple[str, int]]:
    """The largest entries of the top folder, each as deep as one part of it holds most of it; folders end in a
    slash."""
    below: dict[str, dict[str, int]] = {}
    for name, size in sizes.items():
        parts = name.split("/")
        for depth in range(len(parts)):
            parent = "".join(f"{part}/" for part in parts[:depth])
            entry = parent + parts[depth] + ("/" if depth + 1 < len(parts) else "")
            entries = below.setdefault(parent, {})
            entries[entry] = entries.get(entry, 0) + size
    largest = []
    for entry, size in sorted(below.get("", {}).items(), key=lambda item: -item[1])[:5]:
        while entry in below:
            part, part_size = max(below[entry].items(), key=lambda item: item[1])
            if part_size < MOST * size:
                break
            entry, size = part, part_size
        largest.append((entry, size))
    return sorted(largest, key=lambda item: -item[1])


def write_rayignore(folder: Path) -> bool:
    """A `.rayignore` of what a job does not need, where there is none; False: there was one, and it stays."""
    path = folder / ".rayignore"
    if path.exists():
        return False
    write_text(path, RAYIGNORE, kind=ConfigError)
    return True
