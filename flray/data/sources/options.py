"""Helpers of all sources: the folder of data sets, checks of options, the error of a missing data set."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flray.core.schema.errors import DataError, nearest, shown
from flray.data.data_config import DataConfig


def data_root(config: DataConfig) -> Path | None:
    """The folder of data sets, None if none is set. Raises `DataError` for one that cannot be read."""
    named = config.root or os.environ.get("FLRAY_DATA")
    if not named:
        return None
    try:
        root = Path(named).expanduser()
        if root.is_dir():
            next(root.iterdir(), None)
    except (OSError, ValueError, RuntimeError) as error:  # too long, not allowed; ~nobody has no home
        why = getattr(error, "strerror", None) or error
        raise DataError(
            f"the folder of data sets {shown(named)} cannot be read ({why}); set data.root or FLRAY_DATA"
        ) from error
    return root


def not_found(config: DataConfig, looked: Sequence[str], what: str) -> DataError:
    """The error of a missing data set: the places `looked` at (empty: no root is set), and `what` to do."""
    place = "; looked for " + " and ".join(looked) if looked else "; neither `root` nor FLRAY_DATA is set"
    return DataError(f"data set {config.source!r} not found{place}; {what}")


def check_options(config: DataConfig, default: dict[str, Any]) -> dict[str, Any]:
    """The source's `default` options (None: text) with `data.options` over them. Raises `DataError` for an unknown
    option and for a value of another type."""
    for name, value in config.options.items():
        if name not in default:
            raise DataError(f"data.options: {config.source} does not read {name!r}{nearest(name, default)}")
        kinds = {type(None): str, float: int | float, list: int | list | tuple}
        kind = kinds.get(type(default[name]), type(default[name]))
        if value != default[name] and (
            not isinstance(value, kind) or isinstance(value, bool) != isinstance(default[name], bool)
        ):
            raise DataError(
                f"data.options.{name}: {shown(value)} has the wrong type; write, for example, "
                f"{shown(default[name] or 'train')}"
            )
    return {**default, **config.options}


def no_columns(config: DataConfig) -> None:
    """Raises `DataError` for a label, input, group or domain column, and for columns to leave out: only tables have
    some."""
    for name in ("label", "input", "group", "domain", "drop"):
        if getattr(config, name):
            raise DataError(f"data.{name}: {config.source} has no columns to choose from; leave it out")
