"""What an algorithm's methods may read besides their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from flray.core.network.objective import Objective
from flray.core.protocol.classes import Classes
from flray.core.protocol.clock import Clock
from flray.core.protocol.inputs import Inputs
from flray.core.protocol.progress import StageProgress, StepProgress, no_progress
from flray.core.protocol.samples import Proxy
from flray.core.protocol.seeding import Address, rng

SERVER = -1  # its number in addresses, and in the rows of diagnostics


@dataclass(frozen=True, slots=True)
class Context:
    """What a method may read besides its arguments; everything here is read-only.

    A client's methods get a :class:`ClientContext`. `cohort_size`: the sampled clients (K); who delivers, fewer with
    `cohort.dropout`, is in the server half's `Cohort`. `population`: the clients that hold training samples in this
    task (N of the papers), `total_examples`: their samples (n). `classes`: those of the current task, which losses
    read, and of earlier ones; `None` when all are in use. `tested`: while testing, the task that the test set belongs
    to, at a task's beginning and end also one that has not begun; -1: several, or not testing. `net`: the networks that
    :meth:`Algorithm.networks` declares, by name. `inputs`: shape and scale of what the network reads. `tests`: for a
    probe that declares to read them, the test sets (while a sweep tunes, the validation splits) by name; an algorithm
    never has them. `frozen`: the tensors of `w`, by name, that stay as they are from the next task on at the latest
    (`tasks.freeze`). `stage_progress`: gets the calls of :meth:`progress`, on the server.
    """

    objective: Objective
    seed: int
    clock: Clock
    population: int
    cohort_size: int
    total_examples: int = -1
    proxy: Proxy | None = None
    classes: Classes | None = None
    tested: int = -1
    net: Mapping[str, Objective] = field(default_factory=dict)
    inputs: Inputs = field(default_factory=lambda: Inputs(()))
    tests: Mapping[str, Proxy] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    stage_progress: StageProgress = no_progress

    @property
    def device(self) -> torch.device:
        return self.objective.device

    @property
    def in_use(self) -> Classes:
        """`classes`; where all are in use, those of one task that has them all."""
        if self.classes is not None:
            return self.classes
        size = len(self.inputs.classes)
        return Classes([range(size)], size, self.device)

    @property
    def mean_examples(self) -> float:
        """Training samples per client over the whole population, n / N.

        Raises `RuntimeError` in a context that was made without `total_examples`.
        """
        if self.total_examples < 0:
            raise RuntimeError("this context does not say how many samples the population has: set total_examples")
        return self.total_examples / self.population

    def rng(self, *purpose: Address) -> np.random.Generator:
        """The generator addressed by (seed, clock, client, purpose); see :attr:`address`."""
        return rng(self.seed, *self.address, *purpose)

    @property
    def address(self) -> tuple[Address, ...]:
        """(clock, client) as random draws are addressed, see :attr:`Clock.address`; the server stands at client -1."""
        return (*self.clock.address, SERVER)

    def progress(self, what: str) -> StepProgress:
        """For a server half that takes minutes: `progress("TARGET makes inputs")(12, 40)` may show 12/40 in a display.

        It may be called in every step, and changes no result.
        """
        return partial(self.stage_progress, what)

    def narrow(self, logits: Tensor) -> Tensor:
        """The logits `[B, c]` of the classes in use out of the whole head's `[B, C]`; `logits` itself when all are."""
        return logits if self.classes is None else self.classes.narrow(logits)

    def seen(self, logits: Tensor) -> Tensor:
        """The logits `[B, c]` of all classes seen so far, out of the whole head's `[B, C]`: those of earlier tasks too.

        Distillation reads them, because what an earlier model said about old classes is what there is to remember.
        """
        return logits if self.classes is None else self.classes.seen.narrow(logits)

    def local(self, y: Tensor) -> Tensor:
        """Where the labels `y [B]` stand among the narrowed logits; `y` itself, unread, when all classes are in use.

        Raises `DataError` that names a label outside of them.
        """
        return y if self.classes is None else self.classes.local(y)

    def mask(self, part: str) -> Tensor:
        """Float `[P]`: 1 on `"head"`, `"body"`, `"all"` or a submodule; see :meth:`Objective.mask`."""
        return self.objective.mask(part)

    def require_proxy(self) -> Proxy:
        """The public data of an algorithm that declares `needs_proxy`; raises `RuntimeError` where there are none."""
        if self.proxy is None:
            raise RuntimeError("this algorithm declares needs_proxy and got no proxy data: the engine must provide it")
        return self.proxy


@dataclass(frozen=True, slots=True)
class ClientContext(Context):
    """What a client's methods may read besides: who it is, and the facts of its local training.

    `num_steps`: the local steps that are planned. `num_examples`: the samples that it holds. `weight`: its aggregation
    weight among all who take part.
    """

    client: int = field(kw_only=True)
    num_steps: int = field(kw_only=True)
    num_examples: int = field(kw_only=True)
    weight: float = field(kw_only=True)

    @property
    def address(self) -> tuple[Address, ...]:
        return (*self.clock.address, self.client)
