"""A client's local training: `begin`, `step` for every batch, `end`; probes observe this loop."""

from __future__ import annotations

import functools
from typing import NamedTuple

from flray.core.messages import Message, Metrics
from flray.core.network.frozen import FrozenCopies
from flray.core.protocol import last_call
from flray.core.protocol.algorithm import Algorithm
from flray.core.protocol.context import ClientContext
from flray.core.protocol.probe import ClientView, Observer, Place
from flray.core.protocol.returned import label
from flray.core.protocol.samples import ClientData


class ClientResult(NamedTuple):
    """The result of a client's work. `steps` and `examples` count the steps taken and the samples read."""

    update: Message
    state: Message
    metrics: Metrics
    steps: int
    examples: int


def train(
    algorithm: Algorithm,
    ctx: ClientContext,
    broadcast: Message,
    client: Message,
    data: ClientData,
    observer: Observer | None = None,
) -> ClientResult:
    """One client's local training from `broadcast` and its state `client`, observed by the probes of `observer`.

    The update may contain scratch tensors of the objective, which the next client overwrites.
    """

    def look(place: Place, local: Message, **seen: Message) -> None:
        if observer is not None and observer.wants(place):
            model_of = functools.partial(algorithm.model_of, ctx)
            observer.observe(ctx, ClientView(place, model_of, broadcast, client, local, data, steps, **seen))

    methods = ("begin", "batches", "step", "end", "report")
    begin, batches, step, end, report = (label(type(algorithm), name) for name in methods)
    steps = examples = 0
    last_call.enter(begin)
    local = algorithm.begin(ctx, broadcast, client, data)
    frozen = FrozenCopies(ctx.objective, algorithm.model_of(ctx, local))
    look("start", local)
    last_call.enter(batches)
    for batch in algorithm.batches(ctx, broadcast, client, local, data):
        last_call.enter(step)
        local = algorithm.step(ctx, broadcast, client, local, batch)
        if frozen:
            frozen.put_back_(algorithm.model_of(ctx, local)[0])  # type: ignore[index]
        steps += 1
        examples += len(batch.y)
        look("step", local, batch=batch)
        last_call.enter(batches)
    last_call.enter(end)
    update, after = algorithm.end(ctx, broadcast, client, local, data)
    look("end", local, update=update)
    last_call.enter(report)
    return ClientResult(update, after, algorithm.report(ctx, local), steps, examples)
