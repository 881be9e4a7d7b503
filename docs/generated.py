"""Pages that are written from flray itself: keys, commands, columns, the names of every kind, Python."""

from __future__ import annotations

import ast
import functools
import inspect
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rewriting import ROOT, Site, docstring

TABLES = ("rounds", "clients", "tests", "tasks", "personal")  # of a run folder
KINDS = {  # of `flray list`, with the section of an experiment that chooses one
    "aggregations": ("Rules of aggregation", "aggregation"),
    "models": ("Models", "model"),
    "datasets": ("Data sets", "data"),
    "partitions": ("Partitions", "partition"),
    "drifts": ("Drifts", "drift"),
    "uplinks": ("Uplink transforms", "uplink"),
    "diagnostics": ("Diagnostics", "diagnostics"),
    "trackers": ("Trackers", "track"),
}
GUIDES = {
    "aggregations": "[Choose the server's rule](../how-to/aggregation.md#your-own-rule)",
    "models": "[Your own model](../how-to/model.md)",
    "datasets": "[Your own data](../how-to/data.md)",
}


def cell(value: Any) -> str:
    """A value in a table's cell: text outside of code is escaped."""
    text = "" if value is None else " ".join(str(value).split())
    text = re.sub(r":(?:meth|class|func):`~?([^`]+)`", r"`\1`", text)
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([|*_\[\]])", r"\\\1", p.replace("<", "&lt;")) for p in parts)


def verbatim(value: Any) -> str:
    return "" if value in (None, "") else "required" if value == "required" else f"`{value}`"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def options(rows: Iterable[Mapping[str, Any]], name: str = "option") -> str:
    """A table of options or keys, without the columns that are empty in all rows."""
    rows = list(rows)
    show = {name: verbatim, "type": cell, "default": verbatim, "bounds": cell, "search": cell, "meaning": cell}
    heads = [head for head in show if any(row.get(head) not in (None, "") for row in rows)]
    return table(heads, ([show[head](row.get(head)) for head in heads] for row in rows))


def keys(file: str, intro: str) -> str:
    """Every key of an experiment or of a sweep, a table for each section."""
    from flray.cli.catalog import catalog

    rows = [row for row in catalog("config") if row["of"] == file]
    sections = dict.fromkeys(row["key"].split(".")[0] for row in rows if row["key"].count(".") == 1)
    parts = [intro, "## Keys outside of sections\n", options((r for r in rows if _top(r) not in sections), "key")]
    for section in sections:
        parts += [f"## {section}\n", options((r for r in rows if _top(r) == section), "key")]
    return "\n".join(parts)


def _top(row: Mapping[str, Any]) -> str:
    return str(row["key"]).split(".")[0]


def commands() -> str:
    """Every verb with its arguments and options."""
    from typer.main import get_command

    from flray.cli import app

    top: Any = get_command(app)
    parts = [
        "# Commands\n",
        "`flray VERB --help` prints the same. Results go to stdout, everything else to stderr. The exit code is 0, "
        "also of a run that diverged; 2 after an error of one line; 130 after Ctrl-C; 143 after SIGTERM.\n",
    ]
    shown = {name: each for name, each in top.commands.items() if not each.hidden}
    for group in [name for name, each in shown.items() if hasattr(each, "commands")]:  # papers
        shown |= {f"{group} {name}": each for name, each in shown.pop(group).commands.items()}
    for name, command in sorted(shown.items()):
        usage = " ".join(["flray", name, *(_metavar(p) for p in command.params if not p.opts[0].startswith("-"))])
        parts += [f"## {name}\n", f"```\n{usage}\n```\n", paragraphs(command.help)]
        rows = [
            (verbatim(", ".join([*p.opts, *p.secondary_opts])) if p.opts[0].startswith("-") else verbatim(_metavar(p)),
             "" if p.default in (None, False) else verbatim(p.default),
             cell(p.help) + (" (may be given several times)" if getattr(p, "multiple", False) else ""))
            for p in command.params
        ]  # fmt: skip
        parts.append(table(("argument", "default", "meaning"), rows))
    return "\n".join(parts)


def _metavar(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    name = name if parameter.required or name.startswith("[") else f"[{name}]"
    return name if parameter.nargs == 1 or name.endswith("...") else f"{name} ..."


def paragraphs(text: str | None) -> str:
    return re.sub(r"(?m)^ +", "", inspect.cleandoc(text or "")) + "\n"


def columns(of: str) -> str:
    """The columns of a table of a run folder; `computed`: metrics that stand in none; `diagnostics`: rows of each."""
    from flray.cli.catalog import catalog

    if of == "diagnostics":
        rows = {row["name"]: _rows_of(row["name"]) for row in catalog("diagnostics")}
    else:
        rows = _computed() if of == "computed" else columns_by_table()[of]
    head = {"diagnostics": "diagnostic", "computed": "metric"}.get(of, "column")
    return table((head, "meaning"), ((verbatim(name), cell(meaning)) for name, meaning in rows.items()))


def _rows_of(diagnostic: str) -> str:
    from flray.metrics.probes import PROBES

    return (inspect.getdoc(PROBES.get(diagnostic)) or "").split("\n\n")[0]


def columns_by_table() -> dict[str, dict[str, str]]:
    """The meaning of each column of the tables. A meaning says `clients/: ...` where it is not a column of rounds/."""
    from flray.metrics.names import COLUMNS, METRICS
    from flray.rundir import tested

    found: dict[str, dict[str, str]] = {name: {c: COLUMNS[c] for c in ("done", "task", "round")} for name in TABLES}
    for name in ("tasks", "personal"):
        del found[name]["round"]
    for cells in re.findall(r"^\| (`(?!done).*) \| (.*) \|$", tested.__doc__ or "", re.M):
        for number, column in enumerate(names := re.findall(r"`(\w+)`", cells[0])):
            meaning = cells[1].split(", and ") if len(names) == 2 else [cells[1]]
            found["tests"][column] = meaning[min(number, len(meaning) - 1)]
    tables = "|".join(TABLES)
    for column, meaning in {**COLUMNS, **METRICS}.items():
        said = re.match(rf"((?:[\w+]+, )*)((?:(?:{tables})/(?:, )?)+)[:,]? ?(.*)$", meaning)
        lead, places, rest = said.groups() if said else ("", "rounds/", meaning)
        for place in re.findall(r"(\w+)/", places) if column not in _computed() else ():
            found[place].setdefault(column, f"{lead.rstrip(', ')}: {rest}" if lead else rest)
    return found


def _computed() -> dict[str, str]:
    """Metrics that stand in no table: `flray compare` computes them from several rows."""
    from flray.metrics.names import METRICS, OF_ALARMS, OF_DRIFT, OF_TASKS

    return {name: METRICS[name].split("/: ", 1)[-1] for name in (*OF_TASKS, *OF_DRIFT, *OF_ALARMS)}


def kind(name: str) -> str:
    """A page of one kind of `flray list`: its names, and the options of each."""
    from flray.cli.catalog import beside, catalog, detail

    title, section = KINDS[name]
    rows = [row for row in catalog(name) if "Parquet folder" not in row["about"]]
    parts = [f"# {title}\n", f"`flray list {name}` prints this list, `flray list {name} NAME` the options of one.\n"]
    parts.append(table(("name", "what it is"), ((verbatim(row["name"]), cell(row["about"])) for row in rows)))
    parts.append(" ".join([cell(beside(name)), *([f"{GUIDES[name]} shows how."] if name in GUIDES else [])]) + "\n")
    shared = name in ("datasets", "partitions")
    if shared:
        parts.append(f"All of them read the same keys: [{section}](experiment.md#{section}).\n")
    for row in rows:
        text, fields = detail(name, row["name"])
        parts += [f"## {row['name']}\n", docstring(text) + "\n"]
        if fields and not shared:
            parts.append(options(fields))
    return "\n".join(parts)


def evidence(site: Site) -> None:
    """The pages of `flray papers evidence` and `reproduce` from the stored tables: claims, detectors, tables."""
    from flray.reference import evidence as stored, outcome
    from flray.reference.evidence_page import write_page

    results = site.folder / "results"
    write_page(results / "evidence.md", stored.read_table(), stored.evidence())
    content = stored.evidence(stored.DETECTORS).model_copy(update={"detectors": True})
    write_page(results / "detectors.md", stored.read_table(stored.SCORES, stored.SCORED), content)
    (results / "reproduced.md").write_text(outcome.markdown(stored.read_table(outcome.STORED, stored.ROWS)))


def found(what: str, name: str) -> str:
    """What the stored runs say: of a `claim` the difference and the verdict; how far a setting meets the `condition` of
    claims about forgetting; of FedProj's `assumption` how often it fails; the `trend` of a setting's claims.
    Raises `KeyError` for a name that is none."""
    from flray.reference import evidence as stored, evidence_page as page

    runs, content = stored.read_table(), stored.evidence()
    if what == "assumption":
        return "\n".join(
            f"* {row['setting']}, `{seen['run']}`: {seen['fails']:.1f} % of {seen['looks']:.0f} observed steps "
            f"({seen['least']:.1f} to {seen['most']:.1f} % by seed)."
            for _, rows in runs.groupby("setting")
            for row, seen in ((rows.iloc[0], each) for each in page.assumptions(rows))
        )
    if what == "condition":
        forgets = content.settings[name].forgets
        if forgets is None:
            raise KeyError(f"{name} has no condition of forgetting")
        mean, seeds = stored.mean_of(runs, name, forgets)
        numbers = f"{mean:.1f} % over {seeds} seeds" if seeds else "not run"
        said = "met" if seeds and mean >= forgets.at_least else "not met"
        asked = f"at least {forgets.at_least:g} % is asked: {said}"
        return f"* {_setting(name)}: {forgets.metric} of {forgets.run} is {numbers}; {asked}."
    if what == "trend":
        if not content.settings[name].trend:
            raise KeyError(f"{name} has no trend")
        said = page.trend_sentence([tried for tried in _judged() if tried.claim.setting == name])
        return f"![the difference against the other side's accuracy](../results/evidence_{name}.png)\n\n{said}"
    for tried in _judged():
        if tried.claim.claim == name:
            numbers = f" {page.difference(tried)} over {tried.seeds} seeds." if tried.seeds else ""
            return f"* {name} **{tried.verdict.capitalize()}.**{numbers} {_setting(tried.claim.setting)}"
    raise KeyError(f"no claim {name!r}")


@functools.cache
def _judged() -> list[Any]:
    """All claims, tested on the stored runs: a page names one a line."""
    from flray.reference import evidence as stored

    return stored.judge(stored.read_table(), stored.evidence())


def gpu(part: str) -> str:
    """The table of a part of `tests/gpu/acceptance.py`, by its stored lines. Raises `KeyError` for another part."""
    lines = [json.loads(line) for line in (ROOT / "docs" / "gpu.jsonl").read_text().splitlines()]
    rows = [{name: value for name, value in line.items() if name != "part"} for line in lines if line["part"] == part]
    if not rows:
        raise KeyError(f"docs/gpu.jsonl has no lines of the part {part!r}")
    if part == "steps":
        for row in rows:
            row["faster than bare"] = row["bare_ms"] / row["graphs_ms"]
    heads = list(rows[0])
    return table(heads, ([_shown(row[head]) for head in heads] for row in rows))


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"`{place}` {count}" for place, count in value.items())
    if not isinstance(value, float):
        return cell(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _setting(name: str) -> str:
    return f"[{name}](../results/evidence.md#{name})"


def algorithms(site: Site) -> None:
    """A page for each algorithm: its equations, its card, its options; and the table that leads to them."""
    from flray.algorithms import ALGORITHMS, built_in
    from flray.cli.catalog import cards, detail

    for name in built_in():
        _, fields = detail("algorithms", name)
        target = ALGORITHMS.get(name)
        module = inspect.getmodule(target)
        source = Path(inspect.getfile(target)).resolve().relative_to(ROOT).as_posix()
        about = docstring((module.__doc__ or "") if module else "") + "\n"
        card = site.adapted(cards().get(name, ""), "flray/algorithms/CARDS.md", f"reference/algorithms/{name}.md")
        python = f"[{target.__name__}][{target.__module__}.{target.__name__}]"  # a link to the class
        parts = [f"# {name}\n", about, f"Source: `{source}`, {python}.\n", "## Card\n", card]
        parts += ["\n## Options\n", options(fields)]
        site.write(f"reference/algorithms/{name}.md", "\n".join(parts))
    site.write("reference/algorithms/index.md", WIDE + "# Algorithms\n\n" + methods("") + "\n" + CARD_WORDS)


WIDE = "---\nhide:\n  - toc\n---\n\n"  # no headings to list, and a table of six columns
CARD_WORDS = """P is the number of parameters, Q that of batch-norm statistics. The unit of cost is one local step of
FedAvg. `needs` names what an experiment must have besides clients with labelled data.
"""


def methods(prefix: str, names: Iterable[str] = ()) -> str:
    """Algorithms (all, or those named) with cost, needs, stored data and known failures, from classes and cards."""
    from flray.algorithms import ALGORITHMS, built_in
    from flray.cli.catalog import cards, catalog

    about = {row["name"]: row["about"] for row in catalog("algorithms")}
    rows = []
    for name in names or built_in():
        card, target = cards().get(name, ""), ALGORITHMS.get(name)
        needs = ["public data (`proxy`)"] if target().reads_proxy() else []
        needs += ["tasks with new classes"] if target.needs_new_classes else []
        cost = re.search(r"Cost per step: (.*?)(?:\.(?=\s|$)|;|$)", card, re.S)
        failures = re.search(r"Known failures?[^:]*: (.*?)(?:\n\n|\Z)", card, re.S)
        rows.append(
            (f"[{name}]({prefix}{name}.md)", cell(about[name]), cell(cost[1] if cost else None),
             cell(", ".join(needs)), cell(target.keeps), cell(failures[1] if failures else None))
        )  # fmt: skip
    heads = ("algorithm", "what it is", "cost per local step", "needs", "stores of earlier tasks", "known failures")
    filled = [place for place in range(len(heads)) if any(row[place] for row in rows)]
    return table([heads[place] for place in filled], ([row[place] for place in filled] for row in rows))


def with_files(text: str, source: str) -> str:
    """The README `source` of a package, with the list of its files before the first section: what each one says of
    itself at its top."""
    folder, rows = (ROOT / source).parent, []
    files = sorted(folder.glob("[!_]*.py")) if source.startswith(("flray/", "tuning/")) else []
    for path in files:
        about = ast.get_docstring(ast.parse(path.read_text())) or ""
        rows.append((verbatim(path.name), cell(about.split("\n\n")[0])))
    if not source.endswith("README.md") or not rows or "| file |" in text:
        return text
    head, sign, rest = text.partition("\n## ")
    return f"{head}\n{table(('file', 'what is in it'), rows)}{sign}{rest}"


def python(site: Site) -> None:
    """A page for each package: every public class and function of its modules, by mkdocstrings."""
    packages: dict[str, list[str]] = {}
    for top in ("flray", "tuning"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if {"init", "private", "__main__"} & set(parts) or path.is_symlink():
                continue
            module = ".".join(parts if top == "flray" else ("flray", *parts)).removesuffix(".__init__")
            package = module if path.name == "__init__.py" else module.rpartition(".")[0]
            packages.setdefault(package, []).append(module)
    for package, modules in packages.items():
        title = "index" if package == "flray" else package.removeprefix("flray.")
        inside = [f"::: {module}\n" for module in modules if module != package or package == "flray"]
        if inside:
            site.write(f"reference/python/{title}.md", "\n".join([f"# {package}\n", *inside]))
