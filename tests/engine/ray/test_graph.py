"""The graph executor: the bits of the others, whatever dies under it."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import ray
from ray.experimental.channel.shared_memory_channel import CompositeChannel

import flray
from flray.contracts.played import Local
from flray.core.messages import to_numpy
from flray.core.protocol.clock import Clock
from flray.engine import cohort
from flray.engine.client import Client
from flray.engine.ray.actors import ClientActor
from flray.engine.ray.leases import newest
from flray.engine.ray.pool import CHECK_S
from flray.engine.ray.private import channel
from flray.engine.ray.private.compiled import CompiledGraph
from flray.running import play
from tests.contracts.table import FEDAVG_OPTIONS, experiment
from tests.engine.ray import mortal  # noqa: F401  registers the algorithm
from tests.support import outcome
from tests.support.runs import on_actors as config


def graph(algorithm="scaffold", rounds=4, actors=2, executor="graph", **sections):
    resources = {"executor": executor, "client_actors": actors, **sections.pop("resources", {})}
    imports = ["tests.contracts.own", "tests.engine.ray.mortal"]
    return config(algorithm, rounds=rounds, imports=imports, resources=resources, **sections)


def contents(folder):
    """Everything that must not depend on who computed it."""
    run = flray.load(folder)
    assert run.status == "finished"
    return outcome.contents(run)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What a run in one process leaves, by algorithm and number of rounds."""
    known = {}

    def get(algorithm="scaffold", rounds=4):
        if (algorithm, rounds) not in known:
            folder = tmp_path_factory.mktemp("alone") / algorithm
            flray.run(graph(algorithm, rounds, executor="local"), out=folder)
            known[algorithm, rounds] = contents(folder)
        return known[algorithm, rounds]

    return get


@pytest.fixture
def executions(monkeypatch):
    """The moments of what went through a graph."""
    seen, execute = [], CompiledGraph.execute

    def watched(self, order, *rest):
        answer = execute(self, order, *rest)
        seen.append((order.plan.clock.phase, order.plan.clock.round, order.plan.clock.exchange))
        return answer

    monkeypatch.setattr(CompiledGraph, "execute", watched)
    return seen


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
@pytest.mark.parametrize("actors", [1, 2])
def test_the_bits_are_those_of_one_process(alone, executions, tmp_path, algorithm, actors):
    flray.run(graph(algorithm, actors=actors), out=tmp_path / "run")
    assert executions == [("round", round, 0) for round in range(4)], "all of it went through the graph"
    assert contents(tmp_path / "run") == alone(algorithm)


@pytest.mark.usefixtures("ray_cluster")
def test_every_exchange_in_parallel_goes_through_it(alone, executions, tmp_path):
    """`own` has two of them a round, and one client after the other at the end of the task: that goes by calls."""
    flray.run(graph("own"), out=tmp_path / "run")
    assert executions == [("round", round, exchange) for round in range(4) for exchange in range(2)]
    assert contents(tmp_path / "run") == alone("own")


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("place", ["training", pytest.param("evaluation", marks=pytest.mark.slow)])
def test_who_dies_in_an_execution_changes_nothing(alone, executions, tmp_path, place):
    """A client actor in training or in a test; later rounds go through a graph again. The server:
    tests/faults/test_server_actor.py."""
    dying = {"name": "mortal", "dies": place, "unless": str(tmp_path / "died")}
    flray.run(graph(dying, rounds=8), out=tmp_path / "run")
    assert (tmp_path / "died").exists()
    assert contents(tmp_path / "run") == alone(rounds=8)
    assert executions[-1] == ("round", 7, 0)


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("ray_cluster")
def test_an_answer_that_takes_longer_to_read_than_a_wait_lasts_is_not_lost(alone, executions, monkeypatch, tmp_path):
    """A driver that the system puts aside while it reads: Ray drops what it read when its own time is up by then."""
    slow, read = [], CompositeChannel.read

    def aside(self, timeout=None):
        found = read(self, timeout)
        if not slow:
            slow.append(time.sleep(1.5 * CHECK_S))
        return found

    monkeypatch.setattr(CompositeChannel, "read", aside)
    flray.run(graph(), out=tmp_path / "run")
    assert slow and len(executions) == 4
    assert contents(tmp_path / "run") == alone()


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.slow  # by calls in test_pool.py
@pytest.mark.parametrize("who", ["client", "server"])
def test_who_died_between_two_rounds_is_found_out(alone, tmp_path, who):
    for row in play(graph(rounds=4), tmp_path / "run"):
        if row["round"] == 2 and who == "server":
            ray.kill(newest().server)
        elif row["round"] == 2:
            actor = newest().clients[0]
            os.kill(ray.get(actor.setup.remote(*newest()._setup))["pid"], signal.SIGKILL)
    assert who == "server" or flray.load(tmp_path / "run").environment["actors"]["repeated_work"] >= 1
    assert contents(tmp_path / "run") == alone()


@pytest.mark.usefixtures("ray_cluster")
def test_a_graph_serves_the_next_run_of_its_actors(alone, tmp_path):
    flray.run(graph("fedavg"), out=tmp_path / "first")
    first = newest().graph
    flray.run(graph("fedavg"), out=tmp_path / "second")
    assert newest().graph is first
    assert contents(tmp_path / "second") == alone("fedavg")


# long ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_ctrl_c_in_an_execution_leaves_the_last_round_and_resumes(alone, tmp_path):
    """SIGINT reaches this process while clients sleep for minutes: nobody waits for them."""
    slow = {"name": "mortal", "pause_s": 400.0, "round": 2, "unless": str(tmp_path / "awake")}
    pid, began = os.getpid(), time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        for row in play(graph(slow), tmp_path / "run"):
            if row["round"] == 2:
                threading.Timer(2.0, os.kill, (pid, signal.SIGINT)).start()
    assert time.monotonic() - began < 300
    assert flray.load(tmp_path / "run").status.startswith("interrupted after round 2")
    (tmp_path / "awake").touch()
    flray.resume(tmp_path / "run")
    assert contents(tmp_path / "run") == alone()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_round_of_half_a_minute_is_no_failure(alone, tmp_path):
    """Ray's own limit is 10 s."""
    run = flray.run(graph({"name": "mortal", "pause_s": 16.0}), out=tmp_path / "run")
    assert run.rounds["time/round_s"].max() > 30, "two clients of an actor, one after the other"
    assert run.environment["actors"]["repeated_work"] == 0
    assert contents(tmp_path / "run") == alone()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_many_rounds_leave_no_memory_and_no_threads(tmp_path):
    def held(pid):
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        found = {line.partition(":")[0]: line.partition(":")[2].removesuffix("kB") for line in status}
        return int(found["Threads"]), int(found["RssShmem"])

    seen = []
    for row in play(graph(rounds=200, checkpoint={"every": 0}), tmp_path / "run"):
        if row["round"] in (20, 199):
            pool = newest()
            pids = [ray.get(a.__ray_call__.remote(lambda _: __import__("os").getpid())) for a in pool.clients]
            seen.append([held(pid) for pid in (os.getpid(), *pids)])
    for (threads, shared), (later, more) in zip(*seen, strict=True):
        assert later <= threads + 2
        assert more - shared < 2**10, "KiB"


def test_the_next_clients_are_prepared_when_the_result_is_on_its_way(tmp_path, monkeypatch):
    """Not while the channel has it still; and not those whose turn it was already when they were named."""
    local, made = Local(experiment("fedavg", FEDAVG_OPTIONS), tmp_path), list[object]()
    server, actor = local.server, ClientActor()
    actor._client = Client(server.runtime)
    monkeypatch.setattr(actor._client, "prepare_ahead", made.append)
    exchange, members = server.algorithm.training, np.asarray(local.scenario.members(0))

    def chunk_of(round):
        clock = Clock(0, round, done=round)
        return cohort.turns(local.scenario, server.algorithm, members, clock, exchange, 1)[0][0].chunks[0]

    now, following = chunk_of(0), chunk_of(1)
    broadcast = to_numpy(server.broadcast(now.clock, exchange)[0])
    actor.graph_next(following)
    actor.graph_work((now, exchange), broadcast, None)
    assert not made
    monkeypatch.setattr(channel, "_node_id", lambda: "here")
    monkeypatch.setattr(channel.Channel, "_resolve_actor_id", lambda self: "an actor")
    waiting = channel.Channel.__new__(channel.Channel)
    waiting.home, waiting.graph = "elsewhere", "a graph"
    waiting.wait(0.0)
    assert made == [following]
    actor.graph_next(now)
    actor.graph_work((now, exchange), broadcast, None)
    waiting.wait(0.0)
    actor.graph_work((now, exchange), broadcast, None)
    waiting.wait(0.0)
    assert made == [following]
