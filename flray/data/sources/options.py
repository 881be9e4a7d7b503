"""What every source does with a configuration: the folder of data sets, options that it does not read, what was not
found."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flray.core.schema.errors import DataError, nearest, shown
from flray.data.data_config import DataConfig


def data_root(config: DataConfig) -> Path | None:
    """The folder of data sets; None where none is named. Raises DataError for one that cannot be looked into."""
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
    """The error of a data set that is nowhere: where it was `looked` for (nowhere: no root is set), `what` to do."""
    place = "; looked for " + " and ".join(looked) if looked else "; neither `root` nor FLRAY_DATA is set"
    return DataError(f"data set {config.source!r} not found{place}; {what}")


def check_options(config: DataConfig, default: dict[str, Any]) -> dict[str, Any]:
    """`data.options` over the `default` of a source (None: a word); one that it does not read, or of another type, is
    an error."""
    for name, value in config.options.items():
        if name not in default:
            raise DataError(f"data.options: {config.source} does not read {name!r}{nearest(name, default)}")
        kinds = {type(None): str, float: int | float, list: int | list | tuple}
        kind = kinds.get(type(default[name]), type(default[name]))
        if value != default[name] and (
            not isinstance(value, kind) or isinstance(value, bool) != isinstance(default[name], bool)
        ):
            raise DataError(
                f"data.options.{name}: {shown(value)} is no value for it; an example is "
                f"{shown(default[name] or 'train')}"
            )
    return {**default, **config.options}


def no_columns(config: DataConfig) -> None:
    """Label, input, group and domain column are for tables only."""
    for name in ("label", "input", "group", "domain"):
        if getattr(config, name) is not None:
            raise DataError(f"data.{name}: {config.source} has no columns to choose from; leave it out")
