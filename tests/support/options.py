"""Options of an algorithm by dotted key."""

from collections.abc import Mapping
from typing import Any


def sectioned(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a section has them: `detector.rho: 0.3` is `detector: {rho: 0.3}`."""
    found: dict[str, Any] = {}
    for key, value in options.items():
        *path, last = key.split(".")
        section = found
        for part in path:
            section = section.setdefault(part, {})
        section[last] = value
    return found
