"""Client actors that go away and come back, with real actors; the work is done by those that are there, to the same
bits."""

import gc
import os
import signal
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import pandas
import pytest
import ray
from ray.exceptions import RayActorError, RayTaskError

import flray
from flray.contracts.played import executor_of
from flray.core.protocol.clock import Clock
from flray.core.schema.errors import DataError, ResourceError
from flray.engine.ray import leases, pool as pools
from flray.engine.ray.actors import ClientActor, FreshActorError, ServerActor
from flray.engine.ray.calls import CallsExecutor, _task_name
from flray.engine.ray.leases import newest
from flray.engine.replay import Replay
from flray.engine.server import Server
from flray.metrics.landscape import Landscape
from flray.running import play
from tests.support.runs import model, on_actors as config


@pytest.fixture(scope="module")
def whole(ray_cluster, tmp_path_factory):
    """An uninterrupted run."""
    return flray.run(config(rounds=5), out=tmp_path_factory.mktemp("whole") / "run")


def restarted(actor):
    """Wait until Ray has started the actor again; asks for nothing that would set it up."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            return ray.get(actor.__ray_ready__.remote())
        except RayActorError:
            time.sleep(0.1)
    pytest.fail("Ray did not restart the actor")


@pytest.mark.slow
def test_an_actor_that_died_between_two_rounds_is_set_up_again(whole, tmp_path):
    """Ray starts it afresh while nothing runs: it takes the next work without knowing the experiment."""
    for row in play(config(rounds=5), tmp_path / "run"):
        if row["round"] == 2:
            actor = newest().clients[0]
            killed = ray.get(actor.setup.remote(*newest()._setup))["pid"]
            os.kill(killed, signal.SIGKILL)
            restarted(actor)
        elif calls := [call for call in newest()._away.values() if call is not None]:
            ray.wait(calls, timeout=60)
    assert len(newest().clients) == 2, "it is back"
    run = flray.load(tmp_path / "run")
    processes = run.environment["actors"]["processes"]
    again = next(process["actor"] for process in processes if process["pid"] == killed)
    assert sorted(p["actor"] for p in processes) == sorted(["server", "client-0", "client-1", again])
    for process in processes:
        assert f"-{process['pid']}.out" in process["log"] and Path(process["log"]).is_file()
    assert run.status == "finished" and run.environment["actors"]["repeated_work"] >= 1
    assert model(run.folder) == model(whole.folder)


def test_an_actor_that_finds_no_place_is_left_out_and_not_waited_for(whole, tmp_path):
    """One of two actors is replaced by one that asks for more CPUs than there are: Ray never starts it."""
    homeless = ray.remote(num_cpus=1000)(ClientActor).remote()
    for row in play(config(rounds=5), tmp_path / "run"):
        if row["round"] == 2:
            pool, began = newest(), time.monotonic()
            ray.kill(pool.clients.pop())
            pool._away[homeless] = None
    assert homeless in pool._away and len(pool.clients) == 1
    assert time.monotonic() - began < pools.TOGETHER_S, "three small rounds: nobody waited"
    assert model(tmp_path / "run") == model(whole.folder)
    leases.end(pool)


@pytest.mark.slow
def test_a_later_run_of_more_or_fewer_actors_starts_or_ends_only_the_difference(whole, tmp_path):
    seen = []
    for actors in (2, 1, 2):
        out = tmp_path / str(len(seen))
        run = flray.run(config(rounds=5, resources={"client_actors": actors}), out=out)
        seen.append({process["actor"]: process["pid"] for process in run.environment["actors"]["processes"]})
        assert model(out) == model(whole.folder)
    assert [len(processes) for processes in seen] == [3, 2, 3] and all("server" in processes for processes in seen)
    assert seen[0].items() > seen[1].items() < seen[2].items()
    assert len(seen[0].items() & seen[2].items()) == 2, "the server and one client"


@pytest.mark.slow
def test_a_probe_of_whole_rounds_looks_in_the_servers_actor(ray_cluster, tmp_path):
    """Its row is what a replay in this process computes from the checkpoint."""
    look = {"every": 1, "count": 2, "samples": 40}
    run = flray.run(config(rounds=2, diagnostics=[{"name": "landscape", **look}]), out=tmp_path / "run")
    row = pandas.read_parquet(run.folder / "diagnostics" / "landscape").set_index("done").loc[2]
    (computed,) = Replay(run.folder).goto(2).observe(Landscape(**look))
    assert {name: row[name] for name in computed} == computed


@pytest.mark.slow
def test_without_any_client_actor_the_run_ends_with_one_line_and_resumes(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "PATIENCE_S", 1.0)
    with pytest.raises(ResourceError, match=r"no client actor for 1 s: .*`ray status`.*flray resume"):
        for row in play(config(rounds=5), tmp_path / "run"):
            if row["round"] == 2:
                for actor in newest().clients:
                    ray.kill(actor)  # for good: Ray does not start them again
    assert (tmp_path / "run" / "STATUS").read_text().startswith("failed: no client actor")
    leases.end(newest())
    monkeypatch.undo()
    assert model(flray.resume(tmp_path / "run").folder) == model(whole.folder)


def test_what_fails_before_a_gpu_is_measured_is_named(monkeypatch):
    """The setup's own error, not that of the measurement, which finds an actor without one."""

    def method(name, error=None):
        return SimpleNamespace(remote=lambda *_: error and RayTaskError(name, "", error))

    def get(ref):
        raise ref

    monkeypatch.setattr(pools, "ray", SimpleNamespace(wait=lambda refs, timeout: (refs, []), get=get))
    setup, peak = method("setup", DataError("no such file")), method("peak_gpu_memory", FreshActorError())
    actor = SimpleNamespace(__ray_ready__=method("ready"), setup=setup, peak_gpu_memory=peak)
    pool = SimpleNamespace(clients=[actor], look=lambda: None, _await_start=lambda *_: None)
    with pytest.raises(DataError, match="no such file"):
        pools.ActorPool.peak_gpu_memory(pool, None, "", 1, None)


def test_a_run_that_waits_for_a_place_says_so_once(monkeypatch, caplog):
    monkeypatch.setattr(pools, "TELL_S", 0.01)
    looks = iter([*[[]] * 5, ["ready"]])
    monkeypatch.setattr(pools, "ray", SimpleNamespace(wait=lambda refs, timeout: (time.sleep(0.01), next(looks))[1:]))
    with caplog.at_level("INFO"):
        pools.ActorPool._await_start(SimpleNamespace(look=lambda: None), None, "the server actor", "server")
    (said,) = caplog.messages
    assert said.startswith("waiting for the server actor for 0.01 s") and "ray status" in said


def test_a_run_that_has_lost_its_client_actors_says_once_that_it_waits(monkeypatch, caplog):
    """In a round as before the first one: no actor for long, one again, and none for long a second time."""
    times = iter([10.0, 29.0, 31.0, 40.0, 50.0, 79.0, 81.0])
    monkeypatch.setattr(pools, "time", SimpleNamespace(monotonic=lambda: next(times), sleep=lambda seconds: None))
    pool = SimpleNamespace(look=list, _away={}, _returned=list, clients=[], _seen=0.0, _told=False)
    with caplog.at_level("INFO"):
        said = []
        for clients in ([], [], [], [], ["client-0"], [], []):
            pool.clients = clients
            pools.ActorPool._rest(pool)
            said.append(len(caplog.messages))
    assert said == [0, 0, 1, 1, 1, 1, 2]
    assert all(text.startswith("waiting for a client actor for 30 s") for text in caplog.messages)


def test_an_actor_that_dies_at_the_same_work_again_and_again_names_its_clients():
    pool = SimpleNamespace(retries=0, _reason=lambda error: "end of file")
    with pytest.raises(
        ResourceError, match=r"4 times at the same work, clients .2, 5. in task 0, round 3 .end of file"
    ):
        pools.ActorPool._repeat(pool, RayActorError(), None, 4, [], "clients [2, 5] in task 0, round 3")


def test_calls_of_100000_rounds_have_699_names():
    """500 of a round each, and one for each 500 of the others: Ray's driver forgets none of them."""
    names = [_task_name(Clock(done=done)) for done in range(100_000)]
    assert len(set(names)) == 500 + 199
    assert names[0] == "round 1" and names[499] == "round 500"
    assert names[500] == names[999] == "rounds 501-1000" and names[1000] == "rounds 1001-1500"
    assert _task_name(Clock(task=2, phase="task_end", done=17)) == str(Clock(task=2, phase="task_end", done=17))


def test_a_call_of_the_server_has_the_name_of_its_method():
    names = []
    pool = SimpleNamespace(start=lambda *_, name, **options: names.append(name))
    CallsExecutor._ask(SimpleNamespace(pool=pool), Server.states, [1])
    assert names == ["ServerActor.states"]


def test_a_shared_part_that_is_not_sent_is_told_at_the_call():
    plan, chunk = SimpleNamespace(shared=["hash"]), SimpleNamespace(version=None)
    with pytest.raises(ValueError, match="shorter"):
        ClientActor.work(None, [chunk], plan, None, False, 1.0, None)


def test_a_server_actor_lets_the_last_run_go_before_it_builds_the_next(tmp_path: Path) -> None:
    """Also where nobody collects garbage: the store of a run holds its server weakly."""
    executor = executor_of(config(), tmp_path)
    actor, last = ServerActor(), weakref.ref(executor.server)
    actor._server, actor._store = executor.server, executor.store
    del executor
    gc.collect()

    class Next:
        def read(self) -> None:
            assert last() is None
            raise DataError("made up by the test")

    with pytest.raises(DataError, match="made up"):
        actor.setup(Next(), str(tmp_path), 1, "")
