"""Errors for users: one line with the problem, its place and the remedy.

The command line prints the message of a :class:`FlrayError` without a traceback and exits with code 2. Any other
exception is a defect of flray or of the user's code, and is printed with its traceback.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic_core import ValidationError


class FlrayError(Exception):
    """The problem, its place and the remedy, in one line of printable text."""

    def __init__(self, message: object = "") -> None:
        super().__init__(single_line(str(message)))


class ConfigError(FlrayError):
    """A wrong key, type, name or value in the configuration."""


class DataError(FlrayError):
    """A data set, a file or a partition that is missing, corrupt or does not fit."""


class CheckpointError(FlrayError):
    """A run folder or a checkpoint that cannot be read, or must not be written over."""


class ResourceError(FlrayError):
    """More CPUs, GPUs, memory or disk than there is."""


class ServerLostError(FlrayError):
    """The server's process died; the driver continues from the last checkpoint."""


class TracedError(FlrayError):
    """The user's code failed in another process: the first line names the place, the others are its traceback."""

    def __init__(self, message: object = "") -> None:
        Exception.__init__(self, "\n".join(_printable(line) for line in str(message).split("\n")))


class OwnCodeError(TracedError):
    """A function or a class that a user registered failed, or returned a wrong value; the first line names it."""


class AlgorithmError(TracedError):
    """A method of an algorithm or of a diagnostic returned a wrong value, or its server half failed."""


class ClientError(TracedError):
    """A client failed; the message contains its id and the moment."""


class NonFiniteError(ClientError):
    """A client's loss or update is NaN or infinite."""


def single_line(text: str) -> str:
    """`text` in one line, with unprintable characters (escape codes, NUL, lone surrogates) as escapes."""
    return _printable(_BREAK.sub(" ", text.strip()))


def message_of(error: BaseException) -> str:
    """An exception's message in one line; the kind of one without a message."""
    return " ".join(str(error).split()) or type(error).__name__


def first_line(error: BaseException) -> str:
    """The first line of an exception's message; the kind of one without a message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def headline(error: BaseException) -> str:
    """`"Kind: first line"` of an exception, also if its `__str__` raises."""
    try:
        return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
    except Exception:
        return described(error)


def failure(error: Exception) -> str:
    """An error in one line: the first of a `FlrayError`, any other :func:`described`."""
    return first_line(error) if isinstance(error, FlrayError) else described(error)


def printable(text: str) -> str:
    """`text` with unprintable characters as escapes, but for the ends of lines and tabs: escape codes of a terminal,
    characters that reverse the direction of others.

    Text of a folder that somebody else may have written goes through here to a terminal, a table or a page.
    """
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" else _printable(c) for c in text)


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


NO_ROOM = (
    "set resources.client.num_gpus=auto, which measures a client actor, or lower algorithm.batch_size or "
    "evaluate.batch_size"
)


def gpu_is_full(error: BaseException) -> bool:
    """Whether this is PyTorch's error of a GPU without enough free memory."""
    return type(error).__name__ == "OutOfMemoryError" and type(error).__module__.partition(".")[0] == "torch"


def described(error: BaseException) -> str:
    """`"Kind: message"` of an exception in one line, also if its `__str__` raises."""
    if isinstance(error, ValidationError) and "frozen_instance" in str(error):  # in three lines
        (first, *_) = error.errors()
        name = ".".join(map(str, first["loc"]))
        return f"self.{name} is assigned, and no method may change its object; return what changes, in a state"
    try:
        text = single_line(str(error))
        if gpu_is_full(error):
            sizes = text.partition(" is free.")[0] + " is free" * (" is free." in text)
            text = f"{sizes}; {NO_ROOM}"
    except Exception as second:
        text = f"(its __str__ raises {type(second).__name__})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def traced(error: BaseException) -> str:
    """:func:`described`, and below it the traceback of the error, which is being handled."""
    return f"{described(error)}\n{traceback.format_exc()}".rstrip()


_BREAK = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")  # what `str.splitlines` breaks at


def shown(value: Any) -> str:
    """A value's `repr` in one line of at most 100 characters, for an error."""
    try:
        text = single_line(repr(value))
    except Exception:  # an integer of more digits than Python prints; an object of the user's
        text = f"a {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:60]} ... {text[-30:]}"


def kind_of(value: Any) -> str:
    """What a value is, for an error: "None (a return is missing)", "(Update, None)", "a Tensor [3]", "a list"."""
    if value is None:
        return "None (a return is missing)"
    if type(value) is tuple:
        return f"({', '.join('None' if part is None else type(part).__name__ for part in value)})"
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" + (f" {list(shape)}" if isinstance(shape, tuple) else "")


SYNONYMS = {"method": "algorithm", "strategy": "algorithm", "beta": "alpha"}  # words of FL-bench, Flower, NIID-Bench


def nearest(name: str, valid: Iterable[str]) -> str:
    """`" (did you mean 'x'?)"`, or the list of valid names if none is similar; empty for a name that is valid."""
    names = sorted(valid)
    if name in names:
        return ""
    if SYNONYMS.get(name) in names:
        return f" (did you mean {SYNONYMS[name]!r}?)"
    close = difflib.get_close_matches(name[:100], names, n=1, cutoff=0.5)
    if close:
        return f" (did you mean {close[0]!r}?)"
    return f" (valid: {', '.join(names)})" if names else ""


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """A warning at the line of the user's own code that called flray; at flray's where there is none: in an actor."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _package(frame) in ("flray", *BETWEEN):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=2 if _package(frame) in ("flray", "ray", *BETWEEN) else level)


BETWEEN = "pydantic", "contextlib", "functools", "threading", "concurrent"  # call flray and are called by it


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def unknown(kind: str, name: str, valid: Iterable[str], where: str = "") -> ConfigError:
    """The error for a name that is not in a table, with the most similar valid name."""
    place = f" in {where}" if where else ""
    return ConfigError(f"unknown {kind} {shown(name)}{place}{nearest(name, valid)}")


def named(method: Callable[..., Any]) -> str:
    """`"Mine.predict (mine.py, line 12)"`: the name of a method or a function, and its place."""
    inside: Any = method
    while not hasattr(inside, "__self__") and hasattr(inside, "__wrapped__"):
        inside = inside.__wrapped__
    owner, name = getattr(inside, "__self__", None), getattr(inside, "__name__", type(inside).__name__)
    label = name if owner is None or inspect.ismodule(owner) else f"{type(owner).__name__}.{name}"
    return f"{label}{place(method)}"


def place(method: Callable[..., Any]) -> str:
    """`" (mine.py, line 12)"`: the place of a function; "" if it is not written in Python."""
    code = getattr(inspect.unwrap(method), "__code__", None)
    return "" if code is None else f" ({Path(code.co_filename).name}, line {code.co_firstlineno})"
