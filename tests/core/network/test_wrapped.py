"""Networks that are no plain classifier: a wrapped one, a list of students, a generator, a frozen one; two batches in
one pass.
"""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from flray.core.network.objective import Objective
from flray.core.schema.errors import ConfigError
from tests.support.networks import Mlp, Norm, assert_backward, build, inputs


class Wrapped(nn.Module):
    """A model with a projection beside its head; `head` is still the model's."""

    def __init__(self):
        super().__init__()
        self.model = Mlp()
        self.projection = nn.Linear(7, 2)

    @property
    def head(self):
        return self.model.head

    def features(self, x):
        return self.model.features(x)

    def forward(self, x):
        z = self.features(x)
        return self.head(z), self.projection(z)


class Generator(nn.Module):
    """Noise and a label to an image; batch norm, no head."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4 + 3, 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, noise, y):
        return torch.tanh(self.norm(self.fc(torch.cat([noise, torch.eye(3)[y]], 1))))


class Students(nn.ModuleList):
    def __init__(self):
        super().__init__([Mlp() for _ in range(3)])


def test_a_wrapped_model_has_the_head_that_it_declares():
    objective, (x, _) = Objective(build(Wrapped)), inputs(Mlp, 4)
    w, b = objective.initial()
    named = {
        name: {n for n, v in objective.views(objective.mask(name)).items() if v.all()}
        for name in ("head", "body", "projection")
    }
    assert named["head"] == {"model.head.weight", "model.head.bias"}
    assert named["body"] == {"model.hidden.weight", "model.hidden.bias", "projection.weight", "projection.bias"}
    assert named["projection"] == {"projection.weight", "projection.bias"}
    with torch.no_grad():
        model, reference = objective.at(w, b), build(Wrapped)
        for found, expected in zip(model(x), reference(x), strict=True):
            torch.testing.assert_close(found, expected)
        torch.testing.assert_close(model.run("projection", model.features(x)), reference(x)[1])
        torch.testing.assert_close(model.run("model", x), reference(x)[0])


def test_every_student_of_a_list_is_run_by_its_name():
    """The gradient of one student's loss is its own module's, and 0 at the others."""
    objective, (x, y) = Objective(build(Students)), inputs(Mlp, 4)
    w, b = objective.initial()
    _, g = objective.value_and_grad(lambda f: cross_entropy(f.run("1", x), y), w, b)
    reference = build(Students)[1]
    cross_entropy(reference(x), y).backward()
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(objective.views(g)[f"1.{name}"], parameter.grad)
    assert not (g * (1 - objective.mask("1"))).any()
    with pytest.raises(ConfigError, match=r"Students declares no 3\(x\)"):
        objective.at(w, b).run("3", x)
    with pytest.raises(ConfigError, match="Students declares no `head`: part 'head' is undefined"):
        objective.mask("head")


def test_a_generator_is_trained_through_two_inputs():
    objective, reference = Objective(build(Generator)), build(Generator)
    w, b = objective.initial()
    noise, y = torch.randn(5, 4), torch.tensor([0, 2, 1, 1, 0])
    found = objective.value_and_grad(lambda f: f(noise, y).square().mean(), w, b)
    assert_backward(objective, found, b, reference(noise, y).square().mean(), reference)


def test_lower_precision_ends_at_the_network():
    """bf16 inside, float32 outside, of whatever the network gives; labels stay integers."""

    class Several(Wrapped):
        def forward(self, x):
            return {"both": list(super().forward(x)), "count": torch.tensor([len(x)])}

    objective, (x, _) = Objective(build(Several), precision="bf16"), inputs(Mlp, 4)
    with torch.no_grad():
        model = objective.at(*objective.initial())
        found, z = model(x), model.features(x)
    assert [t.dtype for t in (*found["both"], found["count"], z)] == [torch.float32] * 2 + [torch.int64, torch.float32]
    assert not torch.equal(found["both"][0], build(Several)(x)["both"][0])


@pytest.mark.parametrize("kind", [Mlp, Norm])
def test_two_batches_go_through_the_network_together(kind):
    """CE on one and a distance on the other, from one pass; batch norm sees nine samples."""
    objective, reference = Objective(build(kind)), build(kind)
    (x, y), (other, _) = inputs(kind, 4), inputs(kind, 5, seed=7)
    w, b = objective.initial()

    def loss(f):
        mine, others = f.together(x, other)
        return cross_entropy(mine, y) + mse_loss(others, torch.ones(5, 3))

    found = objective.value_and_grad(loss, w, b)
    logits = reference(torch.cat([x, other]))
    expected = cross_entropy(logits[:4], y) + mse_loss(logits[4:], torch.ones(5, 3))
    assert_backward(objective, found, b, expected, reference)
