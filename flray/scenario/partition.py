"""`Partition`: the training samples of each client, and its files."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flray.core.protocol.generators import process_wide
from flray.core.protocol.seeding import rng as addressed
from flray.core.schema.errors import DataError, described, kind_of, message_of, named, shown, warn
from flray.core.schema.own import OwnOptions, call_own, is_other_result
from flray.core.schema.registry import address_of
from flray.data.cache import Array
from flray.files import array_checksum, atomic_write, read_checksummed, regular, release_pages, with_checksum, writing
from flray.scenario.partition_config import PARTITIONS, PartitionConfig, check_legacy

if TYPE_CHECKING:
    import pandas

Draws = np.random.Generator | np.random.RandomState
FORM = "def f(labels, num_classes, config, draws, group)"  # of a partition of one's own


class PartitionWarning(UserWarning):
    """Clients without samples, which take no part or get the samples of others; a partition that no seed gives
    again."""


class Partition(NamedTuple):
    """Sample numbers of client k: `indices[offsets[k]:offsets[k + 1]]` (int32 or int64; offsets int64 [N + 1]).

    `held_out`: the training samples of the validation split, which no client has.
    """

    indices: Array
    offsets: Array
    held_out: Array | None = None

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays on disk by name."""
        arrays = {"indices": self.indices, "offsets": self.offsets}
        return arrays if self.held_out is None else {**arrays, "held": self.held_out}

    @property
    def num_clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Array:
        """n_k of every client, int64 [N]."""
        sizes: Array = np.diff(self.offsets)
        return sizes

    @property
    def hash(self) -> str:
        """Checksum of the arrays. Releases the pages of mapped ones."""
        digest = array_checksum(*self.arrays.values())
        release_pages(*self.arrays.values())
        return digest

    def client(self, k: int) -> Array:
        """A view of client k's sample numbers."""
        if not 0 <= k < len(self.offsets) - 1:
            raise IndexError(f"client {k} of {len(self.offsets) - 1}")
        view: Array = self.indices[self.offsets[k] : self.offsets[k + 1]]
        return view

    def only(self, mask: Array) -> Partition:
        """The same clients with the samples that `mask` (bool, one for each training sample) marks."""
        stays = mask[self.indices]
        return Partition(self.indices[stays], np.concatenate([[0], np.cumsum(stays)])[self.offsets])

    def dealt_to(self, clients: Array) -> Partition:
        """The same shares, the k-th one to client `clients[k]` (a permutation `[N]`)."""
        owner = np.argsort(clients)  # of the share of each client
        indices = [self.client(k) for k in owner.tolist()]
        offsets = np.concatenate([[0], np.cumsum(self.sizes[owner])])
        return self._replace(indices=np.concatenate(indices), offsets=offsets)

    def save(self, folder: Path | str, config: PartitionConfig | None = None) -> None:
        """Writes `partition_indices.npy`, `..._offsets.npy`, `..._held.npy` and `partition.json` (hash, config)."""
        folder = Path(folder)
        note: dict[str, Any] = {
            "hash": self.hash,
            "clients": self.num_clients,
            "empty": int((self.sizes == 0).sum()),
            "samples": len(self.indices),
            "held": 0 if self.held_out is None else len(self.held_out),
            "config": config.model_dump(mode="json") if config else None,
        }
        write(folder / "partition.json", note, {f"partition_{name}": array for name, array in self.arrays.items()})
        release_pages(*self.arrays.values())


def write(path: Path, note: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Writes each array to `NAME.npy` beside `path`, then the note as JSON with a checksum; each write is atomic.

    Raises `DataError` if a file cannot be written.
    """
    with writing(path.parent, ", or choose another --out", DataError):
        path.parent.mkdir(parents=True, exist_ok=True)
        for name, array in arrays.items():
            with atomic_write(path.with_name(f"{name}.npy"), durable=True) as temporary, temporary.open("wb") as file:
                np.save(file, array, allow_pickle=False)
        with atomic_write(path, durable=True) as temporary:
            temporary.write_text(with_checksum(note))


def load_partition(folder: Path | str, verify: bool = True) -> Partition:
    """The saved partition, memory-mapped. Memory and time of its use grow with the cohort only.

    `verify` reads all of it once to compare checksums (10 GB/s); a worker whose driver has verified it passes False.
    Raises `DataError` for missing and changed files.
    """
    folder = Path(folder)
    try:
        note = read_checksummed(folder / "partition.json")
        names = ("indices", "offsets", *(["held"] if note["held"] else []))
        arrays = {
            name: np.load(regular(folder / f"partition_{name}.npy"), mmap_mode="r", allow_pickle=False).view(np.ndarray)
            for name in names
        }
    except FileNotFoundError as error:
        raise DataError(
            f"no partition in {folder}: {Path(error.filename).name} is missing; resume the run, which writes it again"
        ) from error
    except (ValueError, EOFError, OSError) as error:
        why = message_of(error)
        raise DataError(f"partition in {folder} is damaged ({why}); resume the run, which writes it again") from error
    partition = Partition(arrays["indices"], arrays["offsets"], arrays.get("held"))
    if verify and partition.hash != note["hash"]:
        raise DataError(
            f"partition in {folder} was changed: its checksum is {partition.hash}, in partition.json "
            f"{note['hash']}; resume the run, which writes it again"
        )
    return partition


def generator(config: PartitionConfig, run_seed: int, task: int = 0) -> Draws:
    """A partition's generator: addressed by its own seed or the run's, or NumPy's legacy one; another for each task
    unless `task_draws` is `same`."""
    seed = run_seed if config.seed is None else config.seed
    if config.task_draws == "same":
        task = 0
    if config.seed_mode == "numpy_legacy":
        check_legacy(seed)
        return np.random.RandomState([seed, task] if task else seed)
    return addressed(seed, "partition", address_of(config.name), *([task] if task else []))


def make_partition(
    config: PartitionConfig,
    labels: Array,
    *,
    seed: int = 0,
    num_classes: int | None = None,
    group: Array | None = None,
    count: int | None = None,
    subset: Array | None = None,
    task: int = 0,
) -> Partition:
    """Distributes the samples with `labels` [n] to clients, some of which may get none.

    `seed` is the run's. Only the samples `subset` (None: all) are distributed. `group` [n]: natural ids; with `count`
    they are numbers of that many groups. Each `task` has its own draws, see `task_draws`. Raises `ConfigError` and
    `DataError` if the data do not allow it, and for a function of one's own that returns no partition.
    """
    rows = None if subset is None else np.asarray(subset)
    y = np.asarray(labels) if rows is None else np.asarray(labels)[rows]
    ids = group if group is None or rows is None else group[rows]
    if config.clients is not None and config.clients > len(y):
        raise DataError(f"partition.clients: {config.clients} clients for {len(y)} training samples; set it lower")
    num_classes = num_classes or (int(y.max()) + 1 if len(y) else 0)
    function, draws = PARTITIONS.get(config.name), generator(config, seed, task)
    own = not str(getattr(function, "__module__", "")).startswith("flray.")  # flray's draw from `draws` alone
    options = OwnOptions(config.options)
    written, config = repr(config), config.model_copy(update={"options": options})
    if count is not None:
        function = functools.partial(function, count=count)
    with process_wide(seed, "partition", address_of(config.name), task) if own else contextlib.nullcontext():
        drawn = call_own(f"partition {config.name}", function, FORM, y, num_classes, config, draws, ids)
    partition = _filled(returned_partition(drawn, function, config, len(y)), config)
    options.warn_of_unread("partition.options", function)
    given = f"{address_of(config.name)} {written} {seed} {task} {array_checksum(y, ids)}" if own else ""
    if own and is_other_result(given, partition.hash):
        warn(
            f"partition {config.name}: {named(function)} returned another partition than before in this process; "
            "unless its code or its files changed, no seed gives its partition again: draw from draws",
            PartitionWarning,
        )
    indices = partition.indices if rows is None else rows[partition.indices]
    small = np.int32 if len(labels) < 2**31 else np.int64
    return Partition(np.ascontiguousarray(indices, small), np.ascontiguousarray(partition.offsets, np.int64))


def returned_partition(drawn: Any, function: Callable[..., Any], config: PartitionConfig, samples: int) -> Partition:
    """The partition of `samples` samples that `function` returned: a `Partition`, or the sample numbers of each client
    (integers: arrays, lists or tensors; in a sequence, an iterator, or a dict by client from 0).

    Raises `DataError`, which names the function, unless there are as many parts as clients and each sample is at most
    once in them.
    """

    def error(returned: str) -> DataError:
        return DataError(f"partition {config.name}: {named(function)} returned {returned}")

    if isinstance(drawn, Partition):
        offsets, indices = np.asarray(drawn.offsets), _numbers(drawn.indices, "its indices", error)
        fits = offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) and offsets[0] == 0
        if not fits or (np.diff(offsets) < 0).any() or offsets[-1] != len(indices):
            raise error(f"offsets {shown(offsets)} of {len(indices)} indices; return from_lists(LISTS)")
        partition = Partition(indices, offsets)
    else:
        parts = _parts(drawn, error)
        partition = from_lists([_numbers(part, f"client {k}", error) for k, part in enumerate(parts)])
    if config.clients is not None and partition.num_clients != config.clients:
        raise error(f"{partition.num_clients} parts; return {config.clients}, one for each of partition.clients")
    numbers, owner = partition.indices, np.repeat(np.arange(partition.num_clients), partition.sizes)
    outside = np.flatnonzero((numbers < 0) | (numbers >= samples))
    if len(outside):
        first = outside[0]
        raise error(f"sample {numbers[first]} for client {owner[first]}; samples are 0 to {samples - 1}")
    held = np.zeros(samples, bool)
    held[numbers] = True
    if int(held.sum()) != len(numbers):
        count = np.bincount(numbers, minlength=samples)
        twice = int(count.argmax())
        holders = " and ".join(map(str, owner[numbers == twice][:2]))
        raise error(f"sample {twice} for clients {holders}; give each sample to at most one client, once")
    return partition


def _parts(drawn: Any, error: Callable[[str], DataError]) -> list[Any]:
    """The returned parts, one for each client."""
    form = "return a list with one array of sample numbers for each client"
    if isinstance(drawn, Mapping):
        if sorted(drawn, key=str) != sorted(range(len(drawn)), key=str):
            raise error(f"a dict with the keys {shown(list(drawn))}; its keys are the clients, 0 to N - 1")
        return [drawn[client] for client in range(len(drawn))]
    if drawn is None or isinstance(drawn, str | bytes) or not isinstance(drawn, Iterable):
        raise error(f"{kind_of(drawn)}; {form}")
    parts = list(drawn)
    if parts and not isinstance(parts[0], Iterable) and np.ndim(parts[0]) == 0:
        raise error(f"{kind_of(drawn)} of numbers; {form}")
    return parts


def _numbers(part: Any, what: str, error: Callable[[str], DataError]) -> Array:
    """Sample numbers as integers `[n]`."""
    try:
        numbers = np.asarray(part)
    except Exception as problem:  # a tensor on a device; lists of unequal lengths
        raise error(f"{kind_of(part)} for {what} ({described(problem)}); return integers [n]") from None
    if numbers.shape == (0,):
        return numbers.astype(np.int64)
    if numbers.ndim == 1 and numbers.dtype.kind == "b":
        raise error(f"a mask (bool) for {what}; return its numbers: np.flatnonzero(mask)")
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        kind = "" if isinstance(part, np.ndarray) else f" ({type(part).__name__})"
        raise error(f"{numbers.dtype} {list(numbers.shape)}{kind} for {what}; return integers [n], numbers of samples")
    return numbers


def _filled(partition: Partition, config: PartitionConfig) -> Partition:
    """The partition. With `empty: previous` a client without samples gets those of the client before it."""
    empty = np.flatnonzero(partition.sizes == 0)
    if len(empty) == partition.num_clients:
        raise DataError(f"partition {config.name}: no client has a sample; use fewer clients, or more samples")
    if not len(empty) or config.empty == "left_out":
        return partition
    warn(
        f"partition {config.name}: {len(empty)} of {partition.num_clients} clients have no samples and get those of "
        "the client before them, as in FedSOL's code",
        PartitionWarning,
    )
    clients = [partition.client(k) for k in range(partition.num_clients)]
    for k in empty:
        clients[k] = clients[k - 1]
    return from_lists(clients)


def from_lists(clients: Sequence[Array]) -> Partition:
    """A partition from one index array for each client, which a partition of your own may return."""
    offsets = np.zeros(len(clients) + 1, np.int64)
    np.cumsum([len(c) for c in clients], out=offsets[1:])
    return Partition(np.concatenate(clients) if len(clients) else np.zeros(0, np.int64), offsets)


def partition_table(partition: Partition, labels: Array, num_classes: int) -> pandas.DataFrame:
    """The number of samples of each client (rows) and class (columns)."""
    import pandas

    frame = pandas.DataFrame(partition_counts(partition, labels, num_classes))
    return frame.rename_axis(index="client", columns="class")


def partition_csv(partition: Partition, labels: Array, num_classes: int) -> str:
    """:func:`partition_table` as CSV text, without the import of pandas."""
    rows = enumerate(partition_counts(partition, labels, num_classes).tolist())
    lines = [("client", *range(num_classes)), *((client, *counts) for client, counts in rows)]
    return "".join(",".join(map(str, line)) + "\n" for line in lines)


def partition_counts(partition: Partition, labels: Array, num_classes: int) -> Array:
    """The number of samples of each client and class, `[N, C]`."""
    owner = np.repeat(np.arange(partition.num_clients), partition.sizes)
    flat = np.bincount(
        owner * num_classes + np.asarray(labels)[partition.indices], minlength=partition.num_clients * num_classes
    )
    return flat.reshape(partition.num_clients, num_classes)
