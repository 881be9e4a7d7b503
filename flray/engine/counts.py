"""Counts of right predictions: one model on every test set in every inference mode, in parts for several processes.

A test set is cut into blocks. The counts of blocks are added in a fixed order, so the sum does not depend on the
processes. `metrics/classification.py` derives accuracies from counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from flray.core.messages import Message
from flray.core.protocol.algorithm import Algorithm
from flray.core.protocol.context import Context
from flray.core.protocol.generators import seed_globals
from flray.core.protocol.modes import SAMPLE, Mode, Prediction, Reading
from flray.core.protocol.returned import check_logits
from flray.core.protocol.seeding import rng, torch_seed
from flray.core.schema.errors import AlgorithmError, named
from flray.data import Normalizer
from flray.data.cache import Array
from flray.data.dataset import Dataset
from flray.engine.blame import errors_of
from flray.metrics.classification import Counts, is_right
from flray.scenario.tasks import TestSet

TestCounts = dict[tuple[str, str], Counts]  # by (test set, mode)


class ModeGroup(NamedTuple):
    """Modes that read a block together, and the forward pass that they share."""

    reads: Reading
    forward: Callable[..., Any] | None
    modes: Mapping[str, Mode]


class TestBlock(NamedTuple):
    """Samples `start ... stop - 1` of a test set for one group of modes.

    They stand in the file's order if each is predicted alone, else in a random order.
    """

    test_set: str
    group: ModeGroup
    start: int
    stop: int


class Evaluator:
    """Counts what an algorithm's modes predict for samples of a data set, on one device."""

    def __init__(
        self,
        algorithm: Algorithm,
        dataset: Dataset,
        normalizer: Normalizer,
        block: int,
    ) -> None:
        """`block`: the number of samples in one forward pass of modes that predict each sample alone."""
        self.algorithm, self.dataset, self.normalizer, self.block = algorithm, dataset, normalizer, block

    def count(
        self, ctx: Context, published: Message, tests: Mapping[str, TestSet], part: int = 0, parts: int = 1
    ) -> TestCounts:
        """The counts of part number `part` of `parts` contiguous parts of all blocks.

        `published`: the message of `Algorithm.published`, as tensors on the device. A test set without a block in this
        part is not in the result.
        """
        result: TestCounts = {}
        orders = {name: self._order(ctx, name, tested) for name, tested in tests.items()}
        with torch.no_grad():
            for block in blocks_of_part(list(self.blocks(ctx, tests)), part, parts):
                tested = tests[block.test_set]
                for mode, counts in self._count(
                    replace(ctx, tested=tested.task), published, tested, block, orders[block.test_set]
                ):
                    earlier = result.get((block.test_set, mode))
                    result[block.test_set, mode] = counts if earlier is None else earlier + counts
        return result

    def blocks(self, ctx: Context, tests: Mapping[str, TestSet]) -> Iterator[TestBlock]:
        """All blocks in their order: test set by test set, group by group."""
        with errors_of(self.algorithm, "modes", ctx.clock):
            groups = group_modes(self.algorithm.modes(ctx))
        for name, tested in tests.items():
            size = self._size(tested)
            for group in groups:
                step = group.reads.size if group.reads.kind == "batch" else self.block
                for start in range(0, size, step):
                    yield TestBlock(name, group, start, min(start + step, size))

    def _size(self, tested: TestSet) -> int:
        return len(getattr(self.dataset, tested.split).y) if tested.samples is None else len(tested.samples)

    def _order(self, ctx: Context, name: str, tested: TestSet) -> Array:
        """The random order in which batches and windows read a test set, because a file may be sorted by class."""
        return rng(ctx.seed, "test order", name).permutation(self._size(tested))

    def _count(
        self, ctx: Context, published: Message, tested: TestSet, block: TestBlock, order: Array
    ) -> Iterator[tuple[str, Counts]]:
        address = (*ctx.clock.address, block.test_set, block.start)
        seed_globals(torch_seed(ctx.seed, "test draws", *address), ctx.device)  # what a module draws when it predicts
        before = min(block.start, block.group.reads.size - 1) if block.group.reads.kind == "window" else 0
        split, rows = getattr(self.dataset, tested.split), slice(block.start - before, block.stop)
        numbers: Any = rows if block.group.reads.kind == "sample" else order[rows]
        numbers = numbers if tested.samples is None else tested.samples[numbers]
        # np.array copies: no tensor may be a writable view of a read-only map
        x, y = self.normalizer(np.array(split.x[numbers])), np.array(split.y[numbers])[before:]
        forward = block.group.forward
        z, classes = x if forward is None else forward(ctx, published, x), self.dataset.num_classes
        if forward == self.algorithm.predict:
            check_logits(z, len(x), classes, forward)
        for name, mode in block.group.modes.items():
            with errors_of(self.algorithm, getattr(mode.answer, "__name__", f"modes[{name!r}].answer"), ctx.clock):
                prediction = check_prediction(mode.answer(ctx, published, z), len(x), classes, mode.answer)
            yield name, count_predictions(prediction.behind(before), y, self.dataset.num_classes, ctx.meanings)


def group_modes(modes: Mapping[str, Mode]) -> list[ModeGroup]:
    """The modes in groups that share a forward pass.

    A mode that reads single samples joins the first group with the same `forward` that reads batches or windows.
    """
    wide = {(mode.forward, mode.reads) for mode in modes.values() if mode.forward is not None and mode.reads != SAMPLE}
    groups: dict[Any, dict[str, Mode]] = {}
    for name, mode in modes.items():
        joined = [reads for forward, reads in sorted(wide, key=lambda pair: pair[1]) if forward == mode.forward]
        reads = joined[0] if mode.reads == SAMPLE and joined else mode.reads
        key = (reads, name if mode.forward is None else mode.forward)
        groups.setdefault(key, {})[name] = mode
    return [ModeGroup(reads, next(iter(members.values())).forward, members) for (reads, _), members in groups.items()]


def blocks_of_part(blocks: Sequence[TestBlock], part: int, parts: int) -> Sequence[TestBlock]:
    """The blocks of part number `part` of `parts` contiguous parts with about the same number of samples."""
    ends = np.cumsum([0, *(block.stop - block.start for block in blocks)])
    cuts = np.searchsorted(ends, ends[-1] * np.arange(parts + 1) / parts - 1e-9)
    return blocks[cuts[part] : cuts[part + 1]]


def merge_counts(parts: Iterable[TestCounts]) -> TestCounts:
    """The sum of the counts of all parts, in their order."""
    total: TestCounts = {}
    for key, counts in itertools.chain.from_iterable(part.items() for part in parts):
        total[key] = total[key] + counts if key in total else counts
    return total


def add_test_sums(tests: Mapping[str, TestSet], counts: TestCounts) -> TestCounts:
    """The counts of these test sets, in their order. A test set that consists of parts gets the sum of its parts."""
    result: TestCounts = {}
    for name, tested in tests.items():
        for part in tested.parts or (name,):
            for (_, mode), count in ((key, count) for key, count in counts.items() if key[0] == part):
                key = name, mode
                result[key] = result[key] + count if key in result else count
    return result


# `object`: a user's mode may return anything
def check_prediction(answer: object, samples: int, classes: int, method: Callable[..., Any]) -> Prediction:
    """The `answer` of an inference mode for so many `samples`, as a prediction.

    Raises `AlgorithmError`, which names the mode's `method`, for an answer of another form.
    """
    if not isinstance(answer, Prediction):
        check_logits(answer, samples, classes, method)
        return Prediction(cast(Tensor, answer))
    logits, among, label, task = answer
    wrong = ""
    if logits is not None and not (isinstance(logits, Tensor) and logits.dim() == 2 and len(logits) == samples):
        wrong = f"logits {_shape(logits)}; give [{samples}, H], a row for each sample"
    elif logits is not None and among is None and logits.shape[1] > classes:
        wrong = f"logits {_shape(logits)} of {classes} classes; narrow them, or name their classes"
    elif logits is not None and among is not None and tuple(among.shape) not in (logits.shape[1:], logits.shape):
        wrong = f"classes {_shape(among)} of logits {_shape(logits)}; give [{logits.shape[1]}], one for each logit"
    for name, part in (("label", label), ("task", task)):
        if not wrong and part is not None and not _is_index(part, samples):
            wrong = f"{name} {_shape(part)}; give integers [{samples}], one for each sample"
    if wrong:
        raise AlgorithmError(f"{named(method)} returned a Prediction with {wrong}")
    return answer


def _is_index(part: object, samples: int) -> bool:
    return isinstance(part, Tensor) and tuple(part.shape) == (samples,) and part.dtype in (torch.int64, torch.int32)


def _shape(part: object) -> str:
    if not isinstance(part, Tensor):
        return f"of type {type(part).__name__}"
    return f"{list(part.shape)}" + (f" of {part.dtype}".replace("torch.", "") if part.dtype != torch.float32 else "")


def count_predictions(prediction: Prediction, y: Array, num_classes: int, meanings: Array | None = None) -> Counts:
    """The counts of one block with labels `y [B]` (int64, below `num_classes`).

    `meanings [C]`: see :func:`is_right`. Raises `AlgorithmError` for a prediction with neither logits nor a label.
    """
    logits, classes, label, task = prediction
    losses, covered = np.zeros(0), 0
    if logits is not None:
        loss, covered = _summed_loss(logits, classes, torch.from_numpy(y).to(logits.device))
        losses = np.array([loss])
        label = _class_of_largest(logits, classes) if label is None else label
    if label is None:
        raise AlgorithmError(
            "an inference mode returned a Prediction without logits and without label; give one of them"
        )
    right = y[is_right(label.cpu().numpy(), y, meanings)]
    tasks = None if task is None else np.bincount(task.cpu().numpy())
    return Counts(
        np.bincount(right, minlength=num_classes), np.bincount(y, minlength=num_classes), losses, covered, tasks
    )


def _class_of_largest(logits: Tensor, classes: Tensor | None) -> Tensor:
    place = logits.argmax(dim=1)
    if classes is None:
        return place
    return classes[place] if classes.dim() == 1 else classes.gather(1, place[:, None])[:, 0]


def _summed_loss(logits: Tensor, classes: Tensor | None, y: Tensor) -> tuple[float, int]:
    """(summed cross-entropy in float64, number of its samples): the samples whose label has a logit other than -inf."""
    if classes is None:
        inside, place = y < logits.shape[1], y.clamp(max=logits.shape[1] - 1)
    else:
        match = classes == y[:, None]
        inside, place = match.any(dim=1), match.int().argmax(dim=1)
    # a NaN logit counts, so a model that diverged has the loss NaN
    inside = inside & (logits.gather(1, place[:, None])[:, 0] != -torch.inf)
    covered = int(inside.sum())
    if covered < len(y):
        logits, place = logits[inside], place[inside]
    return float(cross_entropy(logits.double(), place, reduction="sum")), covered
