"""What counts as a network's declaration of its parts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flray.core.network.objective import Objective
from flray.core.schema.errors import ConfigError


def network(early: object) -> nn.Sequential:
    module = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    module.early = early
    return module


@pytest.mark.parametrize("early", [nn.Linear(5, 2), nn.ModuleDict({"a": nn.Linear(5, 2)}), True, 3, "0", None, (1, 2)])
def test_an_attribute_called_early_that_is_no_list_of_names_is_no_declaration(early):
    """A layer of that name stopped every run, and a string was read letter by letter."""
    objective = Objective(network(early))
    assert objective.mask("all").sum() == sum(p.numel() for p in objective.module.parameters())
    with pytest.raises(ConfigError, match="Sequential declares no `early` layers"):
        objective.mask("early")


def test_a_name_in_early_that_nothing_has_is_refused():
    """It froze nothing, and said nothing: here the first layer is `0`, and `00` is none."""
    with pytest.raises(ConfigError, match=r"Sequential: '00' of `early` is no parameter and no submodule \(.*'0'"):
        Objective(network(("00", "9"))).parts.early()


def test_a_layer_of_early_that_an_option_left_out_is_warned_of():
    """The others are frozen."""
    with pytest.warns(UserWarning, match="'norm' of `early` is no parameter.*freezes nothing"):
        assert Objective(network(("0", "norm"))).parts.early() == {"0.weight", "0.bias"}


@pytest.mark.parametrize("early", [("0",), ["0"], {"0"}])
def test_names_in_a_collection_are_the_early_part(early):
    assert Objective(network(early)).parts.early() == {"0.weight", "0.bias"}


@pytest.mark.parametrize("name", ["levels", "features", "head"])
def test_a_number_is_no_part_that_is_called(name):
    module = network(())
    setattr(module, name, 16)
    objective = Objective(module)
    with pytest.raises(ConfigError, match=rf"Sequential declares no {name}\(x\), which this algorithm reads; add"):
        getattr(objective.at(*objective.initial()), name)(torch.zeros(1, 5))


class FrozenTrunk(nn.Sequential):
    """Its author keeps the dropout of the trunk in eval mode."""

    def train(self, mode: bool = True) -> FrozenTrunk:
        super().train(mode)
        self[1].eval()
        return self


def test_a_mode_by_parts_switches_parts_off_and_none_on():
    """Where an algorithm, or `tasks.freeze`, gave the modes of parts, a layer that the network's own `train()` keeps in
    eval mode trained: its dropout drew masks, its norm took the statistics of the batch."""
    module = FrozenTrunk(nn.Linear(5, 5), nn.Dropout(0.9), nn.Linear(5, 3))
    point = (objective := Objective(module)).initial()

    def modes(**by_part):
        objective.at(*point, {name.lstrip("_"): mode for name, mode in by_part.items()})(torch.zeros(2, 5))
        return [part.training for part in module]

    assert modes(all="train") == [True, False, True]
    assert modes(all="train", _0="eval") == [False, False, True]
    assert modes(all="train", _2="eval") == [True, False, False]


class Flat(nn.Sequential):
    """Its `train()` leaves its layers alone."""

    def train(self, mode: bool = True) -> Flat:
        self.training = mode
        return self


def test_a_layer_that_train_does_not_reach_is_on_again_after_a_mode_by_parts():
    objective = Objective(Flat(nn.Linear(5, 4), nn.Dropout(0.9), nn.Linear(4, 3)))
    off = {"all": "train", "1": "eval"}
    for mode, on in ((off, False), ("train", True), (off, False), ({"all": "train"}, True)):
        objective.at(*objective.initial(), mode)(torch.zeros(2, 5))
        assert objective.module[1].training == on
