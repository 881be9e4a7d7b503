"""Ensembles and one distillation step against `torch.optim.Adam` on the plain module."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import kl_div, log_softmax, softmax

from flray.core.network.objective import Objective
from flray.core.protocol.classes import Classes
from flray.core.protocol.clock import Clock
from flray.ops.distill import distill, ensemble, proxy_logits
from flray.ops.losses import kl
from flray.ops.memory import MemoryBuffer, with_seen_labels
from tests.support.networks import Branches, Mlp, Norm, build, inputs
from tests.support.small_cases import ListProxy, context, flatten_like, normal

OTHER = {"forward": "reverse", "reverse": "forward"}


def clients(objective, kind, count=3):
    modules = [build(kind, seed=10 + i) for i in range(count)]
    for i, module in enumerate(modules):  # statistics of their own
        module.train()
        module(inputs(kind, 8, seed=i)[0] * (1 + i))
        module.eval()
    points = [flatten_like(objective, module) for module in modules]
    return modules, torch.stack([w for w, _ in points]), torch.stack([b for _, b in points])


@pytest.mark.parametrize("kind", [Mlp, Norm])
@pytest.mark.parametrize("batch_size", [4, 100])
@pytest.mark.parametrize("tasks", [[[0, 1, 2]], [[2], [0]]], ids=["one task", "two tasks"])
def test_ensemble_is_the_mean_of_the_clients_logits_or_probabilities(kind, batch_size, tasks):
    """Probabilities are those among all classes seen so far; the stored logits stay those of the whole head."""
    objective, seen = Objective(build(kind)), sorted(itertools.chain(*tasks))
    modules, w, b = clients(objective, kind)
    x, _ = inputs(kind, 10)
    ctx = context(objective, ListProxy(x), classes=Classes(tasks, 3))
    with torch.no_grad():
        each = torch.stack([m(x) for m in modules])
    of_seen = each[:, :, seen]
    for teacher, expected in (
        ("avg_logits", softmax(of_seen.mean(0) / 3, dim=1)),
        ("avg_probs", softmax(of_seen, dim=2).mean(0)),
        ("avg_losses", softmax(of_seen / 3, dim=2).mean(0)),
    ):
        found = ensemble(ctx, w, b, batch_size, teacher, 3.0)
        torch.testing.assert_close(softmax(found.teacher / 3, dim=1), expected)
        torch.testing.assert_close(found.logits, each.mean(0))
        assert (found.teacher is found.logits) == (teacher == "avg_logits" and len(seen) == 3)
    torch.testing.assert_close(proxy_logits(objective, w[0], b[0], ListProxy(x), batch_size), each[0])


def test_a_labelled_memory_is_read_where_the_labels_were_seen():
    ctx = context(build(Mlp), ListProxy(torch.zeros(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])))
    order = np.array([2, 0, 1, 3])
    every = MemoryBuffer(None, torch.zeros(6, 3))
    assert with_seen_labels(ctx, every, order) is order
    ctx = replace(ctx, classes=Classes([[2], [0]], 3))
    assert with_seen_labels(ctx, every, order).tolist() == [2, 0, 3]
    assert with_seen_labels(ctx, MemoryBuffer(np.array([1, 3, 4, 5]), torch.zeros(4, 3)), order).tolist() == [1, 3], (
        "places in the buffer, not samples"
    )


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_avg_losses_has_the_gradient_of_the_mean_of_the_clients_kl_terms(temperature, direction):
    """All at T: mean_k KL(p_k || q) and KL(mean_k p_k || q) differ by a constant in q, and so do mean_k KL(q || p_k)
    and KL(q || p), log p = mean_k log p_k + const; with the other direction's teacher the gradient is another."""
    objective = Objective(build(Mlp))
    _, w, b = clients(objective, Mlp)
    x, _ = inputs(Mlp, 10)
    student = normal(10, 3, seed=1).requires_grad_()
    found, other = (
        ensemble(context(objective, ListProxy(x)), 5 * w, b, 4, "avg_losses", temperature, d)
        for d in (direction, OTHER[direction])
    )
    teachers = [objective.at(5 * v, b[k])(x).detach() for k, v in enumerate(w)]
    (first,) = torch.autograd.grad(kl(found.teacher, student, temperature, direction), student)
    (second,) = torch.autograd.grad(
        sum(kl(t, student, temperature, direction) for t in teachers) / len(teachers), student
    )
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-6)
    (third,) = torch.autograd.grad(kl(other.teacher, student, temperature, direction), student)
    assert not torch.allclose(first, third, atol=1e-4)


@pytest.mark.parametrize("kind", [Mlp, Norm])
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 3.0, "squared": True},
        {"temperature": 2.0, "squared": False, "direction": "reverse"},
        {"temperature": 1.0, "squared": True, "clip": 0.01},
        {"temperature": 1.0, "squared": True, "cosine": True},
        {"temperature": 1.0, "squared": True, "penalty": 0.3},
        {"temperature": 1.0, "squared": True, "clip": 0.01, "weight_decay": 0.3},
        {"temperature": 1.0, "squared": True, "mode": "train_frozen"},
        {"temperature": 1.0, "squared": True, "mode": "eval"},
    ],
)
def test_student_against_torch(kind, options):
    """Adam on T^2 KL(teacher/T || student/T) over the batches that the proxy was asked for, two epochs, the module in
    train mode unless told; BatchNorm with momentum 0 leaves its running statistics alone."""
    objective = Objective(build(kind))
    x, _ = inputs(kind, 11)
    proxy, teacher = ListProxy(x), 3 * normal(11, 3, seed=5)
    w0, b0 = objective.initial()
    start = w0.clone(), b0.clone()
    options = dict(options)
    anchor = w0 + 0.1
    alpha = options.pop("penalty", None)
    penalty = None if alpha is None else (lambda w: 2 * alpha * (w - anchor))
    w, b, loss = distill(
        context(objective, proxy), w0, b0, teacher, proxy, lr=0.01, epochs=2, batch_size=4, penalty=penalty, **options
    )
    assert torch.equal(w0, start[0]) and torch.equal(b0, start[1])

    module = build(kind).train(options.get("mode") != "eval")
    if options.get("mode") == "train_frozen" and kind is Norm:
        module.norm.momentum = 0.0
    if options.get("mode") in ("train_frozen", "eval"):
        assert torch.equal(b, b0)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01, weight_decay=options.get("weight_decay", 0.0))
    t = options["temperature"]
    batches = proxy.asked
    assert [len(i) for i in batches] == [4, 4, 3] * 2
    for epoch in (batches[:3], batches[3:]):
        assert sorted(np.concatenate(epoch).tolist()) == list(range(11))
    losses = []
    anchors = {n: a.clone() for n, a in objective.views(anchor).items()}
    for step, index in enumerate(batches):
        z, target = module(x[index]), teacher[index]
        p, q = log_softmax(target / t, dim=1), log_softmax(z / t, dim=1)
        if options.get("direction") == "reverse":
            p, q = q, p
        value = kl_div(q, p, log_target=True, reduction="batchmean") * (t * t if options["squared"] else 1)
        total = value
        if alpha is not None:
            total = value + alpha * sum(((v - anchors[n]) ** 2).sum() for n, v in module.named_parameters())
        optimizer.zero_grad()
        total.backward()
        if "clip" in options:
            torch.nn.utils.clip_grad_norm_(module.parameters(), options["clip"])
        if options.get("cosine"):  # half a period over the 6 steps, as CosineAnnealingLR with eta_min 0
            optimizer.param_groups[0]["lr"] = 0.01 * 0.5 * (1 + np.cos(np.pi * step / 6))
        optimizer.step()
        losses.append(value.detach())
    torch.testing.assert_close(loss, torch.stack(losses).mean(), rtol=1e-5, atol=1e-6)
    named = objective.state_dict(w, b)
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(named[name], tensor, rtol=1e-4, atol=2e-6)


def distilled(objective, x, teacher, where=None, **options):
    """The student after an epoch from the initial model."""
    proxy, how = ListProxy(x), {"lr": 0.01, "epochs": 1, "batch_size": 4, "temperature": 1.0, "squared": True}
    return distill(
        context(objective, proxy, **(where or {})), *objective.initial(), teacher, proxy, **{**how, **options}
    )[0]


def test_draws_are_addressed():
    objective, (x, _), teacher = Objective(build(Mlp)), inputs(Mlp, 10), normal(10, 3)
    first = distilled(objective, x, teacher)
    torch.rand(5)
    np.random.rand(5)
    assert torch.equal(distilled(objective, x, teacher), first)
    assert not torch.equal(distilled(objective, x, teacher, {"clock": Clock(round=1)}), first)


def test_weight_decay_leaves_what_the_loss_does_not_reach_alone():
    objective = Objective(build(Branches))
    x, _ = inputs(Branches, 8)
    x[:, 0] = -1.0
    w, w0 = distilled(objective, x, normal(8, 3), lr=0.1, weight_decay=0.3), objective.initial()[0]
    still = {name: torch.equal(view, objective.views(w0)[name]) for name, view in objective.views(w).items()}
    assert still == {name: name.startswith(("never", "now_and_then")) for name in still}
