"""Several networks in one experiment: each runs with its own tensors, and a frozen body is there once."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flray.core.network.networks import cast_trained, objectives, twin
from flray.core.schema.errors import ConfigError
from tests.support.networks import Frozen, Mlp, Norm, build, inputs


def test_a_trained_model_a_generator_and_a_frozen_teacher():
    teacher = build(Norm, 1).requires_grad_(False)
    trained, others = objectives(build(Mlp), {"generator": build(Norm, 2), "teacher": teacher})
    x, y = inputs(Mlp, 4)
    points = {name: one.initial() for name, one in {"model": trained, **others}.items()}
    assert points["teacher"][0].shape == (0,) and points["teacher"][1].shape == points["generator"][1].shape
    with torch.no_grad():
        torch.testing.assert_close(others["teacher"].at(*points["teacher"])(x), build(Norm, 1).eval()(x))
        torch.testing.assert_close(others["generator"].at(*points["generator"])(x), build(Norm, 2).eval()(x))
    _, g = trained.value_and_grad(lambda f: cross_entropy(f(x), y), *points["model"])
    reference = build(Mlp)
    cross_entropy(reference(x), y).backward()
    torch.testing.assert_close(trained.views(g)["hidden.weight"], reference.hidden.weight.grad)


def test_a_twin_has_its_own_head_and_the_same_frozen_body():
    model = build(Frozen)
    student = twin(model)
    assert student.hidden.weight is model.hidden.weight and student.head.weight is not model.head.weight
    trained, others = objectives(model, {"student": student})
    (w, b), (v, c), (x, _) = trained.initial(), others["student"].initial(), inputs(Mlp, 3)
    assert torch.equal(w, v)
    with torch.no_grad():
        torch.testing.assert_close(others["student"].at(0 * v, c)(x), torch.zeros(3, 3))
        torch.testing.assert_close(trained.at(w, b)(x), build(Frozen)(x))


def test_another_network_has_the_type_of_what_is_in_its_vectors():
    """A copy of a model in float64 was refused for its running statistics; a generator of its own stays in float32."""
    double = build(Norm, 1).double()
    others = {"copy": build(Norm, 1).double(), "teacher": build(Norm, 1).double().requires_grad_(False)}
    _, found = objectives(double, others | {"generator": build(Norm, 2)}, dtype=torch.float64)
    types = {name: {t.dtype for t in one.initial()} for name, one in found.items()}
    assert types == {"copy": {torch.float64}, "teacher": {torch.float64}, "generator": {torch.float32}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_type_of_the_vectors_is_that_of_what_is_trained(dtype):
    """Parts that an algorithm adds. In float64 the frozen layer computes with the others; complex numbers stay."""
    module = nn.Sequential(nn.Linear(2, 2).double(), nn.BatchNorm1d(2).double(), nn.Linear(2, 2).bfloat16())
    module[2].requires_grad_(False)
    module.register_buffer("phases", torch.ones(2, dtype=torch.complex64))
    cast_trained(module, dtype)
    trained = [module[0].weight, module[1].bias, module[1].running_mean, module[1].running_var]
    assert {t.dtype for t in trained} == {dtype} and module.phases.dtype == torch.complex64
    assert module[2].weight.dtype == (torch.bfloat16 if dtype == torch.float32 else dtype)


def test_networks_with_a_module_in_common_are_refused():
    model = build(Mlp)
    says = r"networks 'model' and 'teacher' of the algorithm have the module {} in common; give one of them a copy"
    with pytest.raises(ConfigError, match=says.format("hidden")):
        objectives(model, {"teacher": nn.Sequential(model, nn.ReLU()).get_submodule("0")})
    with pytest.raises(ConfigError, match=says.format(r"0\.hidden")):
        objectives(model, {"teacher": nn.Sequential(model, nn.ReLU())})
    activation = nn.ReLU()
    objectives(nn.Sequential(nn.Linear(2, 2), activation), {"other": nn.Sequential(nn.Linear(2, 2), activation)})


def test_what_is_no_network_is_refused():
    with pytest.raises(ConfigError, match=r"network 'model' of the algorithm is a list, not a torch\.nn\.Module"):
        objectives([build(Mlp)], {})
    with pytest.raises(ConfigError, match="network 'teacher' of the algorithm is a NoneType"):
        objectives(build(Mlp), {"teacher": None})
    with pytest.raises(ConfigError, match="has no trainable parameter"):
        objectives(build(Mlp).requires_grad_(False), {})
