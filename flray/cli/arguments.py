"""The arguments that commands share: overrides with completion, imports, formats, run folders."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from flray.config.launch_context import working_folder
from flray.core.schema.errors import ConfigError, FlrayError

NAMED = {  # keys of a configuration that take a name -> the kind that `flray list` knows
    "algorithm": "algorithms", "aggregation": "aggregations", "data": "datasets", "data.source": "datasets",
    "proxy": "datasets", "proxy.source": "datasets", "model": "models", "partition": "partitions", "drift": "drifts",
    "uplink": "uplinks", "diagnostics": "diagnostics",
}  # fmt: skip


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """For the shell: keys of a configuration, those of the given file first, and their names. Imports no torch."""
    key, sign, value = incomplete.partition("=")
    lead = f"{key}="
    before = ctx.params.get("overrides") or []
    if ":" in (incomplete, *before[-1:]):  # bash splits a word at ":" and at "="
        return []  # a name of another library
    if not incomplete and before and "=" not in before[-1] and before[-2:-1] not in (["="], [":"]):
        return _values_of(before[-1])  # behind `key =`: click takes this "=" away
    if before[-1:] == ["="]:
        key, sign, value, lead = before[-2], "=", incomplete, ""
    if sign:
        done, comma, last = value.rpartition(",")  # of a grid the last one
        return [f"{lead}{done}{comma}{name}" for name in _values_of(key) if name.startswith(last)]
    names = dict.fromkeys(("seed", *_known_keys(ctx.params.get("config"), " ".join(before))))
    return [f"{name}=" for name in names if name.startswith(incomplete)]


def _known_keys(file: Any, words: str) -> Iterator[str]:
    """The keys of the file, the options of the algorithm and the model that it or the words choose, all others."""
    from flray.config.declared import declared_only
    from flray.config.experiment import Experiment
    from flray.config.keys import chosen_keys, keys_of
    from flray.config.read import read_layers
    from flray.core.schema.section import section_of

    try:
        layers = read_layers(file)[::-1]
    except (FlrayError, TypeError):
        layers = []
    for section in ("algorithm", "model"):
        if found := re.findall(rf"(?:^| ){section}(?:\.name)? ?= ?(\S+)", words):  # then it has other options
            layers = [{name: value for name, value in layer.items() if name != section} for layer in layers]
            layers = [*({section: name} for name in found[-1].split(",")), *layers]
    for layer in layers:
        yield from _dotted(layer)
    with declared_only():
        for layer in layers:
            yield from chosen_keys(layer)
    for name, declared, _ in keys_of(Experiment):
        if declared.type != "section" or getattr(section_of(Experiment, name.split(".")), "shorthand", {}):
            yield name


def _dotted(values: Any, prefix: str = "") -> Iterator[str]:
    """The keys of nested mappings; before the keys of a section with a name, the section itself."""
    for key, value in values.items() if isinstance(values, dict) else ():
        if not isinstance(value, dict) or "name" in value:
            yield f"{prefix}{key}"
        yield from _dotted(value, f"{prefix}{key}.")


def complete_metric() -> list[str]:
    from flray.metrics.names import METRICS

    return list(METRICS)


def complete_mode() -> list[str]:
    from flray.metrics.names import KNOWN_MODES

    return list(KNOWN_MODES)


def _algorithms() -> list[str]:
    from flray.cli.catalog import names_of

    return names_of("algorithms")


def complete_kind(incomplete: str) -> list[str]:
    from flray.cli.catalog import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the kind before it, for `flray list KIND NAME`."""
    from flray.cli.catalog import names_of
    from flray.config.declared import declared_only

    kind = ctx.params.get("kind")
    if kind is None:
        return []
    try:
        with declared_only():
            return [name for name in names_of(kind) if name.startswith(incomplete)]
    except FlrayError:  # no such kind
        return []


def _values_of(key: str) -> list[str]:
    """The names that a key of a configuration takes; of another key nothing."""
    from flray.cli.catalog import names_of
    from flray.config.tracking import TRACKERS
    from flray.models.libraries import LIBRARIES

    key = key.removesuffix(".name")
    if key == "track":
        return list(TRACKERS.names())
    kind = NAMED.get(key)
    elsewhere = {"datasets": ["hf:"], "models": [f"{library}:" for library in LIBRARIES]}
    return [] if kind is None else [*names_of(kind), *elsewhere.get(kind, ())]


Against = Annotated[
    str | None,
    typer.Option(
        metavar="ALGORITHM|KEY=VALUE|FOLDER",
        help="a setting: paired differences to it, with tests",
        autocompletion=_algorithms,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="overrides; commas and a..b make a grid", autocompletion=complete_override
    ),
]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="import first: your own algorithms, models, sources"),
]
Format = Annotated[str, typer.Option(help="table or json")]


def parallel_runs(text: str) -> int | Literal["auto"]:
    """The value of `--concurrency`. Raises `ConfigError`."""
    if text == "auto":
        return "auto"
    if not (text.isdecimal() and int(text)):
        raise ConfigError(f"--concurrency {text}: auto, or a number of at least 1")
    return int(text)


def own_modules() -> None:
    """The user's modules are found in the working directory, here and in the actors. Raises `ConfigError` if it is
    gone."""
    here = working_folder()
    if here not in sys.path:
        sys.path.insert(0, here)


def is_sweep(file: Path) -> bool:
    """Whether a YAML file is one of a sweep: it has a section `experiment`."""
    from flray.config.read import read_yaml

    content = read_yaml(file)
    return isinstance(content, dict) and "experiment" in content


def refuse_unused(ctx: typer.Context, used: Iterable[str], what: str) -> None:
    """Raises `FlrayError` if the command line has an option that `what` does not read.

    `used`: the parameters that it reads, by their names in the command's function.
    """
    read = {*used, "quiet", "verbose"}
    options = {parameter.name: parameter.opts[0] for parameter in ctx.command.params if parameter.name not in read}
    for name, option in options.items():
        source = ctx.get_parameter_source(str(name))
        if source is not None and source.name == "COMMANDLINE":
            raise FlrayError(f"{option} changes nothing in {what}; leave it out (flray {ctx.command.name} --help)")
