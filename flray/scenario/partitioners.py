"""Partitions by label, with the draws of the authors' code (FedSOL, FedZoo-Bench, NIID-Bench, TAKFL, FedProTIP).

Each function takes (labels [n], number of classes, config, generator, group ids or None). The generator is NumPy's new
or its legacy one, so only the methods of both are used (shuffle, permutation, dirichlet, choice).
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.core.schema.errors import ConfigError, DataError, warn
from flray.data.cache import Array
from flray.data.class_names import Labels, check_alike
from flray.scenario.partition import Draws, Partition, PartitionWarning
from flray.scenario.partition_config import PartitionConfig
from flray.scenario.tables import integers, read_table

if TYPE_CHECKING:
    import pyarrow

GROUPS = "partition natural: the group ids (data.group)"
# as programs write numbers, which 01 is not: it is a name
WRITTEN_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+(e[+-][0-9]{2})?)?")
NOTHING = ("nan", "na", "<na>", "n/a", "none", "null")
EXACT = 2**53  # float64 does not tell all whole numbers from here on apart


def _by_owner(samples: Array, owner: Array, clients: int) -> Partition:
    """The samples grouped by owner, in their order within each client."""
    offsets = np.zeros(clients + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=clients), out=offsets[1:])
    return Partition(samples[np.argsort(owner, kind="stable")], offsets)


def _equal(samples: Array, clients: int) -> Partition:
    """Equal parts, as `numpy.array_split` makes them: the first n mod N clients get one more."""
    each, more = divmod(len(samples), clients)
    sizes = np.full(clients, each, np.int64)
    sizes[:more] += 1
    return Partition(samples, np.concatenate([[0], np.cumsum(sizes)]))


def _dealt(groups: Array, holders: list[Array], clients: int, draws: Draws) -> Partition:
    """The samples of each of `groups [n]`, shuffled, in equal parts to its holders."""
    samples = [np.flatnonzero(groups == group) for group in range(len(holders))]
    for own in samples:
        draws.shuffle(own)
    owners = [np.repeat(to, _equal(own, len(to)).sizes) for own, to in zip(samples, holders, strict=True)]
    return _by_owner(np.concatenate(samples), np.concatenate(owners), clients)


def iid(labels: Array, num_classes: int, config: PartitionConfig, draws: Draws, group: Array | None) -> Partition:
    """`fedzoo`: one permutation, split equally. `fedsol`: floor(n/N) samples each; the rest is shuffled before each."""
    n, clients = len(labels), _clients(config)
    if config.variant == "fedzoo":
        return _equal(draws.permutation(n), clients)
    each, rest, out = n // clients, np.arange(n), []
    for _ in range(clients):
        draws.shuffle(rest)
        out.append(rest[:each].copy())
        rest = rest[each:]
    return Partition(np.concatenate(out), np.arange(clients + 1, dtype=np.int64) * each)


def dirichlet(labels: Array, num_classes: int, config: PartitionConfig, draws: Draws, group: Array | None) -> Partition:
    """Class by class: the clients' shares are Dirichlet(alpha), 0 for clients that have reached the cap.

    Draws again until each client has `min_size` samples. With `min_per_class` a client with fewer samples of a class
    gets them from the client with most.
    """
    n, clients = len(labels), _clients(config)
    smallest, tries = config.min_size or 0, config.max_retries or 1
    if smallest * clients > n:
        raise DataError(
            f"partition.min_size: {clients} clients with {smallest} samples each need {smallest * clients} and "
            f"there are {n}; set min_size or clients lower"
        )
    per_class = config.min_per_class or 0
    if per_class:
        have = np.bincount(labels, minlength=num_classes)
        short = np.flatnonzero(have < per_class * clients)
        if len(short):
            raise DataError(
                f"partition.min_per_class: {clients} clients with {per_class} samples of class {short[0]} each need "
                f"{per_class * clients} and there are {have[short[0]]}; set min_per_class or clients lower"
            )
    cap = {"plain": np.inf, "fedml": n // clients}.get(str(config.variant), n / clients)
    order = [np.flatnonzero(labels == c) for c in range(num_classes)]
    best = -1
    for _ in range(tries):
        # fedml shuffles the lists of the last try again; the others start from the data set's order
        parts = order if config.variant == "fedml" else [idx.copy() for idx in order]
        sizes = np.zeros(clients, np.int64)
        owners = []
        for idx in parts:
            draws.shuffle(idx)
            share = draws.dirichlet(np.full(clients, config.alpha)) * (sizes < cap)
            total = share.sum()
            if not total > 0:  # all clients are full, or a tiny alpha underflowed: NaN in the authors' code
                break
            cuts = (np.cumsum(share / total) * len(idx)).astype(np.int64)[:-1]
            counts = np.diff(cuts, prepend=0, append=len(idx))
            if config.min_per_class:
                counts = _at_least(counts, config.min_per_class)
            owners.append(np.repeat(np.arange(clients), counts))
            sizes += counts
        else:
            best = max(best, int(sizes.min()))
            if sizes.min() >= smallest:
                partition = _by_owner(np.concatenate(parts), np.concatenate(owners), clients)
                for k in range(clients):
                    draws.shuffle(partition.indices[partition.offsets[k] : partition.offsets[k + 1]])
                return partition
    reached = f"the largest smallest client had {best} samples" if best >= 0 else "no draw could place all samples"
    raise DataError(
        f"partition dirichlet: {tries} draws with alpha {config.alpha} gave no partition of {clients} clients "
        f"with at least {smallest} samples each ({reached}); set min_size lower, alpha higher or fewer clients"
    )


def _at_least(counts: Array, smallest: int) -> Array:
    """Counts with the same sum and none below `smallest`; the largest counts give samples, one by one."""
    raised = np.maximum(counts, smallest)
    while raised.sum() > counts.sum():
        raised[raised.argmax()] -= 1
    return raised


def dirichlet_client(
    labels: Array, num_classes: int, config: PartitionConfig, draws: Draws, group: Array | None
) -> list[Array]:
    """Client by client: class mix q ~ Dirichlet(alpha), then floor(n/N) samples with weight q[label] (Hsu et al. 2019).

    If fewer samples with a positive weight are left than needed, all of them and a uniform draw of the rest.
    """
    clients = _clients(config)
    return mixed(labels, num_classes, np.full(clients, len(labels) // clients), config.alpha, draws)


def mixed(labels: Array, num_classes: int, sizes: Array, alpha: float | None, draws: Draws) -> list[Array]:
    """`sizes[k]` samples for client k, whose class mix is drawn from Dirichlet(alpha)."""
    assert alpha is not None  # PartitionConfig demands it
    rest, out = np.arange(len(labels)), []
    for each in sizes.tolist():
        weight = draws.dirichlet(np.full(num_classes, alpha))[labels[rest]]
        some = np.flatnonzero(weight > 0)
        if len(some) < each:
            others = np.setdiff1d(np.arange(len(rest)), some)
            picks = np.concatenate([some, draws.choice(others, each - len(some), replace=False)])
        else:
            # without zero weights: NumPy raises if it runs out of non-zero entries
            p = weight[some] / weight[some].sum()
            picks = draws.choice(some, each, replace=False, p=p)
        out.append(rest[picks])
        rest = np.delete(rest, picks)
    return out


def shards(labels: Array, num_classes: int, config: PartitionConfig, draws: Draws, group: Array | None) -> list[Array]:
    """s shards of one class each for a client, so at most s classes (McMahan et al. 2017; FedSOL with its padding).

    A client for which no shard is left has none; FedSOL's code gives it those of the client before it.
    """
    clients, s = _clients(config), config.shards_per_client or 1
    q = s * clients // num_classes
    if q < 1:
        raise DataError(
            f"partition.shards_per_client: {s} x {clients} clients are fewer shards than {num_classes} classes; "
            f"use at least {-(-num_classes // clients)} or more clients"
        )
    if s * clients > len(labels):
        raise DataError(
            f"partition.shards_per_client: {s} x {clients} clients are more shards than {len(labels)} samples; "
            "set it lower"
        )
    heap: list[list[Array]] = []
    for c in range(num_classes):
        idx = np.flatnonzero(labels == c)
        left = len(idx) % q
        pieces = list(idx[: len(idx) - left].reshape(q, -1))
        for j in range(left):
            pieces[j] = np.append(pieces[j], idx[len(idx) - left + j])
        heap.append(pieces)
    order = np.repeat(np.arange(num_classes), q)
    draws.shuffle(order)
    missing = -len(order) % clients
    places = np.concatenate([order, order[1 : 1 + missing]])
    out = []
    for row in places.reshape(clients, -1):
        mine: list[Array] = [np.zeros(0, np.int64)]
        for c in row:
            if heap[c]:
                mine.append(heap[c].pop(int(draws.choice(len(heap[c]), replace=False))))
        out.append(np.concatenate(mine))
    return out


def label_skew(
    labels: Array, num_classes: int, config: PartitionConfig, draws: Draws, group: Array | None
) -> Partition:
    """Client j gets class j mod C and q-1 other random classes; a class is split equally among its clients (FedZoo).

    Draws again until each class has a client.
    """
    clients, q = _clients(config), config.classes_per_client or 1
    if q > num_classes or q * clients < num_classes:
        raise DataError(
            f"partition.classes_per_client: {q} for {clients} clients and {num_classes} classes; set it to "
            f"{-(-num_classes // clients)}..{num_classes}"
        )
    for _ in range(config.max_retries or 1):
        has_class = np.zeros((clients, num_classes), bool)
        for j in range(clients):
            first = j % num_classes
            has_class[j, first] = True
            if isinstance(draws, np.random.RandomState):  # as FedZoo-Bench: one class at a time, repeats rejected
                while has_class[j].sum() < q:
                    has_class[j, draws.choice(num_classes, 1, replace=False)] = True
            else:
                has_class[j, draws.choice(np.delete(np.arange(num_classes), first), q - 1, replace=False)] = True
        if has_class.any(axis=0).all():
            break
    else:
        raise DataError(
            f"partition label_skew: {config.max_retries} draws left a class without a client; "
            "use more clients or classes_per_client"
        )
    return _dealt(labels, [np.flatnonzero(has_class[:, c]) for c in range(num_classes)], clients, draws)


def table(labels: Array, num_classes: int, config: PartitionConfig, draws: Draws, group: Array | None) -> list[Array]:
    """Counts as written: each client takes the next unused samples of a class, in the data set's order. No draws."""
    wanted = np.asarray(config.table, dtype=np.int64)
    have = np.bincount(labels, minlength=num_classes)
    if wanted.shape[1] != num_classes:
        raise ConfigError(
            f"partition.table: {wanted.shape[1]} columns for {num_classes} classes; write one for each class"
        )
    over = np.flatnonzero(wanted.sum(axis=0) > have)
    if len(over):
        c = over[0]
        raise DataError(
            f"partition.table: class {c} has {have[c]} samples, its column sums to {wanted[:, c].sum()}; lower it"
        )
    order = [np.flatnonzero(labels == c) for c in range(num_classes)]
    ends = np.cumsum(wanted, axis=0)
    return [
        np.concatenate([order[c][ends[k, c] - wanted[k, c] : ends[k, c]] for c in range(num_classes)])
        for k in range(len(wanted))
    ]


def natural(
    labels: Array,
    num_classes: int,
    config: PartitionConfig,
    draws: Draws,
    group: Array | None,
    count: int | None = None,
) -> Partition:
    """A client for each group (user, site, domain), in the order of the group ids.

    With more clients than groups, client j gets an equal random part of group j mod G, and a warning says so; but ids
    from 0 to `clients` - 1 with gaps are the clients' numbers, and a client whose id is missing has no sample. `count`:
    G, where `group` has numbers of groups already, some of which may have no sample here.
    """
    if group is None:
        raise ConfigError(
            "partition natural: the data set has no group ids; set data.group to a column (user, domain), or choose "
            "another partition (of the sets of a union by_source)"
        )
    codes, count = numbered(GROUPS, group, config.clients) if count is None else (group, count)
    clients = config.clients or count
    if clients == count:
        return _by_owner(np.arange(len(labels)), codes, clients)
    if clients < count:
        raise ConfigError(
            f"partition.clients: {clients}, but the data set has {count} groups; leave it out, or set {count} or more"
        )
    warn(
        f"partition {config.name}: {clients} clients share the samples of {count}, each of which is cut at random into "
        f"equal parts; for {count} clients set partition.clients to null",
        PartitionWarning,
    )
    return _dealt(codes, [np.arange(g, clients, count) for g in range(count)], clients, draws)


def csv(
    labels: Array,
    num_classes: int,
    config: PartitionConfig,
    draws: Draws,
    group: Array | None,
    count: int | None = None,
) -> Partition:
    """The client of each training sample, from a file with columns `sample,client`, or a column `client` alone.

    The samples are those of the training split after `data.test_fraction`, `data.per_source` and `data.train_size` are
    drawn, numbered from 0: a row for each; with a column `sample` those left out are nobody's. The clients are the
    sorted ids. Whole numbers below `partition.clients` are the clients' numbers, and a client without a row has no
    sample; else, with more clients than ids, they share as those of `natural` do, with a warning.
    """
    return natural(labels, num_classes, config, draws, group, count)


def by_source(
    labels: Array, num_classes: int, config: PartitionConfig, draws: Draws, group: Array | None
) -> list[Array]:
    """Each client has samples of one source (a GLUE task, a domain): FedMemo's GLUE (appendix D; its card).

    The clients of a source have consecutive ids. Their number is proportional to the square root of the source's size
    (:func:`shared_out`). They get equally many samples (the first ones one more if there is a remainder). Each draws a
    class mix among the source's classes from Dirichlet(alpha) (Hsu et al. 2019).
    `group` [n] is the source of each sample. Raises `ConfigError` without it.
    """
    if group is None:
        raise ConfigError(
            "partition by_source: the data set has no sources; use data.source: union, or set data.domain"
        )
    sources, sizes = np.unique(group, return_counts=True)
    parts = []
    for name, clients in zip(sources, shared_out(sizes, config.clients or 1), strict=True):
        mine = np.flatnonzero(group == name)
        classes, local = np.unique(labels[mine], return_inverse=True)
        own = mixed(local, len(classes), _equal(mine, clients).sizes, config.alpha, draws)
        parts += [mine[part] for part in own]
    return parts


def shared_out(sizes: Array, clients: int) -> Array:
    """The number of clients of each source, int64: proportional to the square root of its size (largest remainders), at
    least one.

    Raises `ConfigError` for fewer clients than sources, `DataError` for a source with fewer samples than clients.
    """
    if clients < len(sizes):
        raise ConfigError(f"partition.clients: {clients} for {len(sizes)} sources; set it to {len(sizes)} or more")
    exact = clients * np.sqrt(sizes) / np.sqrt(sizes).sum()
    counts: Array = np.maximum(np.floor(exact).astype(np.int64), 1)
    while counts.sum() != clients:
        if counts.sum() < clients:
            counts[(exact - counts).argmax()] += 1
        else:  # a source that was raised to one takes it from the source that is most above its share
            counts[np.where(counts > 1, counts - exact, -np.inf).argmax()] -= 1
    short = np.flatnonzero(counts > sizes)
    if len(short):
        raise DataError(
            f"partition.clients: {counts[short[0]]} of {clients} clients for the {sizes[short[0]]} samples of source "
            f"{short[0]}; set it lower"
        )
    return counts


def clients_of_csv(file: str, samples: int, clients: int | None = None) -> tuple[Array, int]:
    """(each sample's client int64 `[samples]`, the number of clients) by the column `client`, for `partition.clients`.

    The ids are sorted as numbers if all are whole without leading zeros, else as texts (:func:`numbered`). A sample
    that the file leaves out is nobody's, -1. Raises `DataError` as :func:`owners_of_csv`, and for ids that are not
    clear.
    """
    ids, numbers = owners_of_csv(file, samples)
    codes = np.full(samples, -1, np.int64)
    if ids.dtype == object:
        codes[numbers], count = numbered(f"partition.file: {file}", ids, clients, written=True)
    else:
        names, codes[numbers] = np.unique(ids, return_inverse=True)
        count = len(names)
    return codes, count


def owners_of_csv(file: str, samples: int) -> tuple[Array, Array]:
    """(the ids of clients `[n]`, integers or texts; the samples int64 `[n]` that they hold) of `partition.file`.

    A column `sample` numbers the rows from 0. Raises `DataError` for a file that cannot be read, for a sample that is
    there twice or does not exist, and without a column `sample` unless there is a row for each sample.
    """
    what = f"partition.file: {file}"
    table = read_table(what, file, "sample,client", ("client",), ("sample",), texts=("client",))
    column, numbers = table.column("client"), np.arange(len(table))
    by_number = "sample" in table.column_names
    ids = ids_of(what, column, "remove them" if by_number else "add a column sample and remove them")
    if by_number:
        numbers = integers(what, table, "sample")
    elif len(numbers) != samples:
        raise DataError(
            f"{what} has {len(numbers)} rows for {samples} training samples; write a row for each, or a column sample "
            "with their numbers"
        )
    if numbers.max() >= samples:
        raise DataError(f"{what} has sample {numbers.max()}; the training samples are 0 to {samples - 1}")
    times = np.bincount(numbers, minlength=samples)
    if (times > 1).any():
        twice = int(np.flatnonzero(times > 1)[0])
        raise DataError(f"{what}: sample {twice} is there {times[twice]} times; write each sample at most once")
    return ids, numbers


def _clients(config: PartitionConfig) -> int:
    clients: Any = config.clients
    assert clients is not None  # PartitionConfig demands it
    return int(clients)


def numbered(
    what: str, ids: Array, clients: int | None, written: bool = False, texts: Array | None = None
) -> tuple[Array, int]:
    """(the number of each sample's group int64 `[n]`, the number of groups) of whole `ids` `[n]`, which number the
    `texts` `[G]` of the data; None: they are those of the data.

    Groups are numbered in the order of their ids. Ids are numbers of clients, some of whom may have no sample, where
    `clients` says so: `written` ids (a user's file) if all are below it, others if they are 0 to `clients` - 1 with
    gaps. Else a warning says how ids that do not begin with 0 are numbered, and without `clients` those with gaps;
    written ones from 0 with gaps raise `DataError`.
    """
    every, places = np.unique(ids, return_inverse=True)
    first, last, count = int(every[0]), int(every[-1]), len(every)
    gaps = first == 0 and last >= count
    if clients is not None and first >= 0 and (last < clients if written else gaps and last + 1 == clients):
        return ids.astype(np.int64), clients
    if clients != count and gaps and written:
        missing = int(np.argmax(every != np.arange(count)))
        raise DataError(
            f"{what} has the clients 0 to {last} without client {missing}; set partition.clients to {last + 1} (client "
            f"{missing} has no sample), or to {count} (the clients are the sorted ids)"
        )
    if (clients is None and gaps) or (clients in (None, count) and first != 0):
        moved = int(np.argmax(every != np.arange(count)))
        kept = last < len(ids) and (gaps or (written and first > 0))
        to = "keep the ids as numbers" if texts is None else "number those without a sample, too"
        keep = f"; to {to}, set partition.clients to {last + 1}" if kept else ""
        name = every[moved] if texts is None else repr(str(texts[every[moved]]))
        warn(
            f"{what}: the clients are the sorted ids, so client {moved} is the one with id {name}{keep}",
            PartitionWarning,
        )
    return places, count


def ids_of(what: str, column: pyarrow.ChunkedArray, remove: str) -> Array:
    """Ids `[n]` of a column: Python's integers if all are whole numbers that are not negative, else texts.

    Spaces around them go. Raises `DataError` for other columns and numbers, for texts that differ in spaces only, and
    for rows without an id, which says how to `remove` them.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_nested(column.type) or pa.types.is_binary(column.type) or pa.types.is_temporal(column.type):
        raise DataError(f"{what}: column client is {column.type}; write whole numbers or names")
    empty = pc.equal(pc.utf8_trim_whitespace(column.cast(pa.large_string())), "")
    missing = column.null_count + (pc.sum(empty).as_py() or 0)
    if missing:
        raise DataError(f"{what} has no client in {missing} rows; fill them, or {remove}: nobody's samples")
    if pa.types.is_floating(column.type):
        values = column.to_numpy()
        wrong = np.flatnonzero(~((values == np.floor(values)) & (np.abs(values) < EXACT)))
        if len(wrong):
            raise DataError(f"{what}: row {wrong[0] + 1} has client {values[wrong[0]]}; write a whole number or a name")
        column = column.cast(pa.int64())
    texts = column.cast(pa.large_string()).to_numpy().astype(str)
    names, places = np.unique(texts, return_inverse=True)
    plain = [name.strip() for name in names.tolist()]
    words = [name for name in plain if not WRITTEN_NUMBER.fullmatch(name)]
    if len(plain) > len(words) == 1 and words[0].lower() in NOTHING:
        raise DataError(f"{what} has the client {words[0]!r} beside numbers; fill such rows, or {remove}")
    if not words:
        numbers = list(map(Fraction, plain))
        if max(number.denominator for number in numbers) > 1:
            part = next(name for name, number in zip(plain, numbers, strict=True) if number.denominator > 1)
            raise DataError(f"{what} has client {part}; write a whole number or a name")
        if (least := min(numbers)) < 0:
            raise DataError(
                f"{what} has client {least}; number clients from 0, and leave out the rows of nobody's samples"
            )
        return np.array([int(number) for number in numbers], dtype=object)[places]
    check_alike([Labels(what, places, dict(enumerate(names.tolist())), closed=False, row=_row)], what, case=False)
    return np.array(plain)[places]


def _row(row: int) -> str:
    return f"row {row + 1}"
