"""The run folder: Parquet that opens at any moment and is never torn, TensorBoard, STATUS, environment."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flray.core.errors import CheckpointError
from flray.home import whereabouts

PART = 100  # rounds in one Parquet file
FLUSH_S = 1.0  # longest time that finished rounds stay in memory


class Table:
    """A Parquet data set `FOLDER/part-0000.parquet ...`, `PART` rounds a file; the last file is written again and renamed over itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._schema: dict[str, pa.DataType] = {}
        self._rows: list[Mapping[str, Any]] = []
        self._part = 0
        for path in self._files():
            self._learn_schema(pq.read_schema(path))

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("part-*.parquet"))

    def _learn_schema(self, schema: pa.Schema) -> bool:
        before = dict(self._schema)
        for field in schema:
            known = self._schema.get(field.name)
            # a column of integers that meets a float is a column of floats
            self._schema[field.name] = field.type if known is None or known == pa.int64() else known
        return before != self._schema

    def append(self, rows: Sequence[Mapping[str, Any]], done: int) -> None:
        """Add the rows of the round that makes it `done` rounds in all; nothing is written before :meth:`flush`."""
        part = max(done - 1, 0) // PART
        if part != self._part and self._rows:
            self.flush()
            self._rows = []
        self._part = part
        self._rows.extend(rows)

    def flush(self) -> None:
        if not self._rows:
            return
        names = dict.fromkeys(name for row in self._rows for name in row)
        columns = {name: pa.array([row.get(name) for row in self._rows]) for name in names}
        fields = [pa.field(n, pa.float64() if pa.types.is_null(c.type) and n not in self._schema else c.type) for n, c in columns.items()]
        if self._learn_schema(pa.schema([f for f in fields if not pa.types.is_null(f.type)])):
            for path in self._files():  # a new column, or one that changed its type: earlier files follow
                self._write(path, self._conform(pq.read_table(path)))
        self._write(self.folder / f"part-{self._part:04d}.parquet", self._conform(pa.table(columns)))

    def _conform(self, table: pa.Table) -> pa.Table:
        return pa.table(
            {
                name: table[name].cast(kind) if name in table.column_names else pa.nulls(table.num_rows, kind)
                for name, kind in self._schema.items()
            }
        )

    @staticmethod
    def _write(path: Path, table: pa.Table) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.tmp")
        pq.write_table(table, aside)
        aside.replace(path)

    def keep(self, column: str, last: int) -> None:
        """Drop every row whose `column` is above `last`; the next rows go behind what is left."""
        for path in self._files():
            table = pq.read_table(path)
            kept = table.filter(pc.less_equal(table[column], last))
            if kept.num_rows == 0:
                path.unlink()
            elif kept.num_rows < table.num_rows:
                self._write(path, kept)
        left = self._files()
        self._part = int(left[-1].stem.removeprefix("part-")) if left else 0
        self._rows = pq.read_table(left[-1]).to_pylist() if left else []


class Recorder:
    """Writes one run's rows; flushed at most once a second, and always at a checkpoint and at the end."""

    def __init__(self, folder: Path, check: Callable[[], None] = lambda: None) -> None:
        """`check` raises when the folder may no longer be written: it is another's, or gone."""
        self.folder, self.check = folder, check
        self.rounds, self.clients, self.tasks, self.personal = (Table(folder / name) for name in ("rounds", "clients", "tasks", "personal"))
        self._flushed = 0.0
        self._tensorboard: Any = None
        self._pending: list[tuple[int, Mapping[str, Any]]] = []

    def round(self, row: Mapping[str, Any], clients: Sequence[Mapping[str, Any]]) -> None:
        done = row["done"]
        self.rounds.append([row], done)
        self.clients.append([{"done": done, "task": row["task"], "round": row["round"], **c} for c in clients], done)
        self._pending.append((done, row))
        if time.monotonic() - self._flushed > FLUSH_S:
            self.flush()

    def task(self, row: Mapping[str, Any]) -> None:
        self.tasks.append([row], row["done"])

    def clients_tested(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """The personalised test at a task's end: one row per client and number of fine-tuning epochs."""
        if rows:
            self.personal.append(rows, rows[0]["done"])

    def flush(self) -> None:
        """Everything to disk. Raises `CheckpointError` when that fails (full disk), or when the folder is no longer this run's."""
        self.check()
        try:
            for table in (self.rounds, self.clients, self.tasks, self.personal):
                table.flush()
            self._write_tensorboard()
        except OSError as error:
            raise CheckpointError(
                f"cannot write to {self.folder}: {error.strerror or error}; free some space and run: flray resume {self.folder}"
            ) from error
        self._flushed = time.monotonic()

    def _write_tensorboard(self) -> None:
        if self._tensorboard is None and self._pending:
            from tensorboardX import SummaryWriter

            self._tensorboard = SummaryWriter(str(self.folder / "tensorboard"), purge_step=self._pending[0][0])
        for done, row in self._pending:
            for name, value in row.items():
                if name not in ("done", "task", "round") and isinstance(value, int | float) and value is not None:
                    self._tensorboard.add_scalar(name, value, done)
        self._pending = []
        if self._tensorboard is not None:
            self._tensorboard.flush()

    def keep_until(self, done: int, task: int) -> None:
        """Drop the rows after `done` rounds, and the ends of task `task` and later: a resume from there writes them again."""
        self.check()
        self.rounds.keep("done", done)
        self.clients.keep("done", done)
        self.tasks.keep("task", task - 1)
        self.personal.keep("task", task - 1)

    def moved(self, folder: Path) -> None:
        """The run folder has another name now."""
        self.folder = folder
        for table in (self.rounds, self.clients, self.tasks, self.personal):
            table.folder = folder / table.folder.name

    def status(self, text: str) -> None:
        self.check()
        write_text(self.folder / "STATUS", text + "\n")

    def close(self) -> None:
        self.flush()
        if self._tensorboard is not None:
            self._tensorboard.close()


def write_text(path: Path, text: str) -> None:
    """Written aside and renamed: a reader sees the old file or the new one."""
    aside = path.with_name(f".{path.name}.tmp")
    try:
        aside.write_text(text)
        aside.replace(path)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error


def environment(**more: Any) -> dict[str, Any]:
    """What a reader needs to judge a number: versions, commit, hardware, and what the engine adds."""
    from importlib.metadata import PackageNotFoundError, version

    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    packages = ("flray", "torch", "ray", "numpy", "pyarrow", "torchvision", "scikit-learn", "pandas", "pydantic")
    return {
        "python": sys.version.split()[0],
        "packages": {name: installed(name) for name in packages},
        "git": _git(),
        "machine": {"platform": platform.platform(), "cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "command": sys.argv,
        "started": whereabouts(),
        "ray_auth_mode": os.environ.get("RAY_AUTH_MODE"),
        **more,
    }


def _git() -> dict[str, Any] | None:
    def ask(*words: str) -> str:
        return subprocess.run(
            ["git", *words], capture_output=True, text=True, check=True, timeout=5, cwd=Path(__file__).parent
        ).stdout.strip()

    try:
        return {"commit": ask("rev-parse", "HEAD"), "changed": bool(ask("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


def write_environment(folder: Path, values: Mapping[str, Any]) -> None:
    write_text(folder / "environment.json", json.dumps(values, indent=1, default=str) + "\n")
