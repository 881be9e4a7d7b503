"""What a round leaves on the server when it is done again."""

from flray.contracts.played import executor_of
from flray.core.protocol.clock import Clock
from tests.support.tasks import experiment


def test_a_rollback_drops_what_clients_of_the_open_transaction_sent(tmp_path):
    server = executor_of(experiment(algorithm="scaffold"), tmp_path).server
    state = server.state
    server.state = state.replace(w=state.w + 1)
    server.client_store.scatter([0], [state], Clock().complete.order)
    assert server.states([0])[0] is not None
    server.rollback()
    assert server.states([0]) == [None] and server.state is state
