"""FedNova on linear losses, where it is exact, and against the authors' optimiser and FedSOL's server."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from flray.algorithms.fedavg import FedAvg
from flray.algorithms.fednova import FedNova, NovaUpdate
from flray.core.messages import nbytes
from flray.core.network.objective import Objective
from flray.engine.client import train
from tests.support.losses import Linear, two_clients
from tests.support.networks import Mlp, Norm, assert_same, build
from tests.support.rounds import held, play, play_sampled
from tests.support.small_cases import context, normal
from tests.support.unequal import clients, pair

LOCAL = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "lr_decay": 0.8, "local_epochs": 2, "batch_size": 4}


class LinearNova(FedNova, Linear, frozen=True):
    pass


@pytest.mark.parametrize(
    ("options", "a", "tau"),
    [
        ({"momentum": 0.0}, (2, 6), (2, 6)),
        ({"momentum": 0.5}, (2.5, 10.03125), (2.5, 10.03125)),
        ({"momentum": 0.0, "mu": 2.0}, (1.8, 3.68928), (2, 6)),
    ],
    ids=["sgd", "momentum", "proximal"],
)
def test_on_linear_losses_the_move_is_the_mean_gradient_whatever_the_steps(options, a, tau):
    """w_g - w_k = lr a_k s_k, so that w' = w - lr tau_eff sum_k p_k s_k; p = (1/4, 3/4), s = (2, -1), 2 and 6 steps, lr
    = 0.1:

    momentum 1/2: a = 1 + 1.5 = 2.5, and 1 + 1.5 + 1.75 + 1.875 + 1.9375 + 1.96875 = 10.03125;
    mu = 2: a = (1 - 0.8 ** t) / 0.2 = 1.8, 3.68928, and tau_eff = sum p tau.
    """
    objective = Objective(build(Mlp))
    data = two_clients()
    states, updates, _ = play(LinearNova(lr=0.1, local_epochs=2, batch_size=3, **options), objective, data, 2)
    effective = 0.25 * tau[0] + 0.75 * tau[1]
    for round in range(2):
        move = states[round].w - states[round + 1].w
        np.testing.assert_allclose(move.numpy(), 0.1 * effective * (0.25 * 2 - 0.75), rtol=1e-5)
    for update, s in zip(updates[0], (2.0, -1.0), strict=True):
        np.testing.assert_allclose(update.d.numpy(), s, rtol=1e-5)  # the gradient itself
    moved = play(Linear(lr=0.1, local_epochs=2, batch_size=3, momentum=options["momentum"]), objective, data, 1)[0]
    if not options.get("mu"):  # FedAvg: sum p a s = 1/4 a_0 2 - 3/4 a_1
        np.testing.assert_allclose((moved[0].w - moved[1].w).numpy(), 0.1 * (0.5 * a[0] - 0.75 * a[1]), rtol=1e-5)


def original(data, rounds, lr, momentum, mu, weight_decay, gmf, epochs=2, size=4, lr_decay=1.0):
    """JYWa/FedNova's optimiser: `step` and `average`, parameters alone, written anew with one list of tensors a
    client."""
    server = build(Mlp)
    shared = [p.detach().clone() for p in server.parameters()]
    slow = None
    for t in range(rounds):
        gamma, runs = lr * lr_decay**t, []
        for x, y in data:
            module = copy.deepcopy(server)
            buffers, total, counter, a, steps = None, [torch.zeros_like(p) for p in shared], 0.0, 0.0, 0
            for _ in range(epochs):
                for i in range(0, len(x), size):
                    grads = torch.autograd.grad(
                        cross_entropy(module(x[i : i + size]), y[i : i + size]), list(module.parameters())
                    )
                    with torch.no_grad():
                        d = [g + weight_decay * p for g, p in zip(grads, module.parameters(), strict=True)]
                        if momentum:
                            buffers = (
                                d
                                if buffers is None
                                else [b.mul_(momentum).add_(g) for b, g in zip(buffers, d, strict=True)]
                            )
                            d = buffers
                        for place, (p, start) in enumerate(zip(module.parameters(), shared, strict=True)):
                            if mu:
                                d[place].add_(p - start, alpha=mu)  # in place: d is the momentum buffer
                            total[place].add_(d[place], alpha=gamma)
                        for p, direction in zip(module.parameters(), d, strict=True):
                            p.sub_(gamma * direction)
                    if momentum:
                        counter = counter * momentum + 1
                        a += counter
                    if mu:
                        a = a * (1 - gamma * mu) + 1
                    if not momentum and not mu:
                        a += 1
                    steps += 1
            runs.append((len(x), a, steps, total))
        count = sum(n for n, *_ in runs)
        effective = sum(n / count * (steps if mu else a) for n, a, steps, _ in runs)
        moves = [sum(n / count * effective / a * total[i] for n, a, _, total in runs) for i in range(len(shared))]
        if gmf:
            slow = (
                [m / gamma for m in moves]
                if slow is None
                else [gmf * s + m / gamma for s, m in zip(slow, moves, strict=True)]
            )
            moves = [gamma * s for s in slow]
        shared = [p - m for p, m in zip(shared, moves, strict=True)]
        with torch.no_grad():
            for p, value in zip(server.parameters(), shared, strict=True):
                p.copy_(value)
    return shared


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.0},
        {"momentum": 0.9, "gmf": 0.5},
        {"momentum": 0.0, "mu": 0.5},
        {"momentum": 0.9, "mu": 0.5, "nova_compat": True},
    ],
    ids=["sgd", "momentum-gmf", "proximal", "compat"],
)
def test_three_rounds_against_the_original_optimiser(options):
    objective = Objective(build(Mlp))
    data = pair(Mlp, 5, 16)
    local = {**LOCAL, **options}
    states, _, _ = play(FedNova(**local), objective, data, 3)
    arguments = {n: local.get(n, 0.0) for n in ("lr", "momentum", "mu", "weight_decay", "gmf", "lr_decay")}
    for found, expected in zip(objective.views(states[-1].w).values(), original(data, 3, **arguments), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def fedsol(kind, data, cohorts, ccvr, total=None):
    """FedSOL's `_nova_aggregation` over the whole state dict, and its control variates, whose mean stays 0 in the
    snapshot."""
    server, m = build(kind), LOCAL["momentum"]
    mean = [torch.zeros_like(p) for p in server.parameters()]
    own = {k: mean for k in range(len(data))}
    for t, cohort in enumerate(cohorts):
        rate, models, a = LOCAL["lr"] * LOCAL["lr_decay"] ** t, {}, {}
        for k in cohort:
            x, y = data[k]
            module = copy.deepcopy(server).train()
            optimizer = torch.optim.SGD(module.parameters(), rate, m, weight_decay=LOCAL["weight_decay"])
            for _ in range(2):
                for bx, by in zip(x.split(4), y.split(4), strict=True):
                    optimizer.zero_grad()
                    cross_entropy(module(bx), by).backward()
                    for p, d, mine in zip(module.parameters(), mean, own[k], strict=True):
                        p.grad += (d - mine) * (ccvr != "off")
                    optimizer.step()
            tau = 2 * -(-len(x) // 4)
            a[k] = (tau - m * (1 - m**tau) / (1 - m)) / (1 - m)
            before, own = own[k], dict(own)
            own[k] = [
                (g - p).detach() / rate / a[k] for g, p in zip(server.parameters(), module.parameters(), strict=True)
            ]
            if ccvr == "fixed":  # without the correction, which the steps contained
                own[k] = [move - (d - mine) for move, d, mine in zip(own[k], mean, before, strict=True)]
            models[k] = module.state_dict()
        sizes = {k: len(data[k][0]) for k in cohort}
        share = {k: n / sum(sizes.values()) for k, n in sizes.items()}
        first, second = sum(share[k] * a[k] for k in cohort), sum(share[k] / a[k] for k in cohort)
        old = {n: v.clone() for n, v in server.state_dict().items() if v.is_floating_point()}
        server.load_state_dict(
            {
                n: v * (1 - first * second) + first * sum(share[k] / a[k] * models[k][n] for k in cohort)
                for n, v in old.items()
            },
            strict=False,
        )
        if ccvr == "fixed":
            q = sum(sizes.values()) / total
            mean = [(1 - q) * d + sum(sizes[k] / total * own[k][i] for k in cohort) for i, d in enumerate(mean)]
    return server, mean, own


@pytest.mark.parametrize("kind", [Mlp, Norm])
@pytest.mark.parametrize("ccvr", ["off", "fedsol_snapshot", "fixed"])
def test_four_rounds_of_two_in_three_clients_against_fedsol(kind, ccvr):
    objective, data, cohorts = Objective(build(kind)), clients(), [(0, 2), (1, 2), (2, 0), (1, 0)]
    total = sum(len(x) for x, _ in data)
    states, kept = play_sampled(FedNova(**LOCAL, ccvr=ccvr), objective, data, cohorts)
    server, mean, own = fedsol(kind, data, cohorts, ccvr, total)
    assert_same(objective, states[-1], server, rtol=5e-6, atol=5e-6)
    if ccvr == "off":
        assert kept == [(), (), ()] and states[-1].dbar is None
        return
    flats = [(kept[k].d, own[k]) for k in own] + ([(states[-1].dbar, mean)] if ccvr == "fixed" else [])
    for flat, parts in flats:
        for view, part in zip(objective.views(flat).values(), parts, strict=True):
            torch.testing.assert_close(view, part, rtol=1e-5, atol=1e-5)


def test_a_client_of_which_nothing_was_trained_keeps_its_direction():
    objective = Objective(build(Mlp))
    algorithm, ctx = FedNova(ccvr="fixed"), context(objective, num_examples=0, num_steps=0, client=1)
    broadcast = algorithm.broadcast(
        ctx, algorithm.init_server(ctx, *objective.initial()).replace(dbar=normal(objective.layout.size))
    )
    client = algorithm.init_client(ctx).replace(d=normal(objective.layout.size, seed=1))
    nothing = held(*(part[:0] for part in clients(1)[0]))
    update, after, *_ = train(algorithm, ctx, broadcast, client, nothing)
    assert torch.equal(after.d, client.d) and torch.equal(update.d_uncorrected, client.d) and not update.d.any()


def test_q_counts_clients_alike_under_uniform_weights():
    """q = K/N = 1/2 of four unequal clients: a dbar of 0 becomes half the mean of the two d_k."""
    objective = Objective(build(Mlp))
    states, kept = play_sampled(FedNova(**LOCAL, ccvr="fixed", weighting="uniform"), objective, clients(4), [(0, 3)])
    torch.testing.assert_close(states[-1].dbar, 0.25 * (kept[0].d + kept[3].d), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [Mlp, Norm])
def test_with_equal_steps_it_is_fedavg_up_to_rounding(kind):
    """Adam: a_k = tau_k, whatever the momentum; 7 and 8 samples are both 2 batches."""
    objective = Objective(build(kind))
    data = pair(kind, 7, 8)
    for options in ({}, {"optimizer": "adam", "lr": 0.01}):
        ours, avg = (play(method(**{**LOCAL, **options}), objective, data, 2)[0][-1] for method in (FedNova, FedAvg))
        torch.testing.assert_close(ours.w, avg.w, rtol=1e-5, atol=2e-6)
        torch.testing.assert_close(ours.b, avg.b, rtol=1e-5, atol=2e-6)


def test_under_adam_the_normaliser_counts_steps():
    objective, data = Objective(build(Mlp)), clients()
    _, updates, _ = play(FedNova(**{**LOCAL, "optimizer": "adam"}, mu=0.1), objective, data, 1)
    assert [u.tau for u in updates[0]] == [2.0 * -(-len(x) // 4) for x, _ in data]
    w, lr = objective.initial()[0], LOCAL["lr"]
    # mu = 0: the same client but for the penalty
    local = play(FedAvg(**{**LOCAL, "optimizer": "adam"}), objective, data[:1], 1)[0][1].w
    plain = play(FedNova(**{**LOCAL, "optimizer": "adam"}), objective, data[:1], 1)[1][0][0]
    torch.testing.assert_close(plain.d * plain.tau * lr, w - local, rtol=1e-4, atol=1e-6)


def test_one_number_more_than_fedavg_goes_up():
    objective, data = Objective(build(Norm)), clients()
    _, updates, _ = play(FedNova(**LOCAL), objective, data, 1)
    w, b = objective.initial()
    assert nbytes(updates[0][0]) == 4 * (len(w) + len(b)) + 8


def test_a_running_variance_below_0_is_said():
    """tau_eff sum_k p_k / a_k is above 1 where steps differ: from 1 the mean of the clients' variances is passed."""
    objective = Objective(build(Norm))
    ctx, algorithm = context(objective), FedNova(lr=0.1)
    state = algorithm.init_server(ctx, *objective.initial())
    for times, said in ((0.5, 0), (2.0, 1)):  # of the way from 1 to 0
        direction = torch.zeros_like(state.b)
        objective.buffer_layout.views(direction)["norm.running_var"].fill_(times / 0.1)
        update = NovaUpdate(torch.zeros_like(state.w), direction, torch.tensor(1.0), None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            algorithm.aggregate(ctx, state, update, None)
        assert len(caught) == said and all("running_var has negative entries" in str(w.message) for w in caught)
