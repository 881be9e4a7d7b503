"""A method that returns what it must not, in a user's own algorithm: one line that names it and says what it must
return."""

import pickle

import pytest
import torch

from flray.algorithms.fedavg import FedAvg
from flray.core.messages import ClientState, Record
from flray.core.schema.errors import AlgorithmError
from flray.core.schema.hp import hyperparameters

ZERO = torch.zeros(3)


class State(Record):
    w: torch.Tensor
    b: torch.Tensor


class Returns(FedAvg):
    """Every method returns `value`."""

    value: object = None

    def aggregate(self, ctx, state, updates, cohort):
        return self.value

    def broadcast(self, ctx, state):
        return self.value

    def gradient(self, ctx, broadcast, client, local, batch):
        return self.value

    def step(self, ctx, broadcast, client, local, batch):
        return self.value

    def end(self, ctx, broadcast, client, local, data):
        return self.value

    def report(self, ctx, local):
        return self.value


WRONG = [
    (
        "aggregate",
        State(ZERO, ZERO),
        "returned a State; it must return (state, metrics), for example: return state, {}",
    ),
    ("aggregate", None, "returned None (a return is missing); it must return (state, metrics)"),
    ("aggregate", (State(ZERO, ZERO), ZERO), "returned (State, Tensor); it must return (state, metrics)"),
    ("broadcast", None, "returned None (a return is missing); it must return the message to the clients"),
    ("gradient", ZERO, "returned a Tensor [3]; it must return (loss, gradient [P])"),
    ("gradient", (ZERO, 0.5), "returned (Tensor, float); it must return (loss, gradient [P])"),
    ("step", None, "returned None (a return is missing); it must return the local state"),
    ("end", State(ZERO, ZERO), "returned a State; it must return (update, client state)"),
    ("report", ZERO, "returned a Tensor [3]; it must return metrics"),
]
ARGUMENTS = {"aggregate": 4, "broadcast": 2, "gradient": 5, "step": 5, "end": 5, "report": 2}


@pytest.mark.parametrize(("method", "value", "message"), WRONG)
def test_a_wrong_return_value_names_the_method_and_what_it_should_be(method, value, message):
    algorithm = Returns(lr=0.1, value=value)
    with pytest.raises(AlgorithmError) as caught:
        getattr(algorithm, method)(*[None] * ARGUMENTS[method])
    assert str(caught.value).startswith(f"Returns.{method} (test_returned.py, line ")
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("aggregate", (State(ZERO, ZERO), {"loss": 1.0})),
        ("gradient", (0.5, ZERO)),
        ("step", State(ZERO, ZERO)),
        ("end", (State(ZERO, ZERO), ())),
    ],
)
def test_a_right_return_value_passes_as_it_is(method, value):
    assert getattr(Returns(lr=0.1, value=value), method)(*[None] * ARGUMENTS[method]) is value


class Begins(ClientState):
    h: torch.Tensor
    anchor: torch.Tensor | None
    visits: int


class Later(ClientState):
    h: "torch.Tensor"
    of: "OnlyATypeChecker"  # noqa: F821


class First(FedAvg):
    value: object = None

    def init_client(self, ctx):
        return self.value


def test_none_in_the_field_of_a_tensor_is_named_where_it_is_returned():
    for value, says in {
        Begins(None, None, 0): "returned a Begins whose h is None and is declared Tensor; set it, for example to "
        "torch.zeros_like(ctx.objective.initial()[0]), or declare h: Tensor | None",
        Begins(
            ZERO, None, None
        ): "returned a Begins whose visits is None and is declared int; set it, or declare visits: int | None",
    }.items():
        with pytest.raises(AlgorithmError) as caught:
            First(lr=0.1, value=value).init_client(None)
        assert str(caught.value).startswith("First.init_client (test_returned.py, line ")
        assert says in str(caught.value) and "\n" not in str(caught.value)
    for right in (Begins(ZERO, None, 0), Begins(ZERO, ZERO, 0), Later(None, None), ()):
        assert First(lr=0.1, value=right).init_client(None) is right


def test_the_check_changes_nothing_else_of_the_class():
    assert [hp.name for hp in hyperparameters(Returns)][-1] == "value"
    assert Returns.aggregate.__qualname__ == "Returns.aggregate"
    assert pickle.loads(pickle.dumps(Returns(lr=0.5).step)).__self__ == Returns(lr=0.5)
    assert not hasattr(FedAvg.step, "__wrapped__"), "flray's own methods are called without a detour"
