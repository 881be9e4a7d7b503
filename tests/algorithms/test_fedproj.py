"""FedProj against a literal transcription of the paper's Algorithm 1, and its options one by one."""

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from flray.algorithms.feddf import FedDF
from flray.algorithms.fedproj import FedProj
from flray.core.messages import equal
from flray.core.network.objective import Objective
from flray.core.protocol.seeding import rng
from flray.engine.client import train
from tests.support.networks import Mlp, Norm, assert_same, averaged, build, inputs
from tests.support.personal import client_context, distilling, optimise
from tests.support.rounds import held, play
from tests.support.small_cases import ListProxy, context

LOCAL = {"lr": 0.02, "optimizer": "adam", "local_epochs": 3, "batch_size": 4}
SERVER = {"distill_lr": 1e-3, "distill_batch_size": 4, "distill_epochs": 2, "temperature": 3.0}


def world(kind=Mlp, labelled=False):
    """Two clients with different labels, so that their gradients conflict with the ensemble's."""
    x, y = inputs(kind, 18)  # no batch of two, in which batch norm enlarges a rounding error a thousandfold
    data = [(x[:7], torch.zeros_like(y[:7])), (x[7:], 1 + y[7:] % 2)]
    px, py = inputs(kind, 11, seed=7)
    return Objective(build(kind)), data, ListProxy(px, py if labelled else None)


def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


def kl_rows(teacher, student):
    return kl_div(log_softmax(student, dim=1), log_softmax(teacher, dim=1), log_target=True, reduction="batchmean")


def transcription(kind, data, public, rounds, rule="threshold", rate=1.0, alpha=0.0, delta=1e-12, eps=1e-8):
    """Algorithm 1 with modules, `torch.autograd.grad` and `torch.optim.Adam`; only the random orders are flray's
    addresses."""
    server, ensemble, share = build(kind), None, [7 / 18, 11 / 18]
    projected = 0
    for t in range(rounds):
        local = []
        for k, (x, y) in enumerate(data):
            module = copy.deepcopy(server).train()
            parameters = list(module.parameters())
            optimizer = torch.optim.Adam(parameters, lr=LOCAL["lr"])
            order = rng(0, 0, t, 0, k, "memory order").permutation(len(public))
            steps = LOCAL["local_epochs"] * -(-len(x) // 4)
            draws = rng(0, 0, t, 0, k, "projection").random(steps)
            step = 0
            for _ in range(LOCAL["local_epochs"]):
                for i in range(0, len(x), 4):
                    g_local = torch.autograd.grad(cross_entropy(module(x[i : i + 4]), y[i : i + 4]), parameters)
                    g = flat(g_local).double()
                    if ensemble is not None and draws[step] < rate:
                        chosen = [int(order[j % len(public)]) for j in range(4 * step, 4 * step + 4)]
                        frozen = copy.deepcopy(module)  # its own buffers
                        m = flat(
                            torch.autograd.grad(
                                kl_rows(ensemble[chosen], frozen(public[chosen])), list(frozen.parameters())
                            )
                        ).double()
                        a, q = float(g @ m), float(m @ m)
                        if rule == "threshold":
                            if q > delta and a < 0:
                                g = g - a / q * m
                                projected += 1
                        elif rule == "always" or a < 0:
                            g = g - a / (q + eps) * m
                            projected += 1
                    place = 0
                    for p in parameters:
                        p.grad = g[place : place + p.numel()].view_as(p).float()
                        place += p.numel()
                    optimizer.step()
                    step += 1
            local.append(module)
        with torch.no_grad():
            ensemble = torch.stack([m.eval()(public) for m in local]).mean(0)
        before, temperature = [p.detach().clone() for p in server.parameters()], SERVER["temperature"]

        def loss(student, index, ensemble=ensemble, before=before, temperature=temperature):
            value = temperature**2 * kl_rows(ensemble[index] / temperature, student(public[index]) / temperature)
            return value + alpha * sum(((p - o) ** 2).sum() for p, o in zip(student.parameters(), before, strict=True))

        server = averaged(server, local, share)
        optimizer = torch.optim.Adam(server.parameters(), lr=SERVER["distill_lr"])
        optimise(server, optimizer, distilling(t, len(public)), loss)
    return server, ensemble, projected


@pytest.mark.parametrize("kind", [Mlp, Norm])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"projection_rate": 0.5, "alpha": 0.3},
        {"rule": "epsilon", "eps": 0.05},
        {"rule": "always", "eps": 1e-3},
        {"delta": 0.02},
    ],
    ids=["default", "rate-alpha", "epsilon", "always", "delta"],
)
def test_three_rounds_against_the_transcription(kind, options):
    objective, data, proxy = world(kind)
    states, _, _ = play(FedProj(**LOCAL, **SERVER, **options), objective, data, 3, proxy)
    names = {"projection_rate": "rate"}
    module, ensemble, projected = transcription(
        kind, data, proxy.x, 3, **{names.get(k, k): v for k, v in options.items()}
    )
    assert projected > 0, "the case exercises the projection"
    found = objective.state_dict(states[-1].w, states[-1].b)
    # Adam divides by the size of the gradient: rounding of small ones grows
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(
                found[name], tensor, rtol=1e-3, atol=2e-5, msg=lambda m, name=name: f"{name}: {m}"
            )
    torch.testing.assert_close(states[-1].rule.logits, ensemble, rtol=1e-3, atol=1e-4)


def test_one_round_with_memory_agrees_to_a_millionth():
    objective, data, proxy = world(Mlp)
    states, _, _ = play(FedProj(**LOCAL, **SERVER), objective, data, 2, proxy)
    module, _, projected = transcription(Mlp, data, proxy.x, 2)
    assert projected > 0
    assert_same(objective, states[-1], module, rtol=0, atol=1e-6)


# the divergence term --------------------------------------------------------------------------
@pytest.mark.parametrize("anchor", ["previous_global", "average", "sum_clients", "per_client_mean"])
def test_gradient_of_each_divergence_term_is_that_of_the_printed_r(anchor):
    """autograd of alpha R(w) as printed (card of fedproj); K = 3 clients with unequal weights."""
    generator = torch.Generator().manual_seed(0)
    clients = torch.randn(3, 32, generator=generator)
    previous = torch.randn(32, generator=generator)
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    average = (weights[:, None] * clients).sum(0).float()
    w = torch.randn(32, generator=generator).requires_grad_()
    printed = {
        "previous_global": lambda: ((w - previous) ** 2).sum(),
        "average": lambda: ((w - average) ** 2).sum(),
        "sum_clients": lambda: ((w - clients) ** 2).sum(),
        "per_client_mean": lambda: ((w - clients) ** 2).sum() / 3,
    }[anchor]
    (expected,) = torch.autograd.grad(0.3 * printed(), w)
    from flray.core.messages import ServerState, Update

    empty = torch.zeros(0)
    stacked = Update(clients, torch.zeros(3, 0))
    penalty = FedProj(alpha=0.3, wd_anchor=anchor).penalty(
        ServerState(previous, empty), stacked, Update(average, empty)
    )
    torch.testing.assert_close(penalty(w.detach()), expected, rtol=1e-5, atol=1e-5)


# round 0 --------------------------------------------------------------------------------------
def first_round(labelled, **options):
    objective, data, proxy = world(Mlp, labelled)
    states, updates, reports = play(FedProj(**LOCAL, **SERVER, **options), objective, data, 1, proxy)
    return updates[0], reports, states


def test_round_0_is_skipped_without_labels_of_the_same_classes():
    skipped, reports, _ = first_round(False, round0="auto")
    objective, data, proxy = world(Mlp)
    plain = play(FedDF(**LOCAL, **SERVER), objective, data, 1, proxy)[1][0]
    assert all(equal(a, b) for a, b in zip(skipped, plain, strict=True))
    assert all(r["project/share"] == 0 for r in reports)


def test_round_0_reads_labels_where_they_are_of_the_same_classes():
    auto, reports, _ = first_round(True, round0="auto")
    labels, _, _ = first_round(True, round0="ce_labels")
    skip, _, _ = first_round(True, round0="skip")
    assert all(equal(a, b) for a, b in zip(auto, labels, strict=True))
    assert not equal(auto[0], skip[0])
    # L_mem at the first step is the cross-entropy of the initial model on the first 4 samples of the client's order
    objective, _, proxy = world(Mlp, True)
    order = rng(0, 0, 0, 0, 0, "memory order").permutation(11)[:4]
    with torch.no_grad():
        expected = cross_entropy(objective.at(*objective.initial())(proxy.x[order]), proxy.y[order])
    assert reports[0]["memory/loss_first"] == pytest.approx(float(expected), rel=1e-5)


def test_round_0_against_the_initial_model_starts_without_a_loss():
    """KL(f(.; w0) || f(.; w0)) = 0 at the first step, and not later."""
    kl_init, reports, states = first_round(False, round0="kl_init")
    assert states[0].rule.logits.shape == (11, 3)
    assert reports[0]["memory/loss_first"] == pytest.approx(0, abs=1e-6)
    assert reports[0]["memory/loss_last"] > 1e-4
    assert not equal(kl_init[0], first_round(False, round0="skip")[0][0])


# the memory -----------------------------------------------------------------------------------
def test_memory_size_sends_a_subset_with_its_own_logits():
    objective, _, proxy = world(Mlp)
    algorithm = FedProj(memory_size=4, round0="kl_init")
    seen = set()
    for round in range(5):
        ctx = context(objective, proxy, round)
        state = algorithm.init_server(ctx, *objective.initial())
        broadcast = algorithm.broadcast(ctx, state)
        assert broadcast.memory.tolist() == sorted(set(broadcast.memory.tolist())) and len(broadcast.memory) == 4
        assert torch.equal(broadcast.logits, state.rule.logits[broadcast.memory])
        seen.add(tuple(broadcast.memory.tolist()))
    assert len(seen) > 1, "drawn again every round"
    whole = FedProj(memory_size=11, round0="kl_init").broadcast(ctx, state)
    assert whole.memory is None and torch.equal(whole.logits, state.rule.logits)


@pytest.mark.parametrize(
    ("options", "proxy_size", "cost"),
    [
        ({}, None, 2),
        ({"projection_rate": 0.5}, None, 1.5),
        ({"memory_batch_size": 16}, None, 5),
        ({"memory_batch_size": 16, "memory_size": 8}, None, 3),
        ({"memory_batch_size": 16}, 8, 3),
        ({"memory_batch": "full", "memory_size": 40}, None, 11),
        ({"memory_batch": "full"}, 1000, 251),
    ],
)
def test_step_cost_counts_the_samples_of_the_memory(options, proxy_size, cost):
    """1 + r m / B with B = 4; m is never more than there are samples."""
    assert FedProj(**LOCAL, **options).step_cost(proxy_size) == cost


def test_clients_read_only_the_memory_they_were_sent():
    objective, data, proxy = world(Mlp)
    algorithm = FedProj(**LOCAL, **SERVER, memory_size=3, round0="kl_init", memory_batch_size=2)
    ctx = context(objective, proxy)
    broadcast = algorithm.broadcast(ctx, algorithm.init_server(ctx, *objective.initial()))
    proxy.asked.clear()
    client = client_context(objective, data[0][0], proxy=proxy, num_steps=6)  # 3 epochs of 7 samples in batches of 4
    train(algorithm, client, broadcast, (), held(*data[0]))
    assert len(proxy.asked) == 6 and all(len(i) == 2 for i in proxy.asked)
    assert set(np.concatenate(proxy.asked).tolist()) == set(broadcast.memory.tolist())
    # cyclic: every sample once before any comes again
    assert sorted(np.concatenate(proxy.asked)[:3].tolist()) == broadcast.memory.tolist()


@pytest.mark.parametrize("memory_bn", ["train_frozen", "eval"])
def test_the_full_memory_gradient_is_that_of_one_large_batch(memory_bn):
    """Blocks of any size weighted by their length; batch norm in eval mode, where blocks are independent, or no batch
    norm."""
    kind = Norm if memory_bn == "eval" else Mlp
    results = []
    for options in (
        {"memory_batch": "full", "distill_batch_size": 4},
        {"memory_batch": "full", "distill_batch_size": 100},
        {"memory_batch": "minibatch", "memory_batch_size": 11, "distill_batch_size": 100},
    ):
        objective, data, proxy = world(kind)
        algorithm = FedProj(**LOCAL, round0="kl_init", memory_bn=memory_bn, **options)
        results.append(play(algorithm, objective, data, 1, proxy)[1][0])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a.w, b.w, rtol=1e-4, atol=1e-5)


def test_memory_pass_leaves_statistics_alone_unless_told():
    """One local step that is projected: the local statistics are those of the private batch alone."""
    b = {}
    for mode in ("train_frozen", "eval", "train"):
        objective, data, proxy = world(Norm)
        b[mode] = play(
            FedProj(lr=0.01, local_epochs=1, batch_size=100, round0="kl_init", memory_bn=mode),
            objective,
            data,
            1,
            proxy,
        )[1][0][0].b
    plain = play(FedDF(lr=0.01, local_epochs=1, batch_size=100), objective, data, 1, proxy)[1][0][0].b
    assert torch.equal(b["train_frozen"], plain) and torch.equal(b["eval"], plain)
    assert not torch.equal(b["train"], plain)


def test_projected_update_keeps_the_constraint_for_the_direction():
    """project_stage=update: one SGD step with a constraint; w1 = w0 - lr v, <v, g_mem> >= 0, and v = P(g) for plain
    SGD."""
    objective, data, proxy = world(Mlp, True)
    common = {
        "lr": 0.1,
        "momentum": 0.0,
        "local_epochs": 1,
        "batch_size": 100,
        "round0": "ce_labels",
        "memory_batch": "full",
    }
    at_gradient = play(FedProj(**common), objective, data, 1, proxy)[1][0]
    at_update = play(FedProj(**common, project_stage="update"), objective, data, 1, proxy)[1][0]
    w0, b0 = objective.initial()
    m = objective.value_and_grad(lambda f: cross_entropy(f(proxy.x), proxy.y), w0, b0)[1]
    for first, second in zip(at_gradient, at_update, strict=True):
        torch.testing.assert_close(first.w, second.w, rtol=1e-6, atol=1e-7)
        v = (w0 - second.w) / 0.1
        assert float(v @ m) >= -1e-4
    # with Adam the two differ, and only the direction's projection holds for the step that is made
    adam = {**common, "optimizer": "adam"}
    step = play(FedProj(**adam, project_stage="update"), objective, data, 1, proxy)[1][0]
    assert not torch.equal(step[0].w, play(FedProj(**adam), objective, data, 1, proxy)[1][0][0].w)
    assert all(float((w0 - u.w) @ m) >= -1e-4 for u in step)
