"""Neighbouring chunks worked through in one call: the answer is that of one chunk, to the bit."""

from pathlib import Path

import numpy as np
import pytest
import torch

from flray.contracts.played import Local
from flray.core.messages import Update, to_numpy
from flray.core.protocol.clock import Clock
from flray.data import client_data
from flray.engine import cohort
from flray.engine.client import Answer, Client, ClientRun
from flray.engine.exchanges import Chunk, ClientReport
from flray.ops.pooling import Collector
from flray.uplink.travel import Travelled
from tests.contracts.networks import Layered
from tests.contracts.table import FEDAVG_OPTIONS, experiment

UPDATE = Update(torch.ones(5), torch.ones(2))


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_three_chunks_in_one_call_are_one_chunk(name: str, tmp_path: Path) -> None:
    """In the first of two tasks, where rows of the head that no gradient reaches are frozen."""
    model = {"name": f"{Layered.__module__}:{Layered.__name__}"}
    config = experiment(name, FEDAVG_OPTIONS, model=model, tasks={"num_tasks": 2, "freeze": "unreached"}, rounds=2)
    local = Local(config, tmp_path)
    server, client, clock = local.server, Client(local.server.runtime), Clock(0)
    broadcast, exchange = to_numpy(server.broadcast(clock, server.algorithm.training)[0]), server.algorithm.training

    def answer(num_chunks: int) -> tuple[int, tuple, list]:
        members = np.asarray(local.scenario.members(0))
        chunks = cohort.turns(local.scenario, server.algorithm, members, clock, exchange, num_chunks)[0][0].chunks
        states = [server.states(chunk.clients) for chunk in chunks]
        return len(chunks), *client.work_neighbours(chunks, exchange, [broadcast] * len(chunks), states)

    (one, whole, reports), (three, found, others) = answer(1), answer(3)
    assert (one, three) == (1, 3)
    assert [report.row["client"] for report in reports] == [report.row["client"] for report in others]
    assert found.steps == whole.steps and len(found.steps) > 3 and found.sent.nbytes == whole.sent.nbytes
    assert found.rows is not None and whole.rows is not None and found.rows.tolist() == whole.rows.tolist()
    assert 0 < found.rows.sum() <= len(found.rows)
    assert [node.place for node in found.sent.nodes] == [node.place for node in whole.sent.nodes]
    for ours, theirs in zip(found.sent.nodes, whole.sent.nodes, strict=True):
        assert ours.value.w.tobytes() == theirs.value.w.tobytes()
    assert repr(found.states) == repr(whole.states)


def test_batches_gathered_before_the_broadcast_are_those_of_their_chunk_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk whose batches lie ready has the bits of one that has none; of other samples they are not taken."""
    local = Local(experiment("fedavg", FEDAVG_OPTIONS), tmp_path)
    server, clock = local.server, Clock(0)
    broadcast, exchange = to_numpy(server.broadcast(clock, server.algorithm.training)[0]), server.algorithm.training
    members = np.asarray(local.scenario.members(0))
    (chunk,) = cohort.turns(local.scenario, server.algorithm, members, clock, exchange, 1)[0][0].chunks
    assert len(chunk.clients) > 1  # a client that is alone is not gathered
    gathered, gather = list[object](), client_data.gather
    monkeypatch.setattr(client_data, "gather", lambda *args: (gathered.append(None), gather(*args))[1])

    def bits(client: Client, chunk: Chunk) -> list[bytes]:
        """Of the pooled updates."""
        sent = client.work_neighbours([chunk], exchange, [broadcast], [None])[0].sent
        return [node.value.w.tobytes() for node in sent.nodes]

    expected, ready = bits(Client(server.runtime), chunk), Client(server.runtime)
    copied = chunk._replace(shares=chunk.shares._replace(indices=chunk.shares.indices.copy()))
    ready.prepare_ahead(copied)
    gathered.clear()
    assert bits(ready, chunk) == expected and not gathered
    assert bits(ready, chunk) == expected and gathered, "batches are used once"
    other = chunk._replace(shares=chunk.shares._replace(indices=chunk.shares.indices[::-1].copy()))
    ready.prepare_ahead(other)
    assert bits(ready, chunk) == expected != bits(Client(server.runtime), other)
    gathered.clear()
    ready.prepare_ahead(chunk)
    ready.prepare_ahead(chunk)
    assert len(gathered) == 1, "no client has read the first ones"
    assert bits(ready, chunk) == expected
    with monkeypatch.context() as patch:  # of a client whose batches draw, none are gathered with others
        patch.setattr(client_data.ClientSamples, "augmented", True)
        gathered.clear()
        Client(server.runtime).prepare_ahead(chunk)
        assert not gathered
    monkeypatch.setattr("flray.engine.client.READY_BYTES", 0)
    gathered.clear()
    ready.prepare_ahead(chunk)
    assert not gathered


def test_a_row_of_the_head_that_any_client_reached_is_reached() -> None:
    def row(*reached: bool, update: Update | None = UPDATE) -> tuple[ClientRun, torch.Tensor | None]:
        report = ClientReport({"num_steps": 1}, [], [])
        run = ClientRun(update, (), report, Travelled(None, {}, {}, {}))
        return run, torch.tensor(reached) if reached else None

    answer = Answer(Collector())
    for position, (run, rows) in enumerate([row(True, False, False), row(False, False, True), row(update=None)]):
        answer.add(position, 0.5, run, rows)
    found = answer.result()
    assert found.rows is not None and found.rows.tolist() == [True, False, True]
    assert found.states == [(), (), None] and found.steps == [1, 1, 1]
