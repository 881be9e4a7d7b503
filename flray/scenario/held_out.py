"""The validation split: a share of the training data on which no client trains.

A sweep is tested on it instead of the test set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from flray.core.protocol.seeding import rng
from flray.core.schema.errors import DataError
from flray.core.schema.section import Section
from flray.core.schema.shares import floor_share
from flray.data.cache import Array
from flray.data.draws import ODD, apart
from flray.scenario.partition import Partition

LEAST = 20  # at least one training sample in 20 stays with the clients


class ValidationConfig(Section):
    """A share of the training data on which no client trains."""

    shorthand: ClassVar[Mapping[type, str]] = {float: "fraction"}
    fraction: float = Field(0.1, gt=0, lt=1, description="share of the training data, at most 19/20")
    of: Literal["clients", "server"] = Field(
        "clients",
        description="a share of each client's samples, or a stratified share of the train split before the partition",
    )


def _check_left(fraction: float, left: int, of: int, whom: str) -> None:
    """Raises `DataError` if less than a twentieth of the training samples would be left."""
    if LEAST * left < of:
        raise DataError(
            f"evaluate.validation.fraction: {fraction} leaves {left} of {of} training samples to {whom}; lower it, to "
            f"{1 - 1 / LEAST:g} at most"
        )


def of_server(
    labels: Array, private: Array | None, fraction: float, seed: int, first: Array | None = None
) -> tuple[Array, Array]:
    """(validation samples, samples of the clients), stratified by class, before the partition.

    `labels` [n] of the train split; `private`: the samples that a proxy holdout left (None: all). Copies of a sample
    are on one side: `first` [n] is the number of each one's first copy (None: no sample has one). Raises `DataError`.
    """
    rows = np.arange(len(labels)) if private is None else np.asarray(private)
    size = round(fraction * len(rows))
    if not 0 < size < len(rows):
        raise DataError(
            f"evaluate.validation.fraction: {fraction} of {len(rows)} training samples is {size}; choose another share"
        )
    _check_left(fraction, len(rows) - size, len(rows), "the clients together")
    copies = np.arange(len(labels)) if first is None else first
    what = "evaluate.validation.fraction"
    validation = rows[apart(np.asarray(labels)[rows], copies[rows], size, seed, "validation", what)]
    return validation, np.setdiff1d(rows, validation)


def of_clients(
    partition: Partition, fraction: float, seed: int, task: int = 0, first: Array | None = None
) -> Partition:
    """The partition with `floor(fraction n_k)` random samples of each client in `held_out`; at least one stays.

    Client k's draw is addressed by `(seed, k)`, after the first task also by the task. Copies of a sample (`first`: as
    in :func:`of_server`) follow the first of them, also to other clients. Raises `DataError` if no client has enough
    samples to give one, or if the copies are so many that the validation samples are no sample of all.
    """
    later = (task,) if task else ()
    shares, drawn = [partition.client(k) for k in range(partition.num_clients)], []
    for k, share in enumerate(shares):
        out = np.zeros(len(share), bool)
        out[rng(seed, "validation", k, *later).permutation(len(share))[: floor_share(fraction, len(share))]] = True
        drawn.append(out)
    asked = sum(int(out.sum()) for out in drawn)
    if first is not None:
        drawn = _with_copies(shares, drawn, first)
    validation = [share[out] for share, out in zip(shares, drawn, strict=True)]
    training = [share[~out] for share, out in zip(shares, drawn, strict=True)]
    samples = np.unique(np.concatenate(validation))
    if not asked:
        largest = int(partition.sizes.max())
        raise DataError(
            f"evaluate.validation.fraction: {fraction} of the largest client's {largest} samples is none; "
            "raise it, or set evaluate.validation.of: server"
        )
    if first is not None:
        _check_copies(fraction, np.unique(partition.indices), samples, asked, first)
    sizes = [len(share) for share in training]
    smallest = f"{partition.num_clients} clients, {min((size for size in sizes if size), default=0)} to the smallest"
    _check_left(fraction, sum(sizes), int(partition.sizes.sum()), smallest)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    indices = np.concatenate(training)
    stays = ~np.isin(indices, samples)  # a validation sample that another client has as well is taken from it
    offsets, indices = np.concatenate([[0], np.cumsum(stays)])[offsets], indices[stays]
    return Partition(indices.astype(partition.indices.dtype), offsets, samples.astype(partition.indices.dtype))


def _check_copies(fraction: float, rows: Array, samples: Array, asked: int, first: Array) -> None:
    """Raises `DataError` if the copies of a sample, or all samples with copies, have another share among the validation
    `samples` than among all `rows` (both ascending), or if there are none, or far more than were `asked`."""
    heads, group, counts = np.unique(first[rows], return_inverse=True, return_counts=True)
    copied = counts > 1
    if not copied.any():
        return
    drawn, total = np.bincount(group[np.isin(rows, samples)], minlength=len(heads)), len(samples)
    right, found = counts / len(rows), drawn / max(total, 1)
    off = abs(found - right)
    odd = max(off.max(), abs(found[copied].sum() - right[copied].sum()))
    large = total - asked > ODD * len(rows)
    if not total or large or odd > ODD + 2 * asked**-0.5:  # four standard errors of a share of so many draws, or more
        worst = int(off.argmax())
        raise DataError(
            f"evaluate.validation.fraction: {fraction} of the clients' {len(rows)} samples is {asked}, copies stay on "
            f"one side, and the {total} held out are no sample of all: sample {heads[worst]} and its copies are "
            f"{right[worst]:.0%} of all and {found[worst]:.0%} of them; set evaluate.validation.of: server, or "
            "remove copies"
        )


def _with_copies(shares: list[Array], drawn: list[Array], first: Array) -> list[Array]:
    """`drawn` [n_k] of each client, where all copies of a sample have the value of the first that a client holds."""
    rows, out = np.concatenate(shares), np.concatenate(drawn)
    held = np.unique(rows)
    heads, counts = np.unique(first[held], return_counts=True)
    copied = np.flatnonzero(np.isin(first[rows], heads[counts > 1]))
    _, at, group = np.unique(first[rows[copied]], return_index=True, return_inverse=True)
    out[copied] = out[copied][at][group]
    return np.split(out, np.cumsum([len(share) for share in shares])[:-1])
