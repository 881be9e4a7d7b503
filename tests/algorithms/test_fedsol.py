"""FedSOL against a loop over modules that perturbs in place, as its code does, Tables 4 and 10 by hand, and the toy
problem of appendix H."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy, kl_div, log_softmax, normalize

from flray.algorithms.fedavg import FedAvg
from flray.algorithms.feddyn import DynClient, DynState
from flray.algorithms.fednova import NovaBroadcast, NovaClient
from flray.algorithms.fedsol import FedSOL, Losses
from flray.algorithms.moon import MoonClient
from flray.algorithms.scaffold import ScaffoldClient, ScaffoldState
from flray.core.messages import Broadcast, equal
from flray.core.network.objective import Objective
from flray.engine.client import train
from flray.models.base import Classifier
from tests.support import sharpness
from tests.support.networks import Conv, Mlp, Norm, assert_same, build, inputs
from tests.support.personal import client_context
from tests.support.rounds import batches_of, held, play
from tests.support.sharpness import chosen
from tests.support.small_cases import normal

LOCAL = sharpness.SGD


def world(kind):
    """Two clients of unequal size with different labels, in whole batches (of two samples batch norm blows rounding
    up)."""
    x, y = inputs(kind, 20)
    return [(x[:8], torch.zeros_like(y[:8])), (2 * x[8:], 1 + y[8:] % 2)]


def one_client(objective, data, epochs=1, size=100):
    """(context, all of the client's data, its batches)."""
    batches = batches_of(*data, size, epochs)
    return client_context(objective, data[0], num_steps=len(batches)), held(*data), batches


# the authors' client -----------------------------------------------------------------------------
def scales(named, differences, adaptive):
    """Lambda of every parameter; of a layer: weight and bias divided by their joint norm."""
    owners = [n.partition(".")[0] for n, _ in named]
    for owner, d in zip(owners, differences, strict=True):
        if adaptive == "columnwise":
            yield normalize(d.abs(), dim=0)
        elif adaptive == "none":
            yield torch.ones_like(d)
        else:
            of_layer = [e.flatten() for o, e in zip(owners, differences, strict=True) if o == owner]
            yield d.abs() / (torch.cat(of_layer) if adaptive == "layer" else d).norm().clamp_min(1e-12)


def loop(kind, data, rounds, *, rho, adaptive, perturb, least=0.0, temperature=3.0):
    """Algorithm 1 with modules: both passes whole, the module perturbed and restored, then `torch.optim.SGD`.

    And the losses at w + e.
    """

    def climbed(module, teacher, batch):
        target = (teacher(batch.x) / temperature).softmax(1).detach()
        return kl_div(log_softmax(module(batch.x) / temperature, 1), target, reduction="batchmean")

    def perturbation(named, teacher):
        inside = chosen(named, perturb)
        differences = [i * (p - r) for i, (_, p), r in zip(inside, named, teacher.parameters(), strict=True)]
        gradients = [i * p.grad for i, (_, p) in zip(inside, named, strict=True)]
        norm = torch.stack([g.norm() for g in gradients]).norm()
        factor = rho / (norm + 1e-12) * (norm >= least)
        return [scale * g * factor for scale, g in zip(scales(named, differences, adaptive), gradients, strict=True)]

    server, losses = sharpness.loop(build(kind), data, rounds, perturbation, climbed=climbed)
    return server, [perturbed for _, perturbed in losses]


@pytest.mark.parametrize("kind", [Mlp, Norm, Conv])
@pytest.mark.parametrize("perturb", ["head", "body", "all"])
@pytest.mark.parametrize("adaptive", ["columnwise", "tensor", "layer", "none"])
def test_two_rounds_against_the_loop(kind, perturb, adaptive):
    """Under `none` the first step's g_p is 0 where there is no batch norm; the loop's rounding error is left out."""
    least = 1e-4 if adaptive == "none" else 0.0
    rho = 0.3 if adaptive == "columnwise" else 1.5
    objective, data = Objective(build(kind)), world(kind)
    algorithm = FedSOL(**LOCAL, rho=rho, adaptive=adaptive, perturb=perturb)
    states, _, reports = play(algorithm, objective, data, 2)
    module, losses = loop(kind, data, 2, rho=rho, adaptive=adaptive, perturb=perturb, least=least)
    plain = play(FedAvg(**LOCAL), objective, data, 2)[0]
    assert float((states[-1].w - plain[-1].w).abs().max()) > 1e-3, "the case exercises the perturbation"
    assert_same(objective, states[-1], module, rtol=1e-5, atol=2e-5)
    assert [r["train/loss"] for r in reports] == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize("perturb", ["head", "all"])
def test_one_client_agrees_to_a_millionth(perturb):
    objective, data = Objective(build(Mlp)), world(Mlp)[1:]
    states, _, _ = play(FedSOL(**LOCAL, perturb=perturb), objective, data, 1)
    module, _ = loop(Mlp, data, 1, rho=1.5, adaptive="columnwise", perturb=perturb)
    assert_same(objective, states[-1], module, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", [Mlp, Norm, Conv])
@pytest.mark.parametrize(
    "options", [{}, {"perturb": "all"}, {"perturb": "body", "adaptive": "layer"}, {"proximal": "l2"}]
)
def test_the_first_step_of_a_round_has_the_bits_of_fedavg(kind, options):
    objective, data = Objective(build(kind)), world(kind)
    step = {"local_epochs": 1, "batch_size": 100}
    sol = play(FedSOL(**step, **options), objective, data, 1)[1][0]
    assert all(equal(a, b) for a, b in zip(sol, play(FedAvg(**step), objective, data, 1)[1][0], strict=True))
    two = {"local_epochs": 2, "batch_size": 100}
    assert not equal(
        play(FedSOL(**two, **options), objective, data, 1)[1][0][0], play(FedAvg(**two), objective, data, 1)[1][0][0]
    )


@pytest.mark.parametrize("strategy", ["S1", "S2", "S3", "S6", "projection"])
@pytest.mark.parametrize("perturb", ["head", "all"])
def test_where_the_proximal_gradient_is_zero_in_theory_nothing_is_perturbed(strategy, perturb):
    """At w = w_g logits and teacher agree, so g_p = 0 and S1, S2, S6, projection step along g_l and S3 along g_l(w):
    FedAvg's step to rounding, where rho = 1.5 along an error of 1e-8 would move the weights by half their size."""
    objective, data = Objective(build(Mlp)), world(Mlp)
    step = {"local_epochs": 1, "batch_size": 100, "momentum": 0.0}
    sol = FedSOL(**step, strategy=strategy, adaptive="none", perturb=perturb)
    found, plain = (play(one, objective, data, 1)[0][-1].w for one in (sol, FedAvg(**step)))
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-7)


def test_batch_norm_gives_a_proximal_gradient_at_the_global_model():
    """The teacher reads running statistics and the student those of its batch: g_p is no rounding error there."""
    objective, data = Objective(build(Norm)), world(Norm)
    step = {"local_epochs": 1, "batch_size": 100, "momentum": 0.0}
    sol = play(FedSOL(**step, adaptive="none", perturb="all"), objective, data, 1)[0][-1].w
    assert float((sol - play(FedAvg(**step), objective, data, 1)[0][-1].w).abs().max()) > 1e-3


def test_moon_has_no_direction_while_a_client_is_alone():
    """The only client of a round made the global model itself: z_p = z_g, l_con = log 2 at every w, in round 2 too."""
    objective, data = Objective(build(Mlp)), world(Mlp)[:1]
    options = {**LOCAL, "perturb": "all"}
    sol = FedSOL(**options, proximal="moon", adaptive="none")
    assert equal(play(sol, objective, data, 2)[0][-1].w, play(FedAvg(**LOCAL), objective, data, 2)[0][-1].w)


class HeadNorm(Classifier):
    """With batch norm in the head."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(5, 7)
        self.head = nn.Sequential(nn.BatchNorm1d(7), nn.Linear(7, 3))

    def features(self, x):
        return torch.tanh(self.hidden(x))


def test_a_head_with_batch_norm_has_its_statistics_moved_once_a_step():
    objective, data = Objective(build(HeadNorm)), world(Mlp)
    states, _, _ = play(FedSOL(**LOCAL, rho=0.5), objective, data, 2)
    module, _ = loop(HeadNorm, data, 2, rho=0.5, adaptive="columnwise", perturb="head")
    assert_same(objective, states[-1], module, rtol=1e-5, atol=5e-6)


# what a step costs -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("proximal", "perturb"), [("kl", "head"), ("kl", "all"), ("l2", "head"), ("l2", "all"), ("moon", "all")]
)
@pytest.mark.parametrize("strategy", ["S0", "S1", "S2", "S3", "S4", "S5", "S6", "projection"])
def test_step_cost_counts_the_passes_through_the_body(strategy, perturb, proximal):
    """A forward pass is 1 part of 3, a backward pass 2.

    Head mode: one forward and one backward, and the global model's forward.
    """
    module, passes = build(Mlp), {"forward": 0, "backward": 0}

    def seen(_, __, output):
        passes["forward"] += 1
        if output.requires_grad:
            output.register_hook(lambda g: passes.update(backward=passes["backward"] + 1))

    module.hidden.register_forward_hook(seen)
    objective = Objective(module)
    algorithm = FedSOL(strategy=strategy, perturb=perturb, proximal=proximal, batch_size=4)
    ctx, samples, batches = one_client(objective, world(Mlp)[0], size=4)
    state = algorithm.init_server(ctx, *objective.initial())
    client = algorithm.init_client(ctx)
    if proximal == "moon":  # as after its first round: in that one the term is constant
        client = client.replace(w=client.w + 0.1)
    train(algorithm, ctx, algorithm.broadcast(ctx, state), client, samples)
    assert (passes["forward"] + 2 * passes["backward"]) / 3 / len(batches) == pytest.approx(algorithm.step_cost())
    if (strategy, perturb, proximal) == ("S1", "head", "kl"):
        assert passes == {"forward": 2 * len(batches), "backward": len(batches)}


# Table 4 -----------------------------------------------------------------------------------------
def flat_gradient(objective, w, b, loss):
    return objective.value_and_grad(loss, w.clone(), b.clone())[1]


@pytest.mark.parametrize("perturb", ["all", "body"])
@pytest.mark.parametrize("proximal", ["l2", "scaffold", "fednova", "feddyn", "moon"])
def test_steps_with_the_proximal_losses_of_table_4(proximal, perturb):
    """Two steps of plain descent: w1 = w0 - lr g(w0), w2 = w1 - lr g(w1 + rho Lambda g_p(w1) / ||g_p||), g_p as in
    Table 4."""
    objective, (x, y) = Objective(build(Mlp)), world(Mlp)[1]
    w0, b = objective.initial()
    all_of_it = objective.mask("all")
    first, second = 0.1 * normal(len(w0), seed=5) * all_of_it, 0.1 * normal(len(w0), seed=6) * all_of_it
    previous = w0 + first

    def contrast(f):
        with torch.no_grad():
            others = [objective.at(point, b).features(x) for point in (w0, previous)]
        z = f.features(x)
        return cross_entropy(
            torch.stack([cosine_similarity(z, o) for o in others], 1) / 0.2, torch.zeros(len(x), dtype=torch.long)
        )

    broadcast, client, g_p = {
        "l2": (Broadcast(w0, b), (), lambda w: w - w0),
        "scaffold": (ScaffoldState(w0, b, first), ScaffoldClient(None, second), lambda w: first - second),
        "fednova": (NovaBroadcast(w0, b, first), NovaClient(None, second), lambda w: first - second),
        "feddyn": (DynState(w0, b, second), DynClient(None, first), lambda w: -first + 0.3 * (w - w0)),
        "moon": (Broadcast(w0, b), MoonClient(previous, b), lambda w: flat_gradient(objective, w, b, contrast)),
    }[proximal]

    def g_l(w):
        return flat_gradient(objective, w, b, lambda f: cross_entropy(f(x), y))

    w1 = w0 - 0.2 * g_l(w0)
    mask = objective.mask(perturb)
    near = g_p(w1) * mask
    scale = torch.zeros_like(w1)
    for n, d in objective.views(w1 - w0).items():
        objective.views(scale)[n].copy_(normalize(d.abs(), dim=0))
    w2 = w1 - 0.2 * g_l(w1 + 0.5 * scale * near / near.norm())
    algorithm = FedSOL(
        lr=0.2,
        momentum=0.0,
        local_epochs=2,
        batch_size=100,
        rho=0.5,
        perturb=perturb,
        proximal=proximal,
        alpha=0.3,
        tau=0.2,
    )
    ctx, samples, batches = one_client(objective, (x, y), epochs=2)
    local = algorithm.begin(ctx, broadcast, client, samples)
    for batch in batches:
        local = algorithm.step(ctx, broadcast, client, local, batch)
    torch.testing.assert_close(local.w, w2, rtol=1e-5, atol=1e-6)
    assert float((w2 - (w1 - 0.2 * g_l(w1))).abs().max()) > 1e-3, "the perturbation matters"


@pytest.mark.parametrize(
    ("proximal", "strategy"),
    [
        *itertools.product(["l2", "scaffold", "fednova", "feddyn", "moon"], ["S1", "S2", "S3", "S4", "S5", "S6"]),
        *[("l2", "projection"), ("moon", "projection")],
    ],
)
def test_statistics_move_once_a_step_with_every_proximal_loss(proximal, strategy):
    """The first step starts at w = w_g, so its pass over the batch is FedAvg's, and so are the statistics it leaves."""
    objective, data = Objective(build(Norm)), world(Norm)[:1]
    step = {"local_epochs": 1, "batch_size": 100, "buffers": "local"}

    def statistics(algorithm):
        ctx, samples, _ = one_client(objective, data[0])
        broadcast = algorithm.broadcast(ctx, algorithm.init_server(ctx, *objective.initial()))
        return train(algorithm, ctx, broadcast, algorithm.init_client(ctx), samples).state.b

    assert torch.equal(
        statistics(FedSOL(**step, proximal=proximal, strategy=strategy, perturb="all")), statistics(FedAvg(**step))
    )


def test_the_server_and_the_state_are_those_of_the_base_method():
    objective, data = Objective(build(Mlp)), world(Mlp)
    states, updates, _ = play(FedSOL(**LOCAL, proximal="scaffold", perturb="all"), objective, data, 2)
    assert isinstance(states[-1], ScaffoldState) and float(states[-1].c.norm()) > 0
    # both clients take part, so c is the mean of c_k, and that of option II with momentum 0.9 over A effective steps
    effective = [sum((1 - 0.9**j) / 0.1 for j in range(1, steps + 1)) for steps in (4, 6)]
    c = sum((states[0].w - u.w) / (a * 0.1) for u, a in zip(updates[0], effective, strict=True)) / 2
    torch.testing.assert_close(states[1].c, c, rtol=1e-4, atol=1e-5)


# Table 10 and Table 1 ----------------------------------------------------------------------------
class Plane(Classifier):
    """w in R^2."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return self.w.expand(len(x), 2)


class QuadraticLosses(Losses):
    """Those of :class:`Quadratic`; only the first two numbers of a vector are read."""

    def local(self, w):
        self.state.grad[:2] = torch.tensor(self.sol.h) * (w[:2] - torch.tensor(self.sol.a))
        return w[:2].sum(), self.state.grad

    def proximal(self, w):
        g = self.gradient_of_proximal()
        g[:2] = torch.tensor(self.sol.k) * (w[:2] - self.broadcast.w[:2])
        return w[:2].sum(), g


class Quadratic(FedSOL, frozen=True):
    """L_l = 1/2 (w - a)' diag(h) (w - a) and L_p = 1/2 (w - w_g)' diag(k) (w - w_g)."""

    a: tuple[float, float]
    h: tuple[float, float]
    k: tuple[float, float] = (1.0, 1.0)

    def losses(self, ctx, broadcast, client, local, batch):
        return QuadraticLosses(self, ctx, broadcast, client, local, batch)

    def play(self, start, anchor):
        """w after `local_epochs` steps from `start`, the global model at `anchor`."""
        objective = Objective(Plane())
        w, b = objective.initial()
        w[:2] = torch.tensor(anchor)
        data = torch.zeros(1, 1), torch.zeros(1, dtype=torch.long)
        ctx, samples, batches = one_client(objective, data, self.local_epochs)
        broadcast = Broadcast(w, b)
        local = self.begin(ctx, broadcast, (), samples)
        local.grad.zero_()
        objective.scratch("proximal gradient", w).zero_()
        local.w[:2] = torch.tensor(start)
        for batch in batches:
            local = self.step(ctx, broadcast, (), local, batch)
        return local.w[:2].double().numpy()


A, H, K, ANCHOR, BETA, RHO = (2.0, -1.0), (1.0, 3.0), (2.0, 0.5), (0.5, 0.25), 0.7, 0.4
START, BETWEEN = (-0.5, 1.0), (1.0, 0.25)


def g_l(w):
    return np.array(H) * (w - np.array(A))


def g_p(w):
    return np.array(K) * (w - np.array(ANCHOR))


def shift(w, g, adaptive):
    d = np.abs(w - np.array(ANCHOR))
    scale = d / np.linalg.norm(d) if adaptive else 1
    return w + RHO * scale * g / np.linalg.norm(g)


def projected(w):
    a, q = g_l(w) @ g_p(w), g_p(w) @ g_p(w)
    return g_l(w) - a / q * g_p(w) if a < 0 else g_l(w)


DIRECTIONS = {
    "S0": lambda w, e: g_l(w),
    "S1": lambda w, e: g_l(e(g_p(w))),
    "S2": lambda w, e: g_l(w) + BETA * g_p(e(g_p(w))),
    "S3": lambda w, e: g_l(e(g_p(w))) + BETA * g_p(e(g_p(w))),
    "S4": lambda w, e: g_l(e(g_l(w) + BETA * g_p(w))) + BETA * g_p(e(g_l(w) + BETA * g_p(w))),
    "S5": lambda w, e: g_l(w) + BETA * g_p(w),
    "S6": lambda w, e: g_l(e(g_p(w))) + BETA * g_p(w),
    "projection": lambda w, e: projected(w),
}


@pytest.mark.parametrize("strategy", DIRECTIONS)
@pytest.mark.parametrize("adaptive", ["tensor", "none"])
def test_update_directions_on_quadratics(strategy, adaptive):
    """Three steps w -= 0.1 * DIRECTIONS[strategy](w), written out above; of a 1-D tensor, Lambda = |w - w_g| / ||w -
    w_g||."""
    algorithm = Quadratic(
        lr=0.1,
        momentum=0.0,
        local_epochs=3,
        rho=RHO,
        beta=BETA,
        adaptive=adaptive,
        perturb="all",
        strategy=strategy,
        a=A,
        h=H,
        k=K,
    )
    products = [g_l(np.array(start)) @ g_p(np.array(start)) for start in (START, BETWEEN)]
    assert products[0] > 0 > products[1], "both branches of the projection"
    for start in (START, BETWEEN):
        w = np.array(start)
        for _ in range(3):
            w = w - 0.1 * DIRECTIONS[strategy](w, lambda g, w=w: shift(w, g, adaptive == "tensor"))
        np.testing.assert_allclose(algorithm.play(start, ANCHOR), w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("strategy", ["S2", "S3", "S4", "S5", "S6", "projection"])
@pytest.mark.parametrize("kind", [Mlp, Norm])
def test_strategies_with_the_kl_read_both_losses_of_one_network(strategy, kind):
    """One step from w away from w_g, each gradient taken with modules of its own."""
    objective, (x, y) = Objective(build(kind)), world(kind)[1]
    w_g, b = objective.initial()
    w = w_g + 0.3 * normal(len(w_g), seed=4) * objective.mask("all")
    with torch.no_grad():
        target = log_softmax(objective.at(w_g, b)(x) / 3, 1)

    def g_local(point):
        return flat_gradient(objective, point, b, lambda f: cross_entropy(f(x), y))

    def g_near(point):
        return flat_gradient(
            objective,
            point,
            b,
            lambda f: kl_div(log_softmax(f(x) / 3, 1), target, reduction="batchmean", log_target=True),
        )

    def shifted(g):
        return w + 0.5 * g / g.norm()

    beta = 0.7
    combined = g_local(w) + beta * g_near(w)
    at_p, at_c = shifted(g_near(w)), shifted(combined)
    a, q = g_local(w) @ g_near(w), g_near(w) @ g_near(w)
    expected = {
        "S2": lambda: g_local(w) + beta * g_near(at_p),
        "S3": lambda: g_local(at_p) + beta * g_near(at_p),
        "S4": lambda: g_local(at_c) + beta * g_near(at_c),
        "S5": lambda: combined,
        "S6": lambda: g_local(at_p) + beta * g_near(w),
        "projection": lambda: g_local(w) - (a / q).clamp_max(0) * g_near(w),
    }[strategy]()
    algorithm = FedSOL(strategy=strategy, perturb="all", adaptive="none", rho=0.5, beta=beta)
    ctx, samples, (batch,) = one_client(objective, (x, y))
    local = algorithm.begin(ctx, Broadcast(w_g, b), (), samples)
    local.w.copy_(w)
    _, g = algorithm.gradient(ctx, Broadcast(w_g, b), (), local, batch)
    torch.testing.assert_close(g, expected, rtol=1e-5, atol=1e-6)


# appendix H --------------------------------------------------------------------------------------
@pytest.mark.parametrize("mu", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("start", [(0.6, 0.4), (-1.0, 2.0), (3.0, -2.0)])
def test_toy_problem(mu, start):
    """L_l = 1/2 ((w1 - a1)^2 + mu (w2 - a2)^2), L_p = 1/2 ||w - w_g||^2; 1200 steps of 0.05.

    FedSOL with fixed rho ends at w_g + (R - rho) (a - w_g) / R, R = ||a - w_g||, on the segment for every mu; the
    proximal objective at w_i = (h_i a_i + beta w_g,i) / (h_i + beta), h = (1, mu), on the segment for mu = 1 only.
    """
    a, w_g, rho, beta = np.array([2.0, -1.0]), np.array([0.5, 0.25]), 0.4, 0.5
    common = {
        "lr": 0.05,
        "momentum": 0.0,
        "local_epochs": 1200,
        "adaptive": "none",
        "perturb": "all",
        "a": tuple(a),
        "h": (1.0, mu),
    }
    distance = np.linalg.norm(a - w_g)
    sol = Quadratic(**common, rho=rho).play(start, tuple(w_g))
    np.testing.assert_allclose(sol, w_g + (distance - rho) * (a - w_g) / distance, atol=1e-4)
    proximal = Quadratic(**common, strategy="S5", beta=beta).play(start, tuple(w_g))
    h = np.array([1.0, mu])
    np.testing.assert_allclose(proximal, (h * a + beta * w_g) / (h + beta), atol=1e-4)
    off = abs(np.linalg.det(np.stack([proximal - w_g, a - w_g]))) / distance
    assert bool(off < 1e-4) is (mu == 1.0)
