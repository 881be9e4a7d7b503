"""The validation split: a share of the training data that no client trains on.

A sweep reads it in the test set's place.
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
from flray.data.dataset import stratified
from flray.scenario.partition import Partition

LEAST = 20  # one training sample in so many stays to train on


class ValidationConfig(Section):
    """A share of the training data that no client trains on."""

    shorthand: ClassVar[Mapping[type, str]] = {float: "fraction"}
    fraction: float = Field(
        0.1, gt=0, lt=1, description="share of the training data; at least a twentieth stays to train on"
    )
    of: Literal["clients", "server"] = Field(
        "clients",
        description="a share of each client's samples, or a stratified share of the train split before the partition",
    )


def _check_left(fraction: float, left: int, of: int, whom: str) -> None:
    """Raises `DataError` where less than a twentieth of the training samples would be trained on."""
    if LEAST * left < of:
        raise DataError(
            f"evaluate.validation.fraction: {fraction} leaves {left} of {of} training samples to {whom}; lower it, to "
            f"{1 - 1 / LEAST:g} at most"
        )


def of_server(labels: Array, private: Array | None, fraction: float, seed: int) -> tuple[Array, Array]:
    """(held samples, those that stay for the clients), stratified by class, taken before the partition.

    `labels` [n] of the train split, `private` the sample numbers that a proxy holdout left (None: all).
    """
    rows = np.arange(len(labels)) if private is None else np.asarray(private)
    size = round(fraction * len(rows))
    if not 0 < size < len(rows):
        raise DataError(
            f"evaluate.validation.fraction: {fraction} of {len(rows)} training samples is {size}; choose another"
        )
    _check_left(fraction, len(rows) - size, len(rows), "the clients together")
    validation = rows[stratified(np.asarray(labels)[rows], size, seed, "validation")]
    return validation, np.setdiff1d(rows, validation)


def of_clients(partition: Partition, fraction: float, seed: int, task: int = 0) -> Partition:
    """The partition with `floor(fraction n_k)` samples of every client in `held`, drawn at random: at least one stays.

    Client k's draw is addressed by `(seed, k)`, in the tasks after the first by the task as well: it does not depend on
    the other clients. Raises `DataError` where nobody has enough samples to give one.
    """
    later = (task,) if task else ()
    validation, training = [], []
    for k in range(partition.num_clients):
        share = partition.client(k)
        out = np.zeros(len(share), bool)
        out[rng(seed, "validation", k, *later).permutation(len(share))[: floor_share(fraction, len(share))]] = True
        validation.append(share[out])
        training.append(share[~out])
    samples = np.unique(np.concatenate(validation))
    if not len(samples):
        largest = int(partition.sizes.max())
        raise DataError(
            f"evaluate.validation.fraction: {fraction} of the largest client's {largest} samples is none; "
            "raise it, or set of: server"
        )
    sizes = [len(share) for share in training]
    smallest = f"{partition.num_clients} clients, {min(size for size in sizes if size)} to the smallest"
    _check_left(fraction, sum(sizes), int(partition.sizes.sum()), smallest)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    indices = np.concatenate(training)
    stays = ~np.isin(indices, samples)  # a sample that two clients had and one gave away is no one's any more
    offsets, indices = np.concatenate([[0], np.cumsum(stays)])[offsets], indices[stays]
    return Partition(indices.astype(partition.indices.dtype), offsets, samples.astype(partition.indices.dtype))
