"""Frozen tensors of a named checkpoint are written once: later files say where they are, loading finds them again."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

from flray.core.network.objective import Objective
from flray.core.schema.errors import ConfigError
from flray.data.dataset import TextShape
from flray.data.splits import Vocabulary
from flray.models import ModelConfig, build_model
from flray.models.weights import read_weights, save_weights

NAME = "tests.models.own_networks:Backbone"
TRAINED = {"head.weight", "head.bias"}


def module_of(seed=0, **options):
    return build_model(ModelConfig(name=NAME, **options), (4,), 3, seed)


def save(folder, module, *sources):
    """`module` as a run with the given sources saves it, its head moved by a half."""
    folder.mkdir()
    objective = Objective(module)
    w, b = objective.initial()
    save_weights(objective.state_dict(w + 0.5, b), folder / "model.safetensors", objective.frozen, sources)
    return folder


@pytest.fixture
def base(tmp_path):
    """A run from random weights: complete."""
    return save(tmp_path / "base", module_of(1))


def metadata(folder):
    with safe_open(folder / "model.safetensors", "pt") as file:
        return file.metadata()


def same(found, module):
    """The tensors of a module whose head was moved by a half."""
    for name, tensor in module.state_dict().items():
        assert torch.equal(found[name], tensor + 0.5 * (name in TRAINED)), name
    return found.keys() == module.state_dict().keys()


@pytest.mark.parametrize("around", [{"epoch": 3}, {}], ids=["state_dict beside an epoch", "state_dict alone"])
def test_a_file_that_nests_its_state_dict_ends_no_run(tmp_path, around):
    """`torch.save({"state_dict": ..., "epoch": 3})` loads; its frozen tensors are written, as the file names none."""
    source = tmp_path / "light.pt"
    torch.save({"state_dict": module_of(1).state_dict(), **around}, source)
    loaded = build_model(ModelConfig(name=NAME, weights=str(source)), (4,), 3, 0)
    folder = save(tmp_path / "run", loaded, str(source))
    assert same(load_file(folder / "model.safetensors"), module_of(1))


def test_what_was_frozen_at_random_is_written(base):
    assert load_file(base / "model.safetensors").keys() == module_of().state_dict().keys()
    assert same(load_file(base / "model.safetensors"), module_of(1)) and "flray.elsewhere" not in metadata(base)


def test_what_a_named_checkpoint_has_is_not_written_again(base, tmp_path):
    """And its own weights are the same whoever asks: `read_weights`, or a network that begins with them."""
    module = module_of(2, weights=str(base))
    tuned = save(tmp_path / "tuned", module, str(base))
    assert load_file(tuned / "model.safetensors").keys() == TRAINED
    assert same(read_weights(str(tuned)), module)
    assert same(module_of(3, weights=str(tuned)).state_dict(), module)
    (place,) = json.loads(metadata(tuned)["flray.elsewhere"])["files"]
    assert place == str(base / "model.safetensors")


def test_saved_twice_it_is_the_same_file(base, tmp_path):
    module = module_of(2, weights=str(base))
    files = [save(tmp_path / str(i), module, str(base)) / "model.safetensors" for i in range(5)]
    assert len({file.read_bytes() for file in files}) == 1


def test_a_frozen_tensor_that_the_checkpoint_lacks_is_written(base, tmp_path):
    """A fresh projection under a loaded body: by content, whatever the configuration says."""
    module = module_of(5, projection=True)
    module.load_state_dict(
        {n: t for n, t in load_file(base / "model.safetensors").items() if n not in TRAINED}, strict=False
    )
    tuned = save(tmp_path / "tuned", module, str(base))
    assert load_file(tuned / "model.safetensors").keys() == {*TRAINED, "random.weight"}
    assert same(read_weights(str(tuned)), module)


def test_the_file_that_holds_them_is_named_not_one_that_names_it(base, tmp_path):
    """Three generations: the middle one is not needed."""
    middle = save(tmp_path / "middle", module_of(2, weights=str(base)), str(base))
    module = module_of(3, weights=f"file://{middle}")
    last = save(tmp_path / "last", module, f"file://{middle}")
    (middle / "model.safetensors").unlink()
    assert load_file(last / "model.safetensors").keys() == TRAINED and same(read_weights(str(last)), module)


def test_a_relative_path_is_found_from_anywhere(base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = module_of(2, weights="base")
    tuned = save(Path("tuned"), module, "base")
    monkeypatch.chdir("/")
    assert same(read_weights(str(tmp_path / tuned)), module)


def test_a_checkpoint_that_went_away_leaves_the_file_complete(base, tmp_path):
    module = module_of(2, weights=str(base))
    (base / "model.safetensors").unlink()
    assert same(load_file(save(tmp_path / "tuned", module, str(base)) / "model.safetensors"), module)


def test_a_holder_that_is_gone_or_changed_is_one_line(base, tmp_path):
    tuned = save(tmp_path / "tuned", module_of(2, weights=str(base)), str(base))
    file, begin = (
        base / "model.safetensors",
        f"model.weights: {tuned} has its frozen tensors in {base}/model.safetensors, which",
    )
    content = load_file(file)
    save_file({name: t + 1 for name, t in content.items()}, file)
    with pytest.raises(ConfigError, match=f"{begin} is another file now; put the old one back"):
        module_of(3, weights=str(tuned))
    file.unlink()
    with pytest.raises(
        ConfigError, match=f"{begin} cannot be read .No such file or directory.; put it back where it was"
    ):
        module_of(3, weights=str(tuned))


def test_a_damaged_note_of_where_they_are_is_damage(base, tmp_path):
    tuned = save(tmp_path / "tuned", module_of(2, weights=str(base)), str(base))
    path = tuned / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"/base/", b"/bose/"))
    with pytest.raises(ConfigError, match=f"model.weights: {tuned} is damaged"):
        module_of(3, weights=str(tuned))


# pretrained networks ----------------------------------------------------------------------------
SHAPE = TextShape(12, Vocabulary(size=40, pad=0, separator=3))


@pytest.fixture
def pretrained(tmp_path):
    """A BERT as transformers saves it, in half precision: its tensors have other names there and another type."""
    torch.manual_seed(0)
    shape = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "initializer_range": 0.3,
    }
    BertModel(BertConfig(vocab_size=40, **shape)).half().save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def frozen_bert(source, seed=0, **start):
    config = ModelConfig(name="tests.models.own_networks:FrozenBert", pretrained=str(source), **start)
    return config, build_model(config, SHAPE, 3, seed)


@pytest.mark.parametrize("binary", [False, True])
def test_a_pretrained_body_is_not_written_again(pretrained, tmp_path, binary):
    if binary:
        torch.save(load_file(pretrained / "model.safetensors"), pretrained / "pytorch_model.bin")
        (pretrained / "model.safetensors").unlink()
    config, module = frozen_bert(pretrained)
    tuned = save(tmp_path / "tuned", module, *config.sources)
    assert load_file(tuned / "model.safetensors").keys() == TRAINED
    assert same(read_weights(str(tuned)), module)
    assert same(frozen_bert(pretrained, seed=4, weights=str(tuned))[1].state_dict(), module)


def test_a_name_on_the_hub_is_found_in_the_local_cache(pretrained, tmp_path, monkeypatch):
    """The cache as huggingface_hub lays it out; then it is emptied."""
    snapshot = tmp_path / "hub" / "models--somebody--tiny" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
    for file in pretrained.iterdir():
        file.rename(snapshot / file.name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    _, module = frozen_bert(snapshot)
    tuned = save(tmp_path / "tuned", module, "somebody/tiny")
    assert load_file(tuned / "model.safetensors").keys() == TRAINED
    assert list(json.loads(metadata(tuned)["flray.elsewhere"])["files"]) == ["hf://somebody/tiny/model.safetensors"]
    assert same(read_weights(str(tuned)), module)
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"which cannot be read .*; fetch it: hf download somebody/tiny"):
        read_weights(str(tuned))


@pytest.mark.slow
def test_a_run_on_a_frozen_body_saves_its_head_alone(ray_cluster, tmp_path):
    """From pretraining to a second run and on to a third, through the engine."""
    import flray

    config = {
        "data": {"source": "iris"},
        "rounds": 1,
        "partition": {"name": "iid", "clients": 3},
        "algorithm": {"name": "fedavg", "batch_size": 16, "local_epochs": 1},
    }
    runs = []
    for i in range(3):
        start = {"weights": str(runs[-1]), "weights_head": "fresh"} if runs else {}
        runs.append(flray.run({**config, "model": {"name": NAME, **start}}, out=tmp_path / str(i)).folder)
    written = [load_file(run / "model.safetensors").keys() for run in runs]
    assert written == [module_of().state_dict().keys(), TRAINED, TRAINED]
    bodies = [read_weights(str(run))["body.weight"] for run in runs]
    assert torch.equal(bodies[0], bodies[1]) and torch.equal(bodies[0], bodies[2])
