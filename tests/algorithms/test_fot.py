"""FOT over tasks: the server's projection, and what sketches add."""

import numpy as np
import pytest
import torch

from flray.algorithms.fot import FOT, SketchSum
from tests.support.bases import matrix, orthonormal
from tests.support.lines import LINES, lines, local, to_the_end

pytestmark = pytest.mark.usefixtures("lines_source")


@pytest.mark.parametrize("options", [{}, {"sketch": 12}, {"ratio": "norm"}, {"weighting": "examples"}])
def test_the_outputs_of_an_old_task_do_not_move(options, tmp_path):
    """Task 1's inputs span a plane, all of which is protected, whatever the clients' optimiser does."""
    run = local(tmp_path, "fot", LINES, lr=0.1, momentum=0.9, weight_decay=0.05, eps=1 - 1e-9, **options)
    first, last = to_the_end(run)
    x = torch.from_numpy(lines(None).test.x[np.array(lines(None).test.y) < 2])
    outputs = [run.server.runtime.objective.at(s.w, s.b)(x)[:, :2].detach() for s in (first, last)]
    assert [block["body.0"].shape[1] for block in last.blocks] == [2, 6]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=2e-5)
    named = [run.server.runtime.objective.views(s.w) for s in (first, last)]
    assert not torch.equal(named[0]["body.0.weight"], named[1]["body.0.weight"])


def test_the_servers_half_against_numpy(tmp_path):
    """One round of task 2: W <- W_old - (Delta - Delta Phi Phi^T), Delta the plain mean of the clients' moves."""
    run = local(tmp_path, "fot", LINES, lr=0.1, eps=0.9)
    sent = []

    def watch(half, function, *arguments):
        done = function(*arguments)
        sent.append(done.update.w.clone() if hasattr(done.update, "w") else None)
        return done

    run.executor.client.watch = watch
    while run.position.task < 1 or run.position.phase != "round":
        before = run.state
        sent.clear()
        run.exchanges(next(run.schedule()))
    layout = run.server.runtime.objective.layout
    for entry in layout.entries:
        old, new = (entry.view(state.w).numpy().astype(np.float64) for state in (before, run.state))
        delta = old - np.mean([entry.view(w).numpy() for w in sent], axis=0)
        layer = entry.name.removesuffix(".weight")
        if layer in before.blocks[0]:
            phi = before.blocks[0][layer].numpy().astype(np.float64)
            delta = delta - (delta @ phi) @ phi.T
        np.testing.assert_allclose(new, old - delta, atol=1e-6)


def test_a_client_sends_the_sketch_of_all_columns_and_its_ratio():
    a, phi = matrix(10, 40, rank=6), orthonormal(10, 3, seed=1)
    made = SketchSum(10, phi, 8, np.random.default_rng(5))
    for part in a.split(15, dim=1):
        made.add(part)
    draws = np.random.default_rng(5)
    rest = a - phi @ (phi.T @ a)
    expected = sum(part @ torch.from_numpy(draws.standard_normal((part.shape[1], 8))) for part in rest.split(15, dim=1))
    torch.testing.assert_close(made.z, expected)
    share = float(rest.square().sum() / a.square().sum())
    assert FOT().residual_ratio(made.energies) == pytest.approx(share)
    assert FOT(ratio="norm").residual_ratio(made.energies) == pytest.approx(share**0.5)
    assert FOT().residual_ratio(SketchSum(3, torch.zeros(3, 0), 2, np.random.default_rng(0)).energies) == 0.0
