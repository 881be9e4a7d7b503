"""Training generators without data: against torch.optim on the modules themselves."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from flray.core.network.objective import Objective
from flray.core.protocol.classes import ClassSet
from flray.models.generators import MFCLGenerator
from flray.ops.generate import adversarial_loss, batch_norms, bounding_loss, mfcl_loss, statistics_distance
from flray.ops.synthesis import (
    InversionWeights,
    Student,
    Teacher,
    TeacherOutput,
    adam_search,
    endless_batches,
    fit_mfcl_generator,
    inversion_loss,
    train_student,
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)

    def features(self, x):
        return torch.relu(self.norm(self.conv(x))).mean((2, 3))

    def forward(self, x):
        return self.head(self.features(x))


def teacher(classes=None):
    torch.manual_seed(1)
    net = Net()
    net.train()(torch.randn(64, 1, 8, 8) * 2 + 1)  # some statistics
    objective = Objective(net)
    return net, Teacher(objective, *objective.initial(), classes)


def test_mfcls_generator_learns_as_with_torchs_adam():
    """Three steps on the same noise by `torch.optim.Adam` on the module: the same images and losses."""
    net, frozen = teacher(ClassSet([0, 2, 3], 5))
    torch.manual_seed(2)
    generator = Objective(MFCLGenerator((1, 8, 8), noise=6))
    torch.manual_seed(2)
    other = MFCLGenerator((1, 8, 8), noise=6)
    w, b = generator.initial()
    start = w.clone(), b.clone()
    found_w, found_b, losses = fit_mfcl_generator(
        generator, w, b, frozen, np.random.default_rng(3), steps=3, batch_size=10
    )
    assert torch.equal(w, start[0]) and torch.equal(b, start[1]), "the arguments are as they were"
    draws, expected = np.random.default_rng(3), []
    optimizer = torch.optim.Adam(other.parameters(), lr=1e-3)
    bound = frozen.objective.at(frozen.w, frozen.b)
    for _ in range(3):
        x = other(torch.from_numpy(draws.standard_normal((10, 6), dtype=np.float32)))
        with batch_norms(net) as statistics:
            o = bound(x)[:, [0, 2, 3]]
        loss = mfcl_loss(x, o, statistics)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.detach())
    torch.testing.assert_close(losses, torch.stack(expected))
    # a bias before a norm has a gradient of rounding alone, of which Adam makes whole steps: compare what is made
    z = torch.randn(10, 6)
    made = generator.at(found_w, found_b, "train")(z)
    torch.testing.assert_close(made, other.train()(z), rtol=1e-3, atol=1e-4)
    assert losses[-1] < losses[0]


def test_a_search_is_adam_on_the_generator_and_what_is_free_and_keeps_the_best_step():
    """Four steps by `torch.optim.Adam` with two rates; the loss has its lowest value in the middle."""
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    generator, z = Objective(net), torch.randn(5, 3)
    w, b = generator.initial()
    copy = nn.Linear(3, 2)
    copy.load_state_dict(generator.state_dict(w, b))
    free = z.clone().requires_grad_()
    optimizer = torch.optim.Adam(
        [{"params": copy.parameters()}, {"params": [free], "lr": 0.3}], lr=0.2, betas=(0.5, 0.999)
    )
    kept, total, losses = [], None, []

    def value_of(made):
        return ((made - 1) ** 2).mean()

    for _ in range(4):
        made = copy(free)
        value = value_of(made)
        optimizer.zero_grad()
        value.backward()
        flat = generator.layout.flatten({n: p.grad for n, p in copy.named_parameters()}, torch.device("cpu"))
        total = flat if total is None else total + flat
        optimizer.step()
        kept.append(made.detach())
        losses.append(value.detach())

    def loss(model, z):
        made = model(z)
        return value_of(made), made

    found = adam_search(generator, w, b, [z], loss, steps=4, lr=0.2, lr_free=0.3)
    torch.testing.assert_close(found.losses, torch.stack(losses))
    named = generator.views(found.w)
    torch.testing.assert_close(named["weight"], copy.weight.detach())
    torch.testing.assert_close(found.free[0], free.detach())
    torch.testing.assert_close(found.gradient, total)
    torch.testing.assert_close(found.best, kept[int(torch.stack(losses).argmin())])
    assert torch.equal(w, generator.initial()[0])


def test_inversion_loss_is_the_sum_of_its_terms():
    o, y = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    s, u, e = torch.randn(4, 3), torch.randn(4, 6), torch.randn(4, 6)
    _, old = teacher()
    x = torch.randn(4, 1, 8, 8)
    statistics = old.output(x).statistics
    weights = InversionWeights(bn=2.0, oh=3.0, adv=5.0, ltc=7.0, radius=0.1)
    parts = [
        2 * statistics_distance(statistics),
        3 * F.cross_entropy(o, y),
        5 * adversarial_loss(o, s),
        7 * bounding_loss(u, e, 0.1),
    ]
    found = inversion_loss(TeacherOutput(o, u, statistics), y, s, weights, embeddings=e)
    torch.testing.assert_close(found, sum(parts))
    torch.testing.assert_close(
        inversion_loss(TeacherOutput(o, None, statistics), y, None, weights), parts[0] + parts[1]
    )


def test_a_student_learns_as_with_torchs_sgd():
    """Two calls of two steps, its momentum carried on: T^2 KL of NumPy's definition by `kl_div`, on three of five
    classes."""
    _, old = teacher(ClassSet([0, 2, 3], 5))
    torch.manual_seed(5)
    other = Net()
    w, b = old.objective.from_state_dict({n: t for n, t in other.state_dict().items() if t.is_floating_point()})
    xs = [torch.randn(6, 1, 8, 8) for _ in range(4)]
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4)
    student, start = Student.of(w.clone(), b.clone()), w.clone()
    for rows in (slice(0, 2), slice(2, 4)):
        student, loss = train_student(old, student, iter(xs[rows]), steps=2, lr=0.1, temperature=4.0)
    with torch.no_grad():
        told = [old.output(x).logits for x in xs]
    losses = []
    for x, t in zip(xs, told, strict=True):
        q = (other(x)[:, [0, 2, 3]] / 4).log_softmax(1)
        value = 16 * F.kl_div(q, (t / 4).softmax(1), reduction="batchmean")
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.detach())
    torch.testing.assert_close(loss, torch.stack(losses[2:]).mean(), rtol=1e-4, atol=1e-6)
    named = old.objective.state_dict(student.w, student.b)
    for name, tensor in other.state_dict().items():
        if tensor.is_floating_point() and name != "conv.bias":  # before a norm
            torch.testing.assert_close(named[name], tensor, rtol=1e-4, atol=1e-6)
    assert not torch.equal(student.w, start)


def test_shuffled_batches_go_on_for_ever():
    batches = endless_batches(5, 2, np.random.default_rng(0))
    epochs = [[next(batches) for _ in range(3)] for _ in range(2)]
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == [2, 2, 1] and sorted(np.concatenate(epoch)) == list(range(5))
    assert not np.array_equal(np.concatenate(epochs[0]), np.concatenate(epochs[1]))
