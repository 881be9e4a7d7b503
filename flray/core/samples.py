"""How an algorithm reads data: what a client holds, what it is fine-tuned on, and the public data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
from torch import Tensor

from flray.core.messages import Batch


class Proxy(Protocol):
    """Public data, alike on the server and on the clients of an algorithm that declares `needs_proxy`."""

    @property
    def size(self) -> int:
        """Number of samples."""

    @property
    def same_labels(self) -> bool:
        """Whether it carries labels of the private data's own classes."""

    def inputs(self, index: np.ndarray) -> Tensor:
        """Normalised inputs `[B, ...]` of the samples `index [B]`, on the device."""

    def labels(self, index: np.ndarray) -> Tensor:
        """Labels `[B]`, int64; `DataError` when there are none."""


class Sized(Protocol):
    """Batches of known number."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Batch]: ...


class ClientData(Protocol):
    """What a client holds at this moment; every draw from it is addressed, so that the same call gives the same
    batches."""

    @property
    def num_examples(self) -> int:
        """Samples of the client, n_k."""

    @property
    def numbers(self) -> np.ndarray:
        """Their numbers in the training set, `[n_k]`: what an algorithm stores to keep exemplars."""

    @property
    def plain(self) -> Iterable[Batch]:
        """The samples once, in their order, without augmentation."""

    @property
    def previous(self) -> ClientData | None:
        """What the client held in the stage before, at the beginning of a new one and in its first round: an algorithm
        that declares `keeps_exemplars` chooses from it whom to keep by number. Else None."""

    def batches(self, batch_size: int, epochs: int | None = None, steps: int | None = None) -> Sized:
        """Shuffled and augmented batches: of `epochs`, or of as many epochs as `steps` need; with both, the first
        `steps` of the epochs."""

    def with_samples(self, numbers: np.ndarray) -> ClientData:
        """The client's samples and, behind them, those with these `numbers [m]` of the training set (exemplars)."""


class FineTuning(Sized, Protocol):
    """The batches of one client's fine-tuning: E_ft epochs, cut, shuffled and augmented as in training."""

    @property
    def plain(self) -> Iterable[Batch]:
        """The client's samples once, in their order, without augmentation."""
