"""Inputs of layers: multiplied with the layer's own weight they must give what PyTorch's layer gives."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flray.core.network.objective import Objective
from flray.core.schema.errors import ConfigError
from tests.support.layers import One
from tests.support.networks import Conv, Frozen, Tied, build, inputs

CONVOLUTIONS = {
    "plain": (nn.Conv2d(4, 6, 3), (2, 4, 7, 6)),
    "padded with strides": (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0)), (2, 4, 7, 6)),
    "dilated": (nn.Conv2d(4, 6, 3, padding=2, dilation=2), (2, 4, 7, 6)),
    "same": (nn.Conv2d(4, 6, (3, 5), padding="same"), (2, 4, 7, 6)),
    "reflected": (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (2, 4, 7, 6)),
    "shortcut": (nn.Conv2d(4, 6, 1, stride=2), (2, 4, 7, 6)),
    "grouped": (nn.Conv2d(4, 6, 3, padding=1, groups=2), (2, 4, 7, 6)),
    "depthwise": (nn.Conv2d(4, 8, 3, padding=1, groups=4), (2, 4, 7, 6)),
    "of one dimension": (nn.Conv1d(4, 6, 3, stride=2), (2, 4, 9)),
    "of three": (nn.Conv3d(2, 3, 2, padding=1), (2, 2, 4, 3, 5)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_weight_times_the_columns_is_the_convolution(name):
    """Group by group W [out / G, d] A [d, n], n running over samples, then rows, then columns of the output."""
    layer, shape = CONVOLUTIONS[name]
    objective, x = Objective(One(layer)), torch.randn(shape)
    w, b = objective.initial()
    (columns,) = (given.columns() for given in objective.layer_inputs(w, b, x).values())
    weight = objective.views(w)["layer.weight"].reshape(layer.groups, layer.out_channels // layer.groups, -1)
    with torch.no_grad():
        expected = objective.at(w, b)(x) - objective.views(w)["layer.bias"].view(1, -1, *[1] * (x.dim() - 2))
    assert columns.shape == (layer.groups, weight.shape[2], expected[:, 0].numel())
    torch.testing.assert_close((weight @ columns).flatten(0, 1), expected.transpose(0, 1).flatten(1))


def test_the_columns_of_an_image_are_those_of_unfold():
    layer, shape = CONVOLUTIONS["padded with strides"]
    objective, x = Objective(One(layer)), torch.randn(shape)
    given = objective.layer_inputs(*objective.initial(), x)["layer"]
    expected = F.unfold(x, (3, 2), padding=(1, 0), stride=(2, 1)).permute(1, 0, 2).flatten(1)
    assert torch.equal(given.columns()[0], expected) and len(given) == expected.shape[1]
    chosen = torch.tensor([5, 0, 39, 5])
    assert torch.equal(given.columns(chosen)[0], expected[:, chosen])


def test_every_trained_layer_of_a_network_from_one_pass():
    """Conv: its image, and what enters the head, by the module's own layers in eval mode."""
    objective, (x, _) = Objective(build(Conv)), inputs(Conv, 3)
    w, b = objective.initial()
    b += 0.5
    passes = []
    objective.module.register_forward_hook(lambda *_: passes.append(1))
    given, before = objective.layer_inputs(w, b, x), (w.clone(), b.clone())
    assert list(given) == ["conv", "head"] and len(passes) == 1
    with torch.no_grad():
        assert torch.equal(given["head"].columns()[0], objective.at(w, b).features(x).T)
    assert torch.equal(given["conv"].columns()[0], F.unfold(x, 3, padding=1).permute(1, 0, 2).flatten(1))
    assert torch.equal(w, before[0]) and torch.equal(b, before[1])
    assert not any(len(module._forward_pre_hooks) for module in objective.module.modules())


def test_frozen_layers_have_none_and_tied_ones_each_their_own():
    x, _ = inputs(Tied, 4)
    assert list(Objective(build(Frozen)).layer_inputs(*Objective(build(Frozen)).initial(), x)) == ["head"]
    objective = Objective(build(Tied))
    given = objective.layer_inputs(*objective.initial(), x)
    assert list(given) == ["first", "second", "head"] and torch.equal(given["first"].columns()[0], x.T)


class Tokens(nn.Module):
    """One linear layer, twice: on tokens, then on their mean."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.idle = nn.Linear(4, 4)

    def forward(self, x):
        return self.mix(self.mix(x).mean(1))


def test_a_layer_that_runs_twice_has_the_columns_of_both_calls():
    objective, x = Objective(build(Tokens)), torch.randn(2, 3, 4)
    w, b = objective.initial()
    given = objective.layer_inputs(w, b, x)
    assert list(given) == ["mix"]
    with torch.no_grad():
        second = F.linear(x, objective.views(w)["mix.weight"], objective.views(w)["mix.bias"]).mean(1)
    torch.testing.assert_close(given["mix"].columns()[0], torch.cat([x.reshape(6, 4), second]).T)


class InPlace(nn.Module):
    """The shortcut's input is changed after the shortcut ran, as in networks that activate first."""

    def __init__(self):
        super().__init__()
        self.shortcut = nn.Linear(4, 3)
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        z = x.clone()
        return self.shortcut(z) + self.layer(z.relu_())


def test_what_entered_a_layer_is_not_what_became_of_it():
    objective, x = Objective(build(InPlace)), torch.randn(5, 4)
    given = objective.layer_inputs(*objective.initial(), x)
    assert torch.equal(given["shortcut"].columns()[0], x.T) and torch.equal(given["layer"].columns()[0], x.relu().T)


class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3)

    def forward(self, x):
        return self.conv(self.conv(x))


def test_two_sizes_in_one_convolution_are_refused():
    objective = Objective(build(Pyramid))
    with pytest.raises(ConfigError, match=r"layer conv ran on inputs of the shapes \[\[1, 6, 6\], \[1, 4, 4\]\]"):
        objective.layer_inputs(*objective.initial(), torch.randn(1, 1, 6, 6))
