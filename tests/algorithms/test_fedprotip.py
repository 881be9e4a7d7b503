"""FedProTIP over tasks: what it protects, what a task's end adds, how tasks are predicted (Eqs. 4 to 11)."""

import warnings

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from torch import nn

from flray.algorithms.fedprotip import FedProTIP, PredictingPublished, mean_scores
from flray.core.network.layers import Layer
from flray.core.network.objective import Objective
from flray.core.protocol.classes import Classes
from flray.core.protocol.clock import Clock
from flray.core.protocol.modes import SAMPLE, batch, window
from flray.ops.drifting_lda import compensated, discriminants, feature_moments
from flray.ops.subspace import project
from tests.contracts.table import TABLE
from tests.support.bases import orthonormal
from tests.support.layers import One
from tests.support.lines import LINES, lines, local, to_the_end
from tests.support.messages import facts
from tests.support.small_cases import context

pytestmark = pytest.mark.usefixtures("lines_source")


def early(**tasks):
    """The sections of the row, where the second task leaves the early layers alone."""
    sections = TABLE["fedprotip"].sections
    return {**sections, "tasks": {**sections["tasks"], "freeze": "early", **tasks}}


@pytest.mark.parametrize("options", [{}, {"merge": "sequential"}, {"svd": "randomized"}, {"append": "official"}])
def test_the_outputs_of_an_old_task_do_not_move(options, tmp_path):
    """Task 1's inputs span a plane, all of which is protected: what its head says of them stays, with momentum
    and weight decay, where the decay is projected too. Without projection of the decay, or as FedAvg, it does not."""

    def moved(name="fedprotip", **more):
        run = local(tmp_path, name, LINES, lr=0.1, momentum=0.9, weight_decay=0.05, **more)
        first, last = to_the_end(run)
        x = torch.from_numpy(lines(None).test.x[np.array(lines(None).test.y) < 2])
        outputs = [run.server.runtime.objective.at(s.w, s.b)(x)[:, :2] for s in (first, last)]
        return float((outputs[1] - outputs[0]).abs().max().detach())

    assert moved(decay_projection="project", eps=1 - 1e-9, **options) < 2e-5
    assert moved(eps=1 - 1e-9, **options) > 1e-2
    if not options:
        assert moved("fedavg") > 1e-2


def test_what_a_tasks_end_adds(tmp_path):
    """Four clients with samples of both tasks: 30 + 3 x 6 directions of the final layer, then 4 x 5; the blocks of all
    tasks together are orthonormal, and every client keeps its features and has its references."""
    run = local(tmp_path, lr=0.01)
    first, last = to_the_end(run)
    assert [space.shape for space in last.spaces] == [(90, 48), (90, 20)]
    assert list(last.blocks[0]) == ["first", "second"] and len(last.blocks) == 2
    assert torch.equal(first.blocks[0]["second"], last.blocks[0]["second"])
    for parts in (last.spaces, *([block[key] for block in last.blocks] for key in ("first", "second"))):
        basis = torch.cat(list(parts), dim=1).double()
        assert float((basis.T @ basis - torch.eye(basis.shape[1])).abs().max()) < 1e-6
    assert sorted(last.references) == [f"{task}/{k}" for task in (0, 1) for k in range(4)]
    for k, client in run.client_states().items():
        assert list(client.features) == ["0", "1"] and client.features["0"].shape[1] == 90
        for task, features in client.features.items():
            expected = torch.stack([(features @ space).norm(dim=1) for space in last.spaces], dim=1)
            torch.testing.assert_close(last.references[f"{task}/{k}"], expected)
    row = run.rows[-1]
    assert row["comm/block_bytes"] == 4 * (last.spaces[1].numel() + sum(b.numel() for b in last.blocks[1].values()))
    widths = {"first": 4, "second": 90}
    for name, d in widths.items():
        assert row[f"protected/{name}"] == sum(block[name].shape[1] for block in last.blocks) / d


@pytest.mark.parametrize("merge", ["parallel", "sequential"])
def test_others_give_their_share_where_it_is_more_than_the_first_clients(tmp_path, merge):
    """The first client gives 2, each of the three others floor(60 / 3) = 20, and 4 x 15 in the second task:
    in parallel each of the others gave 2, too."""
    _, last = to_the_end(local(tmp_path, lr=0.01, merge=merge, space_first=2, space_later=60))
    assert last.spaces[0].shape[1] == 2 + 3 * 20


def test_clients_one_after_the_other_add_only_what_is_missing(tmp_path):
    parallel, sequential = (to_the_end(local(tmp_path, merge=merge, eps=0.9)) for merge in ("parallel", "sequential"))
    assert sequential[0].blocks[0]["second"].shape[1] < parallel[0].blocks[0]["second"].shape[1]
    assert sequential[0].spaces[0].shape == parallel[0].spaces[0].shape


def test_tasks_are_predicted_in_every_mode_of_one_run(tmp_path):
    """The two tasks' classes are apart: most of them find their task; the counts of a mode are those
    of the head that was chosen."""
    run = local(tmp_path, lr=0.05, tip_window=3)
    to_the_end(run)
    at = Clock(1, run.position.round, "task_end", done=run.position.done)
    found = run.server.evaluate(at)
    assert {mode for _, mode in found} == {"global", "task_aware", "tip_sample", "tip_batch", "tip_window"}
    for task in (0, 1):
        counts = {mode: found[f"task-{task}", mode] for mode in ("tip_sample", "tip_batch", "tip_window")}
        share = {mode: c.tasks[task] / c.tasks.sum() for mode, c in counts.items() if len(c.tasks) > task}
        assert share["tip_sample"] > 0.6 and share["tip_batch"] > 0.6 and share["tip_window"] > 0.6
        aware = found[f"task-{task}", "task_aware"]
        assert all((c.right <= aware.right).all() for c in counts.values())
    during = run.server.evaluate(Clock(1, 0, "round", done=2))
    assert {mode for _, mode in during} == {"global", "task_aware"}


def test_the_samples_that_share_a_prediction_are_an_option_of_their_own(tmp_path):
    """With 1 a batch is a sample: `tip_batch` counts what `tip_sample` counts; by default it is the training batch."""
    run = local(tmp_path, lr=0.05, tip_batch_size=1)
    to_the_end(run)
    found = run.server.evaluate(Clock(1, run.position.round, "task_end", done=run.position.done))
    for task in (0, 1):
        batch, sample = (found[f"task-{task}", mode] for mode in ("tip_batch", "tip_sample"))
        assert batch.right.tolist() == sample.right.tolist() and batch.tasks.tolist() == sample.tasks.tolist()
    assert FedProTIP(batch_size=48).tip_batch == 48


def test_frozen_references_end_in_zeros_and_no_features_stay(tmp_path):
    run = local(tmp_path, reference_update="frozen_prefix")
    _, last = to_the_end(run)
    assert {omega.shape[1] for key, omega in last.references.items() if key.startswith("0/")} == {1}
    assert all(client.features == {} for client in run.client_states().values())


def test_frozen_layers_and_norms_stay_and_get_no_basis(tmp_path):
    run = local(tmp_path, sections=early(), weight_decay=0.1, norm_affine="official")
    first, last = to_the_end(run)
    assert list(last.blocks[0]) == ["second"]
    before, after = (run.server.runtime.objective.state_dict(s.w, s.b) for s in (first, last))
    for name in before:
        same = torch.equal(before[name], after[name])
        assert same == (name.startswith(("first", "norm"))), name  # official: a bias decays without a gradient
    run = local(tmp_path, sections=early(frozen_bn_stats="update"))
    first, last = to_the_end(run)
    assert not torch.equal(first.b, last.b)


CONVOLUTIONS = [nn.Conv2d(4, 6, 3), nn.Conv2d(4, 6, 3, groups=2), nn.Conv1d(4, 6, 3), nn.Linear(5, 3)]


@pytest.mark.parametrize("layer", CONVOLUTIONS)
def test_rows_and_bases_in_the_order_of_storage(layer):
    """The gradient as it lies in the flat vector, projected in place, is the projected gradient of the layer."""
    objective = Objective(One(layer))
    entry = next(entry for entry in objective.layout.entries if entry.name == "layer.weight")
    place = Layer("layer", entry, getattr(layer, "groups", 1))
    g = objective.initial()[0]
    block = {key: orthonormal(place.width, 2 + i, seed=i).float() for i, key in enumerate(place.keys)}
    widest = 1 + len(block)
    bases = torch.stack([nn.functional.pad(basis, (0, widest - basis.shape[1])) for basis in block.values()])
    weight = entry.view(g).clone()
    expected = project(weight.reshape(len(bases), len(weight) // len(bases), -1), bases).reshape(weight.shape)
    rows, basis = place.stored(g), place.basis([block])
    rows -= (rows @ basis) @ basis.mT
    torch.testing.assert_close(entry.view(g), expected)


def test_who_is_left_without_a_direction_is_told(tmp_path):
    with pytest.warns(UserWarning, match=r"task 1 \(0 is the first\): all 6 directions of the final layer"):
        to_the_end(local(tmp_path, sections=LINES))


def test_references_are_units_of_the_kind_that_is_predicted():
    """Five samples: five windows of three, or two batches."""
    omega = torch.tensor([[1.0], [2.0], [2.0], [4.0], [0.0]])
    published = PredictingPublished(torch.zeros(0), torch.zeros(0), (torch.zeros(1, 1),), {"0/3": omega}, {}, {})
    ((windows,),) = FedProTIP(magnitude="raw").references_by_client(window(3), published)
    ((batches,),) = FedProTIP(magnitude="raw").references_by_client(batch(3), published)
    assert windows is not None and batches is not None
    torch.testing.assert_close(windows.square()[:, 0], torch.tensor([1.0, 5.0, 9.0, 24.0, 20.0]).double())
    torch.testing.assert_close(batches.square()[:, 0], torch.tensor([9.0, 16.0]).double())


def test_the_strict_count_is_the_first_clients_also_where_it_adds_nothing():
    """The first direction has 0.9 of the energy: of 0.7 the strict count of the first client leaves none. The clients
    after it, and later tasks, count inclusively, although the basis is still empty (official, `update_GPM`)."""
    objective = Objective(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)))
    a, empty = torch.diag(torch.tensor([3.0, 1.0])), ({"0": torch.zeros(2, 0)},)
    strict = FedProTIP(eps=0.7, count_rule="gpm_strict_first", merge="sequential")
    ctx = context(objective, client=0)
    assert strict.directions(ctx, a, (), "0").shape == (2, 0)
    assert strict.directions(ctx, a, empty, "0").shape == FedProTIP(eps=0.7).directions(ctx, a, (), "0").shape == (2, 1)


# references ---------------------------------------------------------------------------------------
def test_held_out_samples_are_the_references_and_nothing_else(tmp_path, monkeypatch):
    """About a fifth of each client's samples: no batch of local training has one, and the stored features are those of
    exactly these samples."""
    trained, gradient = {}, FedProTIP.gradient

    def spy(self, ctx, broadcast, client, local, batch):
        trained.setdefault(ctx.client, set()).update(row.numpy().tobytes() for row in batch.x)
        return gradient(self, ctx, broadcast, client, local, batch)

    monkeypatch.setattr(FedProTIP, "gradient", spy)
    run = local(tmp_path, references="held_out", held_out=0.2)
    run.play(2)
    run.task_end()
    runtime, samples, references = run.server.runtime, 0, 0
    states = run.client_states()
    assert trained and set(trained) <= set(states)
    for k, used in trained.items():
        x = runtime.normalizer(np.array(runtime.dataset.train.x[run.scenario.partitions[0].client(k)]))
        held = torch.stack([row for row in x if row.numpy().tobytes() not in used])
        expected = runtime.objective.at(run.state.w, run.state.b).features(held).detach()
        found = states[k].features["0"]
        order, other = expected.sum(dim=1).argsort(), found.sum(dim=1).argsort()
        torch.testing.assert_close(found[other], expected[order], rtol=1e-4, atol=1e-5)
        samples, references = samples + len(x), references + len(held)
    assert 0.1 < references / samples < 0.3


def unit(v):
    return v / np.linalg.norm(v, axis=-1, keepdims=True)


def discriminant_rules(run, ends):
    """Of both tasks under the last model: the moments of all samples of a task at once, of the model of its end and of
    the one before (`tests/ops/test_drifting_lda.py` has the values)."""
    runtime, statistics = run.server.runtime, None
    for task in (0, 1):
        rows = np.concatenate([run.scenario.partitions[task].client(k) for k in run.client_states()])
        x = runtime.normalizer(np.array(runtime.dataset.train.x[rows]))
        z = [runtime.objective.at(s.w, s.b).features(x).detach() for s in ends[: task + 1]]
        places = list(runtime.context(Clock(task)).classes.task(task).places)
        y = torch.tensor([places.index(label) for label in runtime.dataset.train.y[rows]])
        statistics = compensated(statistics, feature_moments(z[-1], y, len(places), z[0] if task else None), str(task))
    return discriminants(statistics)


@pytest.mark.parametrize("merge", ["parallel", "sequential"])
def test_simple_predictors_by_hand(tmp_path, merge):
    """In NumPy, from the clients' stored features and the model's logits, per sample: the nearest class mean, the
    densest discriminant, the largest log sum of exponentials."""
    run = local(tmp_path, lr=0.05, simple_predictors=True, merge=merge, n_batches=100)
    first, last = ends = to_the_end(run)
    rules = discriminant_rules(run, ends)
    for task, (w, c) in rules.items():
        torch.testing.assert_close(last.discriminants[task], (w, c), rtol=1e-3, atol=1e-3)
    assert float((first.discriminants["0"][0] - rules["0"][0]).abs().max()) > 0.1
    assert last.moments is None and torch.equal(last.old[0], last.w)
    runtime = run.server.runtime
    at = Clock(1, run.position.round, "task_end", done=run.position.done)
    found = run.server.evaluate(at)
    ctx = runtime.context(at)
    heads = [ctx.classes.task(t).places for t in (0, 1)]
    means = [unit(run.state.means[str(t)].double().numpy()) for t in (0, 1)]
    test = runtime.dataset.test
    for task in (0, 1):
        own = np.isin(test.y, heads[task])
        x = runtime.normalizer(np.array(test.x[own]))
        model = runtime.objective.at(run.state.w, run.state.b)
        z, logits = (part(x).detach().double().numpy() for part in (model.features, model))
        near = np.stack([(unit(z) @ mean.T).max(axis=1) for mean in means], axis=1).argmax(axis=1)
        energy = np.stack([np.log(np.exp(logits[:, list(h)]).sum(axis=1)) for h in heads], axis=1).argmax(axis=1)
        dense = [logsumexp(unit(z) @ w.numpy() + c.numpy(), axis=1) for w, c in last.discriminants.values()]
        lda = np.stack(dense, axis=1).argmax(axis=1)
        for mode, expected in (("mean_sample", near), ("lda_sample", lda), ("energy_sample", energy)):
            assert found[f"task-{task}", mode].tasks.tolist() == np.bincount(expected).tolist()
    assert {"mean_batch", "lda_batch", "energy_batch"} <= {mode for _, mode in found}
    assert float(run.state.means["0"].norm()) > 1


@pytest.mark.parametrize("reads", [SAMPLE, batch(2), window(2)])
def test_a_task_without_statistics_is_never_the_densest(reads):
    """Task 1 ended without samples of it; inputs and the means of tasks 0 and 2 are alike."""
    objective = Objective(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3)))
    classes = Classes([[0], [1], [2]], 3)
    ctx = context(objective, classes=classes, clock=Clock(2, 0, "task_end"))
    rules = {"0": (2 * torch.eye(2)[:, :1], torch.zeros(1)), "2": (torch.eye(2)[:, 1:], torch.zeros(1))}
    published = PredictingPublished(torch.zeros(0), torch.zeros(0), (), {}, {}, rules)
    z = torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 1.0]] * 3)
    parts = z.split(2) if reads.kind == "batch" else [z]
    found = [
        FedProTIP().predict_by_discriminants(reads, ctx, published, (part, torch.zeros(len(part), 3))).task
        for part in parts
    ]
    expected = {"sample": [0, 0, 0, 2, 2, 2], "batch": [0, 0, 0, 0, 2, 2], "window": [0, 0, 0, 0, 2, 2]}
    assert torch.cat(found).tolist() == expected[reads.kind]


@pytest.mark.parametrize("reads", [SAMPLE, batch(3), window(2)])
def test_scores_are_averaged_over_what_a_prediction_reads(reads):
    scores = torch.tensor([[1.0, 0.0], [3.0, 2.0], [5.0, 10.0]])
    expected = {
        "sample": [[1, 0], [3, 2], [5, 10]], "batch": [[3, 4]], "window": [[1, 0], [2, 1], [4, 6]],
    }  # fmt: skip
    assert mean_scores(scores, reads).tolist() == expected[reads.kind]


def test_empty_blocks_are_counted_before_the_first_round(tmp_path):
    """Two clients, features of 6: the first client of task 0 takes 30 of them, so task 1 has no block; with 2 and 2 for
    the clients 2 + 2 + 2 x 1 directions fit."""
    with pytest.warns(UserWarning, match=facts("6 directions", "task 1: 0 of 20", "space_first=2", "space_later=2")):
        local(tmp_path, sections=LINES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        local(tmp_path, sections=LINES, space_first=2, space_later=2)
