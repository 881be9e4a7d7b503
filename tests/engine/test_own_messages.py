"""Messages that no built-in algorithm has, through the engine's own rounds: a state that grows, ragged and summed
fields of an update, client states that change their form."""

from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from flray.algorithms.fedavg import FedAvg
from flray.contracts.played import Local
from flray.core.messages import ServerState, tensors
from flray.core.protocol.probe import Probe
from tests.contracts.table import experiment
from tests.engine.ray import main_script  # registers the algorithm `growing`


def config(**sections):
    return experiment("fedavg", **sections).model_copy(update={"algorithm": main_script.Growing(lr=0.05, batch_size=5)})


def expected(cohorts):
    """By round what the server half must have got: client k sends so many k as it was in a cohort, this one counted."""
    visits, blocks = Counter(), []
    for clients in cohorts:
        visits.update(clients)
        blocks.append([float(k) for k in clients for _ in range(visits[k])])
    return blocks, visits


def watched(folder, **sections):
    cohorts = []

    def watch(half, function, *arguments):
        if half == "server":
            cohorts.append(arguments[3].client_ids.tolist())
        return function(*arguments)

    return Local(config(**sections), folder, watch), cohorts


@pytest.mark.parametrize("store", ["memory", "files"])
def test_a_growing_state_and_ragged_updates_are_what_they_were_after_a_stop(tmp_path, store):
    resources = {"store": store, "server": {"threads": 1}}
    local, cohorts = watched(tmp_path / "run", resources=resources)
    local.play(2)
    local.executor.store.save(1)
    again = Local(config(resources=resources), tmp_path / "run")
    again.position = again.executor.store.load()
    whole, parts = local.play(2), again.play(2)
    blocks, visits = expected(cohorts)
    assert [block.tolist() for block in whole.blocks.values()] == blocks
    assert whole.blocks.keys() == {"round.0", "round.1", "round.2", "round.3"} and whole.rate == 0.65
    assert [row["counted"] for row in local.rows] == [1.0] * 4
    assert {k: state.visits for k, state in local.client_states().items()} == dict(visits)
    assert main_script.equal(whole, parts) and type(parts) is main_script.GrowingState
    assert main_script.equal(tuple(local.client_states().values()), tuple(again.client_states().values()))
    model = whole.w.nbytes + whole.b.nbytes
    assert [row["up"] for row in local.rows] == [4 * len(block) + 3 * (model + 8) for block in blocks]


SCRATCH = np.zeros(2)


class Counted(ServerState):
    count: Any


class Counting(FedAvg, frozen=True):
    """Its state has an array, which it writes again after a round."""

    def init_server(self, ctx, w, b):
        return Counted.of(super().init_server(ctx, w, b), count=np.zeros(2))

    def aggregate(self, ctx, state, updates, cohort):
        SCRATCH[:] = state.count + 1
        return super().aggregate(ctx, state, updates, cohort)[0].replace(count=SCRATCH), {}


def test_a_server_state_has_tensors_in_the_place_of_arrays_as_after_a_resume(tmp_path):
    counting = experiment("fedavg").model_copy(update={"algorithm": Counting(lr=0.05, batch_size=5)})
    local = Local(counting, tmp_path)
    states = [local.state, local.play(1), local.play(1)]
    assert [state.count.tolist() for state in states] == [[0, 0], [1, 1], [2, 2]]
    assert {type(state.count) for state in states} == {torch.Tensor}


class Keeping(Probe, frozen=True):
    at: ClassVar[frozenset[str]] = frozenset({"finish"})

    def observe(self, ctx, view, memory):
        """Memory of arrays and tensors, counted up with the methods of each."""
        if memory is None:
            return [], {"a": torch.zeros(2), "b": (np.zeros(2), np.arange(3)), "c": {"a": torch.ones(1)}}
        b, (c, order) = memory["a"].add(1), memory["b"]
        return [], {"a": b, "b": (c.astype(float) + 1, order[::-1]), "c": memory["c"]}


def test_a_probe_has_its_arrays_and_tensors_as_such_after_a_stop(tmp_path):
    def begun():
        local = Local(experiment("fedavg"), tmp_path / "run")
        local.server.runtime.probes = {"keeping": Keeping()}
        return local

    local = begun()
    local.play(2)
    local.executor.store.save(1)
    again = begun()
    again.position = again.executor.store.load()
    for there in (local, again):
        there.play(1)
        memory = there.server.memory["keeping"]
        assert [type(leaf) for leaf in tensors(memory).values()] == [torch.Tensor, np.ndarray, np.ndarray, torch.Tensor]
        assert memory["a"].tolist() == memory["b"][0].tolist() == [2, 2] and memory["b"][1].tolist() == [0, 1, 2]


def test_a_client_that_is_left_out_is_in_no_field(tmp_path):
    """Its weight goes to the others, its count and its own value are missing, and it has no state."""
    local, cohorts = watched(tmp_path, on_nonfinite="skip")
    work, spoiled = local.executor.client.exchange, []

    def exchange(train, ctx, *arguments):
        done = work(train, ctx, *arguments)
        if ctx.clock.round == 0 and not spoiled:
            spoiled.append(ctx.client)
            return done._replace(update=done.update.replace(w=done.update.w * float("nan")))
        return done

    local.executor.client.exchange = exchange
    state = local.play(1)
    assert len(cohorts[0]) == 2 and spoiled[0] not in cohorts[0]
    assert state.blocks["round.0"].tolist() == [float(k) for k in cohorts[0]]
    assert local.client_states().keys() == set(cohorts[0]) and local.rows[0]["counted"] == 1.0
    assert bool(torch.isfinite(state.w).all()) and np.isclose(local.rows[0]["rate"], 0.65)
