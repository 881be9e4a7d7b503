"""The logger `flray`: which lines a person sees, and where."""

from __future__ import annotations

import io
import sys

import pytest

from flray.log import LOGGER, set_level


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
