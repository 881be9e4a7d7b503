"""A run folder as an object: configuration, rounds, clients, tasks."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flray.core.errors import CheckpointError, nearest
from flray.engine.uri import is_uri

if TYPE_CHECKING:
    import pandas

    from flray.experiment import Experiment


class Run:
    """The results in a run folder; tables are read when first asked for, also while the run goes on.

    Of the URI of a run in a storage, `folder` is a copy in flray's cache, without checkpoints.
    """

    def __init__(self, folder: str | Path) -> None:
        self.place = str(folder) if is_uri(folder) else str(Path(folder))
        if is_uri(folder):
            from flray.engine.remote import fetch

            folder = fetch(str(folder))
        self.folder = Path(folder)

    @cached_property
    def experiment(self) -> Experiment:
        from flray.config import load_config

        return load_config(self.folder / "config.yaml")[0]

    @property
    def status(self) -> str:
        """`starting`, `running`, `finished`, `diverged ...`, `interrupted after ...`, `failed: reason`, or that the file is missing."""
        path = self.folder / "STATUS"
        return path.read_text().strip() if path.exists() else "unknown: no STATUS file"

    @cached_property
    def environment(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "environment.json").read_text()))

    @cached_property
    def rounds(self) -> pandas.DataFrame:
        """One row a round."""
        return self._table("rounds")

    @cached_property
    def clients(self) -> pandas.DataFrame:
        """One row per client and round in which it took part."""
        return self._table("clients")

    @cached_property
    def tasks(self) -> pandas.DataFrame:
        """One row a task."""
        return self._table("tasks")

    @cached_property
    def personal(self) -> pandas.DataFrame:
        """One row per client and number of fine-tuning epochs: the personalised test (`evaluate.finetune_epochs`)."""
        return self._table("personal")

    def _table(self, name: str) -> pandas.DataFrame:
        import pandas

        parts = sorted((self.folder / name).glob("part-*.parquet"))
        try:
            # part by part: a run that goes on may just be adding a column to the earlier ones
            tables = [pandas.read_parquet(part) for part in parts]
        except (OSError, ValueError) as error:  # pyarrow's own errors are among these
            why = " ".join(str(error).split())
            raise CheckpointError(f"{self.folder / name} cannot be read: {why}; run the experiment again with --overwrite") from error
        return pandas.concat(tables, ignore_index=True) if tables else pandas.DataFrame()

    def __repr__(self) -> str:
        """The folder, the status, the rounds done and the last accuracy, as they are now."""
        try:
            rounds = self._table("rounds")
        except CheckpointError:
            return f"Run({self.place!r}, {self.status.split(';')[0]}, damaged)"
        facts = [repr(self.place), self.status.split(";")[0], f"{len(rounds)} rounds"]
        for name in ("test/acc", "val/acc"):
            tested = rounds[name].dropna() if name in rounds else rounds.iloc[:0, 0:0]
            if len(tested):
                facts.append(f"{name} {tested.iloc[-1]:.4f}")
        return f"Run({', '.join(facts)})"


def runs_below(folder: str | Path) -> list[str | Path]:
    """The run folders in a folder, at any depth, by name; the folder itself where it is one."""
    if is_uri(folder):
        from flray.engine.remote import runs_at

        return list(runs_at(str(folder)))
    folder = Path(folder)
    if (folder / "config.yaml").exists() or (folder / "STATUS").exists():
        return [folder]
    inside = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    return [run for path in inside for run in runs_below(path)]


def load(folder: str | Path) -> Run:
    """The run in a folder; raises `CheckpointError` when there is none."""
    run = Run(folder)
    home = run.folder
    if not (home / "config.yaml").exists():
        inside = runs_below(home)
        beside = [path.parent.name for path in home.parent.glob("*/config.yaml")] if home.parent.is_dir() else []
        hint = f"; it holds {len(inside)} runs, for example {inside[0]}" if inside else nearest(home.name, beside)
        raise CheckpointError(f"{home} is not a run folder: it has no config.yaml{hint}")
    return run
