"""Training on all data in one place: one worker's parts of every batch. Knows no Ray, only how to gather tensors.

A batch is cut into `shards` parts of ceil(B / shards) samples, a worker computes a contiguous run of them, and their
mean follows the fixed tree of `ops/average.py`: every worker ends with the same bits, which do not depend on how many
workers there are.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from flray.core.messages import Batch, Message, Metrics, Record
from flray.core.network.frozen import FrozenCopies, begin
from flray.core.protocol import seeding
from flray.core.protocol.clock import Clock
from flray.core.protocol.context import SERVER, ClientContext
from flray.core.schema.errors import ConfigError
from flray.data import Batches
from flray.data.cache import Array
from flray.engine.blame import ONE_SAMPLE, is_of_one_sample
from flray.engine.counts import TestCounts, merge_counts
from flray.engine.health import model_is_finite, reported
from flray.engine.runtime import Runtime
from flray.ops.average import PartialSum, TreeSum, combine

# every worker's tensor, all of one shape, in order of rank; valid until the next call
Gather = Callable[[Tensor], list[Tensor]]


class PartGradient(Record):
    """What a part of a batch gives: gradient `g [P]`, statistics `b [Q]` after its forward pass, mean loss `[1]`."""

    g: Tensor
    b: Tensor
    loss: Tensor


class Learner:
    """Worker `rank` of `world`. All workers call the same methods with the same arguments, and get the same results."""

    def __init__(
        self,
        runtime: Runtime,
        samples: Sequence[Array],
        rank: int = 0,
        world: int = 1,
        gather: Gather | None = None,
        drifted: Mapping[int, Array] | None = None,
    ) -> None:
        """`samples`: each task's training samples, in an order that all workers share; `drifted`: what is left of them
        in a round, by `done`, where that is less. `gather` is needed where `world > 1`."""
        self.runtime, self.samples, self.drifted = runtime, samples, drifted or {}
        self.algorithm = cast(Any, runtime.algorithm)  # of those that are `centralized`: with `shards` and `descend`
        self.rank, self.world, self._gather = rank, world, gather
        self.batch_size, self.epochs = self.algorithm.local_batches
        self.part: int = -(-self.batch_size // self.algorithm.shards)  # samples of a part; a short batch has fewer
        objective = runtime.objective
        self._sizes = [objective.layout.size, objective.buffer_layout.size, 1]  # of a PartGradient's fields
        self._sent = torch.zeros(0, dtype=objective.dtype)
        self._spare: list[PartGradient] = []
        self._plans: dict[int, list[list[PartialSum]]] = {}

    def context(self, clock: Clock, num_steps: int = 0) -> ClientContext:
        """The one trainer's, whose draws are addressed as the server's."""
        size = len(self.samples_of(clock))
        return self.runtime.client_context(clock, SERVER, num_steps=num_steps, num_examples=size, weight=1.0)

    def samples_of(self, clock: Clock) -> Array:
        return self.drifted.get(clock.done, self.samples[clock.task])

    # training -----------------------------------------------------------------------------------
    def round(self, state: Message, clock: Clock) -> tuple[Message, Metrics, int]:
        """(state after a round, metrics, gradient steps); where a drift leaves no sample the state stays."""
        if not len(self.samples_of(clock)):
            return state, {}, 0
        batches = self._batches(clock)
        ctx = self.context(clock, len(batches))
        begin(ctx.objective, ctx.net.values())
        local = self.algorithm.begin(ctx, None, state, None)
        frozen = FrozenCopies(ctx.objective, self.algorithm.model_of(ctx, local))
        for step, batch in enumerate(batches):
            left = len(self.samples_of(clock)) - step % (len(batches) // self.epochs) * self.batch_size
            mean = self._mean(ctx, state, local, batch, step, min(self.batch_size, left))
            local.b.copy_(mean.b)
            local = self.algorithm.descend(ctx, None, local, mean.loss[0], mean.g)
            if frozen:
                frozen.put_back_(local.w)
            if self.world == 1:
                self._spare.append(mean)
        self.runtime.check_networks()
        _, state = self.algorithm.end(ctx, None, state, local, None)
        return state, self.algorithm.report(ctx, local), len(batches)

    def recorded_round(self, state: Message, clock: Clock) -> tuple[Message, dict[str, Any]]:
        """(state after the round, what its row says, and under `counts` the counts of its test)."""
        started = time.perf_counter()
        evaluate, rounds = self.runtime.experiment.evaluate, self.runtime.experiment.rounds
        state, metrics, steps = self.round(state, clock)
        row: dict[str, Any] = reported(metrics, self.algorithm.report)
        trained = time.perf_counter()
        if evaluate.due(clock.round, rounds):
            row["counts"] = self.test(state, clock)
            row["time/evaluate_s"] = time.perf_counter() - trained
        row |= {
            "client_steps": steps,
            "diverged": not model_is_finite(self.algorithm.model_of(self.context(clock), state)),
            "time/client_s": (trained - started) * self.world,
        }
        return state, {**row, "time/round_s": time.perf_counter() - started}

    def _batches(self, clock: Clock) -> Batches:
        data, mine = self.runtime.dataset, self._mine(self.rank)
        seed, address = self.runtime.experiment.seed, (*clock.address, SERVER)
        return Batches(
            data.train.x,
            data.train.y,
            self.samples_of(clock),
            batch_size=self.batch_size,
            epochs=self.epochs,
            last_batch=self.algorithm.last_batch,
            rows=None if self.world == 1 else (mine.start * self.part, mine.stop * self.part),
            rng=lambda purpose, epoch: seeding.rng(seed, *address, purpose, epoch),
            normalizer=self.runtime.normalizer,
            augment=data.augment,
            shuffle=self.runtime.experiment.data.shuffle,
        )

    def _mine(self, rank: int) -> range:
        return range(self.algorithm.shards * rank // self.world, self.algorithm.shards * (rank + 1) // self.world)

    def _size(self, part: int, count: int) -> int:
        """Samples of a part of a batch of `count`."""
        return max(min(self.part, count - part * self.part), 0)

    def _mean(
        self, ctx: ClientContext, state: Message, local: Message, batch: Batch, step: int, count: int
    ) -> PartGradient:
        """The mean over a batch of `count` samples, of which `batch` has this worker's; the caller may overwrite it."""
        own = self._sums(ctx, state, local, batch, step, count)
        mean: PartGradient = combine(own if self.world == 1 else self._exchange(own, count))
        return mean

    def _sums(
        self, ctx: ClientContext, state: Message, local: Message, batch: Batch, step: int, count: int
    ) -> list[PartialSum]:
        """This worker's parts, reduced to whole subtrees; the parameters stay as they are."""
        tree, first, b = TreeSum(self._spare), 0, ctx.objective.scratch("part's statistics", local.b)
        for part in self._mine(self.rank):
            size = self._size(part, count)
            if size:
                # what a module draws: dropout
                moment = replace(ctx, clock=ctx.clock._replace(exchange=step), client=part)
                self.runtime.seed_modules(self.runtime.module_seed(moment))
                ctx.objective.restore_state()
                some = Batch(batch.x[first : first + size], batch.y[first : first + size])
                with self._parts_of_one(count):
                    loss, g = self.algorithm.gradient(ctx, None, state, local.replace(b=b.copy_(local.b)), some)
                tree.add(part, PartGradient(g, b, loss.reshape(1)), size / count)
            else:
                tree.add(part, None, 0.0)
            first += size
        return tree.nodes

    @contextlib.contextmanager
    def _parts_of_one(self, count: int) -> Iterator[None]:
        """Raises `ConfigError` where batch norm gets one sample, as a part of a batch of `count`."""
        try:
            yield
        except ValueError as error:
            if not is_of_one_sample(error):
                raise
            what = f"a batch of {count} is cut into parts of {self.part}; set algorithm.shards=1, or another batch_size"
            if self.batch_size == 1:
                what = "algorithm.batch_size is 1; raise it"
            elif count == 1:
                what = "the last one of an epoch has one; set algorithm.last_batch=drop, or another batch_size"
            raise ConfigError(f"{ONE_SAMPLE}: {what}") from None

    def _exchange(self, own: list[PartialSum], count: int) -> list[PartialSum]:
        """The subtrees of all workers, in order of position."""
        assert self._gather is not None
        plan = self._plan(count)
        shape = (max(map(len, plan)), sum(self._sizes))
        if self._sent.shape != shape:
            self._sent = torch.zeros(shape, dtype=self._sent.dtype, device=self.runtime.objective.device)
        for row, node in zip(self._sent, own, strict=False):
            if node.value is not None:
                torch.cat(tuple(vars(node.value).values()), out=row)
                self._spare.append(node.value)
        everyone = self._gather(self._sent)
        return [
            node if node.value is None else node._replace(value=PartGradient(*row.split(self._sizes)))
            for nodes, rows in zip(plan, everyone, strict=True)
            for node, row in zip(nodes, rows, strict=False)
        ]

    def _plan(self, count: int) -> list[list[PartialSum]]:
        """The subtrees that each worker sends for a batch of `count`, numbers in the values' place; None: no
        samples."""
        if count not in self._plans:
            trees = [TreeSum() for _ in range(self.world)]
            for rank, tree in enumerate(trees):
                for part in self._mine(rank):
                    size = self._size(part, count)
                    tree.add(part, 1.0 if size else None, size / count)
            self._plans[count] = [tree.nodes for tree in trees]
        return self._plans[count]

    # testing ------------------------------------------------------------------------------------
    def test(self, state: Message, clock: Clock) -> TestCounts:
        """The counts of every test set in every mode; those of its blocks are added in order, whoever computed them."""
        ctx = self.context(clock)
        own = self.runtime.evaluate(self.algorithm.published(ctx, state), ctx, self.rank, self.world)
        return own if self.world == 1 else merge_counts(map(pickle.loads, self._gather_bytes(pickle.dumps(own))))

    def _gather_bytes(self, own: bytes) -> list[bytes]:
        """Every worker's bytes, in order of rank."""
        assert self._gather is not None
        device = self.runtime.objective.device
        sizes = [int(size) for size in self._gather(torch.tensor([len(own)], device=device))]
        sent = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
        sent[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        return [theirs[:size].cpu().numpy().tobytes() for theirs, size in zip(self._gather(sent), sizes, strict=True)]
