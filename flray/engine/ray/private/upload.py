"""Which files Ray packs of a working directory, by Ray's own rules."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from pathlib import Path

from ray._private import ray_constants
from ray._private.runtime_env import packaging

LIMIT: int = min(ray_constants.DASHBOARD_CLIENT_MAX_SIZE, packaging.GCS_STORAGE_MAX_SIZE)  # of the archive, bytes

KNOWS_RAYIGNORE = hasattr(packaging, "get_excludes_from_ignore_files")  # an older Ray reads .gitignore alone


def visit(top: Path, handle: Callable[[Path], None]) -> None:
    """Call `handle` with every path below `top` that Ray packs, folders too."""
    options: dict[str, bool] = {}
    if "include_gitignore" in inspect.signature(packaging._dir_travel).parameters:  # an older Ray reads the variable
        options["include_gitignore"] = os.environ.get("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "0") != "1"
    # an older Ray leaves nothing out unless a file says so
    excluded: list[str] = getattr(ray_constants, "get_runtime_env_default_excludes", list)()
    excludes = [packaging._get_excludes(top, excluded)]
    packaging._dir_travel(top, excludes, handle, **options, logger=logging.getLogger(__name__))
