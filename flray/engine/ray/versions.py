"""Which Rays flray was tested with, and the one line where this one lacks something."""

from __future__ import annotations

import re

import ray
import ray.exceptions

from flray.core.schema.errors import headline, warn

LAST_TESTED = (2, 60)  # `.ci/versions` ran flray on it
FIRST_WITH_TOKEN = "2.52"
CHANGED = (ImportError, AttributeError, TypeError)  # raised where something private to Ray is not as it was

_said: set[str] = set()


def warn_untested() -> None:
    """One line where this Ray is newer than any that flray was tested with."""
    version = tuple(int(number) for number in re.findall(r"\d+", ray.__version__)[:2])
    if version > LAST_TESTED:
        tested = ".".join(map(str, LAST_TESTED))
        _say(f"Ray {ray.__version__} is newer than {tested}, the last that flray was tested with")


def fall_back(feature: str, instead: str, error: Exception | None = None) -> None:
    """One line, once a process: this Ray lacks `feature`, as `error` shows, and flray does `instead`."""
    reason = "" if error is None else f" ({headline(error)})"
    _say(f"{feature} not available with Ray {ray.__version__}{reason}; {instead}")


def knows_tokens() -> bool:
    """Whether this Ray asks for a token where `RAY_AUTH_MODE` is `token`; an older one ignores the variable."""
    return hasattr(ray.exceptions, "AuthenticationError")


def _say(line: str) -> None:
    if line not in _said:
        _said.add(line)
        warn(line)
