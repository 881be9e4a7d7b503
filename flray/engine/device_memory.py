"""The memory that a client actor needs on a GPU, counted on the CPU, without one.

One client takes two local steps on a few samples, and once more on twice as many. After each operation the bytes of all
living tensors are counted; they are linear in the number of samples, so the two counts give those of a whole batch, and
the largest of them is the peak. What no tensor shows is a stated margin.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flray.core.messages import Message, map_tensors, nbytes_by_field, tensors, to_numpy
from flray.core.network.frozen import begin
from flray.core.protocol.clock import Clock
from flray.core.protocol.context import ClientContext
from flray.core.protocol.generators import preserve_globals
from flray.engine import devices
from flray.engine.client import Client, ClientResult
from flray.engine.cohort import largest_cohort, turns
from flray.engine.exchanges import Chunk
from flray.engine.runtime import Runtime
from flray.models.hugging_face import padded
from flray.ops.pooling import pooling_of
from flray.scenario import Scenario
from flray.uplink.travel import EncodedState

SAMPLES = 4  # of the smaller count: batch norm needs two, and a mask may leave half
STEPS = 2  # momentum and Adam's moments are there from the second one on
# Measured on an H100 with four networks and rounded up (`docs/pages/how-to/gpu.md`): the bytes that PyTorch's allocator
# holds for one of a tensor, because plain and recorded steps each keep theirs; the workspace of the kernels, which
# the allocator holds too; and what CUDA has besides.
HELD, WORKSPACE, CUDA = 4.0, 145 * 2**20, 775 * 2**20


class Timeline(TorchDispatchMode):
    """A context in which `history` gets the bytes that are alive on a device after each operation, by storage."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        TorchDispatchMode.__init__(self)
        self.device = torch.device(device)
        self.history: list[int] = []
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def add(self, *tensors: torch.Tensor) -> None:
        """Count these tensors too, which no operation may read."""
        for tensor in tensors:
            if tensor.device.type != self.device.type:
                continue
            storage = tensor.untyped_storage()
            self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()

    @property
    def now(self) -> int:
        self._alive = {key: one for key, one in self._alive.items() if not one[0].expired()}
        return sum(size for _, size in self._alive.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.add(*(leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor)))
        self.history.append(self.now)
        return out


class ClientMemory(NamedTuple):
    """Bytes on the device of one client actor.

    `model`: the networks; `messages`: the broadcast and the client's state; `training`: local parameters, gradient,
    optimiser; `batches`: the samples gathered at once; `activations`: what a step, a test or the encoding of the
    update adds at its peak, with the gradient's parts; `sums`: partial sums of a chunk's updates, and fields of one
    update that are sent as they are; `graphs`: what recorded steps keep; `samples`: those
    that lie there for good.
    """

    model: int
    messages: int
    training: int
    batches: int
    activations: int
    sums: int
    graphs: int = 0
    samples: int = 0

    @property
    def tensors(self) -> int:
        """Bytes of all tensors at the peak of a step that is no recorded one."""
        return sum(self) - self.graphs - self.samples

    @property
    def total(self) -> int:
        """What the process holds, in bytes."""
        return int((self.tensors + self.graphs) * HELD) + self.samples + WORKSPACE + CUDA


def client_memory(runtime: Runtime, chunk: Chunk, broadcast: Message, clients: int = 1) -> ClientMemory:
    """The memory of an actor that trains so many `clients` like the first one of `chunk`, from `broadcast`, a message
    of tensors.

    `runtime` is on the CPU. Changes nothing. Raises what the algorithm's methods raise.
    """
    client, samples = Client(runtime), len(chunk.samples(0))
    size, tested = min(client.algorithm.local_batches[0], samples), min(runtime.evaluation_batch, samples)
    few = min(SAMPLES, size)
    with preserve_globals(), padded():
        less = _count(client, chunk, broadcast, few)
        more = less if 2 * few > size else _count(client, chunk, broadcast, 2 * few)
    step = _extrapolated(less.steps, more.steps, few, size) - less.between - less.gathered
    tests = _extrapolated(less.tests, more.tests, few, tested) - less.between
    test = tests if runtime.experiment.evaluate.clients else 0
    levels = max(clients - 1, 0).bit_length() + 1  # subtrees of a chunk, and one that is being merged
    messages, training = less.before - less.model, less.between - less.before
    sums = levels * less.summed + less.single
    algorithm = client.algorithm
    recorded = runtime.experiment.resources.client.graphs and algorithm.capturable and not algorithm.reads_step_number
    graphs = messages + step if recorded else 0  # their own copies of the messages, and the activations once more
    activations = max(step, test, less.encoding)
    samples = devices.resident_bytes(runtime.dataset.train.x, runtime.dataset.train.y)
    return ClientMemory(less.model, messages, training, less.gathered, activations, sums, graphs, samples)


def largest_client_memory(runtime: Runtime, scenario: Scenario) -> ClientMemory:
    """The memory of an actor that trains the client with the most samples of the first task."""
    experiment, algorithm, members = runtime.experiment, runtime.algorithm, scenario.members(0)
    largest = members[int(np.argmax(scenario.partitions[0].sizes[members]))]
    clock, undrifted = Clock(), scenario.drifting(None)
    chunk = turns(undrifted, algorithm, np.array([largest]), clock, algorithm.training)[0][0].chunks[0]
    state = runtime.initial_state(runtime.context(clock))
    actors = experiment.resources.client_actors
    clients = -(-largest_cohort(experiment, scenario) // (actors if isinstance(actors, int) else 1))
    return client_memory(runtime, chunk, algorithm.broadcast(runtime.context(clock), state), clients)


class _Count(NamedTuple):
    """Bytes alive: of the networks; before the client begins; between two steps; after each operation of the steps and
    of a test; what the encoding of the update adds; of the batches that are gathered at once; of the update's fields
    that are `summed`, and of the others."""

    model: int
    before: int
    between: int
    steps: list[int]
    tests: list[int]
    encoding: int
    gathered: int
    summed: int
    single: int


def _count(client: Client, chunk: Chunk, broadcast: Message, samples: int) -> _Count:
    runtime, algorithm, numbers = client.runtime, client.algorithm, chunk.samples(0)
    ctx = client.context(chunk.clock, chunk.clients[0], chunk.weights[0], numbers)
    data = runtime.client_data(ctx, numbers, None if chunk.previous is None else chunk.previous.of(0))
    runtime.seed_modules(runtime.module_seed(ctx))
    broadcast, state = map_tensors(torch.clone, broadcast), client.state(ctx, None)
    timeline = Timeline()
    _tested(runtime, timeline, ctx, broadcast, 2)  # the module's parameters are views of the message from then on
    received = {tensor.untyped_storage()._cdata for tensor in _tensors(broadcast)}
    networks = [tensor for objective in (runtime.objective, *runtime.net.values()) for tensor in objective.resident()]
    timeline = Timeline()
    timeline.add(*(tensor for tensor in networks if tensor.untyped_storage()._cdata not in received))
    model = timeline.now
    timeline.add(*_tensors(broadcast), *_tensors(state))
    before = timeline.now
    begin(ctx.objective, ctx.net.values())
    local = algorithm.begin(ctx, broadcast, state, data)
    timeline.add(*_tensors(local))
    between, gathered, steps = timeline.now, 0, [timeline.now]
    for taken, batch in enumerate(algorithm.batches(ctx, broadcast, state, local, data), 1):
        timeline.add(batch.x, batch.y)
        gathered = timeline.now - between
        part = batch.replace(x=batch.x[:samples], y=batch.y[:samples])
        timeline.history = []
        with timeline:
            local = algorithm.step(ctx, broadcast, state, local, part)
        steps += timeline.history
        del part
        between = timeline.now - gathered
        if taken == STEPS:
            break
    update, after = algorithm.end(ctx, broadcast, state, local, data)
    result = ClientResult(update, after, {}, STEPS, STEPS * samples)
    stored = to_numpy(client.as_sent(ctx, algorithm.training, broadcast, result, None)[0].state)
    timeline.history = [between + gathered]
    with timeline:  # with the residual of an earlier update
        client.as_sent(ctx, algorithm.training, broadcast, result, stored if isinstance(stored, EncodedState) else None)
    encoding = max(timeline.history) - between - gathered
    tests = _tested(runtime, timeline, ctx, update, samples)
    how = pooling_of(update, runtime.rule_of(algorithm.training))
    sizes = nbytes_by_field(update)
    single = sum(size for name, size in sizes.items() if how.get(name) == "each")
    return _Count(model, before, between, steps, tests, encoding, gathered, sum(sizes.values()) - single, single)


def _tested(runtime: Runtime, timeline: Timeline, ctx: ClientContext, message: Message, samples: int) -> list[int]:
    """Bytes alive after each operation of a test of the message's model on so many `samples`."""
    model = runtime.algorithm.model_of(ctx, message)
    timeline.history = [timeline.now]
    if model is not None:
        x = runtime.normalizer(np.array(runtime.dataset.train.x[:samples]))
        with timeline, torch.no_grad():
            ctx.objective.at(*model)(x)
    return timeline.history


def _tensors(message: Message) -> list[Tensor]:
    return [tensor for tensor in tensors(message).values() if isinstance(tensor, Tensor)]


def _extrapolated(less: list[int], more: list[int], few: int, samples: int) -> int:
    """The largest of counts that are linear in the number of samples, at so many `samples`, from counts at `few` and at
    twice as many. If the operations differ, the two largest counts are taken."""
    if len(less) != len(more):
        less, more = [max(less)], [max(more)]
    factor = samples / few - 1
    return int(max(one + (two - one) * factor for one, two in zip(less, more, strict=True)))
