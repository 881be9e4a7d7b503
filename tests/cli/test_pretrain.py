"""`flray pretrain`: the configuration's model on all of its data, and runs that begin with what it wrote."""

import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file

import flray
from flray.cli.runs import pretraining, store
from flray.core.schema.errors import ConfigError
from flray.files import file_checksum, read_checksummed
from flray.models.weight_files import weights_fingerprint
from flray.running import play
from tests.support.commands import succeeded
from tests.support.leftovers import left_by_the_dead
from tests.support.messages import facts

QUICK = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


def test_it_is_the_same_model_and_optimiser_on_one_client_with_everything():
    experiment = pretraining(QUICK, ["algorithm.batch_size=32", "seed=4", "data.train_size=500"])
    assert experiment.algorithm.centralized and experiment.proxy is None
    assert (experiment.partition.name, experiment.partition.clients, experiment.cohort.count(1)) == ("iid", 1, 1)
    assert (experiment.algorithm.lr, experiment.algorithm.batch_size, experiment.seed, experiment.data.train_size) == (
        0.05,
        32,
        4,
        500,
    )
    assert experiment.model.options["hidden"] == [64]


def test_it_begins_with_random_weights_unless_it_is_told_others():
    config = {**flray.Experiment.model_dump(pretraining(QUICK)), "algorithm": {"name": "fedavg"}}
    config["model"] = {"name": "mlp", "hidden": [64], "weights": "runs/pretrained"}
    assert pretraining(config).model.start == {} and pretraining(config).model.options["hidden"] == [64]
    assert pretraining(config, ["model.weights=runs/other"]).model.start["weights"] == "runs/other"


def test_weights_lie_in_the_cache_with_their_card_and_a_second_command_continues(tmp_path, monkeypatch):
    """The first command's run is stopped after one of two rounds; the card is of what the second one finished."""
    monkeypatch.setenv("FLRAY_CACHE", str(tmp_path / "cache"))
    words = ["name=mine", "rounds=2", "data.train_size=300", "resources.executor=local", "algorithm.local_epochs=3"]
    out = tmp_path / "pre"
    going = play(pretraining(QUICK, words), out)
    next(going)
    going.close()
    result = succeeded("pretrain", QUICK, *words, "--out", out)
    home, run = tmp_path / "cache" / "weights" / "mine", flray.load(out)
    assert run.status == "finished" and run.rounds["done"].tolist() == [1, 2]
    assert (home / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    card = read_checksummed(home / "card.json")
    assert (card["name"], card["data"], card["epochs"], card["seed"]) == ("mine", "digits", 6, 0)
    assert card["test_accuracy"] == run.rounds["test/acc"].iloc[-1] and card["bytes"] < 100_000
    assert card["command"] == " ".join(["flray", "pretrain", str(QUICK), *words])
    assert card["model"]["hidden"] == [64] and card["weights"] in result.output

    written = (out / "STATUS").stat().st_mtime_ns
    succeeded("pretrain", QUICK, *words, "--out", out)
    assert (out / "STATUS").stat().st_mtime_ns == written, "finished: nothing is trained"
    started = flray.run(QUICK, "model.weights=cache://mine", "resources.executor=local", rounds=0, out=tmp_path / "run")
    assert started.environment["fingerprints"]["weights"] == card["weights"]


def test_an_unfinished_run_has_no_card(tmp_path):
    going = play(pretraining(QUICK, ["rounds=2", "data.train_size=300", "resources.executor=local"]), tmp_path / "pre")
    next(going)
    going.close()
    with pytest.raises(ConfigError, match=facts("pre", "paused")):
        store(tmp_path / "pre", [])


@pytest.mark.slow
def test_a_run_begins_with_the_weights_in_every_actor_and_notices_when_they_change(ray_cluster, tmp_path):
    words = ["rounds=2", "algorithm.shards=1", "algorithm.local_epochs=2", "--out", str(tmp_path / "pre")]
    result = succeeded("pretrain", QUICK, *words)
    assert "model.weights=cache://quickstart" in result.output
    weights, trained = tmp_path / "pre" / "model.safetensors", flray.load(tmp_path / "pre")
    assert trained.status == "finished" and trained.rounds["client_steps"].tolist() == [180, 180], (
        "1,438 samples, 90 batches of 16"
    )
    accuracy = trained.rounds["test/acc"].iloc[-1]
    assert accuracy > 0.9

    started = ["rounds=0", f"model.weights={tmp_path / 'pre'}"]
    server = flray.run(QUICK, *started, out=tmp_path / "server")
    model, written = load_file(server.folder / "model.safetensors"), load_file(weights)
    assert all((model[name] == tensor).all() for name, tensor in written.items()) and model.keys() == written.keys()
    # clients that never trained have the initial parameters, each in its actor
    clients = flray.run(QUICK, *started, "algorithm=local", out=tmp_path / "clients")
    assert clients.personal["test/acc"].mean() == pytest.approx(accuracy, abs=0.03)
    assert (
        flray.load(server.folder).environment["fingerprints"]["weights"]
        == clients.environment["fingerprints"]["weights"]
    )

    weights.write_bytes((tmp_path / "clients" / "environment.json").read_bytes())
    with pytest.raises(ConfigError, match=facts("the weights changed", "--accept weights")):
        flray.resume(server.folder, rounds=1)


# the cache of weights --------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a finished pretraining."""
    folder = tmp_path_factory.mktemp("pre") / "run"
    words = ["name=mine", "rounds=1", "data.train_size=300", "resources.executor=local"]
    flray.run(pretraining(QUICK, words), out=folder, progress=False)
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FLRAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "weights"


def test_weights_and_a_card_that_do_not_belong_together_are_one_line(trained, cache):
    """As a kill between two writes, a copy by hand, or damage leaves them."""
    store(trained, ["flray"])
    card, weights = cache / "mine" / "card.json", cache / "mine" / "model.safetensors"
    assert weights_fingerprint("cache://mine") == read_checksummed(card)["weights"]
    good = card.read_text(), weights.read_bytes()
    for path, content in (
        (card, good[0].replace("mine", "ours").encode()),
        (card, b""),
        (weights, good[1][:-1] + b"\0\1"),
        (weights, None),
    ):
        card.write_text(good[0])
        weights.write_bytes(good[1])
        path.write_bytes(content) if content is not None else path.unlink()
        with pytest.raises(ConfigError, match=facts("cache://mine", "flray pretrain")):
            weights_fingerprint("cache://mine")


def test_a_damaged_run_does_not_replace_good_weights_in_the_cache(trained, cache, tmp_path):
    store(trained, ["flray"])
    before = {path.name: path.read_bytes() for path in (cache / "mine").iterdir()}
    damaged = tmp_path / "damaged"
    shutil.copytree(trained, damaged)
    content = bytearray((damaged / "model.safetensors").read_bytes())
    content[-5] ^= 1
    (damaged / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=facts("damaged", f"flray resume {damaged}")):
        store(damaged, ["flray"])
    assert {path.name: path.read_bytes() for path in (cache / "mine").iterdir()} == before
    flray.resume(damaged, progress=False)  # writes the model again, from the checkpoint
    assert store(damaged, ["flray"])["weights"] == file_checksum(trained / "model.safetensors")


def test_what_a_killed_pretraining_left_in_the_cache_goes_with_the_next_one(trained, cache):
    left = left_by_the_dead(cache / "mine")
    left.mkdir(parents=True)
    store(trained, ["flray"])
    assert [path.name for path in cache.iterdir()] == ["mine"]


def test_weights_that_the_cache_does_not_have_name_those_that_it_has(trained, cache):
    store(trained, ["flray"])
    with pytest.raises(ConfigError, match=r"the cache has mine; train it: flray pretrain CONFIG name=other"):
        weights_fingerprint("cache://other")
    with pytest.raises(ConfigError, match=r"flray pretrain configs/pretrain/cnn_cifar100\.yaml"):
        weights_fingerprint("cache://cnn_cifar100")
