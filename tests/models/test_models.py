"""Sizes, shapes and the feature/head split of every registered model."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flray.core.schema.errors import ConfigError
from flray.models import MODELS, Classifier, ModelConfig, build_model, count_parameters

CIFAR, MNIST, RGB28 = (3, 32, 32), (1, 28, 28), (3, 28, 28)
NORMS = ["batch", "group", "none_tracked"]
READ_IMAGES = [name for name in MODELS.names() if name not in ("bert", "t5")]  # their own tests have the same
SMALL = {"vit": {"patch": 8, "width": 12, "depth": 2, "heads": 3}}  # of a network that is large by default


def make(name, shape=CIFAR, classes=10, seed=0, **options):
    return build_model(ModelConfig(name=name, **SMALL.get(name, {}), **options), shape, classes, seed)


# counted from the papers' and their codes' definitions by hand
@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "parameters"),
    [
        ("fedavg_cnn", CIFAR, 10, {}, 2_156_490),
        ("fedavg_cnn", RGB28, 10, {}, 1_664_970),
        ("fedavg_cnn", MNIST, 10, {}, 1_664_970 - 2 * 32 * 25),
        ("fedavg_cnn", CIFAR, 100, {}, 2_156_490 + 90 * 513),
        ("simple_cnn", CIFAR, 10, {}, 62_006),
        ("simple_cnn", MNIST, 10, {}, 44_426),
        ("resnet8", CIFAR, 10, {}, 4_903_242),
        ("resnet8", CIFAR, 10, {"stem": "cifar"}, 4_903_242),
        ("resnet8", CIFAR, 100, {}, 4_903_242 + 90 * 513),
        ("resnet8_3stage", CIFAR, 10, {}, 1_227_594),
        ("resnet8_3stage", CIFAR, 10, {"width": 16}, 78_042),  # ResNet-8 of the CIFAR family
        ("resnet18", CIFAR, 10, {}, 11_173_962),
        ("resnet18", CIFAR, 10, {"norm": "none_tracked"}, 11_173_962),
        ("resnet18", CIFAR, 10, {"norm": "group"}, 11_173_962),
        ("resnet18", CIFAR, 100, {"stem": "cifar_pool"}, 11_220_132),
        ("resnet18", CIFAR, 10, {"stem": "imagenet"}, 11_173_962 + 64 * 3 * (49 - 9)),
        ("vgg11", CIFAR, 10, {}, 9_750_922),
        ("vgg11", RGB28, 10, {}, 9_750_922),
        ("vgg11", MNIST, 10, {}, 9_750_922 - 2 * 64 * 9),
        ("vgg11", (3, 64, 64), 10, {}, 9_750_922 + 3 * 512 * 512),
        ("sl_vit", CIFAR, 10, {}, 6_176_275),
        ("sl_vit", RGB28, 10, {}, 6_176_275),
        (
            "sl_vit",
            RGB28,
            10,
            {"upsample": False},
            6_176_275 - (2 + 192) * 15 * (64 - 49),
        ),  # patches of 7x7 instead of 8x8
        ("sl_vit", CIFAR, 100, {}, 6_176_275 + 90 * 193),
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
        ("simple_cnn", CIFAR, {}, 84),
        ("resnet8", CIFAR, {}, 512),
        ("resnet8_3stage", MNIST, {"norm": "none_tracked"}, 256),
        ("resnet8_3stage", CIFAR, {"width": 32, "pool_out": (2, 2)}, 512),
        ("resnet18", (3, 16, 16), {"norm": "group"}, 512),
        ("resnet18", (3, 64, 64), {"stem": "imagenet"}, 512),
        ("vgg11", CIFAR, {}, 512),
        ("vgg11", MNIST, {}, 512),
        ("vgg11", (3, 64, 40), {}, 512),
        ("sl_vit", CIFAR, {}, 192),
        ("sl_vit", MNIST, {}, 192),
        ("sl_vit", RGB28, {"upsample": False}, 192),
    ],
)
@torch.no_grad()
def test_forward_is_head_of_features(name, shape, options, width):
    model = make(name, shape, 7, **options).eval()
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1))
    z = model.features(x)
    assert z.shape == (3, width)
    assert [m for m in model.head.modules() if isinstance(m, nn.Linear)][-1].in_features == width
    logits = model(x)
    assert logits.shape == (3, 7)
    assert torch.equal(model.head(z), logits)
    if x.dim() == 4:  # the memory layout of the input changes the kernels, not the result
        torch.testing.assert_close(model(x.to(memory_format=torch.channels_last)), logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", READ_IMAGES)
def test_every_model_declares_the_split_with_the_head_last_and_has_levels(name):
    model = make(name)
    assert isinstance(model, Classifier)
    assert next(reversed(model._modules)) == "head"
    assert model.training
    x = torch.randn(2, *CIFAR)
    with torch.no_grad():
        levels, logits = model.eval().levels(x)
        assert levels
        assert torch.equal(logits, model(x))


def test_a_classifier_without_features_says_so():
    with pytest.raises(NotImplementedError, match="Classifier defines no features"):
        Classifier().features(torch.zeros(1, 2))


@torch.no_grad()
def test_mlp_is_its_formula():
    model = make("mlp", (1, 2, 3), 4, hidden=[5, 6], activation="tanh")
    x = torch.randn(3, 1, 2, 3)
    first, second = model.layers
    z = torch.tanh(torch.tanh(x.reshape(3, 6) @ first.weight.T + first.bias) @ second.weight.T + second.bias)
    torch.testing.assert_close(model.features(x), z)


@pytest.mark.parametrize("name", ["fedavg_cnn", "simple_cnn", "resnet8"])
def test_pool_before_relu_is_the_textbook_order(name):
    model = make(name, seed=3).double()
    x = torch.randn(2, *CIFAR, dtype=torch.float64)
    twin = copy.deepcopy(model)

    def textbook(x):
        if name == "fedavg_cnn":
            for conv in (twin.conv1, twin.conv2):
                x = F.max_pool2d(F.relu(conv(x)), 2)
            return twin.head(F.relu(twin.linear(x.flatten(1))))
        if name == "simple_cnn":  # NIID-Bench's `SimpleCNN.forward`
            for conv in (twin.conv1, twin.conv2):
                x = F.max_pool2d(F.relu(conv(x)), 2, 2)
            x = x.view(-1, 16 * 5 * 5)
            return twin.head(F.relu(twin.linear2(F.relu(twin.linear1(x)))))
        x = F.max_pool2d(F.relu(twin.stem_norm(twin.stem(x))), 3, 2, 1)
        return twin.head(F.adaptive_avg_pool2d(twin.blocks(x), 1).flatten(1))

    logits, expected = model(x), textbook(x)
    torch.testing.assert_close(logits, expected)
    logits.square().sum().backward()
    expected.square().sum().backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def before_the_activation(model, name, x):
    """What enters every activation, collected by hooks while the model's own forward runs: one list entry a level."""
    seen = {}
    hooks = [m.register_forward_hook(lambda m, _, out: seen.update({m: out.clone()})) for m in model.modules()]
    logits = model(x)
    for hook in hooks:
        hook.remove()
    if name == "mlp":
        return [seen[m] for m in model.layers], logits
    if name == "fedavg_cnn":
        return [seen[model.conv1].mean((2, 3)), seen[model.conv2].mean((2, 3)), seen[model.linear]], logits
    if name == "simple_cnn":
        conv = [seen[m].mean((2, 3)) for m in (model.conv1, model.conv2)]
        return [*conv, seen[model.linear1], seen[model.linear2]], logits
    if name == "vgg11":
        return [*(seen[m].mean((2, 3)) for m in model.convolutions), *(seen[m] for m in model.linears)], logits
    if name == "sl_vit":
        return [seen[block][:, 0] for block in model.blocks], logits
    last = {"resnet8": range(4), "resnet18": (1, 3, 5, 7)}[name]
    sums = [seen[model.blocks[i].norm2] + seen[model.blocks[i].shortcut] for i in last]
    return [t.mean((2, 3)) for t in (seen[model.stem_norm], *sums)], logits


@pytest.mark.parametrize(
    ("name", "shape", "options", "widths"),
    [
        ("mlp", (1, 4, 5), {"hidden": [20, 7]}, [20, 7]),
        ("mlp", (6,), {"hidden": [5], "activation": "tanh"}, [5]),
        ("mlp", (6,), {"hidden": []}, []),
        ("fedavg_cnn", MNIST, {}, [32, 64, 512]),
        ("simple_cnn", MNIST, {}, [6, 16, 120, 84]),
        ("resnet8", (3, 16, 16), {}, [64, 64, 128, 256, 512]),
        ("resnet8", (3, 16, 16), {"stem": "cifar", "norm": "none_tracked"}, [64, 64, 128, 256, 512]),
        ("resnet18", (3, 16, 16), {"norm": "group"}, [64, 64, 128, 256, 512]),
        ("vgg11", RGB28, {}, [64, 128, 256, 256, 512, 512, 512, 512, 512, 512]),
        ("sl_vit", RGB28, {}, [192] * 9),
    ],
)
@torch.no_grad()
def test_levels_are_what_enters_the_activations(name, shape, options, widths):
    model = make(name, shape, 7, **options)
    model(torch.randn(8, *shape) + 1)  # in training mode: statistics move away from their start
    x = torch.randn(3, *shape)
    levels, logits = model.eval().levels(x)
    expected, forward = before_the_activation(model, name, x)
    assert [tuple(level.shape) for level in levels] == [(3, width) for width in widths]
    for level, wanted in zip(levels, expected, strict=True):
        torch.testing.assert_close(level, wanted)
    assert torch.equal(logits, forward)
    assert torch.equal(logits, model(x))


def nearest(x, side):
    """Pixel i of the larger image is pixel floor(i * small / large) of the smaller one."""
    i = torch.arange(side) * x.shape[-1] // side
    return x[:, :, i][:, :, :, i]


@pytest.mark.parametrize("side", [28, 32])
def test_vgg11_is_the_textbook(side):
    """Configuration A of the paper, a module per layer: values and gradients, with 28x28 stretched to 32x32."""
    model = make("vgg11", (3, side, side), seed=3).double()
    twin, layers = iter(copy.deepcopy(model).children()), []
    convolutions, linears, head = iter(next(twin)), next(twin), next(twin)
    for width in [64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"]:
        if width == "M":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [next(convolutions), nn.ReLU()]
            assert layers[-2].out_channels == width
    plain = nn.Sequential(*layers, nn.Flatten(), linears[0], nn.ReLU(), linears[1], nn.ReLU(), head)
    x = torch.randn(2, 3, side, side, dtype=torch.float64)
    logits, expected = model(x), plain(nearest(x, 32))
    torch.testing.assert_close(logits, expected)
    logits.square().sum().backward()
    expected.square().sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_vgg11_initialisation():
    model = make("vgg11")
    for conv in model.convolutions:
        assert conv.weight.std().item() == pytest.approx((2 / (9 * conv.out_channels)) ** 0.5, rel=0.05)
        assert (conv.bias == 0).all()
    for linear in (*model.linears, model.head):
        assert linear.weight.abs().max() <= 512**-0.5


def attended(attention, x):
    """Locality self-attention of one sample `x [n, 192]`, head by head and token by token: softmax over the other
    tokens.
    """
    n, temperature = len(x), attention.temperature.exp()
    heads = []
    for h in range(12):
        q, k, v = (x @ attention.qkv.weight[part * 768 + h * 64 : part * 768 + (h + 1) * 64].T for part in range(3))
        rows = []
        for i in range(n):
            others = [j for j in range(n) if j != i]
            weight = torch.stack([temperature * (q[i] @ k[j]) for j in others]).exp()
            rows.append((weight / weight.sum()) @ v[others])
        heads.append(torch.stack(rows))
    return torch.cat(heads, dim=1) @ attention.out.weight.T + attention.out.bias


def test_sl_vit_is_its_formula():
    """Shifts, patches, blocks and head written out for one image in float64, with weights of a usual size."""
    model = make("sl_vit", RGB28, seed=1).double()
    # the head's start is too small to show an error in what it reads
    nn.init.normal_(model.head[1].weight)
    model.blocks[2].attention.temperature.data.fill_(-1.0)
    x = torch.randn(1, 3, 28, 28, dtype=torch.float64)
    with torch.no_grad():
        image = F.pad(nearest(x, 32)[0], (1, 1, 1, 1))  # a border of zeros: a shift is another window
        rows, columns = [1, 1, 1, 0, 2], [1, 0, 2, 1, 1]  # none; content to the right, left, down, up
        shifted = torch.cat([image[:, r : r + 32, c : c + 32] for r, c in zip(rows, columns, strict=True)])
        tokens = [model.token[0, 0]]
        for r in range(4):
            for c in range(4):
                patch = shifted[:, 8 * r : 8 * r + 8, 8 * c : 8 * c + 8]
                flat = torch.stack([patch[:, i, j] for i in range(8) for j in range(8)]).flatten()
                tokens.append(model.patches.linear(model.patches.norm(flat)))
        z = torch.stack(tokens) + model.positions[0]
        for block in model.blocks:
            z = z + attended(
                block.attention, F.layer_norm(z, (192,), block.attention_norm.weight, block.attention_norm.bias)
            )
            hidden = F.gelu(block.mlp[0](F.layer_norm(z, (192,), block.mlp_norm.weight, block.mlp_norm.bias)))
            z = z + block.mlp[2](hidden)
        torch.testing.assert_close(model.features(x)[0], z[0])
        torch.testing.assert_close(model(x)[0], model.head(z[0]))


def test_sl_vit_initialisation():
    model = make("sl_vit")
    assert model.blocks[0].attention.temperature.exp().item() == pytest.approx(1 / 8)
    assert model.positions.shape == (1, 17, 192)
    assert model.positions.std().item() == pytest.approx(1, abs=0.05)
    assert model.token.std().item() == pytest.approx(1, abs=0.15)


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
        ({"name": "sl_vit", "upsample": False}, (3, 30, 30), r"a multiple of 7 pixels, the data have 30x30"),
        ({"name": "sl_vit", "upsample": False}, (3, 3, 3), r"needs 4x4 pixels or more"),
        ("fedavg_cnn", (12,), r"'fedavg_cnn' reads images \[K, H, W\], the data have shape \[12\]"),
        ("resnet18", (12,), r"'resnet18' reads images"),
        ("fedavg_cnn", (1, 3, 9), r"needs 4x4 pixels or more, the data have 3x9"),
        ("simple_cnn", (3, 32, 15), r"needs 16x16 pixels or more, the data have 32x15"),
        ("vgg11", (12,), r"'vgg11' reads images"),
        (
            "sl_vit",
            (3, 32, 40),
            r"needs square images with sides of a multiple of 8 pixels, the data have 32x40; set data.resize",
        ),
        ("sl_vit", (3, 70, 70), r"a multiple of 16 pixels, the data have 70x70"),
    ],
)
def test_inputs_that_do_not_fit(name, shape, says):
    with pytest.raises(ConfigError, match=says):
        make(**(name if isinstance(name, dict) else {"name": name}), shape=shape)


@pytest.mark.parametrize("name", ["fedavg_cnn", "resnet8"])
def test_moons_projection_stands_between_features_and_head(name):
    """linear F -> F, ReLU, linear F -> 7, and a head of 7 inputs: (F^2 + F) + (7 F + 7) + (7 - F) C parameters more."""
    plain, own = (
        build_model(ModelConfig(name=name, **options), (3, 8, 8), 4, 0) for options in ({}, {"projection": 7})
    )
    width = 512
    assert count_parameters(own) - count_parameters(plain) == width**2 + width + 7 * width + 7 + (7 - width) * 4
    x = torch.randn(5, 3, 8, 8)
    own.eval()
    z = own.features(x)
    assert z.shape == (5, 7)
    torch.testing.assert_close(own.head(z), own(x))
    torch.testing.assert_close(own.levels(x)[1], own(x))
