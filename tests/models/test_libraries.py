"""Networks of timm, torchvision and transformers by name, against the libraries' own."""

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

import flray
from flray.core.schema.errors import ConfigError
from flray.models import ModelConfig, build_model, starts_from

ROOT = Path(__file__).parents[2]
SMALL_VIT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
             "patch_size": 4}  # fmt: skip


def built(name, shape=(1, 16, 16), classes=7, **options):
    config = ModelConfig(name=name, **options)
    module = build_model(config, shape, classes, seed=3)
    return module, starts_from(config, module)


def own(module, head):
    """The network's tensors by the library's names."""
    state = {name.removeprefix("body."): tensor for name, tensor in module.state_dict().items()}
    for leaf in ("weight", "bias"):
        state[f"{head}.{leaf}"] = state.pop(f"head.{leaf}")
    return state


def check(module, theirs, head, shape):
    theirs.load_state_dict(own(module, head))
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    want = theirs.eval()(x)
    want = want if isinstance(want, torch.Tensor) else want.logits
    torch.testing.assert_close(module.eval()(x), want, rtol=0, atol=0)
    torch.testing.assert_close(module.head(module.features(x)), want, rtol=0, atol=0)
    assert [name for name in module.state_dict() if name.startswith("head")] == ["head.weight", "head.bias"]


@pytest.mark.parametrize(
    ("network", "shape", "options", "head"),
    [
        ("test_resnet", (2, 24, 24), {}, "fc"),
        ("test_vit", (1, 32, 32), {"depth": 2}, "head"),
        ("test_mambaout", (3, 32, 32), {}, None),
    ],
)
def test_timm(network, shape, options, head):
    timm = pytest.importorskip("timm", reason="timm is not installed: pip install 'flray[dev]'")
    module, start = built(f"timm:{network}", shape, **options)
    again = built(f"timm:{network}", shape, **options)[0]
    assert all(map(torch.equal, again.state_dict().values(), module.state_dict().values()))
    assert module(torch.zeros(2, *shape)).shape == (2, 7) and start.startswith("random weights")
    if head is None:  # a head of several layers: what comes before its last one are the features
        x = torch.randn(2, *shape)
        module.eval()
        torch.testing.assert_close(module.head(module.features(x)), module(x))
        return
    size = {"img_size": shape[1:]} if "vit" in network else {}
    check(module, timm.create_model(network, num_classes=7, in_chans=shape[0], **size, **options), head, shape)


def test_timm_starts_from_a_file_of_other_channels_and_classes(tmp_path):
    """timm sums the first convolution's weights over the colours for grey images."""
    timm = pytest.importorskip("timm", reason="timm is not installed: pip install 'flray[dev]'")
    theirs = timm.create_model("test_resnet", num_classes=20)
    file = tmp_path / "theirs.safetensors"
    save_file(theirs.state_dict(), file)
    module, start = built("timm:test_resnet", pretrained=str(file))
    assert start == f"{file}, its head: fresh" and module.head.out_features == 7
    mine, known = own(module, "fc"), theirs.state_dict()
    torch.testing.assert_close(mine["conv1.0.weight"], known["conv1.0.weight"].sum(1, keepdim=True))
    same = [name for name in known if not name.startswith(("conv1.0", "fc"))]
    assert len(same) > 20 and all(torch.equal(mine[name], known[name]) for name in same)


def test_timm_starts_from_the_head_of_a_file_of_these_classes(tmp_path):
    """timm takes a file's classes for those of its own weights, 1000, and left out a head that fits."""
    timm = pytest.importorskip("timm", reason="timm is not installed: pip install 'flray[dev]'")
    theirs, file = timm.create_model("test_resnet", num_classes=7), tmp_path / "theirs.safetensors"
    save_file(theirs.state_dict(), file)
    module, start = built("timm:test_resnet", (3, 16, 16), pretrained=str(file))
    known = theirs.state_dict()
    assert start == f"{file}, its head: load"
    assert all(torch.equal(tensor, known[name]) for name, tensor in own(module, "fc").items())
    fresh, start = built("timm:test_resnet", (3, 16, 16), classes=1000, pretrained=str(file))
    assert start == f"{file}, its head: fresh" and fresh.head.out_features == 1000


@pytest.mark.parametrize(
    ("network", "head"), [("resnet18", "fc"), ("mobilenet_v3_small", "classifier.3"), ("squeezenet1_1", None)]
)
def test_torchvision(network, head):
    from torchvision.models import get_model

    module, start = built(f"torchvision:{network}", (3, 32, 32))
    assert start is None
    if head is None:
        with pytest.raises(AttributeError):
            module.features(torch.zeros(1, 3, 32, 32))
        assert module.head is None and module(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    else:
        check(module, get_model(network, num_classes=7), head, (3, 32, 32))
        grey = built(f"torchvision:{network}", (1, 32, 32))[0]
        assert next(grey.parameters()).shape[1] == 1 and grey(torch.zeros(2, 1, 32, 32)).shape == (2, 7)


def test_transformers_by_type():
    module, start = built("hf:vit", **SMALL_VIT)
    config = transformers.ViTConfig(**SMALL_VIT, num_labels=7, num_channels=1, image_size=16)
    check(module, transformers.ViTForImageClassification(config), "classifier", (1, 16, 16))
    assert start.startswith("random weights")


def test_transformers_checkpoint(tmp_path):
    config = transformers.ViTConfig(**SMALL_VIT, num_labels=3, num_channels=1, image_size=16)
    theirs = transformers.ViTForImageClassification(config)
    theirs.save_pretrained(tmp_path)
    module, start = built(f"hf:{tmp_path}")
    assert start == f"{tmp_path}, its head: fresh" and module.head.out_features == 7
    known, mine = theirs.state_dict(), own(module, "classifier")
    assert all(torch.equal(mine[name], known[name]) for name in known if not name.startswith("classifier"))
    random, start = built(f"hf:{tmp_path}", pretrained=False)
    assert start.startswith("random")
    assert not torch.equal(random.state_dict()[place := "body.vit.embeddings.cls_token"], module.state_dict()[place])
    assert built(f"hf:{tmp_path}", classes=3)[1].endswith("its head: load")
    for shape, says in (((3, 16, 16), "num_channels 1, the data have 3; set data.channels=1"),
                        ((1, 32, 32), "image_size 16, the data have 32; set data.resize=16")):  # fmt: skip
        with pytest.raises(ConfigError, match=says):
            built(f"hf:{tmp_path}", shape)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"cannot be built .*; copy the weights there, or set model.pretrained"):
        built(f"hf:{tmp_path}")


def test_transformers_of_text_masks_its_padding():
    """The logits of a padded text are those of the text alone."""
    from flray.data.dataset import TextShape
    from flray.data.splits import Vocabulary

    small = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}
    module, _ = built("hf:distilbert", TextShape(12, Vocabulary(50, 0, 2)), 4, **small)
    x = torch.randint(1, 50, (1, 5), generator=torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(x, (0, 7))
    module.eval()
    torch.testing.assert_close(module(padded), module(x))
    assert module.head.out_features == 4 and module.features(padded).shape == (1, 16)


@pytest.mark.parametrize(("network", "pad"), [("roberta", 1), ("bart", 1)])
def test_networks_of_text_whose_padding_or_end_is_special_have_features(network, pad):
    """RoBERTa's positions begin after its padding id 1, BART reads the features at the last token 2."""
    from flray.data.dataset import TextShape
    from flray.data.splits import Vocabulary

    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    if network == "bart":
        small = {"d_model": 16}
        for part in ("encoder", "decoder"):
            small |= {f"{part}_layers": 1, f"{part}_attention_heads": 2, f"{part}_ffn_dim": 32}
    module, _ = built(f"hf:{network}", TextShape(12, Vocabulary(50, pad, 2)), 4, **small)
    x = torch.randint(3, 50, (2, 12), generator=torch.Generator().manual_seed(1))
    x[:, -1] = 2
    module.eval()
    assert module.features(x).shape == (2, 16)
    torch.testing.assert_close(module.head(module.features(x)), module(x))


def test_positions_bound_the_length_of_texts_where_there_are_any():
    """XLNet has none and says -1. RoBERTa's begin after its padding id 1: 14 are enough for 12 tokens, 12 are not."""
    from flray.data.dataset import TextShape
    from flray.data.splits import Vocabulary

    shape = TextShape(12, Vocabulary(50, 1, 2))
    module, _ = built("hf:xlnet", shape, 4, d_model=16, n_layer=1, n_head=2, d_inner=32)
    assert module(torch.full((2, 12), 5)).shape == (2, 4)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    assert built("hf:roberta", shape, 4, **small, max_position_embeddings=14)[0].head.out_features == 4
    with pytest.raises(ConfigError, match=r"has 11 positions, samples 12; lower data.max_length"):
        built("hf:roberta", shape, 4, **small, max_position_embeddings=11)
    with pytest.raises(ConfigError, match=r"check the model's options and data.max_length, model.max_position_embed"):
        built("hf:roberta", shape, 4, **small, max_position_embeddings=12)


@pytest.mark.parametrize(
    ("network", "small"),
    [
        ("gpt2", {"n_embd": 32, "n_layer": 1, "n_head": 2}),
        ("opt", {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 64,
                 "word_embed_proj_dim": 32}),
    ],
)  # fmt: skip
def test_networks_that_apply_their_last_layer_to_every_token_have_a_head(network, small):
    """One token by itself rounds otherwise, and a difference of 1e-8 left them without a head. A layer that scales the
    logits by 1 + 1e-3 is no rounding."""
    from flray.data.dataset import TextShape
    from flray.data.splits import Vocabulary
    from flray.models.fitted import split

    module, _ = built(f"hf:{network}", TextShape(12, Vocabulary(101, 0, 3)), 4, **small)
    x = torch.randint(1, 101, (3, 12), generator=torch.Generator().manual_seed(1))
    x[0, 7:] = 0
    module.eval()
    assert module.features(x).shape == (3, 32) and module.body.network.config.vocab_size == 101
    torch.testing.assert_close(module.head(module.features(x)), module(x))
    assert [name for name in module.state_dict() if "score" in name or "head" in name] == ["head.weight"]

    class Scaled(torch.nn.Sequential):
        def forward(self, x):
            return super().forward(x) * 1.001

    assert split(Scaled(torch.nn.Linear(5, 6), torch.nn.Linear(6, 4)), 4, torch.ones(1, 5)).head is None


def test_heads_for_training_alone_are_left_out():
    """GoogLeNet's second head has 2.3 million parameters that the loss of its logits does not move."""
    module, _ = built("torchvision:googlenet", (3, 32, 32), init_weights=False)
    assert module.head.out_features == 7 and not [name for name in module.state_dict() if "aux" in name]


@pytest.mark.parametrize(
    ("name", "options", "shape", "says"),
    [
        ("timm:test_resnt", {}, (1, 16, 16), r"timm has no network of that name \(did you mean 'test_resnet"),
        ("timm:test_resnet", {"pretrained": True}, (1, 16, 16), "nothing is downloaded; fetch them: hf download timm/"),
        ("timm:test_resnet", {"pretrained": "gone.pth"}, (1, 16, 16), "gone.pth is not a file"),
        ("timm:test_resnet", {"blocks": 3}, (1, 16, 16), "cannot be built .*unexpected keyword argument 'blocks'"),
        ("timm:test_resnet", {}, (7,), r"reads images \[K, H, W\], the data have shape \[7\]"),
        ("torchvision:resnt18", {}, (1, 16, 16), r"no network of that name \(did you mean 'resnet18'"),
        ("hf:vit", {"hiden_size": 8}, (1, 16, 16), r"has no 'hiden_size' \(did you mean 'hidden_size'"),
        ("hf:vit", {"pretrained": True}, (1, 16, 16), "vit is a type of network without weights"),
        ("hf:vit", {"num_labels": 5}, (1, 16, 16), "num_labels is 7 by the data, not 5; leave it out"),
        ("hf:vit", {"image_size": 32}, (1, 16, 16), "image_size is 16 by the data, not 32; leave it out"),
        ("hf:t5", {}, (1, 16, 16), "a t5 network has no form for image-classification"),
        ("hf:nobody/nothing", {}, (1, 16, 16), "cannot be built .*fetch it: hf download nobody/nothing"),
    ],
)
def test_errors(name, options, shape, says, monkeypatch, tmp_path):
    if name.startswith("timm"):
        pytest.importorskip("timm", reason="timm is not installed: pip install 'flray[dev]'")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=says):
        built(name, shape, **options)


def test_a_missing_library_names_the_command(monkeypatch):
    from flray.models import libraries

    monkeypatch.setitem(libraries.LIBRARIES, "timm", (libraries.timm_network, "no_such_package"))
    libraries.library_model.cache_clear()
    with pytest.raises(ConfigError, match="no_such_package is not installed; pip install no_such_package"):
        ModelConfig(name="timm:resnet18")
    libraries.library_model.cache_clear()


@pytest.mark.slow
def test_a_method_that_reads_features_trains_one(tmp_path):
    words = ["algorithm=moon", "rounds=2", "partition.clients=3", "cohort.size=2", "algorithm.local_epochs=1"]
    words += ["proxy=null", "resources.executor=local", "data.train_size=120"]
    for key, value in SMALL_VIT.items():
        words.append(f"model.{key}={value}")
    result = flray.run(ROOT / "configs" / "quickstart.yaml", "model=hf:vit", *words, out=tmp_path / "a", progress=False)
    again = flray.run(result.folder / "config.yaml", out=tmp_path / "b", progress=False)
    assert again.rounds["train/loss"].tolist() == result.rounds["train/loss"].tolist()
