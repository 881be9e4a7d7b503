"""FedET's consensus against NumPy loops over samples, and its server half against the same in plain torch."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax

from flray.algorithms.fedet import FedET
from flray.core.messages import Update
from flray.core.network.objective import Objective
from tests.support.networks import Mlp, Norm, assert_same, averaged, build, inputs
from tests.support.personal import distilling, optimise
from tests.support.rounds import play
from tests.support.small_cases import ListProxy, normal
from tests.support.unequal import pair

LOCAL = {"lr": 0.2, "local_epochs": 2, "batch_size": 4}
SERVER = {"distill_lr": 0.01, "distill_epochs": 2, "distill_batch_size": 4}


def world(kind):
    return Objective(build(kind)), pair(kind, 4, 12), ListProxy(inputs(kind, 12, seed=7)[0])


def by_samples(logits, form):
    """(labels, s_div, whether D is not empty) of `logits [K, n, C]`, one sample after the other, as the TAKFL code
    makes them."""
    labels, diverse, disputed = [], [], []
    for x in range(logits.shape[1]):
        every = [logits[k, x] for k in range(len(logits))]

        def weighted(rows):
            v = np.array([np.mean((row - row.mean()) ** 2) for row in rows])
            v = v / (np.mean(v) if form == "takfl" else np.sum(v))
            return np.sum([v[k] * rows[k] for k in range(len(rows))], axis=0)

        labels.append(int(np.argmax(weighted(every))))
        dissent = [row for row in every if np.argmax(row) != labels[-1]]
        diverse.append(weighted(dissent) if dissent else np.zeros(logits.shape[2]))
        disputed.append(bool(dissent))
    return np.array(labels), np.array(diverse), np.array(disputed)


@pytest.mark.parametrize("form", ["takfl", "paper"])
def test_consensus_sample_by_sample(form):
    logits = 2 * normal(4, 40, 3)
    logits[:, :3] = logits[:1, :3]  # on three samples all agree
    labels, diverse, disputed = by_samples(logits.double().numpy(), form)
    found = FedET(fedet=form).consensus(logits)
    np.testing.assert_array_equal(found.labels.numpy(), labels)
    np.testing.assert_array_equal(found.disputed.numpy(), disputed)
    np.testing.assert_allclose(found.diverse.numpy(), diverse, rtol=1e-5, atol=1e-6)
    assert 0 < disputed.sum() <= 37


@pytest.mark.parametrize("form", ["takfl", "paper"])
def test_clients_with_constant_logits_weigh_nothing(form):
    """v = 0; alone in D it leaves s_div = 0, not a NaN."""
    logits = torch.stack([torch.tensor([[0.0, 4.0, 1.0]]), torch.full((1, 3), 5.0)])
    found = FedET(fedet=form).consensus(logits)
    assert found.labels.tolist() == [1] and found.disputed.tolist() == [True]
    assert found.diverse.tolist() == [[0.0, 0.0, 0.0]]
    # beside another dissenter it counts in TAKFL's mean over D: v = (v_2, 0), b_2 = v_2 / (v_2 / 2)
    logits = torch.stack([torch.tensor([[0.0, 9.0, 1.0]]), torch.tensor([[0.0, 0.0, 2.0]]), torch.full((1, 3), 5.0)])
    found = FedET(fedet=form).consensus(logits)
    assert found.labels.tolist() == [1]
    torch.testing.assert_close(found.diverse, torch.tensor([[0.0, 0.0, 4.0 if form == "takfl" else 2.0]]))


def transcription(kind, locals_, share, public, round, form, diversity, temperature):
    """The server half of one round, per-sample losses: CE + lambda T^2 KL, the second (paper) only where D is not
    empty."""
    with torch.no_grad():
        logits = torch.stack([m.eval()(public) for m in locals_])
    labels, diverse, disputed = (torch.from_numpy(a) for a in by_samples(logits.double().numpy(), form))
    student = averaged(locals_[0], locals_, share)

    def loss(student, index):
        z = student(public[index])
        target = softmax(diverse[index].float() / temperature, dim=1)
        each = kl_div(log_softmax(z / temperature, dim=1), target, reduction="none").sum(1)
        each = each * disputed[index] if form == "paper" else each
        return cross_entropy(z, labels[index]) + diversity * temperature**2 * each.mean()

    optimizer = torch.optim.Adam(student.parameters(), lr=SERVER["distill_lr"])
    return optimise(student, optimizer, distilling(round, len(public)), loss), disputed


@pytest.mark.parametrize("kind", [Mlp, Norm])
@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({}, ("takfl", 0.1, 3.0)),
        ({"fedet": "paper"}, ("paper", 0.05, 1.0)),
        ({"fedet": "paper", "diversity": 0.7, "temperature": 2.0}, ("paper", 0.7, 2.0)),
    ],
    ids=["takfl", "paper", "paper-weights"],
)
def test_the_server_half_against_the_transcription(kind, options, numbers):
    objective, data, proxy = world(kind)
    states, updates, _ = play(FedET(**LOCAL, **SERVER, **options), objective, data, 2, proxy)
    for round in range(2):
        locals_ = []
        for update in updates[round]:
            module = build(kind)
            module.load_state_dict(objective.state_dict(update.w, update.b), strict=False)
            locals_.append(module)
        student, disputed = transcription(kind, locals_, [4 / 16, 12 / 16], proxy.x, round, *numbers)
        assert 0 < disputed.sum() < 12, "samples of both kinds"
        assert_same(objective, states[round + 1], student, rtol=1e-5, atol=1e-6)


def test_blocks_of_proxy_samples_do_not_change_the_consensus():
    objective, data, proxy = world(Norm)
    _, updates, _ = play(FedET(**LOCAL, **SERVER), objective, data, 1, proxy)
    from tests.support.small_cases import context

    ctx, stacked = context(objective, proxy), Update(*zip(*((u.w, u.b) for u in updates[0]), strict=True))
    small, large = (FedET(distill_batch_size=size).ensemble(ctx, stacked) for size in (3, 100))
    assert torch.equal(small.labels, large.labels) and torch.equal(small.disputed, large.disputed)
    torch.testing.assert_close(small.diverse, large.diverse)


def test_it_has_no_option_of_feddf_that_it_does_not_read():
    assert not {"teacher", "squared", "kl_direction"} & set(FedET.model_fields)
