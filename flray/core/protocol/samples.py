"""How an algorithm reads data: what a client holds, what it is fine-tuned on, and the public data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from flray.core.messages import Batch
from flray.core.schema.errors import DataError


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


class TensorProxy:
    """A proxy over tensors that an algorithm has at hand, such as the images of a generator.

    `x [n, ...]` are inputs as the model takes them, normalised, and `y [n]` labels (int64), both on the device that the
    model is on. `replace(ctx, proxy=TensorProxy(x))` is a context in which every loss on public data reads these.
    """

    def __init__(self, x: Tensor, y: Tensor | None = None, same_labels: bool | None = None) -> None:
        """`same_labels` says whether `y` are labels of the private data's own classes; None: yes, where there are any.

        Raises `DataError` where inputs and labels differ in number.
        """
        if y is not None and len(y) != len(x):
            raise DataError(f"a proxy of {len(x)} samples was given {len(y)} labels")
        self.x, self.y = x, y
        self.same_labels = y is not None and same_labels is not False

    @property
    def size(self) -> int:
        return len(self.x)

    def inputs(self, index: np.ndarray) -> Tensor:
        return self.x[torch.from_numpy(index).to(self.x.device)]

    def labels(self, index: np.ndarray) -> Tensor:
        if self.y is None:
            raise DataError("these proxy data were made without labels; use a loss without labels")
        return self.y[torch.from_numpy(index).to(self.y.device)]


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

    def only(self, numbers: np.ndarray) -> ClientData:
        """Those with these `numbers [m]` of the training set (exemplars), without the client's other samples."""


class FineTuning(Sized, Protocol):
    """The batches of one client's fine-tuning: E_ft epochs, cut, shuffled and augmented as in training."""

    @property
    def plain(self) -> Iterable[Batch]:
        """The client's samples once, in their order, without augmentation."""
