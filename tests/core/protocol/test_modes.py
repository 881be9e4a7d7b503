"""Train and eval mode by part, against a module whose parts are put into these modes by hand."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flray.core.network.objective import Objective
from flray.core.schema.errors import ConfigError
from flray.models.base import Classifier
from tests.support.networks import assert_backward, build


class Norms(Classifier):
    """A batch norm in the body, one in the head."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(5, 7)
        self.norm = nn.BatchNorm1d(7)
        self.head = nn.Sequential(nn.BatchNorm1d(7), nn.Linear(7, 3))

    def features(self, x):
        return torch.tanh(self.norm(self.hidden(x)))


def world():
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    return x, torch.arange(8) % 3, build(Norms), Objective(build(Norms))


@pytest.mark.parametrize(
    ("mode", "training"),
    [
        ({"head": "train"}, {"norm": False, "head.0": True}),
        ({"all": "train", "body": "eval"}, {"norm": False, "head.0": True}),
        ({"all": "train", "norm": "eval"}, {"norm": False, "head.0": True}),
        ({"body": "train"}, {"norm": True, "head.0": False}),
        ({"body": "eval", "all": "train"}, {"norm": True, "head.0": True}),
    ],
)
def test_a_part_in_eval_reads_its_statistics_and_leaves_them(mode, training):
    x, y, reference, objective = world()
    w, b = objective.initial()
    reference.eval()
    for name, train in training.items():
        reference.get_submodule(name).train(train)
    found = objective.value_and_grad(lambda f: cross_entropy(f(x), y), w, b, mode)
    assert_backward(objective, found, b, cross_entropy(reference(x), y), reference)


def test_one_part_updates_its_statistics_while_another_only_reads_those_of_the_batch():
    x, y, _, objective = world()
    (w, b), start = objective.initial(), objective.initial()[1]
    both = objective.value_and_grad(lambda f: cross_entropy(f(x), y), w, b.clone(), "train")[1]
    mixed = objective.value_and_grad(lambda f: cross_entropy(f(x), y), w, b, {"body": "train_frozen", "head": "train"})[
        1
    ]
    assert torch.equal(mixed, both)
    moved = {
        n: not torch.equal(v, objective.buffer_layout.views(start)[n])
        for n, v in objective.buffer_layout.views(b).items()
    }
    assert {n for n, m in moved.items() if m} == {"head.0.running_mean", "head.0.running_var"}


def test_modes_take_turns():
    """Whole and by part, in any order: every answer is that of a fresh objective."""
    x, _, module, objective = world()
    w, b = objective.initial()
    b += 1
    modes = [
        "eval",
        {"head": "train_frozen"},
        "train_frozen",
        {"body": "train_frozen"},
        "eval",
        {"head": "train_frozen"},
        {},
    ]
    with torch.no_grad():
        for mode in modes:
            assert torch.equal(objective.at(w, b, mode)(x), Objective(copy.deepcopy(module)).at(w, b, mode)(x)), mode
        assert torch.equal(objective.at(w, b, {})(x), objective.at(w, b)(x))


def test_a_part_that_is_not_there_is_named():
    _, _, _, objective = world()
    with pytest.raises(ConfigError, match="model Norms has no part 'nonsense'"):
        objective.at(*objective.initial(), {"nonsense": "train"})
    headless = Objective(nn.Sequential(nn.Linear(5, 3)))
    with pytest.raises(ConfigError, match="Sequential declares no `head`: part 'body' is undefined"):
        headless.at(*headless.initial(), {"body": "train"})
