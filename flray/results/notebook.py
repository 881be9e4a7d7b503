"""Display in notebooks: a run as a table with its status, its curves by `run.plot()`, and tables of runs."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from flray.core.schema.errors import ConfigError, FlrayError, kind_of, printable
from flray.results import stored_state
from flray.results.by_mode import modes_of
from flray.results.learning import draw, learning_curves
from flray.results.readable import runs_in
from flray.results.rendering import Table, html_table, shown_value, spelled, to_markdown
from flray.results.tables import compare, settings
from flray.rundir import reader

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from flray.results.comparison import Comparison

SHOWN = ("name", "algorithm.name", "data.source", "model.name", "partition.name", "tasks.name", "drift.name", "seed")


class Run(reader.Run):
    """The results in a run folder, for a notebook: displayed as a table, with `plot()` for its curves."""

    @cached_property
    def rounds(self) -> pandas.DataFrame:
        """One row a round. Of a run that diverged before its first test, `test/acc` is NaN."""
        rounds = super().rounds
        if len(rounds) and "test/acc" not in rounds and self.status.startswith("diverged"):
            rounds = rounds.assign(**{"test/acc": math.nan})
        return rounds

    def plot(self, metric: str = "test/acc", x: str = "rounds", axis: Axes | None = None) -> Figure:
        """A column of `rounds` over `rounds`, `steps`, `bytes`, `flops` or `seconds`, as a matplotlib figure.

        Draws into `axis` where one is given. Raises `ConfigError` where the run has no such column.
        """
        return draw(learning_curves([self], metric, x), metric, x, axis)

    def weights(self, round: int | None = None) -> dict[str, Tensor]:
        """The global model after `round` rounds (over all tasks) as a state dict, for `module.load_state_dict`.

        None: the newest kept checkpoint; 0: the initial model. Raises `CheckpointError` in one line for a round that
        was not kept (`checkpoint.every`, `checkpoint.keep`), and `ConfigError` without a global model.
        """
        return stored_state.weights(self, round)

    def state(self, round: int | None = None) -> stored_state.StoredState:
        """The state of server and clients after `round` rounds, by field: `run.state().server["c"]` of SCAFFOLD.

        Flat vectors are tensors by the network's names. None: the newest kept checkpoint. Raises `CheckpointError` as
        :meth:`weights` does.
        """
        return stored_state.state(self, round)

    def _repr_html_(self) -> str:
        """The run's main keys and status, and its metrics over tasks or through a drift."""
        try:
            config, rounds, modes = settings(self), self.rounds, modes_of(self)
        except FlrayError:  # damaged: the plain line says so
            return f"<code>{html.escape(repr(self))}</code>"
        known = [key for key in SHOWN if config.get(key) is not None]
        rows = [(key.removesuffix(".name"), shown_value(key, config[key])) for key in known]
        rows += [("status", self.standing.split(";")[0]), ("rounds done", str(len(rounds))), ("folder", self.place)]
        for name in ("test/acc", "val/acc"):
            if name in rounds and rounds[name].notna().any():
                rows.append((name, f"{100 * rounds[name].dropna().iloc[-1]:.2f} %"))
        table = html_table([[html.escape(printable(str(cell))) for cell in row] for row in rows])
        return table + "".join(Table(table)._repr_html_() for table in spelled(modes).values())


class Runs(Sequence[Run]):
    """The runs of a grid, a list of :class:`Run`: displayed as their comparison, with their table and their curves.

    `Runs("runs/grid")` reads the runs in folders and below them, with `sound_only` those without damaged tables. Raises
    `CheckpointError` in one line if there is none.
    """

    def __init__(self, runs: str | Path | reader.Run | Iterable[Any], sound_only: bool = False) -> None:
        found = runs_in(listed_runs(runs), sound_only)
        self._runs = [run if isinstance(run, Run) else Run(run.place) for run in found]

    @property
    def table(self) -> pandas.DataFrame:
        """A row a run (:func:`flray.results.compare`): its keys, status, accuracies, bytes, seconds."""
        return compare(self._runs)

    def compare(self, metric: str = "test/acc", **options: Any) -> Comparison:
        """The settings compared over seeds: :func:`flray.compare` of these runs."""
        from flray.results.comparison import comparison

        return comparison(self._runs, metric, **options)

    def plot(self, metric: str = "test/acc", x: str = "rounds", axis: Axes | None = None) -> Figure:
        """A column of `rounds`, mean and interval of each setting, over the axis `x` of :meth:`Run.plot`."""
        return draw(learning_curves(self._runs, metric, x), metric, x, axis)

    @overload
    def __getitem__(self, place: int) -> Run: ...
    @overload
    def __getitem__(self, place: slice) -> Runs: ...
    def __getitem__(self, place: int | slice) -> Run | Runs:
        if not isinstance(place, slice):
            return self._runs[place]
        part = Runs.__new__(Runs)  # nothing is read again, and it may be empty
        part._runs = self._runs[place]
        return part

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return f"{len(self)} runs\n{to_markdown(self.table)}"

    def _repr_html_(self) -> str:
        return self.compare()._repr_html_()


def listed_runs(runs: str | Path | reader.Run | Iterable[Any]) -> list[Any]:
    """Folders and runs, in any nesting of lists. Raises `ConfigError` for anything else."""
    if isinstance(runs, str | Path | reader.Run):
        return [runs]
    if isinstance(runs, Mapping) or hasattr(runs, "columns") or not isinstance(runs, Iterable):
        raise ConfigError(
            f"{kind_of(runs)} is no run and no folder; give runs, their folders, or a folder that holds them"
        )
    return [one for each in runs for one in listed_runs(each)]


def load(folder: str | Path) -> Run:
    """The run in a folder, or at the URI of a storage.

    Raises `CheckpointError` if there is none; the message names the runs inside or beside that place.
    """
    return Run(reader.load(folder).place)
