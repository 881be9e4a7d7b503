"""FLOPs of clients' local steps: counted once for each kind of step, on extra steps whose results are discarded.

The extra steps change no bit of the run. They are those of the largest client in the first exchange with steps of
the kind; a client of that kind with a smaller replay memory may take cheaper steps. `CountFlops` counts matrix
products, convolutions and attention in `Algorithm.step`; a multiplication and an addition are two FLOPs. This
includes FedSOL's perturbation, FedProj's memory and a teacher. It counts no element-wise operation, no vector `[P]`,
nothing before a client's first or after its last step, no exchange without local steps, no test, and nothing of the
server half."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from torch.utils._python_dispatch import TorchDispatchMode

from flray.core.messages import Message
from flray.core.protocol.algorithm import Algorithm
from flray.core.protocol.generators import preserve_globals
from flray.engine.client import Client
from flray.engine.exchanges import Chunk, ExchangePlan
from flray.files import checksum

_elementary: set[Any] = set()  # operations without a formula that do not consist of others


class CountFlops(TorchDispatchMode):
    """Adds up the FLOPs of the operations in its block, by the formulas of torch's `FlopCounterMode`.

    That class imports torch's compiler at its first operation: 826 modules, a second of a run's start, and their memory
    in the server's process.
    """

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry  # it imports Triton, which clients' actors need not

        TorchDispatchMode.__init__(self)
        self.total, self._formulas = 0, flop_registry

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would import its compiler in order to keep away from it."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        formula = self._formulas.get(func._overloadpacket)
        if formula is None and func in _elementary:
            return func(*args, **kwargs)
        if formula is None:
            with self:  # an operation without a formula may consist of others
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
            _elementary.add(func)
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        self.total += int(formula(*args, **kwargs, out_val=result))
        return result


SAMPLES = 8  # of a counted step: FLOPs are linear in them, except those of a loss between the samples of a batch


class StepFlops(NamedTuple):
    """FLOPs of a local step on a batch of n samples: `step + example n`."""

    step: float
    example: float

    def of(self, row: Mapping[str, Any]) -> float:
        """FLOPs of the client with this row (`num_steps`, `examples_read`)."""
        return float(self.step * row["num_steps"] + self.example * row["examples_read"])


def step_kind(plan: ExchangePlan, algorithm: Algorithm, stored: bool) -> str:
    """A key for local steps of equal cost: the exchange, the task, whether it is the task's first round, the bytes of
    each field of the broadcast (MFCL sends a teacher from the second task on), the hyper-parameters but the rate, and
    whether the client has a stored state (DER's memory)."""
    clock, sizes = plan.clock, sorted(plan.down_bytes.items())
    fields = set(type(algorithm).model_fields) - {"lr", "lr_decay"}  # not `vars`: a user's class may cache values
    options = sorted((name, getattr(algorithm, name)) for name in fields)
    parts = (plan.exchange.name, clock.phase, clock.task, clock.round == 0, sizes, len(plan.shared), options, stored)
    return checksum(repr(parts).encode())


def largest_client(chunks: Iterable[Chunk], among: Collection[int]) -> Chunk:
    """A chunk of only the client with the most samples; `among`: ids of clients. Of equal ones the first by id."""
    places = ((chunk, i) for chunk in chunks for i, client in enumerate(chunk.clients) if client in among)
    chunk, i = max(places, key=lambda at: (len(at[0].samples(at[1])), -at[0].clients[at[1]]))
    shares, previous = chunk.shares.cut(i, i + 1), None if chunk.previous is None else chunk.previous.cut(i, i + 1)
    first, weights, listed = chunk.first + i, (chunk.weights[i],), chunk.listed and chunk.listed[i : i + 1]
    return chunk._replace(first=first, weights=weights, shares=shares, previous=previous, taken=None, listed=listed)


def count_step_flops(client: Client, chunk: Chunk, broadcast: Message, stored: Message) -> StepFlops:
    """FLOPs of a step of the one client of `chunk`, from a step on a few samples and another on half of them.

    `broadcast` contains tensors; `stored` is the client's state of NumPy arrays.
    """
    size = min(SAMPLES, client.algorithm.local_batches[0], len(chunk.samples(0)))
    sizes = dict.fromkeys((size, max(size // 2, min(size, 2))))  # batch norm needs 2
    counts = [_count_step(client, chunk, broadcast, stored, n) for n in sizes]
    (most, read), (less, fewer) = counts[0], counts[-1]
    if read == fewer:
        return StepFlops(0.0, most / read) if read else StepFlops(0.0, 0.0)
    example = (most - less) / (read - fewer)
    return StepFlops(most - example * read, example)


def _count_step(client: Client, chunk: Chunk, broadcast: Message, stored: Message, size: int) -> tuple[int, int]:
    """(FLOPs, samples) of the first step of a client that holds only the first `size` of its samples."""
    runtime, numbers = client.runtime, np.asarray(chunk.samples(0)[:size])
    algorithm = runtime.algorithm_at(chunk.clock)
    ctx = client.context(chunk.clock, chunk.clients[0], chunk.weights[0], numbers)
    data = runtime.client_data(ctx, numbers, None if chunk.previous is None else chunk.previous.of(0))
    with preserve_globals():
        runtime.seed_modules(runtime.module_seed(ctx))
        state = client.state(ctx, stored)
        local = algorithm.begin(ctx, broadcast, state, data)
        for batch in algorithm.batches(ctx, broadcast, state, local, data):
            with CountFlops() as counter:
                algorithm.step(ctx, broadcast, state, local, batch)
            return counter.total, len(batch.y)
    return 0, 0
