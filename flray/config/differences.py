"""What a configuration says that its file or the defaults do not: for `flray run --dry-run`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticUndefined

from flray.config.experiment import Experiment
from flray.config.grid import dotted
from flray.config.loader import load_config
from flray.core.schema.errors import ConfigError
from flray.models.model_config import ModelConfig
from flray.scenario.partition_config import PartitionConfig


def from_file(experiment: Experiment, file: Path, imports: list[str]) -> list[str]:
    """`key: value (file: value)` for each key that differs from the file's own; of keys that the file's algorithm does
    not have, those that are not the default; of a section that the file has, that it is left out. Nothing if the file
    alone is a grid or no complete configuration."""
    try:
        cells = load_config(file, [], imports)
    except ConfigError:
        return []
    if len(cells) != 1:
        return []
    here, there = dotted(experiment.dump()), dotted(cells[0].dump())
    defaults = dict(_declared(experiment))
    lines = []
    for key, value in here.items():
        if key in there and value != there[key]:
            lines.append(f"{key}: {_text(value)} (file: {_text(there[key])})")
        elif key not in there and any(other.startswith(f"{key}.") for other in there):
            lines.append(f"{key}: {_text(value)} (file: a section)")
        elif key not in there and value != defaults.get(key):
            lines.append(f"{key}: {_text(value)} (file: no such key)")
    return lines


def from_defaults(experiment: Experiment) -> list[str]:
    """`key: value (default: value)` for each key that is not the default; a key without a default is named alone."""
    defaults = dict(_declared(experiment))
    lines = []
    for key, value in dotted(experiment.dump()).items():
        default = defaults.get(key, PydanticUndefined)
        if value != default:
            known = "" if default is PydanticUndefined else f" (default: {_text(default)})"
            lines.append(f"{key}: {_text(value)}{known}")
    return lines


def _declared(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, default as `dump` writes it) of each key of a section and of those inside it."""
    if isinstance(section, ModelConfig | PartitionConfig):
        yield from ((f"{prefix}{key}", default) for key, default in _filled_in(section))
        return
    for name, field in type(section).model_fields.items():
        key, value = f"{prefix}{field.alias or name}", getattr(section, name)
        if isinstance(value, BaseModel):
            if name in ("algorithm", "drift"):
                yield f"{key}.name", PydanticUndefined
            yield from _declared(value, f"{key}.")
        else:
            default = field.get_default(call_default_factory=True)
            yield key, list(default) if isinstance(default, tuple) else default


def _filled_in(section: BaseModel) -> Iterator[tuple[str, Any]]:
    """The same of a section whose defaults depend on its name: what it fills in for a key that is left out."""
    given = section.model_dump(mode="json")
    for key in given:
        rest = {name: value for name, value in given.items() if name != key}
        try:
            yield key, type(section)(**rest).model_dump(mode="json").get(key)
        except (ConfigError, ValidationError):  # it must be given
            yield key, PydanticUndefined


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
