"""Pydantic's errors in one line: key, problem, nearest valid key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from flray.core.errors import ConfigError, nearest


class one_line:
    """Turn a pydantic error inside the block into one `ConfigError` line: key, problem, nearest valid key."""

    def __init__(self, where: str, model: type[BaseModel]) -> None:
        self.where, self.model = where, model

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if not isinstance(error, ValidationError):
            return
        lines = [self._line(item) for item in error.errors()]
        more = f" (and {len(lines) - 1} more: {'; '.join(lines[1:4])})" if len(lines) > 1 else ""
        raise ConfigError(lines[0] + more) from None

    def _line(self, item: Any) -> str:
        path = [str(part) for part in item["loc"] if not str(part).startswith(("function-", "literal["))]
        key = ".".join([self.where, *path] if self.where else path)
        if item["type"] == "extra_forbidden":
            owner = self._owner(path[:-1])
            return f"{key}: unknown key{nearest(path[-1], owner.model_fields) if owner else ''}"
        if item["type"] == "missing":
            return f"{key}: missing; add it to the configuration"
        message = item["msg"].removeprefix("Value error, ")
        return f"{key}: {message[0].lower()}{message[1:]}, got {item['input']!r}"

    def _owner(self, path: Sequence[str]) -> type[BaseModel] | None:
        owner: Any = self.model
        for part in path:
            info = owner.model_fields.get(part) if isinstance(owner, type) and issubclass(owner, BaseModel) else None
            options = [info.annotation, *getattr(info.annotation, "__args__", ())] if info else []
            owner = next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)
            if owner is None:
                return None
        return owner  # type: ignore[no-any-return]
