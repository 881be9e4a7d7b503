"""The logger `flray`: which lines a person sees, and where."""

import io
import logging
import sys

import pytest

from flray.log import LOGGER, quieter, set_level


@pytest.mark.parametrize(
    ("quiet", "verbose", "lines"),
    [
        (True, False, ["warning: slow", "error: no such file"]),
        (False, False, ["reading", "warning: slow", "error: no such file"]),
        (False, True, ["0.1 s", "reading", "warning: slow", "error: no such file"]),
    ],
)
def test_levels(capsys: pytest.CaptureFixture[str], quiet: bool, verbose: bool, lines: list[str]) -> None:
    set_level(quiet, verbose)
    LOGGER.debug("0.1 s")
    LOGGER.info("reading")
    LOGGER.warning("slow")
    LOGGER.error("no such file")
    captured = capsys.readouterr()
    assert captured.err.splitlines() == lines and captured.out == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_level_in_colour_and_a_markup_in_the_text_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    LOGGER.error("[red]x[/red]")
    assert sys.stderr.getvalue() == "\x1b[1;31merror: \x1b[0m[red]x[/red]\n"  # type: ignore[attr-defined]


def test_a_closed_pipe_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    LOGGER.info("nobody reads this")
    assert written


@pytest.mark.parametrize("first", [logging.WARNING, logging.ERROR])
def test_a_logger_has_its_own_level_again_after_blocks_of_two_threads(first: int) -> None:
    """The blocks overlap as those of two threads do: the one that began first ends first."""
    logger = logging.getLogger("a library")
    logger.setLevel(logging.INFO)
    one, other = quieter({"a library": first}), quieter({"a library": logging.ERROR})
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert logger.level == logging.ERROR
    other.__exit__(None, None, None)
    assert logger.level == logging.INFO
