"""Options for comparisons with other code: order of samples, full batches, files of a schedule, float64."""

import json
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from torch.nn.functional import cross_entropy

import flray
from flray.config.loader import load_config
from flray.core.protocol.clock import Clock
from flray.core.schema.errors import DataError
from flray.data import Augment, DataConfig, load_dataset
from flray.engine.cohort import turns
from flray.scenario import Scenario
from flray.scenario.tables import BatchOrders
from tests.support.kinds import by_default

BASE = {
    "seed": 3,
    "rounds": 2,
    "data": {"source": "digits", "train_size": 120},
    "partition": {"name": "iid", "clients": 3},
    "model": {"name": "mlp", "hidden": [8]},
    "algorithm": {"name": "fedavg", "lr": 0.1, "momentum": 0.9, "local_epochs": 2, "batch_size": 16},
    "checkpoint": {"every": 1, "keep": 0},
    "resources": {"executor": "local"},
}


def config(**sections):
    merged = {
        key: {**BASE[key], **value} if isinstance(BASE.get(key), dict) else value for key, value in sections.items()
    }
    return {**BASE, **merged}


def played(folder, **sections):
    return flray.run(config(**sections), out=folder, progress=False)


def clients(run):
    """The samples of each client, as the run's folder has them."""
    offsets = np.load(run.folder / "partition" / "partition_offsets.npy")
    return np.split(np.load(run.folder / "partition" / "partition_indices.npy"), offsets[1:-1])


def inputs(dtype=torch.float32):
    data = load_dataset(DataConfig(source="digits", train_size=120))
    pixels = torch.tensor(np.array(data.train.x)).permute(0, 3, 1, 2).to(dtype)
    return (pixels / 255 - data.mean[0]) / data.std[0], torch.tensor(np.array(data.train.y))


def by_hand(run, batches_of, dtype=torch.float32):
    """FedAvg in plain PyTorch from the run's first weights: `batches_of(round, client, own samples)` gives its batches,
    arrays of samples."""
    x, y = inputs(dtype)
    w, own = run.weights(0), clients(run)
    for round in range(1, len(run.rounds) + 1):
        trained = []
        for client, samples in enumerate(own):
            net = torch.nn.Sequential(
                torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10)
            )
            net = net.to(dtype)
            net.load_state_dict(dict(zip(net.state_dict(), w.values(), strict=True)))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
            for batch in batches_of(round, client, samples):
                optimizer.zero_grad()
                rows = torch.tensor(batch)
                cross_entropy(net(x[rows]), y[rows]).backward()
                optimizer.step()
            trained.append(list(net.state_dict().values()))
        shares = [len(samples) / sum(map(len, own)) for samples in own]
        mean = [sum(p * part for p, part in zip(shares, parts, strict=True)) for parts in zip(*trained, strict=True)]
        w = dict(zip(w, mean, strict=True))
    return w


def difference(a, b):
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def in_order(samples, size):
    return [samples[first : first + size] for first in range(0, len(samples), size)] * 2


def test_without_shuffling_batches_are_cut_from_the_clients_order(tmp_path):
    run = played(tmp_path / "run", data={"shuffle": False})
    assert difference(run.weights(), by_hand(run, lambda r, k, own: in_order(own, 16))) < 1e-6
    assert difference(run.weights(), played(tmp_path / "drawn").weights()) > 1e-3


@pytest.mark.parametrize("last", ["keep", "drop", "merge"])
def test_a_full_batch_has_all_samples_of_its_client_whatever_its_number(tmp_path, last):
    partition = {"name": "dirichlet", "alpha": 0.3, "variant": "plain", "min_size": 2}
    algorithm = {"batch_size": "full", "last_batch": last}
    run = played(tmp_path / "run", partition=partition, algorithm=algorithm)
    assert len({len(samples) for samples in clients(run)}) > 1
    assert difference(run.weights(), by_hand(run, lambda r, k, own: [own, own])) < 1e-6
    assert set(run.clients["num_steps"]) == {2}
    # the word is what is written, shown and read again
    assert "batch_size: full" in (run.folder / "config.yaml").read_text()
    assert run.experiment.dump()["algorithm"]["batch_size"] == "full"
    assert load_config(config(), ["algorithm.batch_size=full"])[0].algorithm.batch_size >= 10**9


def test_augmentation_off_in_one_word():
    """Over a file's preset and over its options, on the command line as in YAML."""
    for augment in ("fedsol", {"crop_padding": 2, "flip": True}):
        sections = config(data={"source": "cifar10", "augment": augment})
        assert load_config(sections)[0].data.augment.active
        for word in ("none", "null"):
            assert load_config(sections, [f"data.augment={word}"])[0].data.augment == Augment()
    assert load_config(config(data={"augment": "none"}))[0].data.augment == Augment()
    assert load_config(config(data={"augment": {"preset": "none", "flip": True}}))[0].data.augment == Augment(flip=True)


def listed(folder, run, part):
    """A schedule of batches for all clients: (file, the batches by round and client)."""
    draws, rows, batches = np.random.default_rng(5), [], {}
    for round in (1, 2):
        for client, own in enumerate(clients(run)):
            planned = 2 * -(-len(own) // 16)
            if part == "epoch":
                orders = [draws.permutation(own) for _ in range(2)]
                rows += [(round, client, e, s) for e, order in enumerate(orders) for s in order.tolist()]
                batches[round, client] = [b for order in orders for b in np.split(order, range(16, len(own), 16))]
            else:  # with replacement, of other sizes
                steps = [draws.choice(own, 3 + i) for i in range(planned)]
                rows += [(round, client, i, s) for i, step in enumerate(steps) for s in step.tolist()]
                batches[round, client] = steps
    path = folder / f"{part}.parquet"
    pandas.DataFrame(rows, columns=["round", "client", part, "sample"]).to_parquet(path)
    return str(path), batches


@pytest.mark.parametrize("part", ["epoch", "step"])
def test_batches_are_those_of_the_file(tmp_path, part):
    file, batches = listed(tmp_path, played(tmp_path / "drawn"), part)
    run = played(tmp_path / "run", data={"batch_order": file})
    assert difference(run.weights(), by_hand(run, lambda r, k, own: batches[r, k])) < 1e-6


def test_each_chunk_has_the_batches_of_its_own_clients(tmp_path):
    """Whatever the number of chunks; other exchanges than a round's local training have none."""
    run = played(tmp_path / "drawn")
    file, batches = listed(tmp_path, run, "step")
    scenario, orders = Scenario.load(run.folder / "partition", 10), BatchOrders(file)
    algorithm, clock = run.experiment.algorithm, Clock(0, 1, done=1)
    for parts in (1, 2, 3):
        arguments = (scenario, algorithm, np.array([2, 0, 1]), clock, algorithm.training, parts)
        ((turn,), _) = turns(*arguments, batch_orders=orders)
        assert len(turn.chunks) == parts
        for chunk in turn.chunks:
            for client, own in zip(chunk.clients, chunk.listed, strict=True):
                assert own.samples.tolist() == np.concatenate(batches[2, client]).tolist()
        later = Clock(0, 1, phase="task_end", done=2)
        ((turn,), _) = turns(*arguments[:3], later, *arguments[4:], batch_orders=orders)
        assert all(chunk.listed is None for chunk in turn.chunks)


@pytest.mark.slow
def test_actors_replay_the_same_bits(tmp_path, ray_cluster):
    file, _ = listed(tmp_path, played(tmp_path / "drawn"), "epoch")
    sections = {"data": {"batch_order": file}, "model": {"dtype": "float64"}}
    here = played(tmp_path / "here", **sections).weights()
    there = played(tmp_path / "there", **sections, resources={"executor": "calls", "client_actors": 2}).weights()
    assert all(torch.equal(tensor, here[name]) for name, tensor in there.items())


def test_cohorts_are_those_of_the_file_and_a_resume_compares_both(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    order, _ = listed(tmp_path, played(tmp_path / "drawn"), "epoch")
    rows = [{"round": 1, "client": 2}, {"round": 1, "client": 0}, {"round": 2, "client": 1}]
    Path("cohorts.json").write_text(json.dumps(rows))
    files = {"cohort": {"from": "cohorts.json"}, "data": {"batch_order": order}}
    run = played(tmp_path / "run", **files)
    took = run.clients.sort_values(["done", "position"])
    assert list(zip(took["done"], took["client"], strict=True)) == [(1, 2), (1, 0), (2, 1)]
    assert list(run.rounds["cohort_size"]) == [2, 1]
    with pytest.raises(DataError, match=r"has no round 3 \(it has rounds 1 to 2\); add it, or lower rounds"):
        flray.resume(tmp_path / "run", rounds=3, progress=False)
    Path("cohorts.json").write_text(json.dumps([*rows, {"round": 3, "client": 1}]))
    with pytest.raises(DataError, match=r"the cohorts changed since the run began .* --accept cohorts") as raised:
        flray.resume(tmp_path / "run", rounds=3, progress=False)
    assert "\n" not in str(raised.value)
    with pytest.raises(DataError, match="round 3, client 1 is not there"):
        flray.resume(tmp_path / "run", rounds=3, accept=["cohorts"], progress=False)


def test_float64_is_the_whole_run(tmp_path):
    """Parameters, averages, checkpoints and the final file; equal to plain PyTorch in float64, not in float32."""
    run = played(tmp_path / "run", data={"shuffle": False}, model={"dtype": "float64"})
    right = by_hand(run, lambda r, k, own: in_order(own, 16), torch.float64)
    assert difference(run.weights(), right) < 1e-13
    assert all(tensor.dtype == torch.float64 for tensor in [*run.weights(0).values(), *run.weights().values()])
    from safetensors.torch import load_file

    final = load_file(tmp_path / "run" / "model.safetensors")
    assert difference(final, run.weights()) == 0 and final["head.bias"].dtype == torch.float64
    single = played(tmp_path / "single", data={"shuffle": False})
    assert difference(single.weights(0), run.weights(0)) == 0  # the same initial weights, exactly
    assert 1e-9 < difference({n: t.double() for n, t in single.weights().items()}, right) < 1e-5
    assert "dtype" not in (single.folder / "config.yaml").read_text()
    # it resumes, and its file begins a run of either type
    longer = flray.resume(tmp_path / "run", rounds=3, progress=False)
    assert len(longer.rounds) == 3 and longer.weights()["head.bias"].dtype == torch.float64
    start = {"dtype": "float64", "weights": str(tmp_path / "run")}
    assert difference(played(tmp_path / "next", model=start).weights(0), longer.weights()) == 0


def floats(value):
    """The floating tensors in a stored state."""
    if isinstance(value, dict | tuple):
        return [t for part in (value.values() if isinstance(value, dict) else value) for t in floats(part)]
    return [value] if isinstance(value, torch.Tensor) and value.is_floating_point() else []


FITS = ("centralized", "fedadam", "fedasam", "feddyn", "fednova", "fedprox", "fedsam", "fedsol", "scaffold")


@pytest.mark.parametrize("name", by_default(("centralized", "feddyn", "fednova", "fedsol", "scaffold"), FITS))
def test_algorithms_compute_in_float64(tmp_path, name):
    """Their state has digits below float32's, and is near that of a float32 run."""
    both = [
        played(tmp_path / dtype, algorithm={"name": name, "lr": 0.02}, model={"dtype": dtype})
        for dtype in ("float32", "float64")
    ]
    single, double = (run.weights() for run in both)
    assert all(tensor.dtype == torch.float64 for tensor in double.values())
    assert difference({n: t.double() for n, t in single.items()}, double) < 1e-4
    assert difference({n: t.float().double() for n, t in double.items()}, double) > 1e-10
    assert all(tensor.dtype == torch.float64 for tensor in floats(both[1].state().server))


@pytest.mark.parametrize("name", ["resnet8", "resnet8_3stage", "resnet18"])
def test_every_resnet_has_a_width(name):
    """Its default is the network of before; a quarter of it has a sixteenth of each 3x3 kernel."""
    from flray.models import ModelConfig, build_model

    wide, narrow = (
        dict(build_model(ModelConfig(name=name, **options), (3, 16, 16), 10, 0).named_parameters())
        for options in ({}, {"width": 16})
    )
    assert wide.keys() == narrow.keys()
    assert wide["stem.weight"].shape[0] == 64 and narrow["stem.weight"].shape[0] == 16
    assert wide["blocks.0.conv1.weight"].numel() == 16 * narrow["blocks.0.conv1.weight"].numel()
    assert wide["head.weight"].shape[1] == 4 * narrow["head.weight"].shape[1]
    assert ModelConfig(name=name).model_dump()["width"] == 64
