"""Right predictions, counted in blocks of several test sets and inference modes, against NumPy over whole arrays."""

import math
from collections import Counter

import numpy as np
import pytest
import scipy
import torch

from flray.algorithms.fedavg import FedAvg
from flray.core.network.objective import Objective
from flray.core.protocol.clock import Clock
from flray.core.protocol.context import Context
from flray.core.protocol.modes import SAMPLE, Mode, Prediction, batch, window
from flray.core.protocol.seeding import rng
from flray.core.schema.errors import AlgorithmError
from flray.data import Normalizer
from flray.data.data_config import Augment
from flray.data.dataset import Dataset, Split
from flray.engine.counts import Evaluator, blocks_of_part, count_predictions, group_modes, merge_counts
from flray.engine.trial import try_in_eval
from flray.scenario.tasks import TestSet
from tests.support.messages import facts
from tests.support.networks import Mlp, build

CLASSES, N = 4, 103
passed = Counter()


class Routed(FedAvg, frozen=True):
    """Heads of two tasks, classes 0-1 and 2-3, on x itself.

    Which head answers is known, or guessed from the sample, from ten samples, or from it and the two before.
    """

    def modes(self, ctx):
        return {
            "all": Mode(self.everything, SAMPLE, self.scores),
            "aware": Mode(self.aware, SAMPLE, self.scores),
            "guess": Mode(self.guess, SAMPLE, self.scores),
            "batch": Mode(self.of_a_batch, batch(10), self.scores),
            "window": Mode(self.of_a_window, window(3)),
        }

    def scores(self, ctx, published, x):
        passed["scores"] += 1
        return x[:, :CLASSES]

    def everything(self, ctx, published, z):
        return z

    def aware(self, ctx, published, z):
        known = torch.arange(2) + 2 * ctx.tested if ctx.tested >= 0 else torch.arange(CLASSES)
        return Prediction(z[:, known], known)

    def guess(self, ctx, published, z):
        return self.routed(z, (z[:, :2].amax(dim=1) < z[:, 2:].amax(dim=1)).long())

    def of_a_batch(self, ctx, published, z):
        return self.routed(z, (z[:, :2].mean() < z[:, 2:].mean()).long().expand(len(z)))

    def of_a_window(self, ctx, published, x):
        """Which half of the scores was larger in the mean of the sample and the two before it."""
        z = x[:, :CLASSES]
        score = z[:, 2:].sum(dim=1) - z[:, :2].sum(dim=1)
        total = torch.stack([score[max(0, i - 2) : i + 1].sum() for i in range(len(z))])
        return self.routed(z, (total > 0).long())

    def routed(self, z, task):
        classes = 2 * task[:, None] + torch.arange(2)
        return Prediction(z.gather(1, classes), classes, task=task)


@pytest.fixture
def evaluator():
    return make(block=16)


def make(block):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(N, 6)).astype(np.float32)
    y = rng.integers(CLASSES, size=N)
    x[np.arange(N), y] += 1.0
    split = Split(x, y)
    dataset = Dataset("scores", split, split, tuple("abcd"), (0.0,), (1.0,), "", Augment())
    return Evaluator(Routed(), dataset, Normalizer([0.0], [1.0]), block)


def ctx():
    return Context(Objective(build(Mlp)), 0, Clock(), 5, 3)


SETS = {
    "test": TestSet("test"),
    "first": TestSet("test", np.array([90, 3, 5, 7, 11, 41, 42, 43]), task=0),
    "second": TestSet("train", np.arange(50, 85), task=1),
}


def log_softmax(z):
    return scipy.special.log_softmax(z.astype(np.float64), axis=1)


def expected(split, tested, name):
    """mode -> (predicted class, predicted task or None, log-probability of the label, NaN outside its head).

    In the order in which batches and windows read the test set, which is drawn from the seed.
    """
    rows = np.arange(N) if tested.samples is None else tested.samples
    rows = rows[rng(0, "test order", name).permutation(len(rows))]
    z, y = split.x[rows, :CLASSES], split.y[rows]
    every = log_softmax(z)[np.arange(len(y)), y]

    def routed(task):
        heads = np.where(task[:, None] == 0, z[:, :2], z[:, 2:])
        inside = y // 2 == task
        return heads.argmax(1) + 2 * task, task, np.where(inside, log_softmax(heads)[np.arange(len(y)), y % 2], np.nan)

    batches = np.concatenate(
        [np.full(len(b), b[:, :2].mean() < b[:, 2:].mean()) for b in np.split(z, range(10, len(z), 10))]
    )
    score = z[:, 2:].sum(1) - z[:, :2].sum(1)
    before = np.concatenate([np.zeros(2, np.float32), score])
    own = {"all": (z.argmax(1), None, every), "guess": routed((z[:, :2].max(1) < z[:, 2:].max(1)).astype(int))}
    own |= {
        "batch": routed(batches.astype(int)),
        "window": routed((before[:-2] + before[1:-1] + before[2:] > 0).astype(int)),
    }
    own["aware"] = own["all"]
    if tested.task >= 0:
        label, _, loss = routed(np.full(len(y), tested.task))
        own["aware"] = (label, None, loss)
    return y, own


@pytest.mark.parametrize("block", [1, 7, 16, 512])
def test_modes_and_test_sets_against_numpy(block):
    """Labels outside the head that a sample was routed to count as wrong and have no loss, never an infinite one."""
    evaluator = make(block)
    found = evaluator.count(ctx(), None, SETS)
    assert set(found) == {(name, mode) for name in SETS for mode in ("all", "aware", "guess", "batch", "window")}
    for name, tested in SETS.items():
        y, modes = expected(evaluator.dataset.test, tested, name)
        for mode, (label, task, loss) in modes.items():
            counts = found[name, mode]
            assert counts.total.tolist() == np.bincount(y, minlength=CLASSES).tolist()
            assert counts.right.tolist() == np.bincount(y[label == y], minlength=CLASSES).tolist(), (name, mode)
            assert counts.covered == np.isfinite(loss).sum()
            assert counts.loss == pytest.approx(-np.nanmean(loss), rel=1e-6)
            assert (counts.tasks is None) == (task is None)
            assert task is None or counts.tasks.tolist() == np.bincount(task).tolist()
    guessed = found["test", "guess"]
    assert guessed.covered < N and math.isfinite(guessed.loss)


def test_a_batch_of_a_test_set_that_is_sorted_by_class_has_several_classes():
    """Ten classes of ten samples in file order: batches of ten of one class each, were they read so. The order is the
    same at every test of a run, and another one under another seed."""
    y = np.repeat(np.arange(10), 10)
    split, seen = Split(y[:, None].astype(np.float32), y), []

    class Looking(FedAvg, frozen=True):
        def modes(self, ctx):
            return {"batch": Mode(self.look, batch(10))}

        def look(self, ctx, published, x):
            seen.append(x[:, 0].long().tolist())
            return torch.zeros(len(x), 10)

    dataset = Dataset("sorted", split, split, tuple("0123456789"), (0.0,), (1.0,), "", Augment())
    evaluator = Evaluator(Looking(), dataset, Normalizer([0.0], [1.0]), 16)
    for seed in (0, 0, 1):
        evaluator.count(Context(Objective(build(Mlp)), seed, Clock(), 5, 3), None, {"test": TestSet("test")})
    first, again, other = seen[:10], seen[10:20], seen[20:]
    assert sorted(label for labels in first for label in labels) == y.tolist() and all(
        len(set(labels)) > 3 for labels in first
    )
    assert first == again != other


@pytest.mark.parametrize("parts", [1, 2, 3, 8, 100])
def test_the_same_counts_and_bits_from_any_number_of_parts(evaluator, parts):
    whole = evaluator.count(ctx(), None, SETS)
    pieces = [evaluator.count(ctx(), None, SETS, part, parts) for part in range(parts)]
    together = merge_counts(pieces)
    assert list(together) == list(whole)
    for key, counts in whole.items():
        other = together[key]
        assert (other.right.tolist(), other.total.tolist(), other.covered) == (
            counts.right.tolist(),
            counts.total.tolist(),
            counts.covered,
        )
        assert other.loss_sum == counts.loss_sum and other.losses.tolist() == counts.losses.tolist()
    blocks = list(evaluator.blocks(ctx(), SETS))
    sizes = [sum(block.stop - block.start for block in blocks_of_part(blocks, part, parts)) for part in range(parts)]
    assert sum(sizes) == 2 * (N + 8 + 35) and max(sizes) - min(sizes) <= 2 * 16


def test_modes_that_share_a_forward_pass_read_a_block_once(evaluator):
    """One pass in blocks of the batch's 10 samples for four modes, none for the window, which reads x itself."""
    read = group_modes(evaluator.algorithm.modes(ctx()))
    assert sorted((one.reads, *one.modes) for one in read) == [
        (batch(10), "all", "aware", "guess", "batch"),
        (window(3), "window"),
    ]
    passed.clear()
    evaluator.count(ctx(), None, {"test": TestSet("test")})
    assert passed["scores"] == math.ceil(N / 10)


def test_a_class_of_logit_minus_infinity_is_outside_the_head():
    logits = torch.tensor([[1.0, 2.0, -torch.inf], [1.0, 2.0, -torch.inf], [0.0, float("nan"), 0.0]])
    counts = count_predictions(Prediction(logits[:2]), np.array([1, 2]), 3)
    assert counts.covered == 1 and counts.loss == pytest.approx(math.log(1 + math.exp(-1)))
    assert counts.right.tolist() == [0, 1, 0] and counts.total.tolist() == [0, 1, 1]
    assert math.isnan(count_predictions(Prediction(logits), np.array([1, 2, 0]), 3).loss), (
        "a model that diverged has its loss"
    )


def test_labels_without_logits_have_no_loss():
    """A nearest-mean classifier: predicted [2, -1, 0] for labels [2, 1, 1]; -1 is no class at all."""
    counts = count_predictions(Prediction(label=torch.tensor([2, -1, 0])), np.array([2, 1, 1]), 3)
    assert counts.right.tolist() == [0, 0, 1] and counts.covered == 0 and math.isnan(counts.loss)
    with pytest.raises(AlgorithmError, match=facts("Prediction", "logits", "label")):
        count_predictions(Prediction(), np.array([0]), 3)


def test_the_loss_of_one_block_is_that_of_torch_to_the_bit():
    logits, y = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)), np.arange(50) % 7
    whole = torch.nn.functional.cross_entropy(logits.double(), torch.from_numpy(y), reduction="sum")
    assert count_predictions(Prediction(logits), y, 7).losses.tolist() == [float(whole)]


# the block ------------------------------------------------------------------------------------
class Wide(torch.nn.Module):
    """One activation of so many numbers."""

    def __init__(self, width):
        super().__init__()
        self.one, self.drop = torch.nn.Linear(3, width), torch.nn.Dropout()

    def forward(self, x):
        return self.drop(self.one(x))[:, :2]


@pytest.mark.parametrize(
    ("width", "block"), [(10, 512), (8192, 512), (8193, 256), (65536, 64), (100_000, 32), (2_000_000, 16)]
)
def test_the_largest_activation_decides_how_many_samples_are_read_at_once(width, block):
    """16 MiB are 4,194,304 float32 numbers: 512 samples of 8192, 64 of 65536; at least 16 samples."""
    network = Wide(width).train()
    before = torch.get_rng_state()
    assert try_in_eval(network, torch.zeros(2, 3)) == block
    assert torch.equal(torch.get_rng_state(), before) and network.training and network.drop.training
    assert not any(part._forward_hooks for part in network.modules())


def test_a_network_that_cannot_read_the_data_says_so_with_its_own_line():
    with pytest.raises(AlgorithmError, match=facts("Wide", "[2, 5]", "RuntimeError", "self.one(x)")):
        try_in_eval(Wide(4), torch.zeros(2, 5))
