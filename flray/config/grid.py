"""The cells of a grid: their folder names, and the state of a run in a folder."""

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
    """A folder name for each cell, from the keys in which the cells differ: `fedproj-seed0-lr0.1`.

    Raises `ConfigError` if two cells have the same name: `algorithm.lr=1,1.0`.
    """
    dumps = [cell.dump() for cell in cells]
    flat = [dotted(values) for values in dumps]
    # a section that only some cells have, as with drift=none,remove_classes
    optional = [key for key in dumps[0] if {True, False} <= {values[key] is None for values in dumps}]
    shared = [key for key in flat[0] if all(key in values for values in flat)]
    varied = [key for key in shared if len({str(values[key]) for values in flat}) > 1]
    if "algorithm.name" in varied:  # algorithms differ in their defaults; only varied keys name a cell
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
    """An optional section in a folder's name: its `name` or its `source`."""
    if section is None:
        return "none"
    if not isinstance(section, dict):
        return _word(section)
    return str(section.get("name") or section.get("source") or "")


def _word(value: Any) -> str:
    """A value in a folder's name: `[64, 32]` becomes `64-32`, because a shell expands brackets."""
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
    """The keys in which `now` is another experiment than `before`, with which a run began; both are plain values.

    Returns key -> (old value, new value).
    """
    old, new = dotted(before), dotted(now)
    return {
        key: (old.get(key), new.get(key))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key) and (key == "resources.store" or key.partition(".")[0] not in RESUMABLE)
    }


def difference(ours: Any, theirs: Any, prefix: str = "") -> str | None:
    """The first key in which two configurations (plain values) are different experiments, or None.

    A key that only one of them has is ignored: another version of flray wrote it.
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
    """`new`, `resumed` (a run that can continue) or `finished` (also diverged).

    Raises `CheckpointError` if the folder holds another experiment.
    """
    if overwrite or not (folder / "config.yaml").exists():
        return "new"
    wanted, there = dotted(cell.dump()), dotted(read_yaml(folder / "config.yaml"))
    if _changed(wanted, there):  # an older flray may have written it: new keys have their defaults
        there = dotted(load_config(folder / "config.yaml")[0].dump())
    if changed := _changed(wanted, there):
        key = changed[0]
        raise CheckpointError(
            f"{folder} holds another experiment: {key} is {there.get(key)} there, {wanted[key]} here; give another "
            "--out or add --overwrite"
        )
    return "finished" if (folder / "STATUS").read_text().startswith(("finished", "diverged")) else "resumed"


def _changed(wanted: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """The keys in which the experiment in a folder differs from the wanted one; `rounds` is one of them."""
    return [
        key
        for key in wanted
        if (key == "rounds" or key.partition(".")[0] not in RESUMABLE) and str(wanted[key]) != str(there.get(key))
    ]


def grid_rows(cells: Sequence[Experiment], root: Path, overwrite: bool = False) -> list[dict[str, Any]]:
    """A row for each cell: its folder, and whether its run is new, resumed or finished.

    Raises `CheckpointError` if a folder holds another experiment, or `root` is a file.
    """
    if root.exists() and not root.is_dir():
        raise CheckpointError(f"{root} is a file, not a folder for the runs of a grid; give another --out")
    return [
        {"folder": str(root / name), "is": cell_status(cell, root / name, overwrite)}
        for cell, name in zip(cells, labels(cells), strict=True)
    ]
