"""Pages of the repository as pages of the site: where each is published; links, pictures and lists that hold there."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = Path(__file__).resolve().parent / "pages"
PICTURES = {".png", ".gif", ".svg", ".jpg"}
FENCE = re.compile(r"^( *)(```+)[^\n]*\n.*?^\1\2 *$", re.S | re.M)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")

CARDS = "flray/algorithms/CARDS.md"
HOMES = {  # published elsewhere than below project/source
    "README.md": "project/readme.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    CARDS: "reference/algorithms/index.md",  # a page each: generated.algorithms
    "configs/encoding/README.md": "results/encoding.md",
    "configs/fedmemo/README.md": "results/fedmemo.md",
    "configs/fedproj/README.md": "results/fedproj.md",
    "configs/fedprotip/README.md": "results/fedprotip.md",
    "configs/fedsol/README.md": "results/fedsol.md",
    "configs/niid_bench/README.md": "results/niid_bench.md",
    "docs/README.md": "project/site.md",
    "flray/cli/ENVIRONMENT.md": "reference/environment.md",
    "notebooks/README.md": "notebooks/index.md",
}


def published() -> dict[str, str]:
    """The repository's pages and notebooks, each with its place in the site. A folder's README is its index."""
    found = {}
    for top in ("", "configs", "flray", "tuning"):
        below = (ROOT / top).rglob("*.md") if top else ROOT.glob("*.md")
        for path in sorted(below):
            name = path.relative_to(ROOT).as_posix()
            if path.resolve() == path and ".build" not in path.parts:
                place = name.replace("README.md", "index.md").replace("DEVICES", "devices")
                found[name] = HOMES.get(name, f"project/source/{place}")
    found["docs/README.md"] = HOMES["docs/README.md"]
    found["notebooks/README.md"] = HOMES["notebooks/README.md"]
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        found[f"notebooks/{path.name}"] = f"notebooks/{path.stem}.md"
    return found


class Site:
    """The folder that the pages are written into, and where every page of the repository is published in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.homes = folder, published()

    def write(self, place: str, text: str) -> None:
        path = self.folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def adapted(self, text: str, source: str, place: str) -> str:
        """The text of the repository's file `source` as a part of the page `place`: links, pictures, nested lists."""
        return outside_of_code(
            nested(text), lambda prose: LINK.sub(lambda m: self._link(m, source, place), escaped(prose))
        )

    def own(self, text: str, place: str) -> str:
        """The text of a page of the site: `repo:PATH` links to a page of the repository, wherever it is published."""

        def link(match: re.Match[str]) -> str:
            if not match[3].startswith("repo:"):
                return match[0]
            return self._link(match, "", place, match[3].removeprefix("repo:"))

        return outside_of_code(text, lambda prose: LINK.sub(link, escaped(prose)))

    def _link(self, match: re.Match[str], source: str, place: str, target: str | None = None) -> str:
        picture, label = match[1], match[2]
        target = match[3] if target is None else target
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        name, _, anchor = target.partition("#")
        path = (ROOT / source).parent / name if source and name else ROOT / (name or source)
        if (path / "README.md").exists():
            path = path / "README.md"
        if not path.exists():
            raise FileNotFoundError(f"{source or place}: a link to {target}, which is not there")
        there = path.resolve().relative_to(ROOT).as_posix()
        if path.suffix in PICTURES:
            home = f"assets/{there}"
            copy = self.folder / home
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        elif there == CARDS and anchor:
            home, anchor = f"reference/algorithms/{anchor}.md", ""
        elif there in self.homes:
            home = self.homes[there]
        elif path.suffix == ".md" and PAGES in path.resolve().parents:
            home = path.resolve().relative_to(PAGES).as_posix()
        else:
            return label if there.endswith(label.strip("`")) else f"{label} (`{there}`)"
        where = "" if home == place else os.path.relpath(home, Path(place).parent)
        return f"{picture}[{label}]({where}{f'#{anchor}' if anchor else ''})"


def outside_of_code(text: str, change) -> str:
    """`text` with `change` applied to everything but blocks of code."""
    parts, last = [], 0
    for block in FENCE.finditer(text):
        parts += [change(text[last : block.start()]), block[0]]
        last = block.end()
    return "".join([*parts, change(text[last:])])


def escaped(prose: str) -> str:
    """Prose in which `<g, h>` is no tag of HTML; inline code stays as it is."""
    parts = re.split(r"(`+[^`]+`+)", prose)
    return "".join(part if place % 2 else re.sub(r"<(?=[A-Za-z/])", "&lt;", part) for place, part in enumerate(parts))


def docstring(text: str) -> str:
    """A docstring as Markdown: code of reST's kind, lists that a blank line separates, no tags."""
    text = re.sub(r":(?:meth|class|func):`~?([^`]+)`", r"`\1`", inspect.cleandoc(text)).replace("``", "`")
    text = re.sub(r"(?m)^(?![*|-] |\d+\. |$|    )(.*)\n(?=[*-] |\d+\. )", r"\1\n\n", text)
    return nested(re.sub(r"(?m)^(?! {4}|>>>).+", lambda line: escaped(line[0]), text))


def nested(text: str) -> str:
    """Lines that belong to an item of a list, indented by four spaces as Python-Markdown reads them, not by two."""
    lines, inside, fence = [], False, False
    for line in text.split("\n"):
        if re.match(r"(\*|-|\d+\.) ", line):
            inside = True
        elif line and not line.startswith(" "):
            inside = False
        if line.startswith("```"):
            fence = not fence
        indent = len(line) - len(line.lstrip(" "))
        if inside and not fence and indent in (2, 3):
            line = " " * 4 + line.lstrip(" ")
        elif inside and not fence and indent > 3:
            line = "  " + line
        lines.append(line)
    return "\n".join(lines)


def section(source: str, heading: str) -> str:
    """The text below a heading of a page of the repository, to the next heading of its level. Raises `KeyError`."""
    text = (ROOT / source).read_text()
    blank = FENCE.sub(lambda block: re.sub(r"[^\n]", "x", block[0]), text)  # `# a comment` in code is no heading
    found = re.search(rf"^(#+) {re.escape(heading)} *$", blank, re.M)
    if found is None:
        raise KeyError(f"{source} has no heading {heading!r}")
    end = re.search(rf"^#{{1,{len(found[1])}}} ", blank[found.end() :], re.M)
    return text[found.end() : found.end() + end.start() if end else None].strip()


def code(source: str, name: str) -> str:
    """The lines of a function, a class or a method (`Class.method`) as a block that names file and lines. `KeyError`
    if the file does not have it."""
    text = (ROOT / source).read_text()
    scope: ast.AST = ast.parse(text)
    for part in name.split("."):
        inner = [
            node
            for node in ast.iter_child_nodes(scope)
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == part
        ]
        if not inner:
            raise KeyError(f"{source} has no {name}")
        scope = inner[0]
    first = min([scope.lineno, *(each.lineno for each in scope.decorator_list)])
    lines = text.split("\n")[first - 1 : scope.end_lineno]
    margin = len(lines[0]) - len(lines[0].lstrip())
    body = "\n".join(line[margin:] for line in lines)
    return f'```python title="{source}, lines {first} to {scope.end_lineno}"\n{body}\n```'
