"""A run and runs in Python and in notebooks: tables, curves, and the kept checkpoints as named tensors."""

from __future__ import annotations

import functools
import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from flray.core.schema.errors import CheckpointError, ConfigError, FlrayError, kind_of, printable
from flray.files import quoted
from flray.results.by_mode import modes_of
from flray.results.learning import draw, learning_curves
from flray.results.readable import runs_in
from flray.results.rendering import Table, html_table, shown_value, spelled, to_markdown
from flray.results.tables import compare, settings
from flray.rundir import checkpoint, reader

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from flray.core.network.layout import Layout
    from flray.engine.runtime import Runtime
    from flray.results.comparison import Comparison
    from flray.rundir.client_store import ClientStore

SHOWN = ("name", "algorithm.name", "data.source", "model.name", "partition.name", "tasks.name", "drift.name", "seed")


class StoredState(NamedTuple):
    """The state after `round` rounds (over all tasks).

    `server`: its fields by name. `clients`: by client id, the fields of each client that has a state. A field that is a
    flat vector of parameters or of batch-norm statistics is a dict of tensors by the network's names; other fields are
    tensors, numbers, or tuples and dicts of them.
    """

    round: int
    server: dict[str, Any]
    clients: Mapping[int, dict[str, Any]]


class ClientStates(Mapping[int, dict[str, Any]]):
    """The states of the clients by id, each read when it is asked for."""

    def __init__(self, store: ClientStore, fields: Any) -> None:
        self._store, self._fields, self._ids = store, fields, store.clients()

    def __getitem__(self, client: int) -> dict[str, Any]:
        if client not in set(self._ids):
            raise KeyError(client)
        fields: dict[str, Any] = self._fields(self._store.gather([client])[0])
        return fields

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


class Run(reader.Run):
    """The results in a run folder, for a notebook: displayed as a table, with `plot()` for its curves."""

    @reader.Stored
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
        was not kept (`checkpoint.every`, `checkpoint.keep`) and for tensors whose names or order in the network's
        source have changed since, and `ConfigError` without a global model.
        """
        if round == 0:
            return _initial(self)
        if round is None and not checkpoint.checkpoints(self.folder) and (self.folder / "model.safetensors").is_file():
            from flray.models.weights import read_weights

            return read_weights(str(self.folder))  # of a run in a storage
        snapshot, runtime = _snapshot(self, round), _bench(self)
        from flray.core.messages import to_torch
        from flray.core.protocol.clock import Clock

        state = to_torch(snapshot.server.message(), runtime.objective.device)
        model = runtime.algorithm.model_of(runtime.context(Clock(snapshot.position.task)), state)
        if model is None or not self.experiment.algorithm.global_model:
            raise ConfigError(
                f"{self.place}: its algorithm has no global model; the clients' models are in "
                f"state({round or ''}).clients"
            )
        return _copies(runtime.objective.state_dict(*model))

    def state(self, round: int | None = None) -> StoredState:
        """The state of server and clients after `round` rounds, by field: `run.state().server["c"]` of SCAFFOLD.

        Flat vectors are tensors by the network's names. None: the newest kept checkpoint. Raises `CheckpointError` as
        :meth:`weights` does.
        """
        snapshot, runtime = _snapshot(self, round), _bench(self)
        from flray.core.messages import to_torch
        from flray.rundir.client_store import FileStore, MemoryStore

        in_files = self.experiment.resources.store == "files"
        store: ClientStore = FileStore(self.folder / "client_state") if in_files else MemoryStore()
        store.load(snapshot.clients)

        def fields(message: Any) -> dict[str, Any]:
            named = _named(to_torch(message), runtime.layouts)
            return named if isinstance(named, dict) else {"value": named}

        return StoredState(snapshot.position.done, fields(snapshot.server.message()), ClientStates(store, fields))

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
    """The run in a folder, or at the URI of a storage. Raises `CheckpointError` if there is none."""
    return Run(reader.load(folder).place)


# checkpoints --------------------------------------------------------------------------------------
def _named(message: Any, layouts: list[Layout]) -> Any:
    """A message as dicts and tuples, its flat vectors as tensors by name."""
    from torch import Tensor

    from flray.core.messages import children

    if isinstance(message, Tensor):
        fit = [layout for layout in layouts if layout.size and tuple(message.shape) == (layout.size,)]
        if fit and all(layout.entries == fit[0].entries for layout in fit):
            return {name: view.contiguous().clone() for name, view in fit[0].views(message).items()}
        return message
    parts = children(message)
    if parts is None:
        return message
    inner = {key: _named(part, layouts) for key, part in parts.items()}
    return tuple(inner.values()) if type(message) is tuple else inner


def _snapshot(run: Run, round: int | None) -> checkpoint.Snapshot:
    """The checkpoint after a round: the one from before its task's end, where both are kept."""
    kept = checkpoint.checkpoints(run.folder)
    if not kept:
        raise CheckpointError(
            f"{run.place} has no checkpoint; a run in a storage is downloaded with: flray resume {quoted(run.place)}"
        )
    if round is None:
        return checkpoint.read(kept[-1])
    of_round = [path for path in kept if checkpoint.rounds_done(path) == round and "begin" not in path.name]
    if not of_round:
        have = ", ".join(map(str, sorted({checkpoint.rounds_done(path) for path in kept})))
        raise CheckpointError(
            f"{run.place} keeps no checkpoint after round {round}, only after {have}; checkpoint.every=1 "
            "checkpoint.keep=0 keeps all"
        )
    return checkpoint.read(of_round[0])


@functools.lru_cache(maxsize=2)
def _bench_at(folder: Path, stamp: int) -> Runtime:
    from flray.engine.replay import check_names, runtime_of

    run = reader.Run(folder)
    runtime = runtime_of(run, "cpu")[1]
    check_names(run, runtime)
    return runtime


def _bench(run: Run) -> Runtime:
    """The runtime of a run on the CPU, which knows the names of its tensors."""
    return _bench_at(run.folder.absolute(), (run.folder / "config.yaml").stat().st_mtime_ns)


def _initial(run: Run) -> dict[str, Tensor]:
    """The model with which the run began. Raises `CheckpointError` if this machine makes another one."""
    from flray.engine.this_process import as_in_a_run
    from flray.files import array_checksum

    objective = _bench(run).objective
    begun = as_in_a_run(objective.initial)()
    if array_checksum(*(part.numpy() for part in begun)) != run.environment["fingerprints"].get("initial_weights"):
        raise CheckpointError(
            f"{run.place}: this machine does not make the run's initial model (its versions: environment.json); name "
            "a round whose checkpoint is kept"
        )
    return _copies(objective.state_dict(*begun))


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of one's own: frozen ones are the module's."""
    return {name: tensor.clone() for name, tensor in tensors.items()}
