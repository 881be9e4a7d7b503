"""Tables that a user gives as a file: CSV, Parquet, or JSON (rows in a list, a row a line, or a list a column).

Two of them list the cohorts and batch orders of another program. Rounds count over all tasks there. Rounds, epochs and
steps count from 0 or from 1, as the smallest number in the file says. The order of the rows is that of the clients in a
cohort, and of the samples in an epoch or a step.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.core.protocol.batching import ListedBatches
from flray.core.schema.errors import DataError, nearest
from flray.data.cache import Array
from flray.files import array_checksum

if TYPE_CHECKING:
    import pyarrow

INDEX = re.compile(r"|Unnamed: 0|__index_level_\d+__")  # pandas writes it beside the columns
JSON = (".json", ".jsonl", ".ndjson")


def read_table(
    what: str,
    file: str,
    asked: str,
    needed: Sequence[str],
    optional: Sequence[str] = (),
    texts: Sequence[str] = (),
) -> pyarrow.Table:
    """The table in a file, with the columns `needed` and, where it has them, `optional`. Spaces around names go.

    Columns `texts` of a CSV are read as text, where only nothing is missing. Other columns are left out, if the table
    has all that are asked for; an index of pandas that counts the rows always is. Raises `DataError`, which begins with
    `what` and says the `asked` columns, for a file that cannot be read, for two columns of one name, for another column
    where one is missing that it may mean, without a `needed` column and without a row.
    """
    import pyarrow as pa

    try:
        table = _read(Path(os.path.expanduser(file)), texts)
    except (OSError, ValueError, TypeError, AttributeError, pa.ArrowException) as error:
        why = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
        raise DataError(
            f"{what} cannot be read ({why}); write a CSV, Parquet or JSON file with columns {asked}"
        ) from None
    have = [name.strip() for name in table.column_names]
    table = table.rename_columns(have)
    if len(set(have)) < len(have):
        raise DataError(f"{what} has the columns {', '.join(have)}; give each a name of its own")
    for name in needed:
        if name not in have:
            raise DataError(f"{what} has the columns {', '.join(have)} and no column {name}; write {asked}")
    lacking = [name for name in (*needed, *optional) if name not in have]
    for name in have if lacking else ():
        index = INDEX.fullmatch(name) and table.column(name).to_pylist() == list(range(len(table)))
        if name not in (*needed, *optional) and not index:
            near = nearest(name, lacking)
            raise DataError(f"{what}: column {name!r} is not read{near}; write columns {asked}, and no others")
    if not len(table):
        raise DataError(f"{what} has no row; write columns {asked}")
    return table


def _read(path: Path, texts: Sequence[str]) -> pyarrow.Table:
    import pyarrow as pa

    if path.suffix in JSON:
        text = path.read_text(encoding="utf-8-sig")
        parts = [text] if path.suffix == ".json" else [line for line in text.splitlines() if line.strip()]
        read = [json.loads(part, object_pairs_hook=_once) for part in parts]
        (rows,) = read if path.suffix == ".json" else (read,)
        if isinstance(rows, dict):
            odd = next((name for name, values in rows.items() if not isinstance(values, list)), None)
            if odd is not None:  # pyarrow takes the letters of a text, the names of an object
                raise ValueError(f"column {odd} is no list; of pandas, use to_json(orient='records')")
            return pa.table(rows)
        names = dict.fromkeys(name for row in rows for name in dict(row))  # a row may lack some
        return pa.table({name: [row.get(name) for row in rows] for name in names})
    if path.suffix in (".parquet", ".pq") or path.is_dir():
        from pyarrow import parquet

        return parquet.read_table(path)
    from pyarrow import csv

    kinds = {}
    if texts:
        with csv.open_csv(path) as reader:
            kinds = {name: pa.string() for name in reader.schema.names if name.strip() in texts}
    missing = {"null_values": [""], "strings_can_be_null": True} if texts else {}
    return csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=kinds, **missing))


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The object of JSON with these pairs. Raises `ValueError` for a name that it has twice."""
    pairs = list(pairs)
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"the object with the names {', '.join(names)} has one of them twice")
    return dict(pairs)


def integers(what: str, table: pyarrow.Table, name: str) -> Array:
    """A column of whole numbers that are not negative, int64. Raises `DataError` that names the first other row."""
    import pyarrow as pa

    column = table.column(name)
    if not pa.types.is_integer(column.type):
        raise DataError(f"{what}: column {name} is {column.type}, not whole numbers; write integers")
    if column.null_count:
        row = next(i for i, value in enumerate(column) if not value.is_valid)
        raise DataError(f"{what}: row {row + 1} has no {name}; fill or remove it")
    numbers: Array = column.to_numpy().astype(np.int64)
    if numbers.min() < 0:
        row = int(numbers.argmin())
        raise DataError(f"{what}: row {row + 1} has {name} {numbers[row]}; numbers are 0 or more")
    return numbers


def numbers(what: str, table: pyarrow.Table, name: str, unit: str) -> Array:
    """A column of numbers, float64. Raises `DataError` for dates, durations, truth values and texts: write `unit`."""
    import pyarrow as pa

    column = table.column(name)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)):
        raise DataError(f"{what}: column {name} is {column.type}, no numbers; write {unit}")
    found: Array = column.to_numpy().astype(np.float64)
    return found


OVER_TASKS = "rounds counted over all tasks"


class ListedCohorts:
    """The clients of every round, in the order of the file `cohort.from`."""

    def __init__(self, file: str) -> None:
        """Raises `DataError` for a file that cannot be read, and for a client that a round names twice."""
        self.what = f"cohort.from: {file}"
        table = read_table(self.what, file, f"round,client ({OVER_TASKS})", ("round", "client"))
        if "task" in table.column_names and len(table.column("task").unique()) > 1:
            raise DataError(f"{self.what} has a column task; write round,client ({OVER_TASKS})")
        rounds, clients = (integers(self.what, table, name) for name in ("round", "client"))
        rounds = _from_one(rounds)
        order = np.argsort(rounds, kind="stable")
        self.hash = array_checksum(rounds[order], clients[order])
        names, cuts = _edges(rounds[order])
        self._clients = dict(zip(names, np.split(clients[order], cuts[1:-1]), strict=True))
        for round, named in self._clients.items():
            ids, counts = np.unique(named, return_counts=True)
            if counts.max() > 1:
                raise DataError(f"{self.what}: round {round} names client {ids[counts.argmax()]} twice; name it once")

    def of(self, done: int) -> Array:
        """Client ids int64 `[K]` of the round after `done` rounds. Raises `DataError` if the file does not have it."""
        if done + 1 not in self._clients:
            have = sorted(self._clients)
            known = f"rounds {have[0]} to {have[-1]}" if len(have) > 1 else f"round {have[0]}"
            raise DataError(f"{self.what} has no round {done + 1} (it has {known}); add it, or lower rounds")
        return self._clients[done + 1]

    @property
    def sizes(self) -> dict[int, int]:
        """The size of each cohort, by the number of rounds done before it."""
        return {round - 1: len(clients) for round, clients in self._clients.items()}

    def check(self, members: Sequence[range | Array], rounds: int) -> None:
        """Raises `DataError` unless each of `rounds` rounds a task is there, and names clients that hold a sample then.

        `members`: by task, the clients with samples.
        """
        for done in range(rounds * len(members)):
            self.among(done, members[done // rounds])

    def among(self, done: int, members: range | Array) -> Array:
        """:meth:`of`. Raises `DataError` for a client that is none of the `members`."""
        clients = self.of(done)
        outside = [client for client in clients.tolist() if client not in members]
        if outside:
            known = f"{len(members)} clients hold samples, {min(members)} to {max(members)}"
            raise DataError(
                f"{self.what}: round {done + 1} names client {outside[0]}, which holds no sample ({known}); correct it"
            )
        return clients


class BatchOrders:
    """The samples of every epoch or step of every client's local training, in the order of the file `data.batch_order`.

    With a column `epoch` the algorithm's batch size cuts each epoch; with a column `step` a step's rows are its batch.
    """

    def __init__(self, file: str) -> None:
        """Raises `DataError` for a file that cannot be read."""
        self.what = f"data.batch_order: {file}"
        asked, needed = f"round,client,sample,epoch or step ({OVER_TASKS})", ("round", "client", "sample")
        table = read_table(self.what, file, asked, needed, ("epoch", "step"))
        have = table.column_names
        if ("epoch" in have) == ("step" in have):
            raise DataError(f"{self.what} needs one of the columns epoch and step; it has {', '.join(have)}")
        self.by_step = "step" in have
        names = ("round", "client", "step" if self.by_step else "epoch", "sample")
        rounds, clients, parts, samples = (integers(self.what, table, name) for name in names)
        rounds, parts = _from_one(rounds), _from_one(parts)
        order = np.lexsort((parts, clients, rounds))  # stable: rows of one part stay in their order
        rounds, clients, parts, samples = (a[order] for a in (rounds, clients, parts, samples))
        self.hash = array_checksum(rounds, clients, parts, samples)
        self._samples, self._parts = samples, parts
        new = np.flatnonzero((np.diff(rounds) != 0) | (np.diff(clients) != 0)) + 1
        firsts, lasts = [0, *new.tolist()], [*new.tolist(), len(rounds)]
        keys = zip(rounds[firsts].tolist(), clients[firsts].tolist(), strict=True)
        self._rows = dict(zip(keys, map(slice, firsts, lasts), strict=True))

    def of(self, done: int, client: int, own: Array, batches: int, an_epoch: int) -> ListedBatches:
        """What the file lists for a client that holds the samples `own` [n_k] in the round after `done` rounds.

        The algorithm takes `batches` local steps there, `an_epoch` of them in an epoch. Raises `DataError` if it is not
        there, has other samples, or does not fit the number of steps.
        """
        where = f"{self.what}: round {done + 1}, client {client}"
        rows = self._rows.get((done + 1, client))
        if rows is None:
            raise DataError(f"{where} is not there; add its rows, or choose other rounds")
        samples, parts = self._samples[rows], self._parts[rows]
        numbers, edges = _edges(parts)
        word = "step" if self.by_step else "epoch"
        missing = next((i for i, number in enumerate(numbers, 1) if i != number), None)
        if missing is not None:
            raise DataError(f"{where} has no {word} {missing} and has {word} {numbers[-1]}; number them without gaps")
        foreign = samples[~np.isin(samples, own)]
        if len(foreign):
            raise DataError(f"{where} lists sample {foreign[0]}, which the client does not hold; correct the row")
        needed = batches if self.by_step else -(-batches // max(an_epoch, 1))
        if len(numbers) < needed or (self.by_step and len(numbers) > needed):
            raise DataError(
                f"{where} has {len(numbers)} {word}s and the algorithm takes {needed} (algorithm.local_epochs, "
                "algorithm.batch_size); list as many"
            )
        if not self.by_step:
            for number, (first, last) in enumerate(itertools.pairwise(edges), 1):
                if not np.array_equal(np.sort(samples[first:last]), np.sort(own)):
                    raise DataError(
                        f"{where}: epoch {number} has {last - first} rows for the client's {len(own)} samples; list "
                        "each once, or write a column step in place of epoch"
                    )
        return ListedBatches(samples, tuple(edges), self.by_step)


def _edges(parts: Array) -> tuple[list[int], list[int]]:
    """(the numbers of sorted parts, the places at which they begin and end)."""
    cuts = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(parts)]
    return parts[cuts[:-1]].tolist(), cuts


def _from_one(numbers: Array) -> Array:
    """The same numbers, counted from 1."""
    return numbers + 1 if len(numbers) and numbers.min() == 0 else numbers
