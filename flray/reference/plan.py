"""From cells of a table to runs: experiments, folders, commands, and reasons why a run is not possible here."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from flray.config.experiment import LENGTH, RESUMABLE, Experiment
from flray.config.loader import load_config
from flray.config.overrides import pair
from flray.core.schema.errors import ConfigError, FlrayError
from flray.data.data_config import DRAWN
from flray.data.sources import at_hand
from flray.data.sources.union import sets_of
from flray.reference.papers import CellRun, PaperRow, Setting, with_methods
from flray.scenario.drift import WindowDrift
from flray.shipped import shipped

# keys that do not change the experiment
SAME = (
    *(key for key in RESUMABLE if key not in LENGTH),
    "data.root", "data.download", "proxy.root", "proxy.download",
)  # fmt: skip


class PlannedRun(NamedTuple):
    """One run of a cell: the rows of the table that it gives."""

    setting: Setting
    cell_run: CellRun
    experiment: Experiment
    folder: Path
    window: range | None = None  # the rounds of the cell's drift, also of a run without it

    @property
    def rows(self) -> tuple[PaperRow, ...]:
        return self.cell_run.rows


class RunPlan(NamedTuple):
    """The runs of some cells, and the experiments that cannot run here, with the reason."""

    runs: list[PlannedRun]
    skipped: list[tuple[Setting, CellRun, str]]


def configs_folder(given: Path | None = None) -> Path:
    """The folder `configs` of flray: the given one, the one in the working directory, or that of the package.

    Raises `ConfigError` if it has no configurations of the papers.
    """
    places = [given] if given is not None else [Path("configs"), shipped("configs")]
    folder = next((place for place in places if (place / "fedsol" / "_common.yaml").is_file()), None)
    if folder is None:
        raise ConfigError(
            f"the papers' configurations are not in {' or '.join(map(str, places))}; name the folder that holds them "
            "with --configs DIR, or write them: flray init --paper fedsol"
        )
    return folder


def plan(
    settings: Sequence[Setting],
    scale: str,
    seeds: int,
    root: Path,
    configs: Path,
    methods: Sequence[str] = (),
    extra: Sequence[str] = (),
) -> RunPlan:
    """The runs of the cells, in folders `ROOT/CELL-METHOD-seedS`. Raises `ConfigError` for a method that a cell has
    not, and for `extra` overrides that do not fit."""
    planned = RunPlan([], [])
    for setting in settings:
        windowed = any(measure.moment != "last" for line in setting.lines for measure in setting.measures(line))
        for cell_run in with_methods(setting, methods):
            why = setting.why_not(cell_run.line, scale)
            if not why:
                experiments = experiments_of(setting, cell_run, scale, seeds, configs, tuple(extra))
                why = missing(experiments[0])
            if why:
                planned.skipped.append((setting, cell_run, why))
                continue
            name = f"{slug(setting.name)}-{slug(cell_run.rows[0].shown)}"
            planned.runs.extend(
                PlannedRun(
                    setting,
                    cell_run,
                    experiment,
                    root / f"{name}-seed{experiment.seed}",
                    window_of(setting, scale, configs, tuple(extra)) if windowed else None,
                )
                for experiment in experiments
            )
    return planned


def experiments_of(
    setting: Setting, cell_run: CellRun, scale: str, seeds: int, configs: Path, extra: tuple[str, ...] = ()
) -> list[Experiment]:
    """The experiments of one run of a cell, one for each seed."""
    grid = _of_line(configs / setting.config, tuple(setting.overrides(cell_run.line, scale)), seeds, extra)
    if len(grid) != seeds * len(cell_run.line.rows):
        raise ConfigError(
            f"{setting.key}, {setting.name}: {len(grid)} experiments for {len(cell_run.line.rows)} rows and {seeds} "
            "seeds; give one value for each key"
        )
    return grid[cell_run.place * seeds : (cell_run.place + 1) * seeds]


def window_of(setting: Setting, scale: str, configs: Path, extra: tuple[str, ...] = ()) -> range | None:
    """The rounds in which a cell's data are missing, by its configuration without a line's overrides; None without a
    first round."""
    experiment = _of_line(configs / setting.config, tuple(setting.overrides(None, scale)), 1, extra)[0]
    drift = experiment.drift
    if not isinstance(drift, WindowDrift):
        return None
    return range(drift.from_round, drift.to_round or experiment.rounds + 1)


def forget_experiments() -> None:
    """Drop the experiments that were read with stand-ins for algorithms (`declared_only`)."""
    _of_line.cache_clear()


@functools.cache
def _of_line(config: Path, overrides: tuple[str, ...], seeds: int, extra: tuple[str, ...]) -> list[Experiment]:
    own = {pair(text)[0]: text for text in (*overrides, *extra)}  # the user's overrides replace the table's
    return load_config(config, [*own.values(), "seed=" + ",".join(map(str, range(seeds)))])


def missing(experiment: Experiment) -> str:
    """What an experiment needs that is not on this machine, as text; empty if nothing. Reads no data."""
    sources = [experiment.data]
    if experiment.proxy is not None and experiment.needs_proxy and experiment.proxy.source not in DRAWN:
        sources.append(experiment.proxy)
    for source in sources:
        try:
            parts = sets_of(source).values() if source.source == "union" else [source]
            for data in parts:
                if at_hand(data):
                    continue
                where = f"below {data.root}" if data.root else "below data.root"
                return f"the data set {data.source} is not {where}"
        except FlrayError as error:
            return str(error)
    weights = experiment.model.options.get("pretrained")
    if isinstance(weights, str) and not (Path(weights).exists() or _in_hub_cache(weights)):
        return f"the weights {weights} are not here"
    if getattr(experiment.algorithm, "lte", "") is None:
        return "label embeddings are not given: algorithm.lte=FILE"
    return ""


def _in_hub_cache(name: str) -> bool:
    """Whether the local cache of the Hugging Face hub has a model of this name."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:  # no name on the hub: a file
        return False


def another(setting: Setting, scale: str, extra: Sequence[str]) -> str:
    """How a run of the cell differs from the paper's experiment; empty if it does not."""
    words = changed(extra)
    parts = ["another scale"] if setting.at(scale) != setting.at("full") else []
    return ", ".join([*parts, f"changed by {' '.join(words)}"] if words else parts)


def changed(extra: Sequence[str]) -> list[str]:
    """The user's overrides that change the experiment."""
    return [text for text in extra if not f"{pair(text)[0]}.".startswith(tuple(f"{key}." for key in SAME))]


def commands(runs: Sequence[PlannedRun], scale: str, extra: Sequence[str]) -> list[str]:
    """The commands of exactly these runs, without keys that only choose where and on what they run."""
    lines: list[str] = []
    for _, line in itertools.groupby(runs, key=lambda run: (run.setting.key, run.setting.name, run.cell_run.line)):
        own = list(line)
        places, seeds = {run.cell_run.place for run in own}, len({run.experiment.seed for run in own})
        lines += own[0].setting.commands(own[0].cell_run.line, scale, seeds, places, changed(extra))
    return list(dict.fromkeys(lines))


def slug(name: str) -> str:
    """A name as part of a folder name: `CIFAR-10, LDA 0.1` is `cifar-10-lda-0.1`."""
    return re.sub(r"[^a-z0-9.]+", "-", name.casefold()).strip("-")
