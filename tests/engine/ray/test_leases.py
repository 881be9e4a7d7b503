"""One run owns one pool of actors: several runs at once in this process, on a Ray with room."""

import importlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import flray
from flray.core.schema.errors import ResourceError
from flray.engine.ray import leases
from flray.running import play
from tests.support.messages import facts
from tests.support.runs import model, on_actors as config

pytestmark = pytest.mark.usefixtures("ray_cluster")


def one(seed, executor="calls", actors=1):
    resources = {"executor": executor, "client_actors": "auto" if executor == "local" else actors}
    return config(rounds=3, seed=seed, resources=resources)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The models of runs in this process, without Ray, by seed."""
    home = tmp_path_factory.mktemp("alone")
    return {seed: model(flray.run(one(seed, "local"), out=home / str(seed)).folder) for seed in (3, 4)}


@pytest.mark.parametrize("executor", ["calls", "local"])
def test_two_threads_train_their_own_models(alone, tmp_path, executor):
    def train(seed):
        return model(flray.run(one(seed, executor), out=tmp_path / str(seed)).folder)

    with ThreadPoolExecutor(2) as threads:
        assert dict(zip((3, 4), threads.map(train, (3, 4)), strict=True)) == alone
    assert not leases.others()


def test_iterators_in_turn_train_their_own_models(alone, tmp_path):
    runs = [play(one(seed), tmp_path / str(seed)) for seed in (3, 4)]
    pools = set()
    for _ in zip(*runs, strict=True):
        pools |= {id(pool) for pool in leases.others()}
    assert len(pools) == 2
    assert {seed: model(tmp_path / str(seed)) for seed in (3, 4)} == alone


@pytest.mark.slow
def test_a_run_that_only_its_own_thread_could_continue_is_not_waited_for(alone, tmp_path):
    """The first one holds all four CPUs: within its loop a second one is refused; in another thread it waits."""
    waits = play(one(3, actors=3), tmp_path / "waits")
    next(waits)
    others = play(one(3, actors=1), tmp_path / "others")
    next(others)
    with pytest.raises(
        ResourceError, match=facts("waits and", "others of this process", "close its iterator", "executor=local")
    ) as caught:
        flray.run(one(4), out=tmp_path / "refused")
    assert "\n" not in str(caught.value) and not (tmp_path / "refused").exists()
    with pytest.raises(ResourceError, match=r"^close: run .*waits"):
        flray.close()
    later = threading.Thread(target=flray.run, args=(one(4),), kwargs={"out": tmp_path / "later"})
    later.start()
    later.join(3)
    assert later.is_alive(), "it waits"
    for iterator in (waits, others):
        iterator.close()
    later.join(120)
    assert model(tmp_path / "later") == alone[4]


def test_the_next_run_has_the_same_processes(tmp_path):
    """In a block of `kept`, as in a Ray of flray's own; the session's Ray is one."""
    seen = []
    for name in ("first", "second"):
        run = flray.run(one(3), out=tmp_path / name)
        seen.append({process["pid"] for process in run.environment["actors"]["processes"]})
    assert seen[0] == seen[1]


SCALED = """
import {helper}
from flray.algorithms.fedavg import FedAvg

class Scaled(FedAvg, frozen=True):
    def gradient(self, ctx, broadcast, client, local, batch):
        loss, gradient = super().gradient(ctx, broadcast, client, local, batch)
        return loss, gradient.mul_({helper}.FACTOR)
"""


@pytest.mark.parametrize("folder", [".", "elsewhere"])
def test_actors_do_not_outlive_the_code_that_they_have_imported(tmp_path, monkeypatch, folder):
    """A helper of the algorithm's module, beside it or in another folder, is edited and loaded again: gradients twice
    as large are a doubled lr."""
    method, helper = f"scaled_gradients_{len(folder)}", f"factor_of_gradients_{len(folder)}"
    (tmp_path / folder).mkdir(exist_ok=True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / folder)
    (tmp_path / f"{method}.py").write_text(SCALED.format(helper=helper))
    found = []
    for factor in ("1", "2.0"):  # of another length: Python takes what it has compiled where time and length agree
        (tmp_path / folder / f"{helper}.py").write_text(f"FACTOR = {factor}\n")
        importlib.reload(sys.modules[helper]) if helper in sys.modules else importlib.import_module(method)
        own = config(f"{method}:Scaled", rounds=1, seed=3)
        found.append(model(flray.run(own, out=tmp_path / factor).folder))
    doubled = config({"name": "fedavg", "lr": 0.1}, rounds=1, seed=3, resources={"executor": "local"})
    assert found[1] == model(flray.run(doubled, out=tmp_path / "doubled").folder) != found[0]
    for name in (method, helper):
        del sys.modules[name]
