"""The kept checkpoints of a run as named tensors: the global model, and the state of server and clients by field."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flray.core.schema.errors import CheckpointError, ConfigError
from flray.rundir import checkpoint
from flray.rundir.reader import Run

if TYPE_CHECKING:
    from torch import Tensor

    from flray.core.network.layout import Layout
    from flray.engine.runtime import Runtime
    from flray.rundir.client_store import ClientStore


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


def weights(run: Run, round: int | None = None) -> dict[str, Tensor]:
    """The global model after `round` rounds (over all tasks) as a state dict, on the CPU; None: the newest one kept.

    0: the initial model. Raises `CheckpointError` in one line for a round of which no checkpoint was kept, and
    `ConfigError` for an algorithm without a global model.
    """
    if round == 0:
        return _initial(run)
    if round is None and not checkpoint.checkpoints(run.folder) and (run.folder / "model.safetensors").is_file():
        from flray.models.weights import read_weights

        return read_weights(str(run.folder))  # of a run in a storage
    snapshot, runtime = _snapshot(run, round), _bench(run)
    from flray.core.messages import to_torch
    from flray.core.protocol.clock import Clock

    state = to_torch(snapshot.server.message(), runtime.objective.device)
    model = runtime.algorithm.model_of(runtime.context(Clock(snapshot.position.task)), state)
    if model is None or not run.experiment.algorithm.global_model:
        raise ConfigError(
            f"{run.place}: its algorithm has no global model; the clients' models are in state({round or ''}).clients"
        )
    return _copies(runtime.objective.state_dict(*model))


def state(run: Run, round: int | None = None) -> StoredState:
    """The state of server and clients after `round` rounds (over all tasks); None: the newest one kept.

    Raises `CheckpointError` in one line for a round of which no checkpoint was kept.
    """
    snapshot, runtime = _snapshot(run, round), _bench(run)
    from flray.core.messages import to_torch
    from flray.rundir.client_store import FileStore, MemoryStore

    in_files = run.experiment.resources.store == "files"
    store: ClientStore = FileStore(run.folder / "client_state") if in_files else MemoryStore()
    store.load(snapshot.clients)
    layouts = [runtime.objective.layout, runtime.objective.buffer_layout]
    layouts += [layout for net in runtime.net.values() for layout in (net.layout, net.buffer_layout)]

    def fields(message: Any) -> dict[str, Any]:
        named = _named(to_torch(message), layouts)
        return named if isinstance(named, dict) else {"value": named}

    return StoredState(snapshot.position.done, fields(snapshot.server.message()), ClientStates(store, fields))


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
            f"{run.place} has no checkpoint; a run in a storage is downloaded with: flray resume {run.place}"
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
    from flray.engine.replay import runtime_of

    return runtime_of(Run(folder), "cpu")[1]


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
