"""`flray check`: the contracts of flray's own methods, tried on those of a user's module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from flray.cli.arguments import own_modules
from flray.cli.output import check_format, write_json, write_rows
from flray.core.schema.errors import ConfigError
from flray.engine.progress import stage

if TYPE_CHECKING:
    from flray.contracts.checks import Subject

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]... [KEY=VALUE]...", help="some of its names; what the small experiment needs"),
]


def check(
    module: Annotated[str, typer.Argument(help="the module that registers an algorithm, aggregation or uplink")],
    words: Words = None,
    reduces_to: Annotated[
        str | None, typer.Option(help='what it is with some own values: "fedavg mu=0"; an uplink: "plain norm=1e9"')
    ] = None,
    format: Annotated[str, typer.Option(help="table, markdown or json")] = "table",
) -> None:
    """Try the contracts on an algorithm, a rule of aggregation or an uplink transform of your own, and say what holds.

    `flray check fedprox_example --reduces-to "fedavg mu=0"`

    On a small experiment (three rounds of Iris; `data.source=digits model=small_cnn` for images): the state stays
    finite, no half changes its arguments, bytes counted are bytes sent, the state keeps its form; the same bits in
    another process, with each third of a cohort in a process, and after a resume; every option of its own changes the
    outcome; two tasks. Exit code 1 if one fails. `look`: a state that grows, which may be a window that fills.
    """
    check_format(format, ("table", "markdown", "json"))
    own_modules()
    subjects = _subjects(module, words or [])
    if reduces_to is not None and len(subjects) > 1:
        names = " or ".join(subject.name for subject in subjects)
        raise ConfigError(f"--reduces-to is for one of them; name it: flray check {module} {names}")
    from flray.contracts.checks import check as findings

    every: list[dict[str, str]] = []
    for subject in subjects:
        with stage(f"the contracts of {subject.section} {subject.name}"):
            found = findings(subject, reduces_to)
        every += [{"of": subject.name, **row._asdict()} for row in found]
        if format != "json":
            write_rows([row._asdict() for row in found], f"{subject.section} {subject.name}", format)
    if format == "json":
        write_json(every)
    if any(row["verdict"] == "fails" for row in every):
        raise typer.Exit(1)


def _subjects(module: str, words: list[str]) -> list[Subject]:
    """What the module registers, or those of it that are named. Raises `ConfigError` if there is nothing."""
    from flray.aggregations import AGGREGATIONS
    from flray.algorithms import ALGORITHMS
    from flray.config.overrides import pairs
    from flray.contracts.checks import Subject
    from flray.core.schema.registry import imported
    from flray.uplink import UPLINKS

    tables = {"algorithm": ALGORITHMS, "aggregation": AGGREGATIONS, "uplink": UPLINKS}
    before = {section: table.names() for section, table in tables.items()}
    imported(module, f"flray check {module}")
    overrides = pairs([word for word in words if "=" in word])
    named = [word for word in words if "=" not in word]
    found = [
        (section, name)
        for section, table in tables.items()
        for name in dict.fromkeys([*table.names_of(module), *(n for n in table.names() if n not in before[section])])
    ]
    known = [name for _, name in found]
    if not known:
        raise ConfigError(
            f"{module} registers no algorithm, aggregation or uplink; write ALGORITHMS.add('mine', Mine) at its end"
        )
    if unknown := [name for name in named if name not in known]:
        raise ConfigError(f"{module} registers no {unknown[0]!r}; it has {', '.join(known)}")
    return [
        Subject(section, name, tables[section].get(name), overrides, [module])
        for section, name in found
        if name in named or not named
    ]
