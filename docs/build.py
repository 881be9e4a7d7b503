"""Build the site: `python docs/build.py`. It needs `pip install -c constraints.txt -e ".[docs]"`.

The pages are written into docs/.build/pages: those of docs/pages, those generated from flray, those of the repository
and the notebooks. Zensical makes docs/.build/site of them. A link or an anchor that leads nowhere is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import generated
import rewriting
import yaml
from paper_commands import filled
from rewriting import PAGES, ROOT, Site

HERE = Path(__file__).resolve().parent
DIRECTIVE = re.compile(r"^\{\{ (\w+)(.*?) \}\}$", re.M)


def write(folder: Path, notebooks: bool = True) -> Site:
    """All pages of the site as Markdown, in a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    site = Site(folder)
    for path in sorted(PAGES.rglob("*")):
        place = path.relative_to(PAGES).as_posix()
        if path.suffix == ".md":
            site.write(place, own_page(path.read_text(), place, site))
        elif path.is_file():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / place)
    for source, place in site.homes.items():
        if source.endswith(".md") and source != rewriting.CARDS:
            text = generated.with_files(filled((ROOT / source).read_text()), source)
            site.write(place, site.adapted(text, source, place))
        elif source.endswith(".ipynb") and notebooks:
            notebook(source, place, site)
    for name in generated.KINDS:
        site.write(f"reference/{name}.md", generated.kind(name))
    site.write("reference/commands.md", generated.commands())
    generated.algorithms(site)
    generated.evidence(site)
    generated.python(site)
    return site


def own_page(text: str, place: str, site: Site) -> str:
    """A page of docs/pages: its lines `{{ ... }}` are replaced, and its links into the repository.

    `{{ code FILE NAME }}`: a function or a class of the source. `{{ section FILE HEADING }}`: a part of a page of the
    repository. `{{ keys experiment }}`, `{{ columns rounds }}`, `{{ methods PREFIX NAMES }}`: a generated
    table. `{{ claim SENTENCE }}`, `{{ condition SETTING }}`, `{{ assumption }}`, `{{ trend SETTING }}`: what the stored
    runs say. `{{ gpu PART }}`: what `tests/gpu/acceptance.py` measured.
    """

    def replaced(match: re.Match[str]) -> str:
        verb, rest = match[1], match[2].strip()
        first, _, more = rest.partition(" ")
        if verb == "code":
            return rewriting.code(first, more)
        if verb == "section":
            return site.adapted(rewriting.section(first, more), first, place)
        if verb == "keys":
            return generated.keys(first, "")
        if verb == "columns":
            return generated.columns(first)
        if verb == "methods":
            return generated.methods(first, more.split())
        if verb in ("claim", "condition", "assumption", "trend"):
            return generated.found(verb, rest)
        if verb == "gpu":
            return generated.gpu(first)
        raise KeyError(f"{place}: {match[0]} is no directive; the docstring names them")

    return site.own(DIRECTIVE.sub(replaced, text), place)


def notebook(source: str, place: str, site: Site) -> None:
    """A notebook with its stored outputs; nothing is executed."""
    from nbconvert import MarkdownExporter
    from nbconvert.preprocessors import CoalesceStreamsPreprocessor

    name = Path(place).stem
    exporter = MarkdownExporter(preprocessors=[CoalesceStreamsPreprocessor(enabled=True)])
    text, resources = exporter.from_filename(
        str(ROOT / source), resources={"unique_key": name, "output_files_dir": f"{name}_files"}
    )
    for picture, data in resources["outputs"].items():
        path = site.folder / Path(place).parent / picture
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    text = re.sub(r"\x1b\[[\d;]*m", "", text)  # a terminal's colours
    text = re.sub(r"<style scoped>.*?</style>\n?", "", text, flags=re.S)
    text = re.sub(r"^!\[png\]\(", "![figure](", text, flags=re.M)
    own = set(resources["outputs"])
    text = rewriting.outside_of_code(text, lambda prose: _links(prose, source, place, site, own))
    site.write(place, text)


def _links(prose: str, source: str, place: str, site: Site, own: set[str]) -> str:
    return rewriting.LINK.sub(lambda m: m[0] if m[3] in own else site._link(m, source, place), prose)


def configuration(folder: Path) -> dict[str, object]:
    """docs/mkdocs.yml, with the pages that `FOLDER/*` in its nav stands for."""
    config = yaml.load((HERE / "mkdocs.yml").read_text(), yaml.UnsafeLoader)  # its slugs are a Python function

    def entries(nav: list[object]) -> list[object]:
        return [entry(each) for each in nav]

    def entry(item: object) -> object:
        if not isinstance(item, dict):
            return item
        ((title, value),) = item.items()
        if isinstance(value, list):
            return {title: entries(value)}
        return {title: _tree(folder, Path(value).parent)} if value.endswith("/*") else item

    config["nav"] = entries(config["nav"])
    source = folder.parent / "source"
    config["plugins"] = [
        {"mkdocstrings": {**each["mkdocstrings"], "handlers": _handlers(each["mkdocstrings"], source)}}
        if isinstance(each, dict) and "mkdocstrings" in each
        else each
        for each in config["plugins"]
    ]
    return config


def as_installed(folder: Path) -> None:
    """The package with tuning/ inside, which the Python pages are read from."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "flray", folder / "flray")
    shutil.copytree(ROOT / "tuning", folder / "flray" / "tuning")


def _handlers(plugin: dict[str, dict[str, dict[str, object]]], source: Path) -> dict[str, dict[str, object]]:
    return {"python": {**plugin["handlers"]["python"], "paths": [str(source)]}}


def _tree(folder: Path, below: Path) -> list[object]:
    """The pages of a folder for the nav: its index, then its pages and folders by name."""
    here = folder / below
    nav: list[object] = [str(below / "index.md")] if (here / "index.md").exists() else []
    for path in sorted(here.iterdir()):
        place = below / path.name
        if path.is_dir() and any(path.rglob("*.md")):
            nav.append({path.name: _tree(folder, place)})
        elif path.suffix == ".md" and path.name != "index.md":
            nav.append({_title(path): str(place)})
    return nav


def _title(page: Path) -> str:
    heading = re.search(r"^# (.+)$", page.read_text(), re.M)
    return heading[1].strip("`") if heading else page.stem


def shorten_index(site: Path) -> None:
    """Take single attributes of Python classes out of the search index: `float` would find each of them first."""
    text = (site / "search.json").read_text()
    index = json.loads(text)
    python = [item for item in index["items"] if item["location"].startswith("reference/python/")]
    others = [item for item in index["items"] if not item["location"].startswith("reference/python/")]
    index["items"] = others + [item for item in python if "-attribute</code>" not in item["title"]]
    short = json.dumps(index, ensure_ascii=False)
    (site / "search.json").write_text(short)
    script = site / "search.js"  # the same for a site that is opened as files
    whole = script.read_text()
    if text not in whole:
        raise SystemExit(f"error: {script} does not contain search.json; Zensical writes it otherwise now")
    script.write_text(whole.replace(text, short))


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the site of flray.")
    parser.add_argument("--out", type=Path, default=HERE / ".build", help="folder of the pages and of the site")
    out = parser.parse_args().out.resolve()
    ours = out / "pages" / "reference" / "commands.md"
    if (out / "pages").exists() and not ours.exists():
        parser.error(f"{out / 'pages'} exists and was not written by this command; give another folder")
    write(out / "pages")
    as_installed(out / "source")
    (out / "mkdocs.yml").write_text(yaml.dump(configuration(out / "pages"), sort_keys=False))
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "-f", str(out / "mkdocs.yml")]
    # its griffe finds docs/docstrings.py
    done = subprocess.run(
        command, cwd=out, env={**os.environ, "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}"}
    )
    if not done.returncode:
        shorten_index(out / "site")
        print(f"the site: {out / 'site' / 'index.html'}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
