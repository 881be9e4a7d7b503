"""What the pages show: lines of commands and blocks of code, as a reader would copy them."""

import re
import shlex
from pathlib import Path


def blocks(text: str, language: str = "") -> list[str]:
    """The blocks of code in a language; without one, those that name none: commands and their output."""
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", text, re.S | re.M)  # all of them: a closing fence opens none
    return [code for named, code in found if named == language]


def commands(page: Path) -> list[list[str]]:
    """The words of every line `flray ...` in a page's blocks of code, lines that go on joined."""
    text = "\n".join(blocks(page.read_text().replace("\\\n", " ")))
    return [shlex.split(line, comments=True) for line in re.findall(r"^flray [^\n─]*$", text, re.M)]


def overrides(words: list[str]) -> list[str]:
    """The words `KEY=VALUE` of a command, without its options and their values."""
    options = [place + step for place, word in enumerate(words) if word.startswith("--") for step in (0, 1)]
    return [word for place, word in enumerate(words) if place and place not in options]
