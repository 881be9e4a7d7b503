"""`Run.weights` and `Run.state`: what a checkpoint keeps, as tensors by name, against plain PyTorch and identities."""

import importlib
import shutil
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import flray
from flray.core.schema.errors import CheckpointError, ConfigError
from flray.data import DataConfig, load_dataset
from flray.engine.replay import Replay
from tests.support.networks import Pixels

BASE = {
    "seed": 3,
    "rounds": 3,
    "data": {"source": "digits", "train_size": 300},
    "partition": {"name": "iid", "clients": 4},
    "cohort": {"size": 2},
    "model": {"name": "tests.support.networks:Pixels"},
    "algorithm": {"name": "fedavg", "lr": 0.05, "local_epochs": 1, "batch_size": 16},
    "checkpoint": {"every": 1, "keep": 0},
    "resources": {"executor": "local"},
}


def played(folder, algorithm="fedavg", **sections):
    own = {"name": algorithm} if isinstance(algorithm, str) else algorithm
    config = {**BASE, **sections, "algorithm": {**BASE["algorithm"], **own}}
    return flray.run(config, out=folder / "run", progress=False)


def test_the_weights_of_a_round_load_strictly_and_give_its_tested_accuracy(tmp_path):
    """The accuracy that plain PyTorch has with them on the test set is that of the round's row, and 0 is the start."""
    run, data = played(tmp_path), load_dataset(DataConfig(source="digits", train_size=300))
    mean, std = np.array(data.mean, np.float32), np.array(data.std, np.float32)
    x = (torch.tensor(np.array(data.test.x)).permute(0, 3, 1, 2).float() / 255 - mean[0]) / std[0]
    y, tested = torch.tensor(np.array(data.test.y)), [run.initial("test/acc"), *run.rounds["test/acc"]]
    for round, accuracy in enumerate(tested):
        net = Pixels()
        net.load_state_dict(run.weights(round), strict=True)
        with torch.no_grad():
            right = (net.eval()(x).argmax(1) == y).float().mean().item()
        assert right == pytest.approx(accuracy, abs=0.5 / len(y)), round
    last, final = run.weights(), load_file(tmp_path / "run" / "model.safetensors")
    assert last.keys() == final.keys() == Pixels().state_dict().keys()
    assert all(torch.equal(last[name], final[name]) and torch.equal(last[name], run.weights(3)[name]) for name in last)
    last["head.bias"].zero_()  # one's own: the next call gives the model again
    assert torch.equal(run.weights()["head.bias"], final["head.bias"])


def test_a_round_that_is_not_kept_is_one_line_that_names_those_that_are(tmp_path):
    run = played(tmp_path, checkpoint={"every": 1, "keep": 2})
    for ask in (run.weights, run.state):
        with pytest.raises(CheckpointError, match=r"no checkpoint after round 1, only after 2, 3; .*keep=0 keeps all"):
            ask(1)
    assert run.state(2).round == 2


@pytest.mark.parametrize(("algorithm", "field"), [("scaffold", "c"), ("feddyn", "h")])
@pytest.mark.parametrize("store", ["memory", "files"])
def test_control_variates_are_there_by_name(tmp_path, algorithm, field, store):
    """Both start at 0, and the server adds 1/N of what each client adds: its own is the mean of all clients'."""
    run = played(tmp_path, algorithm, resources={"executor": "local", "store": store})
    for round in (1, 3):
        state = run.state(round)
        ours = state.server[field]
        assert ours.keys() == dict(Pixels().named_parameters()).keys()
        took_part = set(run.clients[run.clients["done"] <= round]["client"])
        assert set(state.clients) == took_part and 9 not in state.clients
        for name, parameter in Pixels().named_parameters():
            total = sum(state.clients[k][field][name].double() for k in state.clients) / 4
            assert ours[name].shape == parameter.shape and ours[name].abs().sum() > 0
            torch.testing.assert_close(ours[name].double(), total, rtol=1e-4, atol=1e-6)
    assert torch.equal(run.state().server["w"]["head.weight"], run.weights()["head.weight"])
    assert "body.2.running_mean" in run.state().server["b"]


def test_bases_over_tasks_are_those_of_the_round(tmp_path):
    """FedProTIP's bases have orthonormal columns; after the first task there is one block a layer."""
    tasks = {"num_tasks": 2}
    run = played(tmp_path, "fedprotip", tasks=tasks, rounds=2, model={"name": "mlp", "hidden": [16]})
    after, before = run.state(), run.state(2)
    assert (after.round, before.round) == (4, 2)
    assert len(after.server["spaces"]) == 2 and len(before.server["spaces"]) == 0
    for space in after.server["spaces"]:
        if space.numel():
            torch.testing.assert_close(space.T @ space, torch.eye(space.shape[1]), atol=1e-4, rtol=0)
    assert after.server.keys() >= {"w", "b", "spaces", "references"}, after.server.keys()
    assert run.weights(2).keys() == run.weights(4).keys()


def test_other_kinds_of_run(tmp_path):
    """Centralized training has a model and no clients; without a global model the clients' own are in their states."""
    central = played(tmp_path / "one", "centralized")
    final = load_file(tmp_path / "one" / "run" / "model.safetensors")
    assert all(torch.equal(central.weights()[name], final[name]) for name in final)
    assert not central.state().clients
    alone = played(tmp_path / "two", "local")
    with pytest.raises(ConfigError, match=r"no global model; the clients' models are in state\(2\)\.clients"):
        alone.weights(2)
    assert all("head.weight" in client["w"] for client in alone.state(2).clients.values())


def test_a_run_in_a_storage(tmp_path):
    run = played(tmp_path, storage=f"file://{tmp_path}/store")
    there = flray.load(f"file://{tmp_path}/store/run")
    assert all(torch.equal(there.weights()[name], tensor) for name, tensor in run.weights().items())
    with pytest.raises(CheckpointError, match="downloaded with: flray resume file://"):
        there.weights(1)


NETWORK = """from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        {}
        self.head = nn.Linear(64, 10)
    def forward(self, x):
        return self.head(self.second(self.first(x.flatten(1)).relu()))
"""
FIRST, SECOND = "self.first = nn.Linear(64, 64)", "self.second = nn.Linear(64, 64)"


def test_a_flat_vector_is_not_read_under_the_names_of_another_order(tmp_path, monkeypatch):
    """Two layers of one shape that change places: a checkpoint has no names, and model.safetensors has. An edit that
    leaves the tensors leaves their names right, which the file shows."""
    (tmp_path / "net_that_moves.py").write_text(NETWORK.format(f"{FIRST}; {SECOND}"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the file changes within its second
    run = played(tmp_path, model={"name": "net_that_moves:Net"}, rounds=1)
    final = load_file(run.folder / "model.safetensors")
    (tmp_path / "net_that_moves.py").write_text("# as before\n" + NETWORK.format(f"{FIRST}; {SECOND}"))
    importlib.reload(sys.modules["net_that_moves"])
    stored = run.state(1).server["w"]
    assert all(torch.equal(stored[name], final[name]) for name in final)
    (tmp_path / "net_that_moves.py").write_text(NETWORK.format(f"{SECOND}; {FIRST}"))
    importlib.reload(sys.modules["net_that_moves"])
    run = flray.load(shutil.copytree(run.folder, tmp_path / "copy"))  # whose names no earlier call knows
    replay = Replay(run.folder)
    for ask, round in ((run.state, 1), (run.weights, 1), (run.weights, 0), (replay.goto, 1)):
        with pytest.raises(CheckpointError, match=r"the tensors of net_that_moves:Net .* another order now"):
            ask(round)
    assert replay.goto(0).round == 0  # nothing stored is read
    with pytest.raises(ConfigError, match="the tensor names changed since the run began"):
        flray.resume(run.folder, rounds=2, accept=["modules.net_that_moves"], progress=False)
