"""`Objective` against the plain module with PyTorch's own autograd."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from flray.core.network.objective import CACHED_POINTS, Objective
from flray.core.schema.errors import AlgorithmError, ConfigError
from tests.support.networks import (
    Branches,
    Conv,
    Frozen,
    Mlp,
    Norm,
    Norms,
    OtherNames,
    Tied,
    assert_backward,
    build,
    inputs,
)

KINDS = [Mlp, Norm, Norms, Conv, Tied, OtherNames, Frozen]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("train", [True, False])
def test_value_and_gradient_are_those_of_the_module(kind, train):
    reference = build(kind).train(train)
    objective = Objective(build(kind))
    w, b = objective.initial()
    x, y = inputs(kind, 6)
    found = objective.value_and_grad(lambda f: cross_entropy(f(x), y), w, b, "train" if train else "eval")
    assert_backward(objective, found, b, cross_entropy(reference(x), y), reference)
    gaps = objective.layout.mask(lambda name: True) == 0
    assert not found[1][gaps].any()


@pytest.mark.parametrize("kind", [Norm, Norms, Conv])
def test_statistics_move_only_in_train_mode(kind):
    objective = Objective(build(kind))
    w, start = objective.initial()
    x, y = inputs(kind, 6)
    gradients = {}
    for mode in ("train", "train_frozen", "eval"):
        b = start.clone()
        gradients[mode] = objective.value_and_grad(lambda f: cross_entropy(f(x), y), w, b, mode)[1]
        assert torch.equal(b, start) == (mode != "train"), mode
    assert torch.equal(gradients["train"], gradients["train_frozen"])
    assert not torch.allclose(gradients["train"], gradients["eval"])


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Tied, ["first.weight", "first.bias", "second.bias", "head.weight", "head.bias"]),
        (OtherNames, ["back", "first.bias", "head.weight", "head.bias"]),
        (Frozen, ["head.weight", "head.bias"]),
    ],
)
def test_tied_parameters_have_one_place_and_frozen_ones_none(kind, names):
    assert [e.name for e in Objective(build(kind)).layout.entries] == names


def test_frozen_parameters_are_the_modules_own_and_counters_are_not():
    """A backbone is there once; how many batches this process saw is nobody's state."""
    objective = Objective(build(Frozen))
    assert objective.frozen == ("hidden.weight", "hidden.bias")
    w, b = objective.initial()
    named = objective.state_dict(w, b)
    assert named["hidden.weight"].data_ptr() == objective.module.hidden.weight.data_ptr()
    normed = Objective(build(Norm))
    x, y = inputs(Norm, 4)
    normed.value_and_grad(lambda f: cross_entropy(f(x), y), *normed.initial())
    assert int(normed.module.norm.num_batches_tracked) == 1
    assert int(normed.state_dict(*normed.initial())["norm.num_batches_tracked"]) == 0


def test_a_double_precision_parameter_is_refused():
    module = build(Mlp)
    module.head.double()
    with pytest.raises(ConfigError, match=r"head\.weight is torch\.float64"):
        Objective(module)


# the cache of bound points --------------------------------------------------------------------
def test_a_freed_tensor_never_lends_its_model_to_another():
    """Many short-lived parameter vectors: every answer is that of its own vector."""
    objective = Objective(build(Mlp))
    w0, b = objective.initial()
    x, _ = inputs(Mlp, 2)
    module = build(Mlp)
    for i in range(6 * CACHED_POINTS):
        scale = 1 + 0.1 * i
        w = w0 * scale
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(objective.views(w0)[name] * scale)
            torch.testing.assert_close(objective.at(w, b)(x), module(x))
        del w  # its memory is free at once


def test_models_kept_by_the_caller_outlive_the_cache():
    objective = Objective(build(Mlp))
    w0, b = objective.initial()
    x, _ = inputs(Mlp, 2)
    points = [w0 * (1 + i) for i in range(3 * CACHED_POINTS)]
    with torch.no_grad():
        expected = [objective.at(w.clone(), b)(x).clone() for w in points]
        models = [objective.at(w, b) for w in points]
        for model, logits in zip(models, expected, strict=True):
            assert torch.equal(model(x), logits)


def test_a_model_follows_changes_of_its_vector_in_place():
    objective = Objective(build(Norm))
    w, b = objective.initial()
    x, _ = inputs(Norm, 3)
    with torch.no_grad():
        model = objective.at(w, b)
        model(x)
        w.mul_(0.5)
        b.add_(0.25)
        assert torch.equal(model(x), objective.at(w.clone(), b.clone())(x))


@pytest.mark.parametrize("kind", [Mlp, Norm])
def test_two_points_in_one_loss(kind):
    """L(w, v) = CE(f_w) + mean((f_w - f_v)^2): the gradient in w, with v a constant, against two modules."""
    objective = Objective(build(kind))
    w, b = objective.initial()
    v = w * 0.7
    x, y = inputs(kind, 6)
    other = objective.at(v, b.clone())

    def loss(f):
        logits = f(x)
        return cross_entropy(logits, y) + ((logits - other(x).detach()) ** 2).mean()

    found = objective.value_and_grad(loss, w, b, "train")
    first, second = build(kind), build(kind).eval()
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.mul_(0.7)
    logits = first(x)
    expected = cross_entropy(logits, y) + ((logits - second(x).detach()) ** 2).mean()
    assert_backward(objective, found, b, expected, first)


def test_gradient_into_a_buffer_overwrites_what_was_there():
    objective = Objective(build(Mlp))
    w, b = objective.initial()
    out = torch.full_like(w, 9.0)
    x, y = inputs(Mlp, 4)
    expected = objective.value_and_grad(lambda f: cross_entropy(f(x), y), w, b)[1]
    returned = objective.value_and_grad(lambda f: cross_entropy(f(x), y), w, b, out=out)[1]
    assert returned is out and torch.equal(out, expected)
    # a loss that does not reach the body: 0 there, not the values of before
    z = torch.randn(4, 7)
    objective.value_and_grad(lambda f: cross_entropy(f.head(z), y), w, b, out=out)
    assert not objective.views(out)["hidden.weight"].any()
    assert objective.views(out)["head.weight"].any()


class Broken(Mlp):
    """Its levels and its features fail in code of their own."""

    def levels(self, x):
        return [x.nonsense], x

    def features(self, x):
        raise NotImplementedError("not today")


def test_an_error_inside_the_network_stays_what_it_is():
    objective = Objective(build(Broken))
    model = objective.at(*objective.initial())
    x, _ = inputs(Mlp, 2)
    with pytest.raises(AttributeError, match="nonsense"):
        model.levels(x)
    with pytest.raises(NotImplementedError, match="not today"):
        model.features(x)


@pytest.mark.parametrize("name", ["levels", "features", "head"])
def test_what_a_network_does_not_declare_is_named(name):
    objective = Objective(torch.nn.Sequential(torch.nn.Linear(5, 3)))
    with pytest.raises(ConfigError, match=rf"Sequential declares no {name}\(x\)"):
        getattr(objective.at(*objective.initial()), name)(torch.zeros(1, 5))


def test_many_clients_at_once_are_a_functional_call_under_vmap():
    """What `core/protocol/algorithm.py` says about a leading client axis: gradients of two clients in
    one pass, and `at` that cannot.
    """
    objective = Objective(build(Mlp))
    w, b = objective.initial()
    x, y = inputs(Mlp, 6)
    stack = torch.stack([w, 0.5 * w]).requires_grad_()
    logits = vmap(lambda one: functional_call(objective.module, objective.views(one), (x,)))(stack)
    (gradients,) = torch.autograd.grad(cross_entropy(logits[0], y) + cross_entropy(logits[1], y), stack)
    for one, gradient in zip(stack.detach(), gradients, strict=True):
        expected = objective.value_and_grad(lambda f: cross_entropy(f(x), y), one.clone(), b)[1]
        torch.testing.assert_close(gradient, expected)
    with pytest.raises(RuntimeError, match="data pointer"):
        vmap(lambda one: objective.at(one, b)(x))(stack)


# names and masks ------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_state_dict_loads_into_a_fresh_module_with_the_same_logits(kind):
    objective = Objective(build(kind))
    w, b = objective.initial()
    x, y = inputs(kind, 6)
    for _ in range(3):
        g = objective.value_and_grad(lambda f: cross_entropy(f(x), y), w, b)[1]
        w -= 0.1 * g
    named = objective.state_dict(w, b)
    fresh = build(kind, seed=9).eval()
    missing, unexpected = fresh.load_state_dict(named, strict=False)
    assert not unexpected
    if kind is not Tied:  # a tied matrix has one name
        assert all(name.endswith("num_batches_tracked") for name in missing)
    if kind is Frozen:
        assert torch.equal(fresh.hidden.weight, build(kind).hidden.weight)
    with torch.no_grad():
        torch.testing.assert_close(objective.at(w, b)(x), fresh(x))
    # the copies are contiguous and independent of w
    assert all(t.is_contiguous() for t in named.values())
    back_w, back_b = objective.from_state_dict(named)
    assert torch.equal(back_w, w) and torch.equal(back_b, b)
    named[objective.layout.entries[0].name].zero_()
    assert objective.views(w)[objective.layout.entries[0].name].any()


def test_from_state_dict_names_what_is_missing_or_misshapen():
    objective = Objective(build(Norm))
    named = objective.state_dict(*objective.initial())
    with pytest.raises(ConfigError, match=r"norm\.running_mean is absent, expected \(7,\)"):
        objective.from_state_dict({n: t for n, t in named.items() if n != "norm.running_mean"})
    with pytest.raises(ConfigError, match=r"head\.weight is of shape \(2, 7\), expected \(3, 7\)"):
        objective.from_state_dict({**named, "head.weight": torch.zeros(2, 7)})


def test_masks_of_copies_do_not_share_memory():
    objective = Objective(build(Mlp))
    objective.mask("head").zero_()
    assert objective.mask("head").any()


def test_reached_marks_what_any_gradient_reached_since_it_was_asked():
    objective = Objective(build(Branches))
    x, y = inputs(Branches, 4)

    def differentiate(sign):
        signed = torch.cat([torch.full((4, 1), sign), x[:, 1:]], 1)
        objective.value_and_grad(lambda f: cross_entropy(f(signed), y), *objective.initial())
        return objective.mask("all")

    def marked(mask):
        return {n for n, view in objective.views(mask).items() if float(view.min()) == 1}

    assert objective.reached() is None, "no gradient yet"
    every = set(objective.views(differentiate(-1.0)))
    always = {n for n in every if not n.startswith(("never", "now_and_then"))}
    assert marked(objective.reached()) == always and objective.reached() is None
    differentiate(1.0)
    differentiate(-1.0)
    assert marked(objective.reached()) == {n for n in every if not n.startswith("never")}


def test_a_part_that_is_fixed_gets_no_gradient_and_the_rest_the_same():
    objective, (x, y) = Objective(build(Norm)), inputs(Norm, 6)
    w, b = objective.initial()
    objective.reached()
    _, whole = objective.value_and_grad(lambda f: cross_entropy(f(x), y), w, b.clone())
    _, part = objective.value_and_grad(lambda f: cross_entropy(f(x), y), w, b.clone(), fixed="body")
    head = objective.mask("head")
    assert torch.equal(part, whole * head) and not torch.equal(part, whole)
    objective.reached()
    objective.value_and_grad(lambda f: cross_entropy(f(x), y), w, b.clone(), fixed="body")
    assert torch.equal(objective.reached(), head)


def scaled(x, y, scale, f):
    return cross_entropy(f(x) * scale(), y)


class Scaled:
    def __init__(self, x, y, scale):
        self.given = x, y, scale

    def __call__(self, f):
        return scaled(*self.given, f)


class Cubed(Scaled):
    def __call__(self, f):
        return super().__call__(f) ** 3


class ScaledModule(nn.Module):
    def __init__(self, x, y, scale):
        super().__init__()
        self.given = x, y, scale

    def forward(self, f):
        return scaled(*self.given, f)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (partial(partial, lambda x, y, scale, f: scaled(x, y, scale, f)), partial(partial, scaled)),
        (Cubed, Scaled),
        (Scaled, ScaledModule),
        (partial(partial, scaled), Scaled),
    ],
)
def test_a_loss_without_code_of_its_own_is_tried_whatever_was_tried_before(first, then):
    x, y = inputs(Mlp, 6)
    objective = Objective(build(Mlp))
    w, b = objective.initial()
    objective.value_and_grad(first(x, y, lambda: 2.0), w, b)
    with pytest.raises(AlgorithmError, match="reads the parameters beside the model"):
        objective.value_and_grad(then(x, y, lambda: w.sum()), w, b)
    temperature = nn.Parameter(torch.tensor(0.5))
    with pytest.warns(UserWarning, match="reads an nn.Parameter that is not the network's"):
        objective.value_and_grad(then(x, y, lambda: temperature), w, b)


def each(x, y, f):
    return cross_entropy(f(x), y, reduction="none")


def test_a_partial_is_named_by_its_function():
    objective = Objective(build(Mlp))
    with pytest.raises(AlgorithmError, match=r"^each \(test_objective.py, line \d+\) returned a Tensor \[6\]"):
        objective.value_and_grad(partial(each, *inputs(Mlp, 6)), *objective.initial())
