"""Sizes, shapes and the feature/head split of every registered model."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flray.core.errors import ConfigError
from flray.models import MODELS, Classifier, ModelConfig, build_model, count_parameters

CIFAR, MNIST, RGB28 = (3, 32, 32), (1, 28, 28), (3, 28, 28)
NORMS = ["batch", "group", "none_tracked"]


def make(name, shape=CIFAR, classes=10, seed=0, **options):
    return build_model(ModelConfig(name=name, **options), shape, classes, seed)


# spec/federated.md, section 4; the last ones by hand
@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "parameters"),
    [
        ("fedavg_cnn", CIFAR, 10, {}, 2_156_490),
        ("fedavg_cnn", RGB28, 10, {}, 1_664_970),
        ("fedavg_cnn", MNIST, 10, {}, 1_664_970 - 2 * 32 * 25),
        ("fedavg_cnn", CIFAR, 100, {}, 2_156_490 + 90 * 513),
        ("resnet8", CIFAR, 10, {}, 4_903_242),
        ("resnet8", CIFAR, 10, {"stem": "cifar"}, 4_903_242),
        ("resnet8", CIFAR, 100, {}, 4_903_242 + 90 * 513),
        ("resnet8_3stage", CIFAR, 10, {}, 1_227_594),
        ("resnet18", CIFAR, 10, {}, 11_173_962),
        ("resnet18", CIFAR, 10, {"norm": "none_tracked"}, 11_173_962),
        ("resnet18", CIFAR, 10, {"norm": "group"}, 11_173_962),
        ("resnet18", CIFAR, 100, {"stem": "cifar_pool"}, 11_220_132),
        ("resnet18", CIFAR, 10, {"stem": "imagenet"}, 11_173_962 + 64 * 3 * (49 - 9)),
        ("mlp", MNIST, 10, {}, 785 * 200 + 201 * 10),
        ("mlp", MNIST, 10, {"hidden": [200, 200]}, 199_210),
        ("mlp", (2,), 3, {"hidden": [16, 16]}, 3 * 16 + 17 * 16 + 17 * 3),
        ("mlp", (4,), 3, {"hidden": []}, 5 * 3),
    ],
)
def test_parameter_count(name, shape, classes, options, parameters):
    assert count_parameters(make(name, shape, classes, **options)) == parameters


@pytest.mark.parametrize(
    ("name", "shape", "options", "width"),
    [
        ("mlp", MNIST, {"hidden": [20, 7]}, 7),
        ("mlp", (5,), {"hidden": []}, 5),
        ("mlp", (5,), {"activation": "tanh"}, 200),
        ("fedavg_cnn", MNIST, {}, 512),
        ("resnet8", CIFAR, {}, 512),
        ("resnet8_3stage", MNIST, {"norm": "none_tracked"}, 256),
        ("resnet18", (3, 16, 16), {"norm": "group"}, 512),
        ("resnet18", (3, 64, 64), {"stem": "imagenet"}, 512),
    ],
)
@torch.no_grad()
def test_forward_is_head_of_features(name, shape, options, width):
    model = make(name, shape, 7, **options).eval()
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1))
    z = model.features(x)
    assert z.shape == (3, width)
    assert model.head.in_features == width
    logits = model(x)
    assert logits.shape == (3, 7)
    assert torch.equal(model.head(z), logits)
    if x.dim() == 4:  # the memory layout of the input changes the kernels, not the result
        torch.testing.assert_close(model(x.to(memory_format=torch.channels_last)), logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS.names())
def test_every_model_declares_the_split_with_the_head_last(name):
    model = make(name)
    assert isinstance(model, Classifier)
    assert next(reversed(model._modules)) == "head"
    assert model.training


def test_a_classifier_without_features_says_so():
    with pytest.raises(NotImplementedError, match=r"Classifier defines no features"):
        Classifier().features(torch.zeros(1, 2))


@torch.no_grad()
def test_mlp_is_its_formula():
    model = make("mlp", (1, 2, 3), 4, hidden=[5, 6], activation="tanh")
    x = torch.randn(3, 1, 2, 3)
    first, second = model.layers
    z = torch.tanh(torch.tanh(x.reshape(3, 6) @ first.weight.T + first.bias) @ second.weight.T + second.bias)
    torch.testing.assert_close(model.features(x), z)


@pytest.mark.parametrize("name", ["fedavg_cnn", "resnet8"])
def test_pool_before_relu_is_the_textbook_order(name):
    model = make(name, seed=3).double()
    x = torch.randn(2, *CIFAR, dtype=torch.float64)
    twin = copy.deepcopy(model)

    def textbook(x):
        if name == "fedavg_cnn":
            for conv in (twin.conv1, twin.conv2):
                x = F.max_pool2d(F.relu(conv(x)), 2)
            return twin.head(F.relu(twin.linear(x.flatten(1))))
        x = F.max_pool2d(F.relu(twin.stem_norm(twin.stem(x))), 3, 2, 1)
        return twin.head(F.adaptive_avg_pool2d(twin.blocks(x), 1).flatten(1))

    logits, expected = model(x), textbook(x)
    torch.testing.assert_close(logits, expected)
    logits.square().sum().backward()
    expected.square().sum().backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_resnet18_is_torchvisions():
    """`stem: imagenet` is torchvision's ResNet-18, layer for layer, once the weights are copied over."""
    from torchvision.models import resnet18

    ours, theirs = make("resnet18", (3, 64, 64), stem="imagenet").eval(), resnet18(num_classes=10).eval()
    # both register in the same order: stem, then a block's two convolutions before its shortcut
    source, target = theirs.state_dict(), ours.state_dict()
    assert [t.shape for t in source.values()] == [t.shape for t in target.values()]
    ours.load_state_dict(dict(zip(target, source.values(), strict=True)))
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))


def test_resnet8_initialisation():
    model = make("resnet8")
    conv = model.blocks[3].conv2.weight
    assert conv.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)  # Kaiming normal, fan-out
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()
    assert model.head.weight.abs().max() <= 512**-0.5  # PyTorch's default: uniform, +-1/sqrt(fan-in)


@pytest.mark.parametrize("norm", NORMS)
def test_norm_variants(norm):
    model = make("resnet8_3stage", norm=norm)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d | nn.GroupNorm)]
    assert len(norms) == 1 + 3 * 2 + 2
    buffers = dict(model.named_buffers())
    x = torch.randn(4, *CIFAR)
    with torch.no_grad():
        before = model.eval()(x[:2])
        model.train()(torch.randn(4, *CIFAR) + 1)
        model.eval()
        alone, among_others = model(x[:2]), model(x)[:2]
    if norm == "batch":
        assert len(buffers) == 3 * len(norms)
        assert not torch.equal(before, alone)  # the statistics moved
    else:
        assert not buffers
        assert torch.equal(before, alone)
    same = torch.allclose(alone, among_others, atol=1e-4)
    assert same == (norm != "none_tracked")  # statistics of the batch, in evaluation as well
    if norm == "group":
        assert {m.num_groups for m in norms} == {2}


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("fedavg_cnn", (12,), r"'fedavg_cnn' reads images \[K, H, W\], the data has shape \[12\]"),
        ("resnet18", (12,), r"'resnet18' reads images"),
        ("fedavg_cnn", (1, 3, 9), r"needs 4x4 pixels or more, the data has 3x9"),
    ],
)
def test_inputs_that_do_not_fit(name, shape, says):
    with pytest.raises(ConfigError, match=says):
        make(name, shape)
