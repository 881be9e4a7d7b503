"""The interface of a rule of aggregation: how the server makes the next model of the clients' models.

A rule reads and changes the model and its own state, nothing else: broadcast, client states and tests are the
algorithm's. Its methods are pure, as those of an algorithm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, get_args

from torch import Tensor, nn
from typing_extensions import TypeVar

from flray.core.messages import Cohort, HasModel, Message, Metrics, ServerState
from flray.core.protocol.aggregation_section import AggregationSection, Pooled
from flray.core.protocol.context import Context
from flray.core.protocol.inputs import Inputs
from flray.core.protocol.samples import ClientData
from flray.core.schema.errors import ConfigError

Buffers = Literal["average", "keep", "local"]  # what becomes of batch-norm statistics; `FedAvg.buffers`
Own = TypeVar("Own", default=None)  # the rule's state
Given = TypeVar("Given", default=HasModel)  # `w` and `b` as the rule gets them: tensors, or a sequence of them

if TYPE_CHECKING:

    class RuleMessages(Generic[Own, Given]):
        """The types of a rule's messages."""
else:

    class RuleMessages:
        """The types of a rule's messages, which only a type checker reads; see `algorithm.Messages`."""

        def __class_getitem__(cls, types):
            return cls


class Aggregated(NamedTuple):
    """The next model `w [P]`, `b [Q]`, the rule's next state `own` (None: it has none), and metrics of the round."""

    w: Tensor
    b: Tensor
    own: Message = None
    metrics: Metrics = {}  # noqa: RUF012  a mapping that nobody changes


# of :meth:`Aggregation.combine`; Any: each rule has a state of its own, and what it gets is one model or every client's
Combine = Callable[[Context, Any, HasModel, Any, Cohort, Buffers], Aggregated]


class Aggregation(RuleMessages[Own, Given], AggregationSection, ABC, frozen=True):
    """A rule of aggregation; the fields are its hyper-parameters.

    `Aggregation[State, Models]` names the type of its state and of what it gets: `HasModel` for `pooled = "mean"`,
    `Models` for `"each"`, `StreamedModels` for `"streamed"`.
    """

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        if cls.pooled not in get_args(Pooled):
            raise ConfigError(f"{cls.__name__}.pooled: {cls.pooled!r} is none of {', '.join(get_args(Pooled))}")

    def initial(self, ctx: Context, w: Tensor, b: Tensor) -> Own | None:
        """The rule's state before round 1, from the initial model; by default None, no state.

        It is the place for what can only be checked with the model and the data at hand: raises `ConfigError`.
        """
        return None

    @abstractmethod
    def combine(
        self, ctx: Context, own: Own, before: HasModel, updates: Given, cohort: Cohort, buffers: Buffers
    ) -> Aggregated:
        """The next model, from the model `before`, the clients' `updates` and their `cohort.weights [K]`.

        `buffers`: whether statistics are averaged; with `keep` the next `b` is not read.
        """

    def networks(self, model: nn.Module, inputs: Inputs) -> Mapping[str, nn.Module]:
        """Networks that the server trains alone or freezes; see :meth:`Algorithm.networks`."""
        return {}

    # an exchange after training, of the rules that need one -----------------------------------------------------
    def asks_again(self, own: Own) -> bool:
        """Whether a second exchange follows the training of this round; by default never.

        It has the broadcast of :meth:`broadcast_again`, each client's :meth:`client_work`, whose update is an `Update`,
        and :meth:`combine_again` of their mean.
        """
        return False

    def broadcast_again(self, ctx: Context, state: ServerState) -> Message:
        """The broadcast of the second exchange."""
        raise NotImplementedError

    def client_work(
        self, ctx: Context, broadcast: Any, client: Message, data: ClientData
    ) -> tuple[Message, Message, Metrics]:
        """A client's work in the second exchange: (update, client state, metrics). `broadcast`: that of
        :meth:`broadcast_again`, a record of the rule's own."""
        raise NotImplementedError

    def combine_again(
        self, ctx: Context, own: Own, before: HasModel, updates: HasModel, cohort: Cohort, buffers: Buffers
    ) -> Aggregated:
        """The model after the second exchange, as :meth:`combine` of the clients' mean."""
        raise NotImplementedError
