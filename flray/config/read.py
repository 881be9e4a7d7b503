"""Step 1 of 3, read: a YAML file and the files that it extends, as layers of plain values."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flray.config.experiment import Experiment
from flray.config.objects import without_objects
from flray.core.schema.errors import ConfigError, kind_of, nearest, shown
from flray.core.schema.plain import LONGEST, plain, read
from flray.files import quoted, regular


def read_layers(source: str | Path | Mapping[str, Any] | Experiment, folder: Path = Path()) -> list[dict[str, Any]]:
    """The values of a file (or a mapping) as written, after those of the file that it `extends`, and so on.

    A later layer overrides an earlier one. `folder`: what the path in `extends` of a mapping is relative to; that of a
    file is relative to the file. Raises `ConfigError`.
    """
    if isinstance(source, Experiment):
        return [source.dump()]
    if dataclasses.is_dataclass(source) and not isinstance(source, type):
        source = plain(source, "")
    if isinstance(source, Mapping):
        values, files = plain(without_objects(source), ""), list[Path]()
    elif not isinstance(source, str | os.PathLike):
        raise ConfigError(
            f"the configuration is {kind_of(source)}; give a YAML file, a mapping or an Experiment: one for each call"
        )
    else:
        values, files = read_yaml(Path(source)), [Path(source)]
        folder = files[0].parent
    layers = [values]
    while (parent := values.pop("extends", None)) is not None:
        if not isinstance(parent, str | Path):
            raise ConfigError(f"extends: {shown(parent)} is no file; write the path of a YAML file")
        path = folder / parent
        if any(path.exists() and path.samefile(file) for file in files):
            raise ConfigError(f"extends: {path} extends itself, by way of {files[-1]}")
        values, folder = read_yaml(path), path.parent
        files.append(path)
        layers.insert(0, values)
    return layers


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises `ConfigError`; for a missing file it names the nearest one."""
    try:
        raw = read(regular(path, LONGEST).read_text(encoding="utf-8-sig"), str(path))
    except FileNotFoundError:
        if "=" in path.name:
            raise ConfigError(
                f"{path} is in the place of the configuration file: write the file first, then key=value"
            ) from None
        near = nearest(path.name, [p.name for p in path.parent.glob("*.yaml")]) if path.parent.is_dir() else ""
        place = Path("configs", f"{path.stem}.yaml")
        near = f" (did you mean {place}?)" if "did you mean" not in near and place.is_file() else near
        raise ConfigError(f"no configuration file {path}{near}") from None
    except IsADirectoryError:
        inside = path / "config.yaml"
        hint = (
            f"a run; give {inside} to repeat it, or continue it: flray resume {quoted(path)}"
            if inside.exists()
            else "give a YAML file"
        )
        raise ConfigError(f"{path} is a folder, not a configuration file: {hint}") from None
    except UnicodeDecodeError as error:
        what = f"it is no text in UTF-8 (byte {error.start} is 0x{error.object[error.start]:02x}); save it as UTF-8"
        raise ConfigError(f"{path} cannot be read as a configuration file: {what}") from None
    except (OSError, ValueError) as error:  # a pipe; a NUL in the name
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be read as a configuration file: {why}") from None
    if raw is None:
        raise ConfigError(f"{path} is empty; write keys and values into it, such as name: mine")
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} holds {type(raw).__name__}, not a mapping of keys to values")
    return raw
