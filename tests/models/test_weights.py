"""Starting weights: what a run wrote is what the next one begins with, in every process; what does not fit is one line.
"""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from flray.core.network.objective import Objective
from flray.core.schema.errors import ConfigError
from flray.models import ModelConfig, build_model
from flray.models.weight_files import weights_fingerprint
from flray.models.weights import save_weights
from tests.support.messages import facts

NAME = "tests.contracts.networks:NormNet"


@pytest.fixture
def run(tmp_path):
    """A run folder with the weights of a network of 3 classes, as the server writes them."""
    objective = Objective(build_model(ModelConfig(name=NAME), (4,), 3, seed=1))
    w, b = objective.initial()
    save_weights(objective.state_dict(w + 0.5, b + 2), tmp_path / "model.safetensors")
    return tmp_path


def build(source, head="load", classes=3, seed=2, name=NAME, **options):
    config = ModelConfig(name=name, **options, weights=str(source), weights_head=head)
    return build_model(config, (4,), classes, seed)


@pytest.mark.parametrize("place", ["{}", "{}/model.safetensors", "file://{}", "file://{}/model.safetensors"])
def test_every_process_begins_with_the_file(run, place):
    """Whatever the seed: parameters and batch-norm statistics, as the flat vectors that the algorithms see."""
    written = load_file(run / "model.safetensors")
    for seed in (2, 3):
        w, b = Objective(build(place.format(run), seed=seed)).initial()
        found = Objective(build_model(ModelConfig(name=NAME), (4,), 3, seed)).state_dict(w, b)
        assert all(torch.equal(found[name], tensor) for name, tensor in written.items())
    assert b.max() >= 2


def test_weights_in_the_cache_have_a_name(run, monkeypatch):
    """`cache://NAME` is a file in FLRAY_CACHE; the error for one that is not there has the command that makes it."""
    monkeypatch.setenv("FLRAY_CACHE", str(run))
    home = run / "weights" / "mine"
    with pytest.raises(ConfigError, match=facts("cache://mine", "flray pretrain", "configs/pretrain/mine.yaml")):
        build("cache://mine")
    home.mkdir(parents=True)
    (home / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes())
    module, written = build("cache://mine"), load_file(run / "model.safetensors")
    assert torch.equal(module.hidden.weight, written["hidden.weight"])
    assert weights_fingerprint("cache://mine") == weights_fingerprint(str(run))
    for name in ("", "../mine", ".hidden"):
        with pytest.raises(ConfigError, match=facts("cache://NAME")):
            build(f"cache://{name}")


def test_a_fresh_head_is_the_one_of_the_seed_and_the_rest_is_the_file(run):
    """Also for another number of classes; the other numbers drawn from the seed stay the same."""
    module, written = build(run, "fresh", classes=7), load_file(run / "model.safetensors")
    alone = build_model(ModelConfig(name=NAME), (4,), 7, seed=2)
    assert torch.equal(module.head.weight, alone.head.weight) and torch.equal(module.head.bias, alone.head.bias)
    assert torch.equal(module.hidden.weight, written["hidden.weight"]) and not torch.equal(
        module.hidden.weight, alone.hidden.weight
    )


def test_an_alias_of_the_last_child_is_a_head(tmp_path):
    own = {"name": "tests.models.own_networks:Plain"}
    save_file(build_model(ModelConfig(**own), (2,), 3, seed=1).state_dict(), tmp_path / "model.safetensors")
    module = build_model(ModelConfig(**own, weights=str(tmp_path), weights_head="fresh"), (2,), 5, seed=2)
    assert module.final.out_features == 5


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ({"classes": 7}, r"has head.weight of shape \[3, 8\], \[7, 8\] is needed; set model.weights_head: fresh"),
        ({"name": "mlp", "hidden": [8]}, r"has no layers.0.weight, which MLP needs; it is of another network"),
        ({"name": "torch.nn:Linear", "in_features": 4, "out_features": 3, "head": "fresh"}, "Linear declares no head"),
    ],
)
def test_what_does_not_fit_is_named(run, case, says):
    with pytest.raises(ConfigError, match=f"model.weights: {run} {says}|model.weights: {run}: {says}"):
        build(run, **case)


def test_a_tensor_too_many_is_named(run):
    save_file({**load_file(run / "model.safetensors"), "extra": torch.zeros(1)}, run / "more.safetensors")
    with pytest.raises(ConfigError, match="has extra, which NormNet has not"):
        build(run / "more.safetensors")


def test_files_that_are_none(run):
    (run / "text.safetensors").write_text("no weights")
    for place, says in (
        ("nowhere", "cannot be read"),
        ("text.safetensors", "is not a .safetensors file"),
        ("checkpoints", "cannot be read"),
    ):
        (run / "checkpoints").mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match=f"model.weights: {run / place} {says}"):
            build(run / place)
    with pytest.raises(ConfigError, match="nope://x cannot be read"):
        build("nope://x")


@pytest.mark.parametrize("place", [-1, -40, -200])
def test_one_flipped_bit_is_damage(run, place):
    path = run / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"model.weights: {run} is damaged"):
        build(run)


def test_a_file_of_another_program_has_no_checksum(run):
    path = run / "model.safetensors"
    save_file(load_file(path), path)
    assert torch.equal(build(run).state_dict()[next(iter(load_file(path)))], next(iter(load_file(path).values())))


def test_the_fingerprint_is_that_of_the_content(run):
    first = weights_fingerprint(str(run))
    assert first == weights_fingerprint(f"file://{run}") and len(first) == 32 and weights_fingerprint(None) is None
    save_file({name: t + 1 for name, t in load_file(run / "model.safetensors").items()}, run / "model.safetensors")
    assert weights_fingerprint(str(run)) != first


# the configuration ------------------------------------------------------------------------------
def test_both_options_are_written_out_and_are_none_of_the_network():
    config = ModelConfig(name="mlp", weights="runs/a")
    assert config.start == {"weights": "runs/a", "weights_head": "load"}
    assert config.model_dump() == {"name": "mlp", "hidden": [200], "activation": "relu", **config.start}
    assert config.options == ModelConfig(name="mlp").options and ModelConfig(**config.model_dump()) == config
    assert ModelConfig(name="mlp", weights=None) == ModelConfig(name="mlp") and not ModelConfig(name="mlp").start


def test_a_networks_own_option_of_that_name_stays_its_own():
    config = ModelConfig(name="torchvision.models:resnet18", weights=None, num_classes=3)
    assert config.start == {} and "weights" in config.options


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"weights_head": "fresh"}, "model.weights_head is for the head of model.weights"),
        (
            {"weights": "x", "weights_head": "frsh"},
            r"unknown value 'frsh' in model.weights_head \(did you mean 'fresh'\?\)",
        ),
        ({"weights": 3}, "model.weights: 3 is not a path"),
        ({"wieghts": "x"}, r"unknown option 'wieghts' in model 'mlp' \(did you mean 'weights'\?\)"),
    ],
)
def test_options_that_cannot_be_used(options, says):
    with pytest.raises(ConfigError, match=says):
        ModelConfig(name="mlp", **options)
