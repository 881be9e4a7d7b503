"""Fed+PEC against plain loops over students, as the official code trains them."""

import copy

import pytest
import torch

from flray.algorithms.fedpec import FedPEC, PECUpdate
from flray.contracts.played import Local
from flray.core.messages import Batch, Cohort, ServerState
from flray.core.network.objective import Objective
from flray.core.protocol.inputs import Inputs
from flray.models.base import count_parameters
from flray.models.pec import Students
from tests.contracts.table import experiment
from tests.support.small_cases import context, normal

INPUTS = Inputs((2, 5, 5), (0.5, 0.5), (0.2, 0.3), ("a", "b", "c"))


def students(seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Students(INPUTS, 3, 7, 4)


def trained(optimizer, data, steps):
    """`Pec.observe`: a step for each class in the batch, of an optimiser of its own; the rate falls linearly."""
    net = students()
    kind = {"adam": lambda p: torch.optim.Adam(p, 0.01), "sgd": lambda p: torch.optim.SGD(p, 0.01, 0.9)}[optimizer]
    optimizers = [kind(student.parameters()) for student in net.students]
    for step, (x, y) in enumerate(data):
        for c in range(3):
            optimizers[c].param_groups[0]["lr"] = 0.01 * (1 - step / steps)
            if (y == c).any():
                optimizers[c].zero_grad()
                (net.students[c](x[y == c]) - net.teacher(x[y == c]).detach()).square().mean(1).mean().backward()
                optimizers[c].step()
    return net


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_local_steps_are_those_of_the_code(optimizer):
    data = [(normal(6, 2, 5, 5, seed=s), torch.tensor(y)) for s, y in enumerate([[0, 0, 2, 2, 2, 0], [2] * 6, [0] * 6])]
    objective = Objective(students())
    ctx = context(objective, inputs=INPUTS, num_steps=len(data))
    algorithm = FedPEC(lr=0.01, optimizer=optimizer, local_epochs=1)
    local = algorithm.local_state(ctx, *objective.initial())
    for x, y in data:
        local = algorithm.step(ctx, None, (), local, Batch(x, y))
    expected = trained(optimizer, data, len(data))
    for name, view in objective.views(local.w).items():
        if name.endswith(".0.bias"):  # instance norm takes it off again: its gradient is rounding, which Adam scales up
            continue
        torch.testing.assert_close(view, expected.get_parameter(name).detach(), rtol=1e-4, atol=1e-6)
    assert local.read.tolist() == [9, 0, 9] and local.steps.tolist() == [2, 0, 2]
    errors = [(algorithm_error(x, y, students())).mean() for x, y in data[:1]]
    first = algorithm.local_state(ctx, *objective.initial())
    assert algorithm.step(ctx, None, (), first, Batch(*data[0])).loss.item() == pytest.approx(
        float(errors[0]), rel=1e-5
    )


def algorithm_error(x, y, net):
    with torch.no_grad():
        return -net(x).gather(1, y[:, None])


def test_each_student_is_the_mean_of_its_own_samples():
    """Two clients with (6, 0, 2) and (2, 0, 8) samples: g_0 = (6 a + 2 b) / 8, g_1 stays, g_2 = (2 a + 8 b) / 10."""
    objective = Objective(students())
    ctx, algorithm = context(objective, inputs=INPUTS), FedPEC()
    w, b = objective.initial()
    rows = w.view(3, -1)
    sent, held = [], [torch.tensor([6.0, 0, 2]), torch.tensor([2.0, 0, 8])]
    for scale, counts in zip((2.0, 3.0), held, strict=True):
        local = algorithm.local_state(ctx, w, b)
        local.w.mul_(scale)
        local.read.copy_(5 * counts)  # in five epochs
        sent.append(algorithm.end(ctx, None, (), local, None)[0])
    pooled = PECUpdate(sent[0].weighted + sent[1].weighted, held[0] + held[1])
    cohort = Cohort(*(torch.zeros(2) for _ in range(4)))
    found = algorithm.aggregate(ctx, ServerState(w, b), pooled, cohort)[0].w.view(3, -1)
    expected = torch.stack([rows[0] * (6 * 2 + 2 * 3) / 8, rows[1], rows[2] * (2 * 2 + 8 * 3) / 10])
    torch.testing.assert_close(found, expected)


def test_sizes_on_cifar_are_those_of_the_paper():
    """1120 of the convolution, 80 of the norm, 640 * 172 + 172 of the linear layer: 100 students are a ResNet-18."""
    net = Students(Inputs((3, 32, 32), classes=("a", "b")), 40, 172, 100)
    assert count_parameters(net) == 2 * (1120 + 80 + 110_252)
    first, second = net.students
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))
    assert net.teacher[0].out_channels == 4000 and not any(p.requires_grad for p in net.teacher.parameters())


def test_the_error_is_the_mean_square_and_in_pieces_the_same():
    net, x = students(), normal(5, 2, 5, 5)
    in_pieces = copy.deepcopy(net)
    in_pieces._piece = 2
    with torch.no_grad():
        expected = torch.stack([-(g(x) - net.teacher(x)).square().sum(1) / 7 for g in net.students], dim=1)
        torch.testing.assert_close(net(x), expected)
        torch.testing.assert_close(in_pieces(x), expected)


def test_students_of_other_tasks_do_not_change_and_are_not_sent(tmp_path):
    local = Local(experiment("fedpec", tasks={"num_tasks": 3, "class_order": [1, 0, 2]}, rounds=1), tmp_path)
    before = local.state.w.view(3, -1).clone()
    for task in (1, 0, 2):
        local.play(1)
        after = local.state.w.view(3, -1).clone()
        assert [bool((after[c] != before[c]).any()) for c in range(3)] == [c == task for c in range(3)]
        assert local.sent[-1]["up"] == 3 * 4 * (after[0].numel() + 1)
        before = after
