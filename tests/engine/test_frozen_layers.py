"""`tasks.freeze: early`: layers that the second task leaves as they are, whatever the algorithm does to parameters."""

from __future__ import annotations

import pytest
import torch

from flray.core.errors import ConfigError
from flray.core.frozen import Frozen
from flray.core.objective import Objective
from flray.core.point import Model
from tests.contracts.inprocess import Local
from tests.contracts.networks import Layered
from tests.contracts.table import FEDAVG_OPTIONS, experiment

LAYERED = {"name": "tests.contracts.networks:Layered"}
OPTIONS = {**FEDAVG_OPTIONS, "weight_decay": 0.1}


def of_two_tasks(folder, name, options=None, **tasks):
    tasks = {"num_tasks": 3, "freeze": "early", **tasks}
    options = OPTIONS if options is None else options
    return Local(experiment(name, options, model=LAYERED, tasks=tasks, rounds=2), folder)


# what moves parameters besides the gradient: control variates, server momentum, a penalty, a second point, a Hessian
MOVERS = {
    "fedavg": {},
    "scaffold": {},
    "feddyn": {},
    "fedavgm": {},
    "fedadam": {},
    "fedprox": {"mu": 1.0},
    "fednova": {},
    "fedsam": {},
    "fedasam": {},
    "fedsol": {},
    "perfedavg": {},
    "fedproj": {},
    "feddf": {},
    "moon": {},
    "fedmemo": {"mode": "client", "trigger": "scheduled", "generator_steps": 1},
    "mfcl": {"pi": 1, "syn_size": 4},
}


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "fedprox"])
def test_no_local_step_of_the_second_task_moves_them(tmp_path, name):
    sent = []

    def watch(half, function, *arguments):
        done = function(*arguments)
        if half == "client":
            sent.append(done.update.w.clone())
        return done

    run = of_two_tasks(tmp_path, name)
    run.play(2)
    run.executor.client.watch = watch
    before = run.state.w
    run.play(1)
    part = run.server.bench.objective.mask("early").bool()
    assert sent and all(torch.equal(w[part], before[part]) and not torch.equal(w, before) for w in sent)


@pytest.mark.parametrize("name", MOVERS)
def test_the_second_task_leaves_the_early_layers_alone(tmp_path, name):
    run = of_two_tasks(tmp_path, name, {**OPTIONS, **MOVERS[name]})
    first = run.play(2)
    last = run.play(2)
    objective = run.server.bench.objective
    before, after = (objective.state_dict(state.w, state.b) for state in (first, last))
    for part, tensor in before.items():
        if part.startswith(("first", "norm")):
            assert torch.equal(tensor, after[part]), part
        else:
            assert not torch.equal(tensor, after[part]), part


def test_the_first_task_knows_nothing_of_it(tmp_path):
    frozen = of_two_tasks(tmp_path / "frozen", "scaffold").play(2)
    free = of_two_tasks(tmp_path / "free", "scaffold", freeze="none").play(2)
    assert torch.equal(frozen.w, free.w) and torch.equal(frozen.b, free.b)


def test_statistics_may_move_on(tmp_path):
    run = of_two_tasks(tmp_path, "fedavg", frozen_bn_stats="update")
    first, last = run.play(2), run.play(2)
    part = run.server.bench.objective.mask("early").bool()
    assert torch.equal(first.w[part], last.w[part]) and not torch.equal(first.b, last.b)


def test_a_gradient_is_that_of_the_whole_network_where_it_is_not_frozen():
    """And 0 elsewhere, with the same statistics as a network whose early layers are in eval mode."""
    torch.manual_seed(0)
    whole = Objective(Layered((4,), 3))
    part = Frozen(whole, "early")
    (w, b), x, y = whole.initial(), torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])

    def loss(model: Model) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(x), y)

    early = whole.mask("early").bool()
    value, g = whole.value_and_grad(loss, w, b.clone(), {"all": "train", "early": "eval"})
    whole.reached()
    still, found = part.value_and_grad(loss, w, b)
    assert torch.equal(value, still) and torch.equal(b, whole.initial()[1])
    assert torch.equal(found[~early], g[~early]) and not found[early].any()
    assert torch.equal(part.reached(), (~early).float() * whole.mask("all"))
    v = torch.randn_like(w)
    masked = torch.where(early, 0.0, whole.hvp(loss, w, b, torch.where(early, 0.0, v)))
    torch.testing.assert_close(part.hvp(loss, w, b, v), masked)


@pytest.mark.parametrize(
    ("name", "sections", "match"),
    [
        ("fedavg", {"model": {"name": "mlp"}}, "model MLP declares no `early` layers to freeze; resnet18 and vit do"),
        ("fedprotip", {}, "tasks.freeze: fedprotip has to know which layers stay; set algorithm.freeze: early too"),
    ],
)
def test_what_cannot_be_frozen_says_so(tmp_path, name, sections, match):
    with pytest.raises(ConfigError, match=match):
        Local(
            experiment(name, **{"model": LAYERED, "tasks": {"num_tasks": 3, "freeze": "early"}, **sections}), tmp_path
        )
