"""Names on the command line -> Python objects, imported when first used.

A package adds to a table with an entry point (group `flray.algorithms`, `flray.models`,
`flray.sources`, `flray.partitions`), a script with `--import my_module`, whose import calls `TABLE.add(...)`.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any

from flray.core.errors import ConfigError, unknown


class Registry:
    """A table of names. Values are objects, or `"module:attribute"` paths imported on demand."""

    def __init__(self, kind: str, table: dict[str, str]) -> None:
        self.kind = kind
        self._table: dict[str, Any] = dict(table)
        self._scanned = False

    def add(self, name: str, target: Any) -> Any:
        """Register `target`, an object or a `"module:attribute"` path, under `name`."""
        known = self._table.get(name)
        if known is not None and known is not target and _path(known) != _path(target):
            raise ConfigError(f"{self.kind} {name!r} is registered twice: {_path(known)} and {_path(target)}; rename one")
        self._table[name] = target
        return target

    def names(self) -> list[str]:
        self._scan()
        return list(self._table)

    def get(self, name: str) -> Any:
        """The object behind `name`; raises `ConfigError` with the nearest valid name."""
        if name not in self._table:
            self._scan()
        if name not in self._table:
            raise unknown(self.kind, name, self._table)
        target = self._table[name]
        return load(target, f"{self.kind} {name!r}") if isinstance(target, str) else target

    def _scan(self) -> None:
        if not self._scanned:
            self._scanned = True
            for point in entry_points(group=f"flray.{self.kind}s"):
                self._table.setdefault(point.name, point.value)


def _path(target: Any) -> str:
    return target if isinstance(target, str) else f"{target.__module__}:{target.__qualname__}"


def load(path: str, what: str) -> Any:
    """Import `"module:attribute"`; raises `ConfigError` naming the part that does not exist."""
    module_name, _, attribute = path.partition(":")
    if not attribute:
        raise ConfigError(f"{what}: {path!r} is not an import path; write 'module:Name'")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{what}: cannot import {module_name!r} ({error}); is it installed and on PYTHONPATH?") from error
    if not hasattr(module, attribute):
        raise unknown("name", attribute, [n for n in vars(module) if not n.startswith("_")], f"module {module_name!r}")
    return getattr(module, attribute)
