"""The cells of a grid: their folder names, and what is already in a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flray.config.experiment import RESUMABLE, Experiment
from flray.config.loader import load_config
from flray.config.read import read_yaml
from flray.core.schema.errors import CheckpointError, ConfigError
from flray.files import checksum

LONGEST = 150  # bytes of a cell's label


def labels(cells: Sequence[Experiment]) -> list[str]:
    """A folder name per cell, from the keys in which the cells differ: `fedproj-seed0-lr0.1`.

    Raises `ConfigError` where two cells have the same: `algorithm.lr=1,1.0`.
    """
    dumps = [cell.dump() for cell in cells]
    flat = [dotted(values) for values in dumps]
    # a section that some of them lack, as with drift=none,remove_classes
    optional = [key for key in dumps[0] if {True, False} <= {values[key] is None for values in dumps}]
    shared = [key for key in flat[0] if all(key in values for values in flat)]
    varied = [key for key in shared if len({str(values[key]) for values in flat}) > 1]
    if "algorithm.name" in varied:  # its defaults differ with it; only what the user varied names a cell
        varied = [k for k in varied if k in ("algorithm.name", "seed") or _varies_within(flat, k)]
    names = []
    for values, sections in zip(flat, dumps, strict=True):
        parts = [str(values["algorithm.name"])]
        parts += [f"{key.rpartition('.')[2]}{_word(values[key])}" for key in varied if key != "algorithm.name"]
        parts += [f"{key}{_kind(sections[key])}" for key in optional if key not in varied]
        name = "-".join(parts).replace("/", "_").replace(" ", "")
        # a folder's name has at most 255 bytes: a long one ends with a checksum
        if len(name.encode()) > LONGEST:
            name = f"{name.encode()[: LONGEST - 9].decode(errors='ignore')}-{checksum(name.encode())[:8]}"
        names.append(name)
    if len(set(names)) < len(names):
        name = next(name for place, name in enumerate(names) if name in names[:place])
        raise ConfigError(
            f"two experiments of this grid would have the folder {name}: give each value once, or run them with an "
            "--out each"
        )
    return names


def _kind(section: Any) -> str:
    """An optional section in the name of a folder: its name, or what it reads."""
    if section is None:
        return "none"
    if not isinstance(section, dict):
        return _word(section)
    return str(section.get("name") or section.get("source") or "")


def _word(value: Any) -> str:
    """A value in the name of a folder: `[64, 32]` is `64-32`, for a shell reads brackets."""
    return ("-".join(map(_word, value)) or "none") if isinstance(value, list) else str(value)


def _varies_within(flat: Sequence[dict[str, Any]], key: str) -> bool:
    by_algorithm: dict[str, set[str]] = {}
    for values in flat:
        by_algorithm.setdefault(values["algorithm.name"], set()).add(str(values[key]))
    return any(len(values) > 1 for values in by_algorithm.values())


def dotted(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mapping -> dotted keys."""
    if not isinstance(values, dict):
        return {prefix: values}
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat.update(dotted(value, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def config_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Keys that make `now` another experiment than the one that a run began with; both are plain values.

    Returns name -> (what it was, what it is).
    """
    old, new = dotted(before), dotted(now)
    return {
        key: (old.get(key), new.get(key))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key) and (key == "resources.store" or key.partition(".")[0] not in RESUMABLE)
    }


def difference(ours: Any, theirs: Any, prefix: str = "") -> str | None:
    """The first key that makes two configurations (plain values) different experiments, None when there is none.

    A key that only one of them has makes none: another version of flray knows it.
    """
    if not (isinstance(ours, dict) and isinstance(theirs, dict)):
        return None if ours == theirs else prefix
    for key in ours:
        if key in theirs and (prefix or key not in RESUMABLE):
            differing = difference(ours[key], theirs[key], f"{prefix}.{key}" if prefix else str(key))
            if differing is not None:
                return differing
    return None


def cell_status(cell: Experiment, folder: Path, overwrite: bool = False) -> str:
    """`new`, `resumed` (it can be gone on with) or `finished` (also when it diverged).

    Raises `CheckpointError` when the folder holds another experiment.
    """
    if overwrite or not (folder / "config.yaml").exists():
        return "new"
    wanted, there = dotted(cell.dump()), dotted(read_yaml(folder / "config.yaml"))
    if _changed(wanted, there):  # a flray that did not know all of today's keys wrote it: those have their defaults
        there = dotted(load_config(folder / "config.yaml")[0].dump())
    if changed := _changed(wanted, there):
        key = changed[0]
        raise CheckpointError(
            f"{folder} holds another experiment: {key} is {there.get(key)} there, {wanted[key]} here; give another "
            "--out or add --overwrite"
        )
    return "finished" if (folder / "STATUS").read_text().startswith(("finished", "diverged")) else "resumed"


def _changed(wanted: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """The keys that make another experiment of what is in a folder; more rounds do, because a grid asks for so many."""
    return [
        key
        for key in wanted
        if (key == "rounds" or key.partition(".")[0] not in RESUMABLE) and str(wanted[key]) != str(there.get(key))
    ]


def grid_rows(cells: Sequence[Experiment], root: Path, overwrite: bool = False) -> list[dict[str, Any]]:
    """A row a cell: its folder, and what the run would make of it.

    Raises `CheckpointError` where one holds another experiment.
    """
    return [
        {"folder": str(root / name), "is": cell_status(cell, root / name, overwrite)}
        for cell, name in zip(cells, labels(cells), strict=True)
    ]
