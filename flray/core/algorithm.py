"""The algorithm interface: one frozen record of hyper-parameters with pure methods.

No method assigns to `self`, edits an argument in place, reads a clock, a file or a global, or draws an unaddressed
random number. One exception, for speed: a `Carry` belongs to the running client, so `step` may update its tensors in
place.

One client trains at a time: `Objective.at` binds one point to the module and cannot run under `vmap`. Many clients at
once would need another backend: `functional_call` over `views(W)` of `W [M, P]` under `vmap`, with one `autograd.grad`
on `W` outside of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from flray.core import cut
from flray.core.classes import Classes
from flray.core.clock import Clock
from flray.core.cut import LastBatch
from flray.core.hp import hp
from flray.core.messages import Batch, Cohort, Metrics, Published
from flray.core.modes import Mode
from flray.core.objective import Objective
from flray.core.returned import check_returns
from flray.core.section import Section
from flray.core.seeding import Address, rng

Who = Literal["cohort", "task", "stateful"] | int
Predictor = Callable[[Tensor], Tensor]


class Proxy(Protocol):
    """Public data on the server and, where an algorithm reads it there, on the clients."""

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


@dataclass(frozen=True, slots=True)
class Context:
    """What a method may read besides its arguments; everything here is read-only.

    `client`, `num_steps` (local steps planned), `num_examples` and `weight` (the client's aggregation weight) are -1 on
    the server. `cohort_size`: the sampled clients (K); who delivers, fewer with `cohort.dropout`, is in the server
    half's `Cohort`. `population`: the clients that hold training samples in this task (N of the papers),
    `total_examples`: their samples (n). `classes`: those of the current task, which losses read, and of earlier ones;
    `None` when all are in use. `tested`: while testing, the task that the test set belongs to; -1: several, or not
    testing. `net`: the networks that :meth:`Algorithm.networks` declares, by name.
    """

    objective: Objective
    seed: int
    clock: Clock
    population: int
    cohort_size: int
    total_examples: int = -1
    proxy: Proxy | None = None
    classes: Classes | None = None
    client: int = -1
    num_steps: int = -1
    num_examples: int = -1
    weight: float = -1.0
    tested: int = -1
    net: Mapping[str, Objective] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return self.objective.device

    @property
    def mean_examples(self) -> float:
        """Training samples per client over the whole population, n / N."""
        if self.total_examples < 0:
            raise RuntimeError("this context does not say how many samples the population has: set total_examples")
        return self.total_examples / self.population

    def rng(self, *purpose: Address) -> np.random.Generator:
        """The generator addressed by (seed, clock, client, purpose); see :attr:`Clock.address`."""
        return rng(self.seed, *self.clock.address, self.client, *purpose)

    def mask(self, part: str) -> Tensor:
        """Float `[P]`: 1 on `"head"`, `"body"`, `"all"` or a submodule; see :meth:`Objective.mask`."""
        return self.objective.mask(part)

    def require_proxy(self) -> Proxy:
        if self.proxy is None:
            raise RuntimeError("this algorithm declares needs_proxy and got no proxy data: the engine must provide it")
        return self.proxy


class Exchange(NamedTuple):
    """Broadcast -> client work -> finish. A round, the beginning and the end of a task are any number of exchanges.

    `broadcast(ctx, state)` and `finish(ctx, state, updates, cohort)` are bound methods of the algorithm.
    `client` is None for local training (`begin`, `step` for every batch, `end`), which the engine runs, or one function
    `work(ctx, down, client, data)` that returns (update, client state, metrics).
    `who` does it: the `cohort` (outside rounds: every client with data of the task), the clients with data of the
    `task`, those that have a state (`stateful`), or so many drawn from the clients with data.
    What `finish` gets of the clients' updates is declared by the fields of the update (`core/fields.py`).
    `order="sequential"`: one client after the other, in the order of their numbers; after each hop `finish` runs with
    that update, and the broadcast is asked anew.
    """

    name: str
    broadcast: Callable[..., Any]
    finish: Callable[..., Any]
    client: Callable[..., Any] | None = None
    who: Who = "cohort"
    order: Literal["parallel", "sequential"] = "parallel"


class Algorithm(Section, ABC, frozen=True):
    """Both halves of a federated algorithm; the fields are its hyper-parameters."""

    shorthand: ClassVar[Mapping[type, str]] = {str: "name"}
    needs_proxy: ClassVar[bool] = False  # a public data set at the server
    proxy_on_clients: ClassVar[bool] = False  # the clients read it as well
    global_model: ClassVar[bool] = True  # False: nothing to test or save but each client's own model
    # True: no clients, all samples in one place; a descendant of `algorithms/centralized.py`
    centralized: ClassVar[bool] = False
    keeps_exemplars: ClassVar[bool] = False  # samples of earlier stages, chosen from `ClientData.previous`

    last_batch: LastBatch = hp(
        "keep", doc="an epoch's last, short batch: keep, drop, or merge it into the one before; an only one stays"
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        if not cls.__module__.startswith("flray."):  # a user's own: a wrong `return` is named where it stands
            check_returns(cls)

    # when -------------------------------------------------------------------------------------
    def next_exchange(self, ctx: Context, state: Any) -> Exchange | None:
        """The exchange that comes now, `ctx.clock.exchange` of this phase; None: the phase is over.

        It is asked before each exchange with the state that the one before left, so a later one may depend on it. By
        default a round is the training exchange, and nothing happens at the beginning and at the end of a task.
        """
        return self.training if ctx.clock.phase == "round" and ctx.clock.exchange == 0 else None

    @property
    def training(self) -> Exchange:
        """Local training of the cohort, and `aggregate`."""
        return Exchange("train", self.broadcast, self.aggregate)

    # networks ---------------------------------------------------------------------------------
    def module(self, model: nn.Module) -> nn.Module:
        """The network that is trained, before the layout of `w` is made: wrap or replace the configured `model` (extra
        heads, projections, a list of students). Its initial values may be drawn from torch's generator, which is seeded
        by the experiment."""
        return model

    def networks(self, model: nn.Module) -> Mapping[str, nn.Module]:
        """Networks besides `model`, which the server trains alone or freezes: `ctx.net[name]` is the objective of
        each."""
        return {}

    # server -----------------------------------------------------------------------------------
    @abstractmethod
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> Any:
        """The state before round 1, from the initial parameters `w [P]`, `b [Q]`."""

    @abstractmethod
    def broadcast(self, ctx: Context, state: Any) -> Any:
        """What goes down to every client of the cohort; its bytes are counted."""

    @abstractmethod
    def aggregate(self, ctx: Context, state: Any, updates: Any, cohort: Cohort) -> tuple[Any, Metrics]:
        """The next server state from the updates, pooled by field (`core/fields.py`)."""

    def published(self, ctx: Context, state: Any) -> Any:
        """All of the server's state that testing reads, a message: only this travels for a test.

        By default `w` and `b`.
        """
        return Published(state.w, state.b)

    def modes(self, ctx: Context) -> Mapping[str, Mode]:
        """The inference modes by name, by default `predict` alone; `test/acc` and `test/loss` are those of the first
        one."""
        return {"global": Mode(self.predict)}

    @abstractmethod
    def predict(self, ctx: Context, published: Any, x: Tensor) -> Tensor:
        """Logits `[B, C]` of the global model for inputs `x [B, ...]`."""

    def weights(self, num_examples: Tensor) -> Tensor:
        """Aggregation weights `[K]` (float64, sum 1) of a cohort whose clients hold `num_examples [K]`."""
        return num_examples.double() / num_examples.sum()

    # client -----------------------------------------------------------------------------------
    def init_client(self, ctx: Context) -> Any:
        """The state of a client that was never in a cohort; `()` means stateless."""
        return ()

    @property
    @abstractmethod
    def local_batches(self) -> tuple[int, int]:
        """(batch size, number of local epochs): how the engine cuts a client's data."""

    def step_cost(self) -> float:
        """FLOPs of a local step in units of FedAvg's: of 3 parts, a forward pass is 1 and a backward pass 2; vectors
        `[P]` do not count."""
        return 1.0

    def epoch_batches(self, num_examples: np.ndarray) -> np.ndarray:
        """Batches `[K]` in an epoch of clients with `num_examples [K]` samples, as `last_batch` says."""
        return cut.batches(num_examples, self.local_batches[0], self.last_batch)

    def local_steps(self, num_examples: np.ndarray) -> np.ndarray:
        """Local steps `[K]` that are planned for clients with `num_examples [K]` samples; by default those of whole
        epochs.

        The default of :meth:`batches` takes exactly so many, in as many epochs as that needs.
        """
        return self.epoch_batches(num_examples) * self.local_batches[1]

    def point(self, ctx: Context, message: Any) -> tuple[Tensor, Tensor] | None:
        """The model `(w [P], b [Q])` that a broadcast or an update carries, for testing it on the client; None: it
        carries none."""
        return (message.w, message.b) if hasattr(message, "w") and hasattr(message, "b") else None

    @abstractmethod
    def begin(self, ctx: Context, down: Any, client: Any, data: ClientData) -> Any:
        """The carry before the first local step."""

    def batches(self, ctx: Context, down: Any, client: Any, carry: Any, data: ClientData) -> Iterable[Batch]:
        """The batches of the local steps, one a step; by default `ctx.num_steps` of them from the client's own
        samples."""
        return data.batches(self.local_batches[0], steps=ctx.num_steps)

    @abstractmethod
    def gradient(self, ctx: Context, down: Any, client: Any, carry: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """(loss, gradient `[P]`): where the gradient comes from."""

    @abstractmethod
    def step(self, ctx: Context, down: Any, client: Any, carry: Any, batch: Batch) -> Any:
        """One local step: what is done with the gradient."""

    @abstractmethod
    def end(self, ctx: Context, down: Any, client: Any, carry: Any, data: ClientData) -> tuple[Any, Any]:
        """(update, client state) after the last local step.

        The update may hold scratch, which the next client overwrites: copy it before. The client state must not.
        """

    def report(self, ctx: Context, carry: Any) -> Metrics:
        """Metrics of one client's local training; the round's row holds their weighted mean."""
        return {}

    @abstractmethod
    def personalize(self, ctx: Context, down: Any, client: Any, batches: FineTuning) -> Predictor:
        """The client's own predictor (inputs `[B, ...]` -> logits or probabilities `[B, C]`) after fine-tuning on
        `batches`.

        `down` is a round's broadcast, `client` the client's stored state, `ctx.clock.round` the number of rounds done.
        Without a batch: no fine-tuning. The predictor is used before the next call of any method, so it may read
        scratch tensors.
        """
