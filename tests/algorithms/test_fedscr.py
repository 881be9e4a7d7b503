"""Fed+SCR: what it contrasts, what its clients keep, and the means that decide."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from flray.algorithms.fedscr import PROJECTION, FedSCR
from flray.contracts.played import Local
from flray.core.messages import Batch
from flray.core.network.objective import Objective
from flray.core.protocol.inputs import Inputs
from flray.models.mlp import MLP
from flray.ops.contrast import supervised_contrast
from tests.contracts.table import experiment
from tests.support.small_cases import context, normal

TASKS = {"num_tasks": 3, "class_order": [1, 0, 2]}
IMAGES = Inputs((1, 4, 4), (0.4,), (0.3,), ("a", "b", "c"))


def unit_means(local, numbers):
    """NumPy: {class: unit mean of unit features} of training samples at the global model."""
    runtime = local.server.runtime
    x, y = np.array(runtime.dataset.train.x[numbers]), runtime.dataset.train.y[numbers]
    z = runtime.objective.at(local.state.w, local.state.b).features(runtime.normalizer(x)).detach().numpy()
    z = z / np.linalg.norm(z, axis=1, keepdims=True)
    means = {c: z[y == c].mean(axis=0) for c in np.unique(y)}
    return {c: mean / np.linalg.norm(mean) for c, mean in means.items()}


def test_the_servers_means_are_plain_means_over_those_who_hold_the_class(tmp_path):
    local = Local(experiment("fedscr", cohort={"size": 5}), tmp_path)
    local.play(2)
    own = [unit_means(local, state.numbers.numpy()) for state in local.client_states().values()]
    for c in range(3):
        mean = np.mean([means[c] for means in own if c in means], axis=0)
        np.testing.assert_allclose(local.state.means[c], mean / np.linalg.norm(mean), atol=1e-5)
    assert local.state.known.tolist() == [1, 1, 1]


def test_at_a_tasks_end_everybody_who_keeps_samples_sends_means(tmp_path):
    """In a round the two of the cohort do, at the end all who ever trained."""
    local = Local(experiment("fedscr", cohort={"size": 2}), tmp_path)
    local.play(3)
    before = local.state.means.clone()
    local.task_end()
    states = local.client_states().values()
    own = [unit_means(local, state.numbers.numpy()) for state in states]
    assert len(own) > 2
    for c in range(3):
        mean = np.mean([means[c] for means in own if c in means], axis=0)
        np.testing.assert_allclose(local.state.means[c], mean / np.linalg.norm(mean), atol=1e-5)
    assert not torch.allclose(local.state.means, before, atol=1e-3)


def test_a_reservoir_has_samples_of_all_tasks_and_only_the_clients_own(tmp_path):
    local = Local(experiment("fedscr", {"memory_size": 15}, tasks=TASKS, rounds=2, cohort={"size": 5}), tmp_path)
    labels = local.server.runtime.dataset.train.y
    seen = {}
    for task in range(3):
        local.play(2)
        for k, state in local.client_states().items():
            seen.setdefault(k, set()).update(local.scenario.partitions[task].client(k).tolist())
            assert set(state.numbers.tolist()) <= seen[k] and state.seen == len(seen[k])
            assert len(state.numbers) == min(15, len(seen[k]))
    assert len({int(labels[n]) for state in local.client_states().values() for n in state.numbers.tolist()}) == 3
    assert local.state.known.tolist() == [1, 1, 1]


def test_the_gradient_is_that_of_both_views():
    """At 4 x 4 images: the loss of the projected unit vectors of the batch and of a second view of each image."""
    model = FedSCR().module(MLP((1, 4, 4), 3, hidden=(6,)), IMAGES)
    objective = Objective(model)
    assert not any("head" in entry.name for entry in objective.layout.entries)
    ctx, algorithm = context(objective, inputs=IMAGES), FedSCR(tau=0.3)
    x, y = IMAGES.normalised(normal(5, 1, 4, 4).sigmoid()), torch.tensor([0, 1, 0, 2, 1])
    view = algorithm.view(ctx, x, ctx.rng("views", 0))
    assert view.shape == x.shape and not torch.allclose(view, x)
    loss, _ = algorithm.gradient(ctx, None, (), algorithm.local_state(ctx, *objective.initial()), Batch(x, y))
    z = model.get_submodule(PROJECTION)(model.features(torch.cat([x, view])))
    expected = supervised_contrast(F.normalize(z, dim=1), torch.cat([y, y]), 0.3)
    assert float(loss) == pytest.approx(expected.item(), rel=1e-5)


def test_a_class_without_a_mean_is_never_predicted(tmp_path):
    local = Local(experiment("fedscr", tasks=TASKS, rounds=1), tmp_path)
    local.play(1)
    runtime = local.server.runtime
    ctx = runtime.context(local.position and next(local.schedule()))
    scores = local.experiment.algorithm.predict(ctx, local.state, torch.from_numpy(np.array(runtime.dataset.test.x)))
    assert (scores.argmax(dim=1) == 1).all() and (scores[:, [0, 2]] == -5).all()
