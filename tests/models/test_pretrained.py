"""ResNet-18 that starts from a file with torchvision's names: torchvision's own network is the second opinion."""

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from flray.core.network.objective import Objective
from flray.core.schema.errors import ConfigError
from flray.models import ModelConfig, build_model, count_parameters, starts_from

SMALL, LARGE = (3, 16, 16), (3, 64, 64)


def make(shape=SMALL, classes=7, seed=0, **options):
    config = ModelConfig(name="resnet18", **options)
    module = build_model(config, shape, classes, seed)
    return module, starts_from(config, module)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """(torchvision's ResNet-18 with moved statistics, in eval; its file)"""
    torch.manual_seed(0)
    network = torchvision.models.resnet18()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    file = tmp_path_factory.mktemp("imagenet") / "resnet18.pth"
    torch.save(network.state_dict(), file)
    return network.eval(), file


@torch.no_grad()
def test_with_their_stem_and_their_classes_it_is_their_network(theirs):
    network, file = theirs
    module, said = make(LARGE, 1000, stem="imagenet", pretrained=str(file))
    x = torch.randn(2, *LARGE)
    torch.testing.assert_close(module.eval()(x), network(x))
    assert said == str(file)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_a_small_stem_and_another_head_are_random_and_said(theirs, tmp_path, kind):
    """Everything between them is theirs; what is random is what the seed alone gives."""
    network, file = theirs
    if kind == "safetensors":
        file = tmp_path / "resnet18.safetensors"
        save_file(network.state_dict(), file)
    module, said = make(pretrained=str(file), pool_out=[2, 2])
    alone, random = make(pool_out=[2, 2])
    assert said == f"{file}; random: stem ([64, 3, 7, 7] there), head ([1000, 512] there)"
    assert random == "random weights: model.pretrained names no file"
    assert torch.equal(module.stem.weight, alone.stem.weight) and torch.equal(module.head.weight, alone.head.weight)
    x = torch.randn(2, *SMALL)
    z = torch.relu(network.bn1(module.stem(x)))
    for stage in (network.layer1, network.layer2, network.layer3, network.layer4):
        z = stage(z)
    torch.testing.assert_close(module.eval().features(x), F.adaptive_avg_pool2d(z, 2).flatten(1))


def test_a_random_stem_is_taken_from_the_seed_where_the_file_has_one(theirs):
    network, file = theirs
    options = {"stem": "imagenet", "pretrained": str(file)}
    drawn, said = make(LARGE, stem_init="random", **options)
    alone, _ = make(LARGE, stem="imagenet")
    assert torch.equal(drawn.stem.weight, alone.stem.weight)
    assert torch.equal(drawn.stem_norm.weight, network.bn1.weight) and "random: stem, head" in said
    assert torch.equal(make(LARGE, **options)[0].stem.weight, network.conv1.weight)


def test_batch_statistics_leave_the_files_running_ones_out(theirs):
    network, file = theirs
    module, _ = make(pretrained=str(file), norm="none_tracked")
    assert not list(Objective(module).buffer_layout.entries)
    assert torch.equal(module.blocks[0].norm1.weight, network.layer1[0].bn1.weight)


def test_a_projection_is_random(theirs):
    assert "projection" in make(pretrained=str(theirs[1]), projection=8)[1]


def test_files_that_do_not_fit_are_one_line(theirs, tmp_path):
    network, _ = theirs
    tensors = network.state_dict()
    cases = {
        "no.pth": (None, "cannot be read"),
        "less.pth": ({n: t for n, t in tensors.items() if n != "layer3.1.bn2.weight"}, "blocks.5.norm2.weight is not"),
        "more.pth": ({**tensors, "layer9.0.conv1.weight": torch.zeros(1)}, "has blocks.8.conv1.weight, which ResNet"),
        "wide.pth": ({**tensors, "layer1.0.conv1.weight": torch.zeros(64, 64, 5, 5)}, r"is \[64, 64, 5, 5\] there"),
        "nested.pth": ({"state_dict": tensors}, "has 'state_dict', which is not a tensor; save the state_dict alone"),
    }
    for name, (content, says) in cases.items():
        if content is not None:
            torch.save(content, tmp_path / name)
        with pytest.raises(ConfigError, match=f"model.pretrained: {tmp_path / name}.*{says}"):
            make(pretrained=str(tmp_path / name))
    (tmp_path / "text.pth").write_text("no weights")
    with pytest.raises(ConfigError, match=r"is not a file of torch\.save with tensors alone"):
        make(pretrained=str(tmp_path / "text.pth"))


# options of FedProTIP's ResNet-18 --------------------------------------------------------------------
def test_the_parameters_are_those_of_fedprotips_table_14():
    """11,168,832 of the backbone; with (2, 2) a head of 10 classes has 10 x 2049."""
    module, _ = make((3, 32, 32), 10, pool_out=[2, 2])
    head = count_parameters(module.head)
    assert (count_parameters(module) - head, head) == (11_168_832, 10 * 2049)
    assert module.features(torch.zeros(2, 3, 32, 32)).shape == (2, 2048)


@torch.no_grad()
def test_levels_and_logits_agree_with_a_larger_pool():
    module, _ = make(pool_out=[2, 1])
    x = torch.randn(2, *SMALL)
    levels, logits = module.eval().levels(x)
    assert torch.equal(logits, module(x)) and module.features(x).shape == (2, 1024) and levels[-1].shape == (2, 512)


def test_only_the_shortcuts_norms_have_another_epsilon():
    module, _ = make(shortcut_bn_eps=1.0)
    found = {name: m.eps for name, m in module.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert {eps for name, eps in found.items() if "shortcut" in name} == {1.0}
    assert {eps for name, eps in found.items() if "shortcut" not in name} == {1e-5}


def test_the_early_part_is_the_first_thirty_parameters_of_the_backbone():
    """Stem, stage 1 and stage 2; as a mask, and as a part that runs in eval while the others train."""
    module, _ = make()
    objective = Objective(module)
    names = [entry.name for entry in objective.layout.entries]
    assert objective.parts.tensors("early") == set(names[:30])
    assert int(objective.mask("early").sum()) == sum(p.numel() for p in list(module.parameters())[:30])
    w, b = objective.initial()
    before = objective.buffer_layout.views(b.clone())
    objective.at(w, b, {"all": "train", "early": "eval"})(torch.randn(4, *SMALL))
    moved = {n for n, t in objective.buffer_layout.views(b).items() if not torch.equal(t, before[n])}
    early = tuple(f"{name}." for name in module.early)
    assert moved == {n for n in before if not n.startswith(early)} and len(moved) == 20


def test_a_wrapped_network_keeps_its_early_part():
    module, _ = make()
    both = Objective(nn.ModuleDict({"student": module, "other": nn.Linear(2, 2)}))
    assert both.parts.tensors("early") == {f"student.{name}" for name in Objective(module).parts.tensors("early")}
    with pytest.raises(ConfigError, match="model Linear declares no `early` layers to freeze; resnet18 and vit do"):
        Objective(nn.Linear(2, 2)).mask("early")
