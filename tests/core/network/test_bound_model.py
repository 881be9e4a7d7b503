"""Which messages hold the model, for whoever tests, probes or saves one (`Algorithm.model_of`)."""

import pytest
import torch
from torch import Tensor

from flray.aggregations.memo_proxy import Generators
from flray.algorithms.fedavg import FedAvg, SGDState
from flray.algorithms.fedmemo import FedMemo, MemoDown
from flray.algorithms.local import Local
from flray.core.messages import Broadcast, ClientState, LocalState, Published, Record, ServerState, Update
from flray.core.network.objective import Objective
from tests.support.networks import Mlp, build
from tests.support.small_cases import context

W, B = torch.arange(3.0), torch.arange(2.0)


class Generator(Record):
    """A network's parameters, which are no model's."""

    w: Tensor
    b: Tensor


@pytest.mark.parametrize("kind", [ServerState, Broadcast, Update, Published, LocalState])
def test_the_messages_of_a_model_hold_it(kind):
    class Own(kind):
        more: Tensor

    for message in (kind(W, B), Own(W, B, W)):
        w, b = FedAvg().model_of(context(Objective(build(Mlp))), message)
        assert w is W and b is B


def test_a_generator_is_no_model():
    ctx, generators = context(Objective(build(Mlp))), Generators(W[None], B[None], W, B)
    assert FedMemo().model_of(ctx, generators) is None and FedAvg().model_of(ctx, Generator(W, B)) is None
    assert FedMemo().model_of(ctx, MemoDown(W, B, generators))[0] is W
    assert FedAvg().model_of(ctx, ClientState()) is None and FedAvg().model_of(ctx, ()) is None
    assert issubclass(SGDState, LocalState)


def test_one_client_alone_has_its_model_in_its_state():
    algorithm, ctx = Local(), context(Objective(build(Mlp)))
    state = algorithm.init_client(ctx)
    assert algorithm.model_of(ctx, state)[0] is state.w and FedAvg().model_of(ctx, state) is None
