"""A run is replayed from wherever one stands; its relative paths are those of the folder in which it began."""

import importlib
import random
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flray
from flray.config.loader import load_config
from flray.core.messages import equal, to_numpy
from flray.core.network.threads import threads
from flray.engine.replay import Replay
from flray.running import play
from tests.support.continual import LOCAL, SCENARIOS, config
from tests.support.tasks import BASE

CONFIG = {**BASE, "rounds": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> flray.Run:
    return flray.run(CONFIG, out=tmp_path_factory.mktemp("replayed") / "run", progress=False)


def played(folder: Path) -> list[bytes]:
    """What a replay gives of updates, of a later state and of the initial weights."""
    replay = Replay(folder).goto(1)
    found = [update.w.numpy().tobytes() for _, update, _ in replay.clients()]
    first = flray.load(folder).weights(0).values()
    return [*found, replay.goto(2).state.w.numpy().tobytes(), *(part.numpy().tobytes() for part in first)]


@pytest.fixture(scope="module")
def expected(run: flray.Run) -> list[bytes]:
    return played(run.folder)


def test_a_relative_folder_is_found_from_another_place_than_where_the_run_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, elsewhere = tmp_path / "began", tmp_path / "elsewhere"
    began.mkdir(), elsewhere.mkdir()
    monkeypatch.chdir(began)
    flray.run(CONFIG, out=elsewhere / "run", progress=False)
    monkeypatch.chdir(elsewhere)
    replay = Replay("run").goto(1)
    table = flray.load("run").clients.query("done == 2")
    losses, rows = table.set_index("client")["train/loss"].to_dict(), {k: row for k, _, row in replay.clients()}
    assert {client: row["train/loss"] for client, row in rows.items()} == losses and len(losses) == 4
    assert all(set(row) <= set(table.columns) for row in rows.values())


@contextmanager
def default(put: Any, value: Any, before: Any) -> Iterator[None]:
    put(value)
    try:
        yield
    finally:
        put(before)


@pytest.mark.parametrize(
    "around",
    [
        torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu"),
        lambda: default(torch.set_default_dtype, torch.float64, torch.float32),
        lambda: default(torch.set_default_device, "meta", "cpu"),
    ],
    ids=["no_grad", "inference_mode", "autocast", "float64", "device"],
)  # fmt: skip
def test_what_the_caller_has_set_changes_no_number(
    around: Any, run: flray.Run, expected: list[bytes], tmp_path: Path
) -> None:
    """A cell of a notebook in which gradients, dtypes or the device of new tensors are others; its generators stay."""
    before = torch.get_rng_state(), str(np.random.get_state()), random.getstate()
    with around():
        assert played(run.folder) == expected
        flray.run(CONFIG, out=tmp_path / "again", progress=False)
    after = torch.get_rng_state(), str(np.random.get_state()), random.getstate()
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
    assert (tmp_path / "again/model.safetensors").read_bytes() == (run.folder / "model.safetensors").read_bytes()


def test_a_replay_by_edited_code_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the gradient: the edit may be meant, so the client is played, with its new update."""
    text = """from flray.algorithms.fedavg import FedAvg
class Slow(FedAvg, frozen=True):
    def gradient(self, *args):
        loss, g = super().gradient(*args)
        return loss, g.mul_({})
"""
    (tmp_path / "slow_by_half.py").write_text(text.format("1.0"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the file changes within its second
    once = {"algorithm": {"name": "slow_by_half:Slow", "local_epochs": 1, "batch_size": 10_000}, "rounds": 1}
    run = flray.run({**CONFIG, **once}, out=tmp_path / "run", progress=False)

    def moved() -> float:
        replay = Replay(run.folder)
        return float(next((update.w - replay.state.w).norm() for _, update, _ in replay.clients()))

    before = moved()
    (tmp_path / "slow_by_half.py").write_text(text.format("0.5"))
    importlib.reload(sys.modules["slow_by_half"])
    with pytest.warns(UserWarning, match="the source of module slow_by_half changed since the run began"):
        assert moved() == pytest.approx(before / 2, rel=1e-4)  # of differences of float32


@pytest.mark.parametrize("store", ["memory", "files"])
def test_clients_states_go_back_with_the_server(store: str, tmp_path: Path) -> None:
    """SCAFFOLD without a checkpoint to go back to: its clients' control variates are those of the earlier round."""
    scaffold = {"algorithm": {"name": "scaffold", "local_epochs": 1}, "checkpoint": {"every": 0}, "rounds": 3}
    local = {"executor": "local", "store": store}
    run = flray.run({**CONFIG, **scaffold, "resources": local}, out=tmp_path / "run", progress=False)
    replay = Replay(run.folder).goto(2).goto(1)
    rows = run.clients.query("done == 2").set_index("client")["train/loss"].to_dict()
    assert {client: row["train/loss"] for client, _, row in replay.clients()} == rows and len(rows) == 4
    assert not (run.folder / "checkpoints" / "round-000001").exists()


@pytest.mark.parametrize("name", ["mfcl", "fot"])
def test_the_state_before_a_tasks_end_is_not_that_after_it(tmp_path: Path, name: str) -> None:
    """Also where no checkpoint of before is left, and the replay has to begin anew."""
    kept = {"resources": LOCAL, "checkpoint": {"every": 1, "keep": 9}}
    run = flray.run(config(name, **SCENARIOS["tasks"], **kept), out=tmp_path / "run", progress=False)
    stored = Replay(run.folder).goto(2)
    assert (run.folder / "checkpoints" / "round-000002").is_dir() and stored.position.phase == "round"
    for path in (run.folder / "checkpoints").glob("round-00000[12]"):
        shutil.rmtree(path)
    assert [path.name for path in (run.folder / "checkpoints").glob("round-000002-*")]
    again = Replay(run.folder).goto(2)
    assert again.position == stored.position and torch.equal(again.state.w, stored.state.w)


def test_a_replay_with_the_data_of_before_an_accepted_change_does_not_say_that_it_has_the_later_ones(
    tmp_path: Path,
) -> None:
    """Of round 1, which was before the change. Its losses are the run's with the first data alone."""
    data, folder = tmp_path / "data", tmp_path / "run"
    data.mkdir()

    def write(sign: int) -> None:
        x = np.random.default_rng(3).normal(size=(60, 4)).astype(np.float32)
        for split, rows in (("train", slice(0, 40)), ("test", slice(40, 60))):
            np.save(data / f"{split}_x.npy", sign * x[rows])
            np.save(data / f"{split}_y.npy", np.arange(60)[rows] % 3)

    write(1)
    own = {**CONFIG, "rounds": 2, "data": {"source": "data", "root": str(tmp_path)}}
    rows = play(load_config(own)[0], folder)
    next(rows), rows.close()
    write(-1)
    run = flray.resume(folder, accept=["data"], progress=False)
    losses = run.clients.query("done == 1").set_index("client")["train/loss"].to_dict()
    for sign in (-1, 1):
        write(sign)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", UserWarning)
            rounds = {client: row["train/loss"] for client, _, row in Replay(folder).goto(0).clients()}
        said = [str(each.message) for each in found if "also in this replay" in str(each.message)]
        assert (rounds == losses, len(said)) == (sign == 1, sign == -1)


def test_a_replay_of_rounds_before_an_accepted_change_says_so(tmp_path: Path) -> None:
    """It computes with the later value from where it begins to compute, and not with a state that is kept."""
    rows = play(load_config({**CONFIG, "rounds": 3, "checkpoint": {"every": 2, "keep": 0}})[0], tmp_path)
    assert next(rows)["done"] == 1
    rows.close()
    text = (tmp_path / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(text.replace("lr: 0.1", "lr: 0.5"))
    run = flray.resume(tmp_path, accept=["algorithm.lr"], progress=False)
    losses = [rows.set_index("client")["train/loss"].to_dict() for _, rows in run.clients.groupby("done")]

    def replayed(done: int) -> bool:
        rows = Replay(tmp_path).goto(done).clients()
        return {client: row["train/loss"] for client, _, row in rows} == losses[done]

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert replayed(1) and replayed(2)
    said = "algorithm.lr was 0.1 up to round 1 and is 0.5 now, also in this replay of earlier rounds"
    with pytest.warns(UserWarning, match=said):
        assert not replayed(0)
    shutil.rmtree(tmp_path / "checkpoints" / "round-000001")
    with pytest.warns(UserWarning, match=said):
        assert not replayed(1)
    text = text.replace("  every: 1\n", "  every: 2\n", 1)  # of evaluate, on which no round depends
    (tmp_path / "config.yaml").write_text(text.replace("rounds: 3", "rounds: 4"))  # the rate is as it was
    flray.resume(tmp_path, accept=["algorithm.lr", "evaluate.every"], progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert replayed(0)
    with pytest.warns(UserWarning, match="algorithm.lr was 0.5 up to round 3 and is 0.1 now"):
        assert not replayed(2)
    for path in (tmp_path / "checkpoints").glob("round-00000[23]*"):
        shutil.rmtree(path)
    with pytest.warns(UserWarning, match="algorithm.lr was 0.5 up to round 3 and is 0.1 now"):
        Replay(tmp_path).goto(3)  # over rounds that the run computed with 0.5
    (tmp_path / "config.yaml").write_text(text.replace("rounds: 3", "rounds: 5").replace("lr: 0.1", "lr: 0.5"))
    again = flray.resume(tmp_path, accept=["algorithm.lr", "evaluate.every"], progress=False)
    accepted = [(entry["what"], entry["is"]) for entry in again.environment["accepted"]]
    rates = [("algorithm.lr", rate) for rate in (0.5, 0.1, 0.5)]
    assert sorted(accepted) == sorted([*rates, ("evaluate.every", 2)])


def test_a_run_that_goes_on_after_its_end_keeps_no_state_of_that_end(tmp_path: Path) -> None:
    kept = {"resources": LOCAL, "checkpoint": {"every": 0, "keep": 0}}
    straight = flray.run(config("glfc", rounds=4, **kept), out=tmp_path / "straight", progress=False)
    ended = flray.run(config("glfc", rounds=2, **kept), out=tmp_path / "ended", progress=False)
    assert (ended.folder / "checkpoints" / "round-000002-task-end").is_dir()
    longer = flray.resume(ended, rounds=4, progress=False)
    names = ["round-000002", "round-000004", "round-000004-task-end"]
    assert sorted(path.name for path in (ended.folder / "checkpoints").iterdir()) == names
    for done in (2, 3, 4):
        found, expected = Replay(longer.folder).goto(done), Replay(straight.folder).goto(done)
        assert equal(to_numpy(found.state), to_numpy(expected.state))


def test_a_replays_clients_leave_the_generators_and_the_threads_of_their_reader_alone(run: flray.Run) -> None:
    losses = run.clients.query("done == 2").set_index("client")["train/loss"].to_dict()
    with threads(2):  # a run's client has one
        before = torch.get_rng_state()
        torch.set_default_dtype(torch.float64)
        try:
            for client, _, row in Replay(run.folder).goto(1).clients():
                assert torch.get_num_threads() == 2 and torch.equal(torch.get_rng_state(), before)
                assert row["train/loss"] == losses.pop(client)
        finally:
            torch.set_default_dtype(torch.float32)
    assert not losses
