"""Errors that a user can act on: one line that says what is wrong, where, and what to do.

The command line prints the message of a :class:`FlrayError` without a traceback and exits with code 2.
Anything else is a defect of flray, or of the user's own code, and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FlrayError(Exception):
    """What is wrong, where, and what to do, in one line."""


class ConfigError(FlrayError):
    """A key, a type, a name or a value in the configuration that cannot be used."""


class DataError(FlrayError):
    """A data set, a file or a partition that is missing, corrupt or does not fit."""


class CheckpointError(FlrayError):
    """A run folder or a checkpoint that cannot be read, or must not be written over."""


class ResourceError(FlrayError):
    """More CPUs, GPUs, memory or disk than there is."""


class AlgorithmError(FlrayError):
    """A method of an algorithm returns what it must not, or its server half failed; then the message carries its own traceback."""


class ClientError(FlrayError):
    """A client failed; the message carries its id, its address and its own traceback."""


class NonFiniteError(ClientError):
    """A client's loss or update is NaN or infinite."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """`" (did you mean 'x'?)"`, or the list of valid names where none is near."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f" (did you mean {close[0]!r}?)"
    return f" (valid: {', '.join(names)})" if names else ""


def unknown(kind: str, name: str, valid: Iterable[str], where: str = "") -> ConfigError:
    """The error for a name that is not in a table, with the nearest one that is."""
    place = f" in {where}" if where else ""
    return ConfigError(f"unknown {kind} {name!r}{place}{nearest(name, valid)}")
