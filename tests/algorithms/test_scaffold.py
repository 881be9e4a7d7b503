"""SCAFFOLD on quadratics, where it removes the drift, and against FedSOL's way of writing it."""

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from flray.algorithms.fedavg import FedAvg
from flray.algorithms.scaffold import Scaffold
from flray.core.messages import nbytes
from flray.core.network.objective import Objective
from flray.engine.client import train
from tests.support.losses import Quadratic, two_clients
from tests.support.networks import Mlp, Norm, assert_same, build, in_float64
from tests.support.rounds import alone, held, play, play_sampled
from tests.support.small_cases import context, normal
from tests.support.unequal import clients

LOCAL = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "lr_decay": 0.8, "local_epochs": 2, "batch_size": 4}
COHORTS = [(0, 2), (1, 2), (2, 0), (1, 0)]


class QuadraticScaffold(Scaffold, Quadratic, frozen=True):
    """On f_k(w) = 1/2 ||w - a_k||^2."""


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_on_quadratics_the_drift_is_gone(momentum):
    """sum_k p_k f_k has its minimum at sum_k p_k a_k = 1/2 (2 - 1). There c_k = f_k' = 1/2 - a_k, so that no client
    moves: a fixed point. FedAvg with 1 and 3 steps stays away from it (test_fedavg has its recursion)."""
    objective, data = Objective(build(Mlp)), two_clients()
    options = {"lr": 0.1, "momentum": momentum, "local_epochs": 1, "batch_size": 3, "weighting": "uniform"}
    states, kept = play_sampled(QuadraticScaffold(**options), objective, data, [(0, 1)] * 150)
    used = objective.mask("all") > 0
    torch.testing.assert_close(states[-1].w[used], torch.full_like(states[-1].w, 0.5)[used], rtol=0, atol=1e-4)
    for client, a in zip(kept, (2.0, -1.0), strict=True):
        torch.testing.assert_close(client.c[used], torch.full_like(client.c, 0.5 - a)[used], rtol=0, atol=1e-3)
    drifted = play(Quadratic(**options), objective, data, 150)[0][-1]
    assert float((drifted.w - 0.5)[used].abs().min()) > 0.1


@pytest.mark.slow
def test_corrected_after_the_step_a_client_with_more_steps_pulls_more():
    """No client moves where c_k is its mean velocity and the c_k sum to 0: with momentum m = 0.5 and a small rate, 1
    step has f_1', and 3 steps have (3 + 2 m + m^2) / 3 f_2' = 17/12 f_2'. (w - 2) + 17/12 (w + 1) = 0 is w = 7/29."""
    objective, data = Objective(build(Mlp)), two_clients()
    options = {"lr": 0.008, "momentum": 0.5, "local_epochs": 1, "batch_size": 3, "weighting": "uniform"}
    niid = QuadraticScaffold(**options, corrects="weights", divisor="steps")
    w = play_sampled(niid, objective, data, [(0, 1)] * 400)[0][-1].w[objective.mask("all") > 0]
    torch.testing.assert_close(w, torch.full_like(w, 7 / 29), rtol=0, atol=5e-3)


def transcription(
    server,
    data,
    cohorts,
    option="II",
    divisor="momentum",
    server_lr=1.0,
    weighting="examples",
    corrects="gradient",
    c_over="population",
    **local,
):
    """FedSOL's client and server: `grad - c_i + c` before `optimizer.step()`, c_i+ = c_i - c + (w_g - w) / (A lr), c +=
    K/N mean. NIID-Bench's `train_net_scaffold`: `net_para - lr * (c_global_para - c_local_para)` after it."""
    lr, m = local["lr"], local["momentum"]
    zeros = [torch.zeros_like(p) for p in server.parameters()]
    c, own = zeros, {k: zeros for k in range(len(data))}
    for t, cohort in enumerate(cohorts):
        rate, models, changes = lr * local["lr_decay"] ** t, [], []
        for k in cohort:
            x, y = data[k]
            module = copy.deepcopy(server).train()
            optimizer = torch.optim.SGD(module.parameters(), rate, m, weight_decay=local["weight_decay"])
            tau = 0
            for _ in range(local["local_epochs"]):
                for i in range(0, len(x), local["batch_size"]):
                    optimizer.zero_grad()
                    cross_entropy(module(x[i : i + local["batch_size"]]), y[i : i + local["batch_size"]]).backward()
                    if corrects == "gradient":
                        for p, ci, cg in zip(module.parameters(), own[k], c, strict=True):
                            p.grad += cg - ci
                    optimizer.step()
                    if corrects == "weights":
                        net_para = module.state_dict()
                        for (name, _), ci, cg in zip(module.named_parameters(), own[k], c, strict=True):
                            net_para[name] = net_para[name] - rate * (cg - ci)
                        module.load_state_dict(net_para)
                    tau += 1
            steps = (tau - m * (1 - m**tau) / (1 - m)) / (1 - m) if divisor == "momentum" else tau
            if option == "II":
                start, end = server.parameters(), module.parameters()
                new = [
                    ci - cg + (a - b).detach() / (steps * rate)
                    for ci, cg, a, b in zip(own[k], c, start, end, strict=True)
                ]
            else:
                full = copy.deepcopy(server).train()
                losses = [
                    cross_entropy(full(bx), by, reduction="sum") for bx, by in zip(x.split(4), y.split(4), strict=True)
                ]
                new = list(torch.autograd.grad(sum(losses) / len(x), list(full.parameters())))
            changes.append([n - o for n, o in zip(new, own[k], strict=True)])
            own[k] = new
            models.append(module.state_dict())
        sizes = [len(data[k][0]) for k in cohort]
        share = [n / sum(sizes) if weighting == "examples" else 1 / len(cohort) for n in sizes]
        old = server.state_dict()
        learnt = {n for n, _ in server.named_parameters()}
        merged = {
            n: sum(s * model[n] for s, model in zip(share, models, strict=True))
            for n, value in old.items()
            if value.is_floating_point()
        }
        server.load_state_dict(
            {n: old[n] + server_lr * (v - old[n]) if n in learnt else v for n, v in merged.items()}, strict=False
        )
        mean = [torch.stack(parts).mean(0) for parts in zip(*changes, strict=True)]
        c = [cg + (len(cohort) / len(data) if c_over == "population" else 1) * d for cg, d in zip(c, mean, strict=True)]
    return server, c, own


@pytest.mark.parametrize("kind", [Mlp, Norm])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"divisor": "steps"},
        {"server_lr": 0.6, "weighting": "uniform"},
        {"option": "I", "divisor": "steps"},
        {"corrects": "weights", "divisor": "steps"},
        {"c_over": "cohort"},
    ],
    ids=["default", "tau", "server-uniform", "option-I", "niid-bench", "fedzoo-bench"],
)
def test_four_rounds_of_two_in_three_clients_against_the_transcription(kind, options):
    first, data = in_float64(build(kind)), clients()
    objective = Objective(copy.deepcopy(first), dtype=torch.float64)
    local = {**LOCAL, "lr": 0.01} if options.get("divisor") == "steps" else LOCAL
    states, kept = play_sampled(Scaffold(**local, **options), objective, data, COHORTS)
    server, c, own = transcription(first, data, COHORTS, **options, **local)
    assert_same(objective, states[-1], server, rtol=0, atol=1e-12)
    for flat, parts in [(states[-1].c, c), *((kept[k].c, own[k]) for k in own)]:
        for view, part in zip(objective.views(flat).values(), parts, strict=True):
            torch.testing.assert_close(view, part, rtol=0, atol=1e-11)


@pytest.mark.parametrize("last_batch", ["keep", "drop", "merge"])
@pytest.mark.parametrize("local_epochs", [1, 2])
def test_option_i_reads_every_sample_once_however_an_epoch_is_cut(last_batch, local_epochs):
    """11 samples in batches of 4: an epoch has 3 batches, 2 without the rest of 3, or 2 of which the last has 7.

    Softmax regression in float64, P = softmax(X W^T + v): dW = (P - onehot(y))^T X / 11, dv = mean of P - onehot(y).
    """
    torch.manual_seed(3)
    objective = Objective(torch.nn.Linear(5, 3))
    x, y = clients(1)[0]
    algorithm = Scaffold(**{**LOCAL, "local_epochs": local_epochs}, option="I", last_batch=last_batch)
    client = alone(algorithm, objective, x, y, 1)[1][-1]
    weights = {name: view.double().numpy() for name, view in objective.views(objective.initial()[0]).items()}
    logits = x.double().numpy() @ weights["weight"].T + weights["bias"]
    p = np.exp(logits - logits.max(1, keepdims=True))
    error = p / p.sum(1, keepdims=True) - np.eye(3)[y.numpy()]
    found = objective.views(client.c)
    np.testing.assert_allclose(found["weight"].numpy(), error.T @ x.double().numpy() / 11, rtol=0, atol=2e-6)
    np.testing.assert_allclose(found["bias"].numpy(), error.mean(0), rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", [Mlp, Norm])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_round_1_has_the_bits_of_fedavg_and_round_2_has_not(kind, optimizer):
    objective, data = Objective(build(kind)), clients()
    local = {**LOCAL, "optimizer": optimizer}
    ours, avg = play(Scaffold(**local), objective, data, 2)[0], play(FedAvg(**local), objective, data, 2)[0]
    assert torch.equal(ours[1].w, avg[1].w) and torch.equal(ours[1].b, avg[1].b)
    assert not torch.equal(ours[2].w, avg[2].w)


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_c_is_the_mean_of_all_clients_c_k_even_where_an_update_was_lost(weighting):
    """Algorithm 1 keeps c = (1/N) sum_k c_k: c moves by (1/N) of what the c_k of those that delivered moved."""
    objective, data = Objective(build(Mlp)), clients(4)
    algorithm = Scaffold(**LOCAL, weighting=weighting)
    states, kept = play_sampled(algorithm, objective, data, [(0, 1, 3), (2, 1, 0), (3, 0, 2)], lost={(1, 1), (2, 3)})
    assert states[-1].c.abs().max() > 0.01
    torch.testing.assert_close(states[-1].c, torch.stack([client.c for client in kept]).mean(0), rtol=1e-4, atol=1e-6)


def test_a_client_without_data_keeps_its_control_variate():
    objective = Objective(build(Mlp))
    algorithm = Scaffold(weighting="uniform")
    ctx = context(objective, num_examples=0, num_steps=0, client=1)
    broadcast = algorithm.broadcast(ctx, algorithm.init_server(ctx, *objective.initial())).replace(
        c=normal(objective.layout.size)
    )
    own = algorithm.init_client(ctx).replace(c=normal(objective.layout.size, seed=1))
    nothing = held(*(part[:0] for part in clients(1)[0]))
    update, kept, *_ = train(algorithm, ctx, broadcast, own, nothing)
    assert torch.equal(kept.c, own.c) and not update.c.any() and torch.equal(update.w, broadcast.w)


def test_local_statistics_stay_with_the_client():
    objective, data = Objective(build(Norm)), clients()
    _, kept = play_sampled(Scaffold(**LOCAL, buffers="local"), objective, data, [(0, 1), (1, 0)])
    own = [objective.buffer_layout.views(client.b)["norm.running_mean"] for client in kept]
    assert torch.equal(own[2], torch.zeros(7)) and not torch.equal(own[0], own[1]) and own[0].any()


def test_twice_the_parameters_travel_each_way():
    objective, data = Objective(build(Norm)), clients()
    algorithm = Scaffold(**LOCAL)
    states, updates, _ = play(algorithm, objective, data, 1)
    w, b = objective.initial()
    both = 4 * (2 * len(w) + len(b))
    assert nbytes(updates[0][0]) == nbytes(algorithm.broadcast(context(objective), states[1])) == both
