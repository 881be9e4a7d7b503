"""Many problems at once take the steps of torch's own L-BFGS, one by one."""

import torch

from flray.ops.lbfgs import BatchedLBFGS
from tests.support.small_cases import normal

TARGETS = normal(5, 4, seed=1).double()


def problem(x, i):
    """Of row i: a valley that is curved in another way in every row; row 4 begins where it is flat."""
    return ((x - TARGETS[i]) ** 4).sum() * (i + 1) + 0.1 * (x[0] * x[1] - TARGETS[i, 2]) ** 2 * (i % 2)


def test_every_row_goes_the_way_of_torch_alone():
    start = normal(5, 4).double()
    start[4] = TARGETS[4]
    rows = []
    for i in range(5):
        x = start[i].clone().requires_grad_()
        optimizer, way = torch.optim.LBFGS([x], lr=0.3), []

        def closure(x=x, i=i, optimizer=optimizer):
            optimizer.zero_grad()
            value = problem(x, i)
            value.backward()
            return value

        for _ in range(6):
            optimizer.step(closure)
            way.append(x.detach().clone())
        rows.append(torch.stack(way))

    def evaluate(x):
        x = x.detach().requires_grad_()
        values = torch.stack([problem(row, i) for i, row in enumerate(x)])
        return values.detach(), torch.autograd.grad(values.sum(), x)[0]

    together = BatchedLBFGS(evaluate, start, 0.3)
    for step in range(6):
        together.step()
        torch.testing.assert_close(together.x, torch.stack([way[step] for way in rows]), rtol=1e-7, atol=1e-9)
