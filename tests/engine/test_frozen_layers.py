"""`tasks.freeze`: layers and rows of the head that a task leaves as they are, whatever the algorithm does to them."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.contracts.played import Local
from flray.core.network.frozen import Frozen, class_tables
from flray.core.network.objective import BoundModel, Objective
from flray.core.protocol.clock import Clock
from flray.core.schema.errors import ConfigError
from flray.ops.losses import cross_entropy
from flray.scenario.tasks import TasksConfig
from tests.contracts.networks import Layered
from tests.contracts.table import FEDAVG_OPTIONS, TABLE, experiment
from tests.support.messages import facts

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
    "fedmemo": {"mode": "client", "trigger": "scheduled", "proxy.generator_steps": 1},
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
    part = run.server.runtime.objective.mask("early").bool()
    assert sent and all(torch.equal(w[part], before[part]) and not torch.equal(w, before) for w in sent)


@pytest.mark.parametrize("name", MOVERS)
def test_the_second_task_leaves_the_early_layers_alone(tmp_path, name):
    run = of_two_tasks(tmp_path, name, {**OPTIONS, **MOVERS[name]})
    first = run.play(2)
    last = run.play(2)
    objective = run.server.runtime.objective
    before, after = (objective.state_dict(state.w, state.b) for state in (first, last))
    for part, tensor in before.items():
        if part.startswith(("first", "norm")):
            assert torch.equal(tensor, after[part]), part
        else:
            assert not torch.equal(tensor, after[part]), part


def test_the_first_task_knows_nothing_of_it(tmp_path):
    frozen = of_two_tasks(tmp_path / "frozen", "scaffold").play(2)
    free = of_two_tasks(tmp_path / "free", "scaffold", freeze="unreached").play(2)
    assert torch.equal(frozen.w, free.w) and torch.equal(frozen.b, free.b)


def test_statistics_may_move_on(tmp_path):
    run = of_two_tasks(tmp_path, "fedavg", frozen_bn_stats="update")
    first, last = run.play(2), run.play(2)
    part = run.server.runtime.objective.mask("early").bool()
    assert torch.equal(first.w[part], last.w[part]) and not torch.equal(first.b, last.b)


def test_frozen_statistics_are_what_training_normalises_by(tmp_path, monkeypatch):
    """In the second task every batch norm reads the first task's statistics, in training too: they stay, and the loss
    of a local step is that of the model in eval mode."""
    seen, gradient = [], FedAvg.gradient

    def spy(self, ctx, broadcast, client, local, batch):
        with torch.no_grad():
            logits = ctx.objective.at(local.w.clone(), broadcast.b, "eval")(batch.x)
        loss, g = gradient(self, ctx, broadcast, client, local, batch)
        seen.append((ctx.clock.task, float(loss), float(cross_entropy(logits, batch.y, ctx.classes))))
        return loss, g

    monkeypatch.setattr(FedAvg, "gradient", spy)
    two = {"data": {"source": "synthetic", "options": {"shape": 4, "num_classes": 6, "num_train": 180, "num_test": 30}}}
    own = experiment("fedavg", OPTIONS, model=LAYERED, tasks={"num_tasks": 3, "freeze": "statistics"}, rounds=2, **two)
    run = Local(own, tmp_path)
    start = run.state.b
    first = run.play(2)
    last = run.play(2)
    assert not torch.equal(first.b, start) and torch.equal(first.b, last.b) and not torch.equal(first.w, last.w)
    for task, same in ((0, False), (1, True)):
        losses = np.array([(loss, other) for of, loss, other in seen if of == task])
        assert len(losses) > 4 and np.allclose(losses[:, 0], losses[:, 1], rtol=1e-4) == same


def test_a_gradient_is_that_of_the_whole_network_where_it_is_not_frozen():
    """And 0 elsewhere, with the same statistics as a network whose early layers are in eval mode."""
    torch.manual_seed(0)
    whole = Objective(Layered((4,), 3))
    part = Frozen(whole, "early")
    (w, b), x, y = whole.initial(), torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])

    def loss(model: BoundModel) -> torch.Tensor:
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


# rows of the head ---------------------------------------------------------------------------------
# whose local loss, or training on the server, reads older tasks' logits
READ_OLD = {
    "feddf", "fedet", "fedproj", "glfc", "lga", "target", "lander", "mfcl", "fedmemo", "fedntd", "fedscr",
    "er", "der",
}  # fmt: skip
# without FedBABU, which trains no head, and `local`, which has no global one
HEADS = [
    name if name in ("fedavg", "scaffold", "feddyn", "fedavgm", "fedproj", "target", "fedprotip", "er")
    else pytest.param(name, marks=pytest.mark.slow)
    for name, row in TABLE.items() if row.head and name not in ("fedbabu", "local")
]  # fmt: skip


def rows_of_tasks(folder, name, freeze):
    """(head's tensors at the start, after task 1, after task 2, the first task's classes) under decay and momentum."""
    row = TABLE[name]
    fields = type(experiment(name).algorithm).model_fields
    options = {key: value for key, value in (("weight_decay", 0.1), ("momentum", 0.9)) if key in fields}
    data = {} if row.images else {"data": {"source": "iris", "standardize": True}}
    tasks = {"num_tasks": 2, "class_order": "natural", "freeze": freeze}
    model = {key: value for key, value in row.sections.items() if key == "model"}
    run = Local(experiment(name, options, rounds=1, **data, **model, tasks=tasks), folder)
    objective, states = run.server.runtime.objective, [run.state]
    while (clock := next(run.schedule(), None)) is not None:
        run.exchanges(clock)
        if clock.phase == "task_end":
            states.append(run.state)
    heads = [e for e, in_head in zip(objective.layout.entries, objective.in_head, strict=True) if in_head]
    first = run.server.runtime.context(Clock()).classes.new.index
    return [[entry.view(state.w) for entry in heads] for state in states], first


@pytest.mark.parametrize("freeze", ["unreached", "old_heads"])
@pytest.mark.parametrize("name", HEADS)
def test_rows_that_nothing_reads_stay_to_the_bit(name, freeze, tmp_path):
    """In task 1 the rows of task 2, in task 2 those of task 1, under weight decay 0.1 and momentum 0.9; the others
    move. Where a method reads what it keeps of task 1 their rows move as well, unless they are frozen: those of a
    method that replays samples are not."""
    states, first = rows_of_tasks(tmp_path, name, freeze)
    for start, middle, end in zip(*states, strict=True):
        old = torch.zeros(len(start), dtype=torch.bool).index_fill(0, first, True)
        assert torch.equal(start[~old], middle[~old]) and not torch.equal(start[old], middle[old])
        assert not torch.equal(middle[~old], end[~old])
        moves = name in READ_OLD and (freeze == "unreached" or ALGORITHMS.get(name).keeps_exemplars)
        assert torch.equal(middle[old], end[old]) != moves


class Summed(nn.Module):
    """The mean of two last layers, times a number."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(5, 4), nn.Linear(5, 4)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.scale * (self.one(x) + self.other(x)) / 2


def of_zeros(layer):
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def rows_of_classes(head, classes):
    """The names of `class_tables` in a network with the head."""

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(3, 5), head()

        def forward(self, x):
            return self.head(self.first(x))

    torch.manual_seed(0)
    objective = Objective(Whole())
    found = class_tables(objective, classes, lambda: torch.randn(32, 3, generator=torch.Generator().manual_seed(1)))
    return {entry.name.removeprefix("head.") for entry in found}


@pytest.mark.parametrize(
    ("head", "rows"),
    [
        (lambda: nn.Linear(5, 4), {"weight", "bias"}),
        (lambda: parametrizations.weight_norm(nn.Linear(5, 4)),
         {"bias", "parametrizations.weight.original0", "parametrizations.weight.original1"}),
        (lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), {"0.weight", "0.bias", "1.weight", "1.bias"}),
        (Summed, {"one.weight", "one.bias", "other.weight", "other.bias"}),
        (lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 4)), {"2.weight", "2.bias"}),
        (lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), of_zeros(nn.Linear(4, 4))), {"2.weight", "2.bias"}),
        (lambda: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 6), nn.Linear(6, 4), nn.LogSoftmax(1)),
         {"2.weight", "2.bias"}),
        (lambda: nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4)), {"0.weight", "0.bias", "1.weight", "1.bias"}),
        (lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Softmax(1)),
         {"2.weight", "2.bias", "3.weight", "3.bias"}),
        (lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(5, 4)), nn.BatchNorm1d(4)),
         {"0.bias", "0.parametrizations.weight.original", "1.weight", "1.bias"}),
        (lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 8), nn.GLU()), set()),
    ],
    ids=["one", "weight norm", "batch norm", "mean of two", "hidden", "zeros", "log softmax", "layer norm", "softmax",
         "spectral norm", "gated"],
)  # fmt: skip
def test_rows_of_classes_reach_one_logit(head, rows):
    """By hand from the layers: row c of a last layer is in logit c alone, a hidden row of four is in all four. A norm
    across classes and a softmax mix the rows of a last layer, which stay those of classes."""
    assert rows_of_classes(head, 4) == rows


def test_a_hidden_layer_of_two_rows_is_no_head_of_two_classes():
    """No third row was there to tell by, so that the hidden rows were taken for those of classes."""
    layers = (nn.Linear(5, 2), nn.Tanh(), nn.Linear(2, 2))
    assert rows_of_classes(lambda: nn.Sequential(*layers), 2) == {"2.weight", "2.bias"}
    assert rows_of_classes(lambda: nn.Sequential(*layers, nn.LogSoftmax(1)), 2) == {"2.weight", "2.bias"}


@pytest.mark.parametrize("freeze", ["unreached", "old_heads"])
def test_a_hidden_layer_as_wide_as_the_classes_is_no_head(tmp_path, freeze):
    """Its rows were frozen as those of old classes; and since a gradient reaches them, rows of the last layer that
    nothing reads decayed."""
    model, tasks = {"name": "tests.contracts.networks:DeepHead"}, {"num_tasks": 2, "class_order": "natural"}
    run = Local(experiment("fedavg", OPTIONS, model=model, tasks={**tasks, "freeze": freeze}, rounds=1), tmp_path)
    middle, end = run.play(1), run.play(1)
    objective, old = run.server.runtime.objective, run.server.runtime.context(Clock()).classes.new.index
    before, after = objective.views(middle.w), objective.views(end.w)
    for leaf in ("weight", "bias"):
        assert torch.equal(before[f"head.3.{leaf}"][old], after[f"head.3.{leaf}"][old])
        assert not any(map(torch.equal, before[f"head.1.{leaf}"], after[f"head.1.{leaf}"])), "every hidden row moves"


def test_older_heads_are_fixed_and_the_two_before_this_task_decay(tmp_path):
    """FedProTIP's code from random weights (`generate_fc`: heads i < t - 2 have no gradient, those of t - 2 and t - 1 a
    zero one). One client, a step a task with rate 0.1 and decay 0.5: a head that decays is 0.95 of what it was."""
    tasks = {"num_tasks": 5, "class_order": "natural", "freeze": "older_heads"}
    of_five = {"source": "synthetic", "options": {"num_classes": 5, "num_train": 50, "num_test": 20, "shape": [4]}}
    options = {"lr": 0.1, "weight_decay": 0.5, "momentum": 0.0, "local_epochs": 1, "batch_size": 100}
    sections = {"data": of_five, "partition": {"name": "iid", "clients": 1}, "cohort": {"size": 1}, "tasks": tasks}
    run = Local(experiment("fedavg", options, rounds=1, **sections), tmp_path)
    objective, heads = run.server.runtime.objective, [run.state.w]
    while (clock := next(run.schedule(), None)) is not None:
        run.exchanges(clock)
        if clock.phase == "task_end":
            heads.append(run.state.w)
    weight = [objective.views(w)["head.weight"] for w in heads]
    for task in range(5):
        for head in range(5):
            before, after = weight[task][head], weight[task + 1][head]
            if head == task:
                assert not torch.allclose(before, after)
            elif head in (task - 1, task - 2):
                torch.testing.assert_close(after, 0.95 * before)
            else:
                assert torch.equal(before, after), "older, or not begun"


def test_nothing_frozen_is_decay_and_momentum_everywhere(tmp_path):
    """The review's number: under FedAvg, weight decay 1, one round a task, the rows of task 1 shrink."""
    (_, middle, end), first = rows_of_tasks(tmp_path, "fedavg", "none")
    assert float(end[0][first].norm()) < float(middle[0][first].norm())


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        ("early", ("early",)),
        (["old_heads", "early"], ("early", "old_heads")),
        (["unreached", "early"], ("early",)),
        ("none", ("none",)),
    ],
)
def test_what_is_frozen_is_a_word_or_a_list(written, parts):
    assert TasksConfig(num_tasks=2, freeze=written).freeze == parts
    assert TasksConfig(num_tasks=2).freeze == ("unreached",)


def test_students_of_a_class_each_have_no_early_layers(tmp_path):
    """Fed+PEC beside methods whose early layers are frozen: nothing of it is."""
    run = Local(experiment("fedpec", tasks={"num_tasks": 2, "freeze": "early"}), tmp_path)
    assert run.server.runtime.frozen == frozenset()


@pytest.mark.parametrize(
    ("name", "options"), [("fedpec", {}), ("fedavg", {"model": {"name": "tests.contracts.networks:UntrainedHead"}})]
)
def test_where_no_task_trains_an_old_head_none_is_frozen(tmp_path, name, options):
    """Fed+PEC has a student a class and no head; that of T5 may be frozen."""
    run = Local(experiment(name, tasks={"num_tasks": 2, "freeze": "old_heads"}, **options), tmp_path)
    assert not run.server.runtime.objective_of(1).has_rows


def freezing(*what):
    return {"model": {"name": "mlp"}, "tasks": {"num_tasks": 3, "freeze": what}}


def network(name, *what):
    return {**freezing(*what), "model": {"name": name}}


@pytest.mark.parametrize(
    ("name", "options", "sections", "says"),
    [
        ("fedavg", {}, freezing("early"), ("MLP", "`early`", "resnet18", "vit")),
        ("fedavg", {}, freezing("statistics"), ("tasks.freeze", "statistics")),
        ("fedavg", {}, freezing("none", "early"), ("tasks.freeze:", "none")),
        (
            "fedavg",
            {},
            network("tests.contracts.networks:ColumnHead", "old_heads"),
            ("tasks.freeze: old_heads", "ColumnHead", "leave it out"),
        ),
        (
            "fedavg",
            {},
            network("tests.contracts.networks:Unnamed", "old_heads"),
            ("tasks.freeze: old_heads", "Unnamed has no head", "leave it out"),
        ),
        ("target", {"freeze": "early"}, {}, ("algorithm.freeze:", "tasks.")),
        ("target", {"frozen_bn_stats": "early"}, {}, ("algorithm.frozen_bn_stats:", "tasks.")),
        ("target", {"old_heads": "early"}, {}, ("algorithm.old_heads:", "tasks.")),
    ],
    ids=[
        "no early layers",
        "no statistics",
        "none and more",
        "no rows",
        "no head",
        "freeze",
        "frozen_bn_stats",
        "old_heads",
    ],
)
def test_what_cannot_be_frozen_says_so(tmp_path, name, options, sections, says):
    with pytest.raises(ConfigError, match=facts(*says)):
        Local(experiment(name, options, **sections), tmp_path)
