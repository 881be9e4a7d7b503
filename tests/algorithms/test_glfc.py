"""GLFC over tasks of images: who is distilled from when, which exemplars are kept, what is sent; LGA's differences."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from flray.algorithms.glfc import GLFC, GLFCDown, GLFCLocalState, OldModel
from flray.algorithms.lga import LGA, FeatureSums
from flray.contracts.played import Local
from flray.core.messages import Batch
from flray.core.network.objective import Objective
from flray.core.protocol.classes import Classes
from flray.core.protocol.clock import Clock
from flray.core.protocol.inputs import Inputs
from flray.models.mlp import MLP
from flray.ops.augmented_features import feature_radius, scatter_sums
from flray.ops.compensation import glfc_weights, lga_weights
from flray.ops.exemplars import herding
from tests.contracts.table import FEW_TASKS, experiment
from tests.support.rounds import held
from tests.support.small_cases import context, normal

INPUTS = Inputs((1, 4, 4), (0.5,), (0.3,), ("a", "b", "c", "d", "e", "f"))
TASKS = [[4, 1], [0, 5], [2]]


def of_task(task, round=1, **options):
    """(objective, context in this task of TASKS)."""
    objective = Objective(MLP((1, 4, 4), 6, hidden=(5,)))
    clock = Clock(task, round, done=9)
    return objective, context(objective, inputs=INPUTS, clock=clock, classes=Classes(TASKS[: task + 1], 6), **options)


def bce(logits, target):
    s = 1 / (1 + np.exp(-logits))
    return -(target * np.log(s) + (1 - target) * np.log(1 - s))


@pytest.mark.parametrize("kind", [GLFC, LGA])
@pytest.mark.parametrize("task_of_old", [-1, 0, 1])
def test_the_loss_over_the_classes_seen(kind, task_of_old):
    """NumPy, in task 1 with classes 0, 1, 4, 5 of which 1 and 4 are old; an old model knows the classes of its task and
    of those before."""
    objective, ctx = of_task(1)
    (w, b), other = objective.initial(), Objective(MLP((1, 4, 4), 6, hidden=(5,))).initial()
    old = OldModel(*other, task_of_old)
    x, y = normal(7, 1, 4, 4), torch.tensor([4, 0, 5, 1, 0, 4, 5])
    algorithm = kind()
    broadcast = GLFCDown(w, b, old, OldModel(w[:0], b[:0], -1))
    base = algorithm.local_state(ctx, w, b)
    local = GLFCLocalState.of(base, old=broadcast.best_1, signal=False, entropy=0.0)
    found, _ = algorithm.gradient(ctx, broadcast, None, local, Batch(x, y))

    seen, place = [0, 1, 4, 5], {0: 0, 1: 1, 4: 2, 5: 3}
    with torch.no_grad():
        logits, before = (objective.at(*point)(x)[:, seen] for point in ((w, b), other))
    places = torch.tensor([place[int(label)] for label in y])
    target = np.eye(4)[places.numpy()]
    if kind is GLFC:
        weights = glfc_weights(logits, places, torch.tensor([False, True, True, False]))
    else:
        weights = lga_weights(logits, places, torch.tensor([1, 0, 0, 1]), 1)
    weights = weights.double().numpy()[:, None]
    expected = (weights * bce(logits.double().numpy(), target)).mean()
    if task_of_old >= 0:
        known = [1, 2] if task_of_old == 0 else [0, 1, 2, 3]
        target[:, known] = 1 / (1 + np.exp(-before.double().numpy()[:, known]))
        past = bce(logits.double().numpy(), target)
        expected = (expected + past.mean()) / 2 if kind is GLFC else expected + (weights * past).mean()
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_a_gradient_that_is_sent_is_the_encoders_at_the_perturbed_prototype(tmp_path):
    """By hand, of one client of a run: the sample nearest its class's mean, three steps on BCE, then the encoder."""
    own = experiment("glfc", {"proto_lr": 5.0}, **FEW_TASKS)
    seen = []

    def watch(half, function, *arguments):
        done = function(*arguments)
        if half == "client" and arguments[0].clock.phase == "round":
            seen.append(
                (arguments[0], arguments[4], done.update.gradients, done.update.w.clone(), done.update.b.clone())
            )
        return done

    places = Local(own, tmp_path, watch)
    places.play(2)
    ctx, data, gradients, w, b = seen[0]
    assert all(sent is None for _, _, sent, *_ in seen[3:]), "the second round is no new task"
    model, encoder = ctx.objective.at(w, b), ctx.net["encoder"]
    batches = list(data.plain)
    x, y = torch.cat([batch.x for batch in batches]), torch.cat([batch.y for batch in batches])
    classes = ctx.classes.index.tolist()
    held = sorted(set(y.tolist()))
    assert gradients.shape == (len(held), encoder.layout.size)
    for sent, c in zip(gradients, held, strict=True):
        mine = x[y == c]
        with torch.no_grad():
            z = F.normalize(model.features(mine), dim=1)
        image = mine[(z - z.mean(0)).norm(dim=1).argmin()][None].clone()
        target = torch.tensor([[float(c == other) for other in classes]])
        for _ in range(3):
            image.requires_grad_()
            loss = F.binary_cross_entropy_with_logits(model(image)[:, classes], target)
            image = (image - 5.0 * torch.autograd.grad(loss, image)[0]).detach()
        start = encoder.initial()
        _, expected = encoder.value_and_grad(lambda f, x=image, c=c: F.cross_entropy(f(x), torch.tensor([c])), *start)
        torch.testing.assert_close(sent, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["glfc", pytest.param("lga", marks=pytest.mark.slow)])
def test_models_and_exemplars_over_three_tasks(name, tmp_path):
    """best_1 is of the task before, best_2 of this one; f_old is the last task's best model in all of its rounds.
    Exemplars are herded at the task's end, floor(12 / classes) of each; LGA's radius is of the first task."""
    sections = {**FEW_TASKS, "tasks": {"num_tasks": 3, "class_order": [2, 0, 1]}}
    seen = {}

    def watch(half, function, *arguments):
        if half == "client" and arguments[0].clock.phase == "round":
            ctx, _, broadcast = arguments[:3]
            seen[ctx.clock.task, ctx.clock.round] = broadcast.best_2 if ctx.clock.round == 0 else broadcast.best_1
        return function(*arguments)

    places = Local(experiment(name, {"inversion_steps": 1}, **sections), tmp_path, watch)
    runtime = places.server.runtime
    for task in range(3):
        places.play(2)
        state = places.state
        assert (state.best_1.task, state.best_2.task) == (task - 1, task)
        for round in (0, 1):
            assert seen[task, round].task == task - 1
            assert task == 0 or torch.equal(seen[task, round].w, state.best_1.w)
        places.task_end()
        places.position = Clock(task, 2, "task_end", done=2 * (task + 1)).complete
        most = 12 // (task + 1)
        for k, client in places.client_states().items():
            assert {len(numbers) for numbers in client.exemplars.values()} == {most}
            assert set(client.exemplars) == {"2", "0", "1"} & {str(c) for c in [2, 0, 1][: task + 1]}
            mine = np.asarray(places.scenario.partitions[task].client(k))
            x = runtime.normalizer(np.array(runtime.dataset.train.x[mine]))
            z = runtime.objective.at(state.w, state.b).features(x).detach()
            newest = client.exemplars[str([2, 0, 1][task])].tolist()
            assert newest == mine[herding(z, most)].tolist()
        if name == "lga" and task == 0:
            every = np.concatenate([np.asarray(places.scenario.partitions[0].client(k)) for k in range(3)])
            x, y = runtime.dataset.train.x[every], torch.from_numpy(runtime.dataset.train.y[every])
            z = runtime.objective.at(state.w, state.b).features(runtime.normalizer(np.array(x))).detach()
            rho = places.state.rho
            assert rho == pytest.approx(feature_radius(*scatter_sums(z, y, 3)), rel=1e-5) and rho > 0
    assert name == "glfc" or places.state.rho == rho


def test_the_mean_entropy_tells_a_new_task():
    """log 2 = 0.69 of an untrained head with two classes is no rise of 1.2 from 0; with r_h = 0.5 it is one."""
    objective, ctx = of_task(0, round=3)
    w, b = objective.initial()
    broadcast = GLFCDown(torch.zeros_like(w), b, OldModel(w, b, 0), OldModel(2 * w, b, 0))

    class Data:
        plain = (Batch(normal(4, 1, 4, 4), torch.tensor([1, 4, 4, 1])),)

    for rise, signal in ((1.2, False), (0.5, True)):
        algorithm = GLFC(transition="entropy", entropy_rise=rise)
        local = algorithm.begin(ctx, broadcast, algorithm.init_client(ctx), Data())
        assert local.signal is signal and local.entropy == pytest.approx(np.log(2), rel=1e-4)
        assert torch.equal(local.old.w, 2 * w if signal else w)


def test_a_client_that_missed_a_task_trains_with_no_more_exemplars_than_the_others():
    """Kept after task 0: floor(8 / 2) of each class; in task 2, after four classes, a class has 8 / 4."""
    _, ctx = of_task(2)
    algorithm, seen = GLFC(memory_size=8), []
    four = {"4": torch.tensor([3, 9, 1, 7]), "1": torch.tensor([2, 8, 6, 5])}
    client = algorithm.init_client(ctx).replace(exemplars=four)

    class Data:
        def with_samples(self, numbers):
            seen.extend(numbers.tolist())
            return self

        def batches(self, *_, **__):
            return ()

    algorithm.batches(ctx, None, client, None, Data())
    assert seen == [3, 9, 2, 8]


@pytest.mark.parametrize("kind", [GLFC, LGA])
@pytest.mark.parametrize(
    ("replay", "mixed"), [("every_round", [True, True, True]), ("first_round", [True, False, False])]
)
def test_the_rounds_of_a_task_whose_batches_hold_exemplars(kind, replay, mixed):
    """Three rounds of task 1, of a client with samples 0 to 4 and the exemplars 5 and 6 of an older class: a round with
    replay visits seven samples, one without visits five."""
    algorithm = kind(replay=replay, batch_size=3, local_epochs=1)
    x, y = normal(7, 1, 4, 4), torch.tensor([0, 5, 0, 5, 0, 4, 4])
    data = held(x, y)
    for round, replayed in enumerate(mixed):
        _, ctx = of_task(1, round)
        client = algorithm.init_client(ctx).replace(exemplars={"4": torch.tensor([5, 6])})
        visited = [
            label
            for batch in algorithm.batches(ctx, None, client, None, data.only(np.arange(5)))
            for label in batch.y.tolist()
        ]
        assert visited == y.tolist()[: 7 if replayed else 5]


def test_the_best_score_starts_again_when_lga_has_its_radius():
    """Two features of class 4, (0, 0) and (2, 2): their unbiased variances are 2, 2, so that rho = sqrt(4 / 2). A score
    on images, 0.7, does not compare with one on features; without new statistics it stays."""
    _, ctx = of_task(0)
    algorithm, (w, b) = LGA(reset_best=False), ctx.objective.initial()
    state = algorithm.init_server(ctx, w, b).replace(best=0.7)
    counts, sums, squares = scatter_sums(torch.tensor([[0.0, 0.0], [2.0, 2.0]]), torch.tensor([4, 4]), 6)
    updates = FeatureSums(torch.tensor(2.0), counts, sums, squares)
    after, _ = algorithm.count_exemplars(ctx, state, updates, None)
    assert (after.rho, after.best) == (pytest.approx(2**0.5), 0.0)
    later, _ = algorithm.count_exemplars(
        ctx, after.replace(best=0.6), FeatureSums(torch.tensor(2.0), None, None, None), None
    )
    assert (later.rho, later.best) == (after.rho, 0.6)
