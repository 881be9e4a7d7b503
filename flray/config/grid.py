"""The cells of a grid: their folder names, and the state of a run in a folder."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flray.config.experiment import LENGTH, RESUMABLE, Experiment, completed
from flray.config.read import read_yaml
from flray.core.schema.errors import CheckpointError, ConfigError
from flray.core.schema.plain import written
from flray.core.schema.registry import readable
from flray.files import SMALL, checksum, quoted, regular

LONGEST = 150  # bytes of a cell's label


def labels(cells: Sequence[Experiment]) -> list[str]:
    """A folder name for each cell, from the keys in which the cells differ: `fedproj-seed0-lr0.1`.

    Raises `ConfigError` if two cells have the same name: `algorithm.lr=1,1.0`.
    """
    dumps = [cell.dump() for cell in cells]
    flat = [dotted(values) for values in dumps]
    # a section that only some cells have, as with drift=none,remove_classes
    optional = [key for key in dumps[0] if {True, False} <= {values[key] is None for values in dumps}]
    every = list(dict.fromkeys(itertools.chain.from_iterable(flat)))
    shared = [key for key in every if all(key in values for values in flat)]
    varied = [key for key in shared if len({str(values[key]) for values in flat}) > 1]
    if "algorithm.name" in varied:  # algorithms differ in their defaults; only varied keys name a cell
        varied = [k for k in varied if k in ("algorithm.name", "seed") or _varies_within(flat, k, "algorithm.name")]
    named = {key for key in varied if key.endswith(".name")}  # so do partitions and models
    varied = [k for k in varied if k in named or (kind := _name_of(k)) not in named or _varies_within(flat, k, kind)]
    # keys that only some of a section's kinds have: one kind with several values of them
    partly = [key for key in every if "." in key and key not in shared and _name_of(key) in every]
    varied += [key for key in partly if _varies_within([v for v in flat if key in v], key, _name_of(key))]
    options = {key: differing_options([values.get(key) for values in flat]) for key in varied}
    names = []
    for values, sections in zip(flat, dumps, strict=True):
        parts = [readable(str(values["algorithm.name"]))]
        own = [key for key in varied if key != "algorithm.name" and key in values]
        parts += [_part(key, values[key], options[key]) for key in own]
        parts += [f"{key}{_kind(sections[key])}" for key in optional if key not in varied]
        name = "-".join(parts).replace("/", "_").replace(" ", "")
        # a folder's name has at most 255 bytes: a long one ends with a checksum
        names.append(name if len(name.encode()) <= LONGEST else _marked(name, name))
    for name in {name for name in names if names.count(name) > 1}:
        places = [place for place, other in enumerate(names) if other == name]
        exact = [written(dumps[place]) for place in places]
        if len(set(exact)) < len(exact):
            raise ConfigError(
                f"two experiments of this grid would have the folder {name}: give each value once, or run them with an "
                "--out each"
            )
        for place, values_of in zip(places, exact, strict=True):  # `[a-b]` and `[a, b]`
            names[place] = _marked(name, values_of)
    return names


def _part(key: str, value: Any, options: Collection[tuple[Any, str]]) -> str:
    """A key and its value in a folder's name: `lr0.1`, `partitioniid`; of a rule of aggregation its name alone."""
    word = _word(value, options)
    return word if key == "aggregation.name" else f"{key.removesuffix('.name').rpartition('.')[2]}{word}"


def _marked(name: str, exact: str) -> str:
    """A folder's name, cut to `LONGEST` bytes, which ends with the checksum of a text."""
    return f"{name.encode()[: LONGEST - 9].decode(errors='ignore')}-{checksum(exact.encode())[:8]}"


def _kind(section: Any) -> str:
    """An optional section in a folder's name: its `name` or its `source`."""
    if section is None:
        return "none"
    if not isinstance(section, dict):
        return _word(section)
    return readable(str(section.get("name") or section.get("source") or ""))


def _word(value: Any, options: Collection[tuple[Any, str]] = ()) -> str:
    """A value in a folder's name: `[64, 32]` becomes `64-32`, because a shell expands brackets. A mapping in a list
    becomes its name and those `options` (name, option) that differ between the cells; without a name all of it."""
    if isinstance(value, list):
        return "-".join(_word(one, options) for one in value) or "none"
    if isinstance(value, dict):
        name = value.get("name")
        own = {key: one for key, one in value.items() if name is None or (name, key) in options}
        words = [f"{key}{_word(one, options)}" for key, one in own.items()]
        return "-".join(words if name is None else [readable(str(name)), *words])
    return readable(str(value))


def differing_options(values: Iterable[Any]) -> set[tuple[Any, str]]:
    """(name, option) of the options in which the mappings of one name in these lists differ."""
    seen: dict[tuple[Any, str], set[str]] = {}
    for entry in itertools.chain.from_iterable(value for value in values if isinstance(value, list)):
        if isinstance(entry, dict):
            for key, one in entry.items():
                seen.setdefault((entry.get("name"), key), set()).add(str(one))
    return {place for place, ones in seen.items() if len(ones) > 1}


def _varies_within(flat: Sequence[dict[str, Any]], key: str, kind: str) -> bool:
    """Whether cells with one value of the key `kind`, the name of a section, differ in `key`."""
    by_kind: dict[Any, set[str]] = {}
    for values in flat:
        by_kind.setdefault(values[kind], set()).add(str(values[key]))
    return any(len(values) > 1 for values in by_kind.values())


def _name_of(key: str) -> str:
    return f"{key.partition('.')[0]}.name"


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

    Returns key -> (old value, new value). A key that one of them lacks has its default there.
    """
    old, new = dotted(before), dotted(now)
    if old != new:
        old, new = dotted(completed(before)), dotted(completed(now))
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

    Raises `CheckpointError` if the folder holds another experiment, or a run whose configuration is lost.
    """
    if overwrite or not folder.exists():
        return "new"
    if not (folder / "config.yaml").exists():
        if (folder / "checkpoints").exists():  # a run writes its configuration before its first checkpoint
            raise CheckpointError(f"{folder} has lost its config.yaml; put it back, or remove {folder} to run it again")
        return "new"
    wanted, there = dotted(cell.dump()), dotted(read_yaml(folder / "config.yaml"))
    if _changed(wanted, there):  # an older flray may have written it
        there = dotted(completed(read_yaml(folder / "config.yaml")))
    if changed := _changed(wanted, there):
        key = changed[0]
        old = there.get(key, "given")  # a section has no value of its own
        raise CheckpointError(
            f"{folder} holds another experiment: {key} is {old} there, {wanted[key]} here; "
            f"{_other_length(changed, wanted, there, folder)}give another --out or add --overwrite"
        )
    status = _status(folder)
    return "finished" if status.startswith(("finished", "diverged")) else "resumed"


def _status(folder: Path) -> str:
    try:
        return regular(folder / "STATUS", SMALL).read_text(errors="replace")
    except OSError:
        return ""


def _other_length(changed: Sequence[str], wanted: Mapping[str, Any], there: Mapping[str, Any], folder: Path) -> str:
    """What to do about a run that differs in how far it goes alone, before other remedies; "": it differs otherwise."""
    pairs = [(wanted[key], there.get(key)) for key in changed]
    numbers = all(isinstance(value, int | float) for pair in pairs for value in pair)
    if not numbers or any(key.partition(".")[0] not in LENGTH for key in changed):
        return ""
    if all(ours > theirs for ours, theirs in pairs):
        uplink = [part for part in wanted.get("uplink") or [] if isinstance(part, Mapping)]
        fixed = wanted.get("tasks", 0) is not None or any(part.get("epsilon") is not None for part in uplink)
        if fixed or _status(folder).startswith("diverged"):  # rounds of each task, or those that the noise is for
            return ""
        more = " ".join(f"{key}={wanted[key]}" for key in changed)
        return f"continue it with: flray resume {quoted(folder)} {more}, "
    return f"give {' '.join(f'{key}={there[key]}' for key in changed)}, "


def _changed(wanted: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """The keys in which the experiment in a folder differs from the wanted one; those of `LENGTH` are among them."""
    free = set(RESUMABLE) - set(LENGTH)

    def differs(key: str) -> bool:
        if wanted[key] is None and any(other.startswith(f"{key}.") for other in there):
            return True  # a section that is left out here
        return str(wanted[key]) != str(there.get(key))

    return [key for key in wanted if key.partition(".")[0] not in free and differs(key)]
