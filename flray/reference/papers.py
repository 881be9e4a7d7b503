"""The tables of the papers as data: what they print, and the command of every cell.

(setting,) = chosen("fedsol/table2", ["CIFAR-10, LDA 0.1"])
setting.commands(setting.lines[0], "full", seeds=3)  # ["flray run configs/fedsol/cifar10_lda01.yaml algorithm=..."]
"""

from __future__ import annotations

import csv
import functools
import itertools
import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from flray.core.schema.errors import ConfigError, nearest, shown, unknown

HERE = Path(__file__).parent
SCALES = ("small", "full")
# modes of a row that read a column of rounds/: its first, last and largest value, and Pearson's r with test/acc
COURSE = ("first", "last", "best", "r")


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


# the content of a file ------------------------------------------------------------------------------
class PaperRow(Strict):
    """A row of the paper's table: how to find its number in the CSV, and which number of a run is compared with it."""

    method: str
    setting: str | None = None
    partition: str | None = None
    name: str = ""  # as it is shown; default: the method
    mode: str | None = None  # the inference mode that is read, or of COURSE; default: the run's first
    metric: str | None = None  # of the CSV, where a method has several
    measure: str | None = None  # the only measure that it is a row of; default: all of its line

    @property
    def shown(self) -> str:
        return self.name or self.method

    @property
    def where(self) -> dict[str, str]:
        """The columns of the CSV, with values, that find the row."""
        columns = ("method", "setting", "partition", "metric")
        return {column: value for column in columns if (value := getattr(self, column)) is not None}


def _rows(entry: Any) -> list[Any]:
    """One run gives one row of the table, or several (in different inference modes)."""
    entries = entry if isinstance(entry, list) else [entry]
    return [{"method": each} if isinstance(each, str) else each for each in entries]


class Measure(Strict):
    """A compared quantity: the columns of the CSV that find the paper's number, and our number.

    Ours is a column of `compare`; with a `moment` inside the window of the cell's drift a column of `rounds/`; with
    `of` the accuracy on that test set (a task of GLUE).
    """

    column: str = "test/acc"
    moment: Literal["last", "window_end", "window_mean"] = "last"
    of: str = ""
    name: str = "accuracy"
    times: float | None = None  # both numbers are shown times this; default: the printed one in per cent, ours a share
    where: Mapping[str, str] = {}


class Line(Strict):
    """A command of the table: the overrides that it adds to a cell's configuration, and the rows that the
    experiments of its grid give, in the order of the grid."""

    run: str
    rows: tuple[Annotated[tuple[PaperRow, ...], BeforeValidator(_rows)], ...]
    measures: tuple[Measure, ...] | None = None
    note: str = ""
    full_only: str = ""  # why the small scale cannot have it
    as_in: str = ""  # the table whose command runs these as well


class CellSpec(Strict):
    """One setting of a table in which methods are compared."""

    config: str
    run: str = ""
    where: Mapping[str, str] = {}
    lines: tuple[Line, ...] | None = None
    scales: Mapping[str, str] = {}


class PaperTable(Strict):
    """A table of a paper. One without cells says in `why_not` why nothing can be run."""

    title: str
    csv: str = ""
    where: Mapping[str, str] = {}
    measures: tuple[Measure, ...] = (Measure(),)
    lines: tuple[Line, ...] = ()
    cells: Mapping[str, CellSpec] = {}
    scales: Mapping[str, str] = {}
    seeds: int | None = None  # default: the paper's
    full_only: str = ""
    why_not: str = ""


class PaperFigure(Strict):
    """A figure, or a result outside the tables: its commands, or in `why_not` why there are none."""

    title: str
    commands: tuple[str, ...] = ()
    why_not: str = ""


class Paper(Strict):
    """A paper: the folder of its configurations, the overrides of each scale, the number of seeds behind its
    numbers."""

    paper: str
    source: str
    seeds: int | None  # None: not printed
    configs: str
    scales: Mapping[str, str]
    tables: Mapping[str, PaperTable] = Field(min_length=1)
    figures: Mapping[str, PaperFigure] = {}


# cells and their commands -----------------------------------------------------------------------------
class Printed(NamedTuple):
    """A number of the paper: mean and standard deviation over `n` seeds; None for what it does not print."""

    mean: float
    std: float | None = None
    n: int | None = None
    note: str = ""  # an oddity of the number


class CellRun(NamedTuple):
    """One experiment of a cell: the rows that it gives, and its position in the grid of its line."""

    rows: tuple[PaperRow, ...]
    line: Line
    place: int


class Setting(NamedTuple):
    """A cell, with its table and its paper."""

    paper: Paper
    key: str  # fedsol/table2
    table: PaperTable
    name: str  # CIFAR-10, LDA 0.1
    cell: CellSpec

    @property
    def lines(self) -> tuple[Line, ...]:
        return self.table.lines if self.cell.lines is None else self.cell.lines

    @property
    def runs(self) -> list[CellRun]:
        return [CellRun(rows, line, place) for line in self.lines for place, rows in enumerate(line.rows)]

    def measures(self, line: Line) -> tuple[Measure, ...]:
        return self.table.measures if line.measures is None else line.measures

    @property
    def config(self) -> str:
        """The configuration, relative to the folder `configs`."""
        return f"{self.paper.configs}/{self.cell.config}.yaml"

    def at(self, scale: str) -> str:
        """The overrides that the scale adds to every command."""
        scales = {**self.paper.scales, **self.table.scales, **self.cell.scales}
        return scales.get(scale, "")

    def overrides(self, line: Line | None, scale: str) -> list[str]:
        """The overrides of a line's command; for None those that all lines of the cell share."""
        return shlex.split(" ".join((self.at(scale), self.cell.run, line.run if line else "")))

    def commands(
        self, line: Line, scale: str, seeds: int, places: Collection[int] | None = None, extra: Sequence[str] = ()
    ) -> list[str]:
        """The commands that run a line of the cell, or only the experiments at these `places` of its grid: one
        command if they are a grid too, else one each. `extra` overrides replace the cell's own."""
        axes = {word.partition("=")[0]: [word] for word in (*self.overrides(line, scale), *extra)}
        for word in shlex.split(line.run):
            key, _, value = word.partition("=")
            if axes[key] == [word] and key != "preset" and not value.startswith(("[", "{", "'", '"')):
                axes[key] = [f"{key}={each}" for each in value.split(",")]
        grid = list(itertools.product(*axes.values()))
        experiments = grid if places is None else [grid[place] for place in sorted(places)]
        values = [list(dict.fromkeys(words)) for words in zip(*experiments, strict=True)]
        if math.prod(map(len, values)) == len(experiments):
            runs = [[words[0] + "".join(f",{word.partition('=')[2]}" for word in words[1:]) for words in values]]
        else:
            runs = [list(words) for words in experiments]
        start = ["flray", "run", f"configs/{self.config}"]
        return [shlex.join([*start, *words, "seed=0" if seeds == 1 else f"seed=0..{seeds - 1}"]) for words in runs]

    def why_not(self, line: Line, scale: str) -> str:
        """Why a line cannot be run at that scale on any machine; empty if it can."""
        return self.table.full_only or line.full_only if scale == "small" else ""

    def printed(self, row: PaperRow, measure: Measure, line: Line) -> Printed | None:
        """The paper's number; None if the cell is empty, or the row belongs to another measure.

        Raises `ConfigError` if several rows of the CSV fit.
        """
        if row.measure not in (None, measure.name):
            return None
        where = {**self.table.where, **self.cell.where, **row.where, **measure.where}
        entries = [entry for entry in read_csv(self.table.csv) if all(entry[k] == v for k, v in where.items())]
        if len(entries) > 1:
            raise ConfigError(f"{self.table.csv}: {len(entries)} rows are {where}, say which")
        if not entries or not entries[0]["mean"]:
            return None
        unit = 100.0 if measure.column == "task_prediction" else measure.times or 1.0  # the first: printed as a share
        std = unit * float(entries[0]["std"]) if entries[0]["std"] else None
        return Printed(
            unit * float(entries[0]["mean"]), std, self.table.seeds or self.paper.seeds, entries[0]["note"].strip()
        )


@functools.cache
def papers() -> dict[str, Paper]:
    """The papers, by the name that a command takes."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    files = sorted((HERE / "papers").glob("*.yaml"))
    return {file.stem: Paper.model_validate(yaml.load(file.read_text(encoding="utf-8"), loader)) for file in files}


@functools.cache
def read_csv(name: str) -> tuple[dict[str, str], ...]:
    with open(HERE / "tables" / name, newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def tables() -> dict[str, tuple[Paper, PaperTable]]:
    """Every table, as `fedsol/table2`."""
    return {f"{name}/{key}": (paper, table) for name, paper in papers().items() for key, table in paper.tables.items()}


def settings_of(key: str) -> list[Setting]:
    """The cells of a table. Raises `ConfigError`, with the nearest name, for an unknown table."""
    if key not in tables():
        raise unknown("table", key, tables(), "flray papers reproduce")
    paper, table = tables()[key]
    return [Setting(paper, key, table, name, cell) for name, cell in table.cells.items()]


def chosen(key: str, asked: Sequence[str]) -> list[Setting]:
    """The cells of a table that `asked` names; all if it is empty.

    A cell is named by its whole name or by parts of it: `CIFAR-10` are all cells of CIFAR-10, `LDA 0.1` all of that
    partition. Case and blanks do not count. Raises `ConfigError` for a name of no cell.
    """
    settings = settings_of(key)
    picked: dict[str, Setting] = {}
    for name in asked:
        matches = [setting for setting in settings if _parts(name) <= _parts(setting.name)]
        exact = [setting for setting in matches if _parts(name) == _parts(setting.name)]
        if not matches:
            near = nearest(name, [setting.name for setting in settings])
            raise ConfigError(
                f"{key} has no cell {shown(name)}{near}; all of them: flray papers reproduce {key.split('/')[0]}"
            )
        picked |= {setting.name: setting for setting in exact or matches}
    return list(picked.values()) if asked else settings


def _parts(name: str) -> frozenset[str]:
    return frozenset("".join(part.split()).casefold() for part in name.split(","))


def with_methods(setting: Setting, asked: Sequence[str]) -> list[CellRun]:
    """The runs of a cell whose rows `asked` names; all if it is empty. Raises `ConfigError` for a name of no row."""
    names = {row.shown.casefold(): row.shown for run in setting.runs for row in run.rows}
    for name in asked:
        if name.casefold() not in names:
            raise unknown("method", name, names.values(), f"{setting.key}, {setting.name}")
    experiments = {name.casefold() for name in asked}
    return [
        run for run in setting.runs if not experiments or any(row.shown.casefold() in experiments for row in run.rows)
    ]
