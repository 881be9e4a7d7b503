"""The commands of the papers' tables below the lines `<!-- commands: TABLE -->` of configs/*/README.md, of a paper's
figures below `<!-- commands: PAPER -->`: from `flray/reference/papers/*.yaml`, for the site."""

from __future__ import annotations

import re

from flray.reference.papers import papers, settings_of, tables

MARK = re.compile(r"^<!-- commands: (\S+) -->\n\n[^\n]*\n", re.M)  # and the line that stands for them elsewhere


def lines_of(key: str) -> list[str]:
    """The commands of a table at the paper's scale, or of a paper's figures, with what each is for."""
    if key in papers():
        return figures_of(key)
    seeds = 3 if tables()[key][1].seeds is None else tables()[key][1].seeds
    found: dict[str, str] = {}
    for setting in settings_of(key):
        for line in setting.lines:
            if not line.as_in:
                words = ", ".join(filter(None, [setting.name, line.note]))
                found.setdefault(*setting.commands(line, "full", seeds), words)
    width = max(map(len, found))
    return [f"{command.ljust(width)}    # {words}" for command, words in found.items()]


def figures_of(paper: str) -> list[str]:
    """A line for each figure, then its commands; a command that an earlier figure has is not repeated."""
    lines: list[str] = []
    for name, figure in papers()[paper].figures.items():
        lines += [f"# {name}: {figure.title}" + (f". Not here: {figure.why_not}" if figure.why_not else "")]
        lines += [command for command in figure.commands if command not in lines]
    return lines


def filled(text: str) -> str:
    """A page with the commands below its marks."""
    return MARK.sub(lambda found: "```\n" + "\n".join(lines_of(found[1])) + "\n```\n", text)
