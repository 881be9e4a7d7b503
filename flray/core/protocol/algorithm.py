"""The algorithm interface: one frozen record of hyper-parameters with pure methods.

No method assigns to `self`, changes an argument in place, reads a clock, a file or a global, or draws an unaddressed
random number. One exception, for speed: `step` may update the tensors of a `LocalState` in place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
from torch import Tensor, nn
from typing_extensions import TypeVar

from flray.core.messages import (
    Batch,
    Broadcast,
    ClientState,
    Cohort,
    LocalState,
    Metrics,
    Published,
    Record,
    ServerState,
    Update,
)
from flray.core.protocol import batching as cut
from flray.core.protocol.aggregation_section import AggregationSection
from flray.core.protocol.algorithm_section import AlgorithmSection
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.inputs import Inputs
from flray.core.protocol.modes import Mode, Prediction, among
from flray.core.protocol.returned import check_returns
from flray.core.protocol.samples import ClientData, FineTuning
from flray.core.schema.errors import AlgorithmError

MODELS = (ServerState, Broadcast, Update, Published, LocalState)  # whose `w` and `b` are the model

Predictor = Callable[[Tensor], Tensor]

# the messages of an algorithm, as a type checker follows them from `broadcast` to `aggregate`
State = TypeVar("State", default=ServerState)
Down = TypeVar("Down", default=Broadcast)
Sent = TypeVar("Sent", default=Update)
Stored = TypeVar("Stored", default=ClientState | tuple[()])  # a client's state; (): nothing is stored
Local = TypeVar("Local", default=LocalState)
# an update as the server half gets it, where that is another type: a field declared `each()` is a tuple then
Received = TypeVar("Received", default=Sent)

if TYPE_CHECKING:

    class Messages(Generic[State, Down, Sent, Stored, Local, Received]):
        """The types of an algorithm's messages."""
else:

    class Messages:
        """The types of an algorithm's messages, which only a type checker reads: `FedAvg[A, B]` is `FedAvg` itself
        here, where pydantic would make a class of its own for every choice of types."""

        def __class_getitem__(cls, types):
            return cls


class Algorithm(Messages[State, Down, Sent, Stored, Local, Received], AlgorithmSection, ABC, frozen=True):
    """Both halves of a federated algorithm; the fields are its hyper-parameters.

    The methods stand in three groups: those that an algorithm is made of, which `FedAvg` gives and most algorithms
    override one or two of; those that some algorithms need; and what the engine asks to plan, weigh and report.
    An algorithm names the records that it adds once, as type arguments of the class it inherits from:
    `class Scaffold(FedAvg[ScaffoldState, ScaffoldState, ScaffoldUpdate, ScaffoldClient, ScaffoldLocalState])`. These
    are the server's state, the broadcast, the update, the client's state, the local state of a client that trains, and
    the update as `aggregate` receives it. One that needs no type checker may leave them out.
    """

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        says = {"server_rule", "fitting_rules"} & vars(cls).keys()
        if not says and ("aggregate" in vars(cls) or issubclass(cls, AggregationSection)):
            cls.server_rule = "own"
        if "aggregate" in vars(cls) and "asynchronous" not in vars(cls):
            cls.asynchronous = False
        if "sends_once" not in vars(cls) and {"next_exchange", "training"} & vars(cls).keys():
            cls.sends_once = False
        if not cls.__module__.startswith("flray."):  # a user's own: a wrong `return` is named where it stands
            if "capturable" not in vars(cls):
                cls.capturable = False
            check_returns(cls)

    # what an algorithm is made of: the server -----------------------------------------------------
    @abstractmethod
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> State:
        """The state before round 1, from the initial parameters `w [P]` and statistics `b [Q]`.

        Returns a record that inherits from `ServerState`. It is the place for what can only be checked with the model
        and the data at hand: raises `ConfigError` where the algorithm cannot work with them.
        """

    @abstractmethod
    def broadcast(self, ctx: Context, state: State) -> Down:
        """The message to every client of the cohort, before each exchange and each turn of a sequential one.

        Returns a record that inherits from `Broadcast`, or any other; its bytes are counted by field.
        """

    @abstractmethod
    def aggregate(self, ctx: Context, state: State, updates: Received, cohort: Cohort) -> tuple[State, Metrics]:
        """The server half of the training exchange.

        `updates` is one update whose fields are pooled over the cohort as they declare (`core/messages/fields.py`):
        the weighted mean, the sum, or a tuple of every client's own. Returns (the next server state, metrics of the
        round).
        """

    @abstractmethod
    def predict(self, ctx: Context, published: Any, x: Tensor) -> Tensor:
        """The global model's answer: returns logits `[B, C]` of all classes for inputs `x [B, ...]`."""

    # what an algorithm is made of: a client -------------------------------------------------------
    @abstractmethod
    def begin(self, ctx: ClientContext, broadcast: Down, client: Stored, data: ClientData) -> Local:
        """Before the first local step: returns the local state, from the broadcast and the client's stored state."""

    def batches(
        self, ctx: ClientContext, broadcast: Down, client: Stored, local: Local, data: ClientData
    ) -> Iterable[Batch]:
        """The batches of the local steps, one a step.

        By default returns `ctx.num_steps` of them, shuffled and augmented, from the client's own samples.
        """
        return data.batches(self.local_batches[0], steps=ctx.num_steps)

    @abstractmethod
    def gradient(
        self, ctx: ClientContext, broadcast: Down, client: Stored, local: Local, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Returns (loss, 0-dim and detached; gradient `[P]`) of a batch. Both may be scratch."""

    @abstractmethod
    def step(self, ctx: ClientContext, broadcast: Down, client: Stored, local: Local, batch: Batch) -> Local:
        """One local step along the gradient: returns the next local state, updated in place or new."""

    @abstractmethod
    def end(
        self, ctx: ClientContext, broadcast: Down, client: Stored, local: Local, data: ClientData
    ) -> tuple[Sent, Stored]:
        """After the last local step: returns (update, client state).

        The update may contain scratch, because the engine copies it before the next client. The client state must not.
        A state `()` or None leaves the stored one unchanged.
        """

    @abstractmethod
    def personalize(self, ctx: ClientContext, broadcast: Down, client: Stored, batches: FineTuning) -> Predictor:
        """The client's own predictor after fine-tuning on `batches`; without a batch: no fine-tuning.

        `broadcast` is that of a round, `client` the client's stored state, `ctx.clock.round` the number of rounds done.
        Returns a function from inputs `[B, ...]` to logits or probabilities `[B, C]`, which is used before the next
        call of any method, so it may read scratch tensors.
        """

    # what some algorithms need --------------------------------------------------------------------
    def init_client(self, ctx: Context) -> Stored:
        """The first state of a client: a record that inherits from `ClientState`; by default `()`, stateless."""
        return ()  # type: ignore[return-value]

    def num_exemplars(self, client: Stored) -> int:
        """The number of samples that a client's stored state names, for an algorithm that `keeps_exemplars`."""
        return 0

    def next_exchange(self, ctx: Context, state: State) -> Exchange[State, Any, Any, Stored, Any] | None:
        """The next exchange, number `ctx.clock.exchange` of this phase; None: the phase is over.

        `state` is the state after the exchange before, so an exchange may depend on it. By default a round is the
        training exchange, and a task's beginning and end have none.
        """
        return self.training if ctx.clock.phase == "round" and ctx.clock.exchange == 0 else None

    @property
    def training(self) -> Exchange[State, Down, Sent, Stored, Received]:
        """Local training of the cohort, and `aggregate`."""
        return Exchange("train", self.broadcast, self.aggregate)

    def module(self, model: nn.Module, inputs: Inputs) -> nn.Module:
        """The network that is trained, before the layout of `w` is made: wrap or replace the configured `model` (extra
        heads, projections, a list of students, whose sizes `inputs` tells). Its initial values may be drawn from
        torch's generator, which is seeded by the experiment."""
        return model

    def networks(self, model: nn.Module, inputs: Inputs) -> Mapping[str, nn.Module]:
        """Networks besides `model`, which the server trains alone or freezes: `ctx.net[name]` is the objective of each.

        A generator takes its size from `inputs`, which is `ctx.inputs` later.
        """
        return {}

    def published(self, ctx: Context, state: State) -> Record:
        """The part of the server's state that tests read; only this is sent. By default a record of `w` and `b`.

        A model in it is that of :meth:`model_of`, which alone is overridden to test another one, as a mean over rounds.
        """
        model = self.model_of(ctx, state)
        if model is None:
            name = type(state).__name__
            raise AlgorithmError(
                f"{type(self).__name__}: its server state is a {name}, in which nothing says where the model is; let "
                f"{name} inherit from ServerState, or override published"
            )
        return Published(*model)

    def modes(self, ctx: Context) -> Mapping[str, Mode]:
        """The inference modes by name; `test/acc` and `test/loss` are those of the first one.

        By default `global`, which is `predict`. Over tasks both of these, from one forward pass: `global` chooses among
        the classes of all tasks so far, `task_aware` among those of the task that the test set belongs to.
        """
        if ctx.classes is None:
            return {"global": Mode(self.predict)}
        return {
            "global": Mode(self.of_seen, forward=self.predict),
            "task_aware": Mode(self.of_tested, forward=self.predict),
        }

    def of_seen(self, ctx: Context, published: Any, logits: Tensor) -> Prediction:
        """The logits `[B, C]` of :meth:`predict` among the classes of all tasks so far."""
        assert ctx.classes is not None
        return among(ctx.classes.seen, logits)

    def of_tested(self, ctx: Context, published: Any, logits: Tensor) -> Prediction:
        """The same among the classes of the tested task; of a test set of several tasks as :meth:`of_seen`."""
        assert ctx.classes is not None
        return among(ctx.classes.seen if ctx.tested < 0 else ctx.classes.task(ctx.tested), logits)

    def model_of(self, ctx: Context, message: Any) -> tuple[Tensor, Tensor] | None:
        """The model `(w [P], b [Q])` in a message; None: it contains none.

        By default `w` and `b` of a `ServerState`, `Broadcast`, `Update`, `Published` or `LocalState`; those of another
        record may be a generator's. Tests, probes and privacy read models only through this method.
        """
        return (message.w, message.b) if isinstance(message, MODELS) else None

    # what the engine asks -------------------------------------------------------------------------
    @property
    @abstractmethod
    def local_batches(self) -> tuple[int, int]:
        """(batch size, number of local epochs): how the engine cuts a client's data."""

    def epoch_batches(self, num_examples: np.ndarray) -> np.ndarray:
        """Batches `[K]` in an epoch of clients with `num_examples [K]` samples, as `last_batch` says."""
        return cut.batches(num_examples, self.local_batches[0], self.last_batch)

    def local_steps(self, num_examples: np.ndarray) -> np.ndarray:
        """Planned local steps `[K]` of clients with `num_examples [K]` samples; by default those of complete epochs.

        The default of :meth:`batches` takes exactly so many, in as many epochs as needed.
        """
        return self.epoch_batches(num_examples) * self.local_batches[1]

    def step_cost(self) -> float:
        """FLOPs of a local step divided by FedAvg's: a forward pass is 1/3, a backward pass 2/3, a vector `[P]` 0."""
        return 1.0

    def weights(self, num_examples: Tensor) -> Tensor:
        """Aggregation weights `[K]` (float64, sum 1) of a cohort whose clients hold `num_examples [K]`."""
        return num_examples.double() / num_examples.sum()

    def report(self, ctx: ClientContext, local: Local) -> Metrics:
        """Metrics of one client's local training; the round's row holds their weighted mean."""
        return {}
