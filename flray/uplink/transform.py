"""An uplink transform: what it does at a client, at the server with one client's update, and after pooling."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from flray.core.schema.own import check_results
from flray.core.schema.section import Section

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from flray.core.protocol.context import ClientContext, Context


class Sent(NamedTuple):
    """A client's update of local training on its way.

    `w [P]`, `b [Q]`: its differences to the broadcast; b is None where one of the two has no statistics. `norm`: the
    norm to which the last clip bounds w; None: there is none. `bounded`: whether w is within it; what a later transform
    changes may not be. `residual [P]`: what the client adds to its next update. `nbytes`: of w in the form that is
    sent; None: as a vector. `bits`: one bit of each transform that asks clients for one, by address.
    """

    w: Tensor
    b: Tensor | None = None
    norm: float | None = None
    bounded: bool = False
    residual: Tensor | None = None
    nbytes: int | None = None
    bits: Mapping[str, bool] = {}


class Sender(NamedTuple):
    """What a transform reads at a client.

    `address`: its name, with its occurrence from the second one on. `population`: the number of clients of the run.
    `state`: what :meth:`Transform.broadcast` gives of the server's state. `residual [P]`: of the client's last update;
    None: there is none.
    """

    ctx: ClientContext
    address: str
    population: int
    state: Any = None
    residual: Tensor | None = None

    def rng(self) -> np.random.Generator:
        """The generator of this transform, client and exchange."""
        return self.ctx.rng("uplink", self.address)


class Received(NamedTuple):
    """The mean of a cohort's updates at the server.

    `w [P]`: its difference to the broadcast; None: an algorithm that reads every client's own has no mean. `norm`: the
    norm to which the last clip bounds each update. `clients`: the number of updates in it. `bits`: by address, how many
    clients' bits are 1. `bit_noise`: the standard deviations of the noise that was added to such numbers. `metrics`: of
    the round's row.
    """

    w: Tensor | None
    clients: int
    norm: float | None = None
    bits: Mapping[str, int] = {}
    bit_noise: tuple[float, ...] = ()
    metrics: Mapping[str, float] = {}


class Receiver(NamedTuple):
    """What a transform reads at the server.

    `rates`: see `Plan`, of the rounds up to this one. `poisson`: whether each client takes part at these rates
    independently of the others, or they are 1. `private`: whether the server adds noise: means then have the fixed
    denominator K.
    """

    ctx: Context
    address: str
    state: Any
    poisson: bool
    private: bool
    rates: tuple[tuple[float, int], ...] = ()

    def rng(self, *purpose: str) -> np.random.Generator:
        """The generator of this transform and exchange."""
        return self.ctx.rng("uplink", self.address, *purpose)


class Plan(NamedTuple):
    """What a transform reads before round 1. `rates`: by task (the most probability with which a client takes part in
    a round, rounds): K / N where a round draws among all clients, else 1."""

    ctx: Context
    rates: tuple[tuple[float, int], ...]


def _no_update(result: Any, sender: Sender, sent: Sent) -> str:
    """What `client` and `server` must return, in words; "": they do."""
    return "" if isinstance(result, Sent) else "return sent, or sent._replace(w=...)"


def _no_mean(result: Any, receiver: Receiver, mean: Received) -> str:
    """What `pooled` must return, in words; "": it does."""
    fits = isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Received)
    if fits and not isinstance(result[0].metrics, Mapping):
        return "metrics is a dict of numbers by name: mean._replace(metrics={**mean.metrics, 'mine/x': 0.5})"
    return "" if fits else "return (mean, receiver.state)"


class Transform(Section, ABC, frozen=True):
    """A step of the way of an update. One of your own is a subclass, under a name in `UPLINKS`; no method changes a
    tensor in place."""

    shorthand: ClassVar[Mapping[type, str]] = {str: "name"}
    float32_only: ClassVar[bool] = False  # it refuses `model.dtype: float64`

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        check_results(cls, {"client": _no_update, "server": _no_update, "pooled": _no_mean})

    def client(self, sender: Sender, sent: Sent) -> Sent:
        """The update as the client sends it; by default unchanged."""
        return sent

    def server(self, sender: Sender, sent: Sent) -> Sent:
        """One client's update as the server pools it, after :meth:`client` of all transforms; by default unchanged."""
        return sent

    def start(self, plan: Plan) -> Any:
        """The server's first state of this transform, a message, whose arrays come back as tensors; None: it has none.
        Raises `ConfigError` for what does not fit the data."""
        return None

    def broadcast(self, state: Any) -> Any:
        """The part of the server's state that clients get with the broadcast; by default nothing."""
        return None

    def pooled(self, receiver: Receiver, mean: Received) -> tuple[Received, Any]:
        """After pooling: (the mean, the next state); by default both unchanged."""
        return mean, receiver.state
