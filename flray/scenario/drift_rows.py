"""The drift `table`: rows of (round, client, class, share that is kept), written by the user."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from flray.core.schema.errors import ConfigError, DataError, nearest, shown
from flray.files import array_checksum
from flray.scenario.drift import Drift, Now, known_classes
from flray.scenario.tables import read_table

COLUMNS = ("round", "client", "class", "kept", "to_round")
NEEDED = ("round", "kept")
ALSO = {"share": "kept", "share_kept": "kept", "share kept": "kept", "label": "class"}  # other headers


class Rows(NamedTuple):
    """The table by column, in the order of the rounds: int64 `[n]`, with -1 for all clients or classes; `kept` float64
    `[n]`; `to_round` int64 `[n]`, with the largest int64 for no end."""

    round: np.ndarray
    client: np.ndarray
    label: np.ndarray
    kept: np.ndarray
    to_round: np.ndarray


class DriftTable(Drift, frozen=True):
    """A schedule written by the user.

    A row gives the share of its samples of a class that a client keeps from a round on (1: all). It ends with a later
    row for the same client and class, or in the round `to_round`: then all these samples are back, also if an earlier
    row removed some. A row without a client is for all clients, one without a class for all classes. Of rows for the
    same round the last one counts.
    """

    rows: tuple[tuple[int | float | None, ...], ...] = Field(
        (), description="[round, client, class, kept] or [round, client, class, kept, to_round]; null: all, no end"
    )
    file: str | None = Field(
        None,
        description="the rows as CSV or Parquet with the columns round, client, class, kept and (optional) to_round",
    )

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, data: Any) -> Any:
        """Rows that are written as mappings become lists."""
        if not isinstance(data, dict) or not isinstance(data.get("rows"), list | tuple):
            return data
        return {**data, "rows": [_listed(row, number) for number, row in enumerate(data["rows"], 1)]}

    @model_validator(mode="after")
    def _one_source(self) -> DriftTable:
        if bool(self.rows) == (self.file is not None):
            raise ConfigError("drift: table needs either rows or file; give one of the two")
        _rows(self.rows, "drift.rows")
        return self

    @functools.cached_property
    def table(self) -> Rows:
        """The rows, read from `file` where there is one. Raises `DataError` for a file that cannot be read."""
        return _rows(self.rows, "drift.rows") if self.file is None else _rows(_read(self.file), self.file)

    def check(self, num_classes: int, population: int) -> None:
        known_classes(self.file or "drift.rows", tuple(self.table.label.tolist()), num_classes)
        over = self.table.client[self.table.client >= population]
        if len(over):
            where = self.file or "drift.rows"
            raise ConfigError(f"{where}: there is no client {over[0]}; choose from 0 to {population - 1}")

    def active(self, round: int) -> bool:
        return bool((self.table.round <= round).any())

    def gone(self, now: Now, client: int) -> Mapping[int, float]:
        rows = self.table
        holds = (rows.round <= now.round) & ((rows.client == client) | (rows.client == -1))
        shares: dict[int, float] = {}
        for place in np.flatnonzero(holds).tolist():  # a later row overrides an earlier one
            over = now.round >= rows.to_round[place]
            label, share = int(rows.label[place]), 0.0 if over else 1.0 - float(rows.kept[place])
            shares |= dict.fromkeys(range(now.world.num_classes), share) if label == -1 else {label: share}
        return shares

    def written(self) -> Any:
        return array_checksum(*self.table)

    def about(self) -> str:
        first, last = int(self.table.round.min()), int(self.table.round.max())
        return f"{self.file or 'a table'} of {len(self.table.round)} rows for rounds {first} to {last}"


def _listed(row: Any, number: int) -> Any:
    if not isinstance(row, Mapping):
        return row
    named = {ALSO.get(str(name), str(name)): value for name, value in row.items()}
    wrong = [name for name in named if name not in COLUMNS]
    if wrong:
        raise ConfigError(f"drift.rows: row {number} has no column {wrong[0]!r}{nearest(wrong[0], COLUMNS)}")
    if len(named) < len(row):
        raise ConfigError(f"drift.rows: row {number} is {shown(dict(row))}, with one column twice; keep one of them")
    return [named.get(name) for name in COLUMNS]


def _rows(rows: Any, where: str) -> Rows:
    """The rows by column, in the order of the rounds. Raises `ConfigError` that names the wrong row."""
    complete = []
    for number, row in enumerate(rows, 1):
        if not 4 <= len(row) <= 5:
            raise ConfigError(f"{where}: row {number} is {shown(list(row))}; write [round, client, class, kept]")
        values = dict(zip(COLUMNS, (*row, None)[:5], strict=True))
        for name in ("round", "client", "class", "to_round"):
            value, least = values[name], 1 if "round" in name else 0
            valid = value is None or (math.isfinite(value) and value == int(value) and value >= least)
            if not valid or (value is None and name == "round"):
                raise ConfigError(f"{where}: row {number}: {name} is {shown(value)}; write a whole number >= {least}")
        share = values["kept"]
        if share is None or not 0 <= share <= 1:
            raise ConfigError(f"{where}: row {number}: kept is {shown(share)}; write the remaining share, 0 to 1")
        if values["to_round"] is not None and values["to_round"] <= values["round"]:
            raise ConfigError(f"{where}: row {number}: to_round {values['to_round']} is not after {values['round']}")
        complete.append([-1 if value is None else value for value in values.values()])
    table = np.array(complete, np.float64).reshape(-1, 5)
    table = table[np.argsort(table[:, 0], kind="stable")]
    first, client, label, until = (table[:, place].astype(np.int64) for place in (0, 1, 2, 4))
    return Rows(first, client, label, table[:, 3], np.where(until < 0, np.iinfo(np.int64).max, until))


def _read(file: str) -> list[list[Any]]:
    """The rows of a file. Raises `DataError`."""
    what = f"drift.file: {file}"
    table = read_table(what, file, "round,client,class,kept (and to_round)", (), (*COLUMNS, *ALSO))
    table = table.rename_columns([ALSO.get(name, name) for name in table.column_names])
    have = table.column_names
    twice = next((name for name in have if have.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{what} has two columns for {twice!r}; keep one of them")
    missing = [name for name in NEEDED if name not in table.column_names]
    if missing:
        raise DataError(f"{what} has no column {missing[0]!r}, but {', '.join(table.column_names)}")
    columns = {name: _numbers(what, name, table.column(name)) for name in COLUMNS if name in table.column_names}
    nothing = [None] * len(table)
    return [list(row) for row in zip(*(columns.get(name, nothing) for name in COLUMNS), strict=True)]


def _numbers(what: str, name: str, column: Any) -> list[float | None]:
    """A column of numbers, with None for nothing: empty or blank, NaN. Raises `DataError` for texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        if pa.types.is_string(column.type):
            trimmed = pc.utf8_trim_whitespace(column)
            column = pc.if_else(pc.equal(trimmed, ""), None, trimmed)
        values = column.cast(pa.float64()).to_pylist()
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"{what}: column {name}: {error}; write numbers, nothing for all") from error
    return [None if value is None or math.isnan(value) else value for value in values]
