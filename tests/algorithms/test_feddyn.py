"""FedDyn on quadratics, where its fixed point is the minimum of the sum, and against FedSOL's and the authors' code."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from flray.algorithms.feddyn import FedDyn
from flray.core.messages import Batch
from flray.core.network.objective import Objective
from tests.support.losses import Quadratic, two_clients
from tests.support.networks import Mlp, Norm, assert_same, build
from tests.support.personal import optimise, plain_loss
from tests.support.rounds import batches_of, play_sampled
from tests.support.small_cases import context, normal
from tests.support.unequal import clients

LOCAL = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "lr_decay": 0.8, "local_epochs": 2, "batch_size": 4}
COHORTS = [(0, 2), (1, 2), (2, 0), (1, 0)]


class QuadraticDyn(FedDyn, Quadratic, frozen=True):
    """On f_k(w) = 1/2 ||w - a_k||^2."""


def test_on_quadratics_local_and_global_stationary_points_agree():
    """At the fixed point w_k = w_g = 1/2 (2 - 1), the minimum of the sum, h_k = f_k'(w_g) = 1/2 - a_k and h = mean h_k
    = 0, though the clients make 1 and 3 steps and never solve their own problem."""
    objective = Objective(build(Mlp))
    data = two_clients()
    algorithm = QuadraticDyn(lr=0.1, momentum=0.0, local_epochs=1, batch_size=3, alpha=0.5)
    states, kept = play_sampled(algorithm, objective, data, [(0, 1)] * 250)
    used = objective.mask("all") > 0
    for found, expected in [(states[-1].w, 0.5), (states[-1].h, 0.0), (kept[0].h, 0.5 - 2), (kept[1].h, 0.5 + 1)]:
        torch.testing.assert_close(found[used], torch.full_like(found, expected)[used], rtol=0, atol=1e-3)


def fedsol(kind, data, cohorts, alpha, weighting, optimizer="sgd"):
    """FedSOL's loss CE - <h_k, p> + alpha/2 sum (p - p_g)^2 by autograd, and its server, for the parameters alone;
    batch-norm statistics are averaged."""
    server = build(kind)
    zeros = {n: torch.zeros_like(p) for n, p in server.named_parameters()}
    h, own = zeros, {k: zeros for k in range(len(data))}
    for t, cohort in enumerate(cohorts):
        start = {n: v.clone() for n, v in server.state_dict().items() if v.is_floating_point()}
        rate, models, grown = LOCAL["lr"] * LOCAL["lr_decay"] ** t, [], {}
        for k in cohort:
            module = copy.deepcopy(server)
            kind_of, more = (torch.optim.SGD, (LOCAL["momentum"],)) if optimizer == "sgd" else (torch.optim.Adam, ())
            stepper = kind_of(module.parameters(), rate, *more, weight_decay=LOCAL["weight_decay"])

            def loss(module, batch, h=own[k], start=start):
                linear = sum((h[n] * p).sum() for n, p in module.named_parameters())
                square = sum(((start[n] - p) ** 2).sum() for n, p in module.named_parameters())
                return plain_loss(module, batch) - linear + 0.5 * alpha * square

            models.append(optimise(module, stepper, batches_of(*data[k], 4, 2), loss).state_dict())
            grown[k] = {n: own[k][n] - alpha * (p.detach() - start[n]) for n, p in module.named_parameters()}
        own = {**own, **grown}
        h = {n: v - alpha / len(data) * sum(m[n] - start[n] for m in models) for n, v in h.items()}
        sizes = [len(data[k][0]) for k in cohort]
        share = [n / sum(sizes) if weighting == "examples" else 1 / len(cohort) for n in sizes]
        merged = {n: sum(s * m[n] for s, m in zip(share, models, strict=True)) for n in start}
        server.load_state_dict({n: v - h[n] / alpha if n in h else v for n, v in merged.items()}, strict=False)
    return server, h, own


@pytest.mark.parametrize("kind", [Mlp, Norm])
@pytest.mark.parametrize(
    "options", [{}, {"weighting": "examples"}, {"optimizer": "adam", "lr": 0.01}], ids=["paper", "fedsol", "adam"]
)
def test_four_rounds_of_two_in_three_clients_against_the_loss_by_autograd(kind, options, monkeypatch):
    objective, data = Objective(build(kind)), clients()
    for name in options.keys() & LOCAL.keys():
        monkeypatch.setitem(LOCAL, name, options[name])
    states, kept = play_sampled(FedDyn(**{**LOCAL, **options}, alpha=0.3), objective, data, COHORTS)
    server, h, own = fedsol(
        kind, data, COHORTS, 0.3, options.get("weighting", "uniform"), options.get("optimizer", "sgd")
    )
    # Adam divides by the size of the gradient: rounding of small ones grows
    close = {"rtol": 1e-4, "atol": 2e-5} if options.get("optimizer") == "adam" else {"rtol": 1e-6, "atol": 2e-6}
    assert_same(objective, states[-1], server, **close)
    for flat, parts in [(states[-1].h, h), *((kept[k].h, own[k]) for k in own)]:
        for name, view in objective.views(flat).items():
            torch.testing.assert_close(view, parts[name], **close)


def original(data, cohorts, alpha, clip):
    """alpemreacar/FedDyn: `train_feddyn_mdl` and its server, flat parameters, ghat_k (`local_param_list`) in place of
    h_k."""
    flat = torch.nn.utils.parameters_to_vector
    cloud = flat(build(Mlp).parameters()).detach()
    mean = sum(len(x) for x, _ in data) / len(data)
    ghat, norms = torch.zeros(len(data), len(cloud)), []
    for t, cohort in enumerate(cohorts):
        models = []
        for k in cohort:
            x, y = data[k]
            own = alpha / (len(x) / mean)
            module = build(Mlp)
            torch.nn.utils.vector_to_parameters(cloud.clone(), module.parameters())
            rate = LOCAL["lr"] * LOCAL["lr_decay"] ** t
            optimizer = torch.optim.SGD(
                module.parameters(), rate, LOCAL["momentum"], weight_decay=own + LOCAL["weight_decay"]
            )
            for _ in range(2):
                for bx, by in zip(x.split(4), y.split(4), strict=True):
                    optimizer.zero_grad()
                    (
                        cross_entropy(module(bx), by) + own * (flat(module.parameters()) * (ghat[k] - cloud)).sum()
                    ).backward()
                    norms.append(float(torch.nn.utils.clip_grad_norm_(module.parameters(), clip)))
                    optimizer.step()
            models.append(flat(module.parameters()).detach())
            ghat[k] += models[-1] - cloud
        cloud = torch.stack(models).mean(0) + ghat.mean(0)
    return cloud, ghat, norms


@pytest.mark.parametrize("clip", [0.9, 10.0])
def test_four_rounds_of_the_official_form_against_the_authors_code(clip):
    objective, data = Objective(build(Mlp)), clients()
    mean = sum(len(x) for x, _ in data) / len(data)
    states, kept = play_sampled(FedDyn(**LOCAL, official=True, alpha=0.2, clip=clip), objective, data, COHORTS)
    cloud, ghat, norms = original(data, COHORTS, 0.2, clip)
    assert min(norms) < 0.9 < max(norms) < 10, "one clip binds at some steps, the other never"

    def flat(vector):
        return torch.cat([view.reshape(-1) for view in objective.views(vector).values()])

    torch.testing.assert_close(flat(states[-1].w), cloud, rtol=1e-6, atol=1e-6)
    for client, expected, (x, _) in zip(kept, ghat, data, strict=True):
        torch.testing.assert_close(-flat(client.h) / (0.2 * mean / len(x)), expected, rtol=1e-5, atol=2e-6)


def test_clipping_in_the_papers_form_takes_the_whole_gradient():
    """One step of plain SGD from w_g with h_k and a norm that is too long: the move is lr times the clip, along g -
    h_k."""
    objective, data = Objective(build(Mlp)), clients(1)
    algorithm = FedDyn(lr=0.1, momentum=0.0, local_epochs=1, batch_size=100, clip=0.25)
    ctx = context(objective, num_examples=len(data[0][0]), num_steps=1, client=0)
    broadcast = algorithm.broadcast(ctx, algorithm.init_server(ctx, *objective.initial()))
    client = algorithm.init_client(ctx).replace(h=normal(objective.layout.size) * objective.mask("all"))
    local = algorithm.begin(ctx, broadcast, client, None)
    moved = broadcast.w - algorithm.step(ctx, broadcast, client, local, Batch(*data[0])).w
    whole = (
        objective.value_and_grad(lambda f: cross_entropy(f(data[0][0]), data[0][1]), *objective.initial())[1] - client.h
    )
    assert float(whole.norm()) > 1
    torch.testing.assert_close(moved, 0.1 * 0.25 * whole / whole.norm(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_h_is_the_mean_of_all_clients_h_k_even_where_an_update_was_lost(weighting):
    objective, data = Objective(build(Mlp)), clients(4)
    algorithm = FedDyn(**LOCAL, weighting=weighting)
    states, kept = play_sampled(algorithm, objective, data, [(0, 1, 3), (2, 1, 0), (3, 0, 2)], lost={(1, 1), (2, 3)})
    assert states[-1].h.abs().max() > 0.001
    torch.testing.assert_close(states[-1].h, torch.stack([client.h for client in kept]).mean(0), rtol=1e-4, atol=1e-6)
