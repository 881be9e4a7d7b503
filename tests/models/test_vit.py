"""The vision transformer of timm's blocks against torchvision's."""

import pytest
import torch
from safetensors.torch import save_file
from torchvision.models.vision_transformer import VisionTransformer

from flray.core.network.objective import Objective
from flray.core.schema.errors import ConfigError
from flray.models import ModelConfig, build_model, count_parameters, starts_from
from flray.models.vit import ViT

TINY = {"patch": 4, "width": 12, "depth": 2, "heads": 3, "mlp_ratio": 2.0}
SHAPE = (3, 8, 12)


def make(shape=SHAPE, classes=5, seed=0, **options):
    config = ModelConfig(name="vit", **{**TINY, **options})
    module = build_model(config, shape, classes, seed)
    return module, starts_from(config, module)


def large(module):
    """Weights of a usual size: at their start (0.02) attention is a mean."""
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.data.normal_(std=0.5, generator=generator)
    return module.eval()


def test_by_default_it_is_vit_b_16():
    """86,567,656 parameters with 1000 classes: the number that the paper's and timm's tables give as 86.6 M."""
    with torch.device("meta"):
        model = ViT((3, 224, 224), 1000)
    assert count_parameters(model) == 86_567_656
    assert count_parameters(model) - count_parameters(model.head) == 85_798_656
    assert model.pos_embed.shape == (1, 197, 768) and len(model.blocks) == 12


@torch.no_grad()
def test_it_is_torchvisions_transformer():
    """Once the weights are copied over; theirs reads square images."""
    ours = large(make((3, 8, 8))[0])
    theirs = VisionTransformer(8, 4, 2, 3, 12, 24, num_classes=5).eval()
    renamed = {
        "cls_token": "class_token", "pos_embed": "encoder.pos_embedding", "patch_embed.proj": "conv_proj",
        "blocks.": "encoder.layers.encoder_layer_", "norm1": "ln_1", "norm2": "ln_2",
        "attn.qkv.": "self_attention.in_proj_", "attn.proj": "self_attention.out_proj",
        "mlp.fc1": "mlp.0", "mlp.fc2": "mlp.3", "head": "heads.head",
    }  # fmt: skip
    tensors = {}
    for name, tensor in ours.state_dict().items():
        for old, new in renamed.items():
            name = name.replace(old, new)
        tensors["encoder.ln" + name.removeprefix("norm") if name.startswith("norm.") else name] = tensor
    theirs.load_state_dict(tensors)
    x = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_every_linear_map_is_a_layer_whose_inputs_can_be_watched():
    """With a column for every token: 2 x 3 patches and the class token, of 2 images; the head reads the class token."""
    objective = Objective(make()[0])
    inputs = objective.layer_inputs(*objective.initial(), torch.randn(2, *SHAPE))
    layers = [f"blocks.{i}.{name}" for i in (0, 1) for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")]
    assert list(inputs) == ["patch_embed.proj", *layers, "head"]
    assert [len(inputs[name]) for name in inputs] == [12, *[14] * 8, 2]
    assert inputs["blocks.0.mlp.fc2"].columns().shape == (1, 24, 14)


def test_the_early_part_is_what_stands_before_the_second_half_of_the_blocks():
    objective = Objective(make()[0])
    tops = {".".join(name.split(".")[: 1 + name.startswith("blocks")]) for name in objective.parts.tensors("early")}
    assert tops == {"cls_token", "pos_embed", "patch_embed", "blocks.0"}
    objective.at(*objective.initial(), {"all": "train", "early": "eval"})


# weights from a file ---------------------------------------------------------------------------------
@torch.no_grad()
def test_a_file_with_timms_names_is_what_it_starts_from(tmp_path):
    source = large(make(classes=9, seed=3)[0])
    save_file(source.half().state_dict(), tmp_path / "vit.safetensors")
    module, said = make(classes=9, pretrained=str(tmp_path / "vit.safetensors"))
    x = torch.randn(2, *SHAPE)
    torch.testing.assert_close(module(x), source.float()(x))
    assert said == f"{tmp_path / 'vit.safetensors'}" and module.pos_embed.dtype == torch.float32
    fresh, said = make(pretrained=str(tmp_path / "vit.safetensors"))
    assert torch.equal(fresh.head.weight, make()[0].head.weight) and said.endswith("; random: head ([9, 12] there)")
    assert make()[1] == "random weights: model.pretrained names no file"


def test_positions_of_another_image_size_are_interpolated(tmp_path):
    """Bicubic with antialiasing, of rows and columns in their order; the class token stays."""
    source = large(make((3, 16, 16), seed=3)[0]).pos_embed.detach()
    torch.save({**make((3, 16, 16))[0].state_dict(), "pos_embed": source}, tmp_path / "vit.pth")
    module, said = make((3, 12, 8), pretrained=str(tmp_path / "vit.pth"))
    assert said.endswith("; positions of 4x4 patches interpolated to 3x2")
    assert torch.equal(module.pos_embed[:, 0], source[:, 0])
    grid = source[0, 1:].reshape(4, 4, 12).permute(2, 0, 1)[None]
    expected = torch.nn.functional.interpolate(grid, (3, 2), mode="bicubic", antialias=True)
    torch.testing.assert_close(module.pos_embed[0, 1:], expected[0].permute(1, 2, 0).flatten(0, 1))


def test_without_timm_it_is_one_line(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"model 'vit': timm is not installed; pip install 'flray\[timm\]'"):
        ViT(SHAPE, 5, patch=4)


@pytest.mark.parametrize(
    ("shape", "options", "says"),
    [
        ((3, 10, 8), {}, "needs sides of a multiple of 4 pixels, the data have 10x8; set data.resize, or model"),
        ((3, 3, 3), {}, "needs 4x4 pixels or more, the data have 3x3"),
        ((12,), {}, r"'vit' reads images \[K, H, W\]"),
        (SHAPE, {"heads": 5}, "width 12 is not a multiple of heads 5"),
        (SHAPE, {"pretrained": "nowhere.safetensors"}, "model.pretrained: nowhere.safetensors cannot be read"),
    ],
)
def test_what_does_not_fit_is_one_line(shape, options, says):
    with pytest.raises(ConfigError, match=says):
        make(shape, **options)


def test_a_file_with_other_patches_is_of_another_network(tmp_path):
    save_file(make(patch=2)[0].state_dict(), tmp_path / "vit.safetensors")
    with pytest.raises(ConfigError, match=r"pos_embed is \[1, 25, 12\] there, ViT needs it as \[1, 7, 12\]"):
        make(pretrained=str(tmp_path / "vit.safetensors"))
