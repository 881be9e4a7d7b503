"""The values that an algorithm's methods may read besides their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flray.core.network.objective import Objective
from flray.core.protocol.aggregation_section import AggregationSection
from flray.core.protocol.classes import Classes
from flray.core.protocol.clock import Clock
from flray.core.protocol.inputs import Inputs
from flray.core.protocol.progress import StageProgress, StepProgress, no_progress
from flray.core.protocol.samples import Proxy
from flray.core.protocol.seeding import Address, rng


class UpdateNoise(NamedTuple):
    """Gaussian noise that every client adds to its own update: `norm`, to which the update is clipped before (C), and
    `sigma`, the noise's standard deviation over it."""

    norm: float
    sigma: float


SERVER = -1  # its number in addresses, and in the rows of diagnostics


@lru_cache(maxsize=8)
def _all_classes(size: int, device: torch.device) -> Classes:
    """One task with all classes; a method may ask at every step, and a GPU waits for its tensors."""
    return Classes([range(size)], size, device)


@dataclass(frozen=True, slots=True)
class Context:
    """What a method may read besides its arguments; everything is read-only. A client gets a :class:`ClientContext`.

    `cohort_size`: the number of sampled clients (K), under `coordination: buffered` of updates in a server step; the
    `Cohort` names those that deliver. `population`: the number of clients with training samples in this task (N),
    `populations`: in each task of the run, `total_examples`: their samples in this task (n). `classes`: the classes of
    the current task, which losses read, and of earlier tasks; None: all are in use. `meanings`: the class of each
    output, int64 `[C]`, where the right class in any domain's head is right (`tasks.domain_scoring`), else None.
    `tested`: in a test, the task of the test set, which may not have begun; -1: several tasks, or no test. `net`: the
    networks of :meth:`Algorithm.networks`, by name. `inputs`: shape and scale of the network's inputs. `tests`: the
    test sets (in a sweep the validation splits) by name, only for a probe that declares to read them. `frozen`: names
    of the tensors of `w` that `tasks.freeze` freezes from the next task on at the latest. `update_noise`: of `uplink`;
    None: clients add none. `stage_progress`: called by :meth:`progress`.
    `aggregation`: the rule of aggregation that the experiment names; None: none, the algorithm's own.
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
    populations: tuple[int, ...] = ()
    update_noise: UpdateNoise | None = None
    aggregation: AggregationSection | None = None
    meanings: NDArray[np.int64] | None = None

    @property
    def device(self) -> torch.device:
        return self.objective.device

    @property
    def in_use(self) -> Classes:
        """`classes`; if that is None, one task with all classes."""
        if self.classes is not None:
            return self.classes
        return _all_classes(len(self.inputs.classes), self.device)

    @property
    def mean_examples(self) -> float:
        """Training samples per client over the population, n / N. Raises `RuntimeError` without `total_examples`."""
        if self.total_examples < 0:
            raise RuntimeError("this context does not say how many samples the population has: set total_examples")
        return self.total_examples / self.population

    def rng(self, *purpose: Address) -> np.random.Generator:
        """The generator addressed by (seed, clock, client, purpose); see :attr:`address`."""
        return rng(self.seed, *self.address, *purpose)

    @property
    def address(self) -> tuple[Address, ...]:
        """(clock, client), the address of random draws; see :attr:`Clock.address`. The server is client -1."""
        return (*self.clock.address, SERVER)

    def progress(self, what: str) -> StepProgress:
        """`progress("TARGET makes inputs")(12, 40)` shows 12/40 for long work of the server half. It may be called at
        every step, and changes no result."""
        return partial(self.stage_progress, what)

    def narrow(self, logits: Tensor) -> Tensor:
        """The logits `[B, c]` of the classes in use out of the whole head's `[B, C]`; `logits` itself when all are."""
        return logits if self.classes is None else self.classes.narrow(logits)

    def seen(self, logits: Tensor) -> Tensor:
        """The logits `[B, c]` of all classes seen so far, out of the head's `[B, C]`; distillation reads those of
        earlier tasks."""
        return logits if self.classes is None else self.classes.seen.narrow(logits)

    def local(self, y: Tensor) -> Tensor:
        """The indices of the labels `y [B]` among the narrowed logits; `y`, unchecked, if all classes are in use.

        Raises `DataError` that names a label of another class.
        """
        return y if self.classes is None else self.classes.local(y)

    def mask(self, part: str) -> Tensor:
        """Float `[P]`: 1 on `"head"`, `"body"`, `"all"` or a submodule; see :meth:`Objective.mask`."""
        return self.objective.mask(part)

    def require_proxy(self) -> Proxy:
        """The public data of an algorithm that declares `needs_proxy`. Raises `RuntimeError` if there are none."""
        if self.proxy is None:
            raise RuntimeError("this algorithm declares needs_proxy and got no proxy data: the engine must provide it")
        return self.proxy


@dataclass(frozen=True, slots=True)
class ClientContext(Context):
    """A client's context. `client`: its id. `num_steps`: its planned local steps. `steps_taken`: those after which it
    stops; fewer under a deadline with `late: partial`. `num_examples`: its samples. `weight`: its aggregation weight
    among all clients that take part."""

    client: int = field(kw_only=True)
    num_steps: int = field(kw_only=True)
    steps_taken: int = field(kw_only=True, default=-1)  # as many as planned
    num_examples: int = field(kw_only=True)
    weight: float = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.steps_taken < 0:
            object.__setattr__(self, "steps_taken", self.num_steps)

    @property
    def address(self) -> tuple[Address, ...]:
        return (*self.clock.address, self.client)
