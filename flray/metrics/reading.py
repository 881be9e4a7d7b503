"""How probes read data: a fixed sample of the test set, and what a model says about it, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flray.core.context import Context
from flray.core.errors import ConfigError
from flray.core.samples import Proxy
from flray.core.seeding import rng

BLOCK = 256  # samples in one forward pass


class Sample(NamedTuple):
    """Inputs `x [n, ...]` as the model takes them, and labels `y [n]` (int64)."""

    x: Tensor
    y: NDArray[np.int64]

    @classmethod
    def of(cls, ctx: Context, size: int | None, purpose: str) -> Sample:
        """`size` samples (None: all) of the first test set, the same ones in every round, client and process.

        Raises `ConfigError` in a context that reveals no test set.
        """
        tests = next(iter(ctx.tests.values()), None)
        if tests is None:
            raise ConfigError("this probe reads the test set, and there is none; leave it out of diagnostics")
        chosen = np.arange(tests.size)
        if size is not None and size < tests.size:
            chosen = np.sort(rng(ctx.seed, "probe", purpose, ctx.clock.task).choice(chosen, size, replace=False))
        return cls(tests.inputs(chosen), tests.labels(chosen).cpu().numpy())


def due(ctx: Context, every: int) -> bool:
    """Whether a probe that looks in every so many rounds looks now: the first round is one of them."""
    return ctx.clock.done % every == 0


def logits(ctx: Context, w: Tensor, b: Tensor, data: Sample | Proxy, size: int | None = None) -> Tensor:
    """What the model at `(w, b)`, in eval mode, says about the (first `size`) samples: logits `[n, c]` of all classes
    seen so far."""
    model = ctx.objective.at(w, b)
    with torch.no_grad():
        return torch.cat([ctx.seen(model(x)) for x in _blocks(data, size)])


def predicted(ctx: Context, w: Tensor, b: Tensor, data: Sample) -> NDArray[np.int64]:
    """The classes `[n]` that the model predicts among those seen so far."""
    found = logits(ctx, w, b, data).argmax(dim=1).cpu()
    return (found if ctx.classes is None else ctx.classes.seen.index.cpu()[found]).numpy()


def _blocks(data: Sample | Proxy, size: int | None) -> Iterator[Tensor]:
    if isinstance(data, Sample):
        yield from torch.split(data.x[:size], BLOCK)
        return
    size = data.size if size is None else min(size, data.size)
    for start in range(0, size, BLOCK):
        yield data.inputs(np.arange(start, min(start + BLOCK, size)))
