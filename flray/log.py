"""The logger `flray`: progress, notes, warnings and errors for a person. Results of a command go to stdout instead.

`logging.getLogger("flray").setLevel("WARNING")` silences the notes; `flray -q` does the same. A live display replaces
`sys.stderr` while it is shown, so the handler looks the stream up for each line.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import IO, cast

from flray.core.schema.errors import printable
from flray.streams import PatientStream, stderr

LOGGER = logging.getLogger("flray")
STYLES = {"warning": "yellow", "error": "bold red"}  # prefix of a line and its style on a terminal


class LineHandler(logging.Handler):
    """A line on stderr; in a notebook on stdout, where it is not marked as an error."""

    def emit(self, record: logging.LogRecord) -> None:
        stream = PatientStream(sys.stdout) if in_notebook() else stderr()
        prefix = record.levelname.lower()
        text = printable(self.format(record))
        if prefix not in STYLES:
            stream.write(f"{text}\n")
        elif stream.isatty():
            from rich.console import Console
            from rich.text import Text

            console = Console(file=cast("IO[str]", stream), emoji=False)
            console.print(Text.assemble((f"{prefix}: ", STYLES[prefix]), text), soft_wrap=True)
        else:
            stream.write(f"{prefix}: {text}\n")


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


def set_level(quiet: bool, verbose: bool) -> None:
    """Quiet: warnings and errors alone. Verbose: also the seconds of each stage, and the traceback of an error."""
    LOGGER.setLevel(logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO)


# of the loggers in blocks of `quieter`, which several threads may be in: the level of before, and those of the blocks
_LEVELS: dict[logging.Logger, list[int]] = {}
_TURN = threading.Lock()


@contextlib.contextmanager
def quieter(least: Mapping[str, int]) -> Iterator[None]:
    """A block in which these loggers of a library say nothing below a level; one that the user has set higher stays."""
    loggers = [(logging.getLogger(name), level) for name, level in least.items()]
    raised: list[tuple[logging.Logger, int]] = []
    try:
        with _TURN:
            for logger, level in loggers:  # the user may have set that of one above it, perhaps of "ray"
                raised.append((logger, max(level, logger.getEffectiveLevel())))
                _LEVELS.setdefault(logger, [logger.level]).append(raised[-1][1])
                logger.setLevel(raised[-1][1])
        yield
    finally:
        with _TURN:
            for logger, level in raised:
                levels = _LEVELS[logger]
                levels.remove(level)
                logger.setLevel(levels[-1])
                if len(levels) == 1:
                    del _LEVELS[logger]


def _after_fork() -> None:
    """In a child a thread of the parent would hold it for ever."""
    global _TURN
    _TURN = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)

if not LOGGER.handlers:
    LOGGER.addHandler(LineHandler())
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
