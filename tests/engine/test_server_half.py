"""An error in the server half of a user's algorithm: which method, in which round, and the line of the user's own
code."""

import pytest

from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.contracts.played import executor_of
from flray.core.protocol.clock import Clock
from flray.core.schema.errors import AlgorithmError
from tests.support.messages import assert_says, facts
from tests.support.tasks import experiment


class Stumbling(FedAvg):
    def broadcast(self, ctx, state):
        return state.velocity

    def predict(self, ctx, state, x):
        return state.w @ x


ALGORITHMS.add("stumbling", Stumbling)


def test_the_traceback_of_the_users_line_comes_with_the_error(tmp_path):
    server = executor_of(experiment(algorithm="stumbling"), tmp_path).server
    clock = Clock(0, 6, done=6)
    with pytest.raises(AlgorithmError) as caught:
        server.plan(clock)
    first, *rest = str(caught.value).splitlines()
    assert_says(first, "Stumbling.broadcast", "task 0, round 7", "AttributeError")
    assert any("return state.velocity" in line for line in rest)
    with pytest.raises(
        AlgorithmError, match=facts("Stumbling.predict", "task 0, round 7", "RuntimeError", "state.w @ x")
    ):
        server.evaluate(clock)


def test_a_rollback_drops_what_clients_of_the_open_transaction_sent(tmp_path):
    server = executor_of(experiment(algorithm="scaffold"), tmp_path).server
    state = server.state
    server.state = state.replace(w=state.w + 1)
    server.client_store.scatter([0], [state], Clock().complete.order)
    assert server.states([0])[0] is not None
    server.rollback()
    assert server.states([0]) == [None] and server.state is state
