"""Helpers of probes: a fixed sample of the test set, a model's logits block by block, and the clients' models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flray.core.messages import Published
from flray.core.protocol.context import Context
from flray.core.protocol.probe import FinishView
from flray.core.protocol.samples import Proxy
from flray.core.protocol.seeding import rng
from flray.core.schema.errors import ConfigError
from flray.ops.average import tree_mean

BLOCK = 256  # samples in one forward pass


class ProbeSample(NamedTuple):
    """Inputs `x [n, ...]` as the model takes them, and labels `y [n]` (int64)."""

    x: Tensor
    y: NDArray[np.int64]

    @classmethod
    def of(cls, ctx: Context, size: int | None, purpose: str) -> ProbeSample:
        """`size` samples (None: all) of the first test set, the same in all rounds, clients and processes.

        Raises `ConfigError` if the context has no test set.
        """
        tests = next(iter(ctx.tests.values()), None)
        if tests is None:
            raise ConfigError("this probe reads the test set, and there is none; leave it out of diagnostics")
        chosen = np.arange(tests.size)
        if size is not None and size < tests.size:
            chosen = np.sort(rng(ctx.seed, "probe", purpose, ctx.clock.task).choice(chosen, size, replace=False))
        return cls(tests.inputs(chosen), tests.labels(chosen).cpu().numpy())


def due(ctx: Context, every: int) -> bool:
    """Whether a probe observes this round: the first of each `every` rounds."""
    return ctx.clock.done % every == 0


def logits(
    ctx: Context, w: Tensor, b: Tensor, data: ProbeSample | Proxy, numbers: NDArray[np.int64] | None = None
) -> Tensor:
    """Logits `[n, c]` of the model at `(w, b)` in eval mode, for all classes seen so far.

    `numbers [n]`: numbers of the samples; None: all.
    """
    model = ctx.objective.at(w, b)
    with torch.no_grad():
        return torch.cat([ctx.seen(model(x)) for x in _blocks(data, numbers)])


def predicted(ctx: Context, w: Tensor, b: Tensor, data: ProbeSample) -> NDArray[np.int64]:
    """The predicted classes `[n]` among those seen so far."""
    labels = logits(ctx, w, b, data).argmax(dim=1).cpu()
    return (labels if ctx.classes is None else ctx.classes.seen.index.cpu()[labels]).numpy()


def client_models(view: FinishView) -> list[tuple[Tensor, Tensor]]:
    """The clients' models `(w [P], b [Q])` in the cohort's order, if the update's fields are declared `each()`; else
    []."""
    models: Any = view.model_of(view.updates)
    return [] if models is None or isinstance(models[0], Tensor) else list(zip(*models, strict=True))


def average(view: FinishView) -> tuple[Tensor, Tensor] | None:
    """The clients' aggregated model `(w [P], b [Q])`, from updates declared `mean()` or `each()`; None: they have no
    model."""
    models = client_models(view)
    if not models:
        return view.model_of(view.updates)
    pooled = tree_mean([Published(w, b) for w, b in models], view.cohort.weights)
    return pooled.w, pooled.b


def _blocks(data: ProbeSample | Proxy, numbers: NDArray[np.int64] | None) -> Iterator[Tensor]:
    if isinstance(data, ProbeSample):
        yield from torch.split(data.x if numbers is None else data.x[torch.from_numpy(numbers)], BLOCK)
        return
    numbers = np.arange(data.size) if numbers is None else numbers
    for start in range(0, len(numbers), BLOCK):
        yield data.inputs(numbers[start : start + BLOCK])
