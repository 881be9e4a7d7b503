"""Memory drift against the ensemble, also for methods whose server does not see single client models: it repeats
their local training (FedProj C.4)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from flray.core.protocol.samples import TensorProxy
from flray.core.schema.errors import ConfigError
from flray.engine.replay import Replay
from flray.metrics.reading import logits
from flray.ops.losses import kl

if TYPE_CHECKING:
    import pandas


def ensemble_drift(
    folder: str | Path, rounds: Iterable[int] | None = None, samples: int | None = None
) -> pandas.DataFrame:
    """`done` and `ensemble_drift`, a row a round: L_mem of the new global model on the public data against the mean
    logits of the round's client models, temperature 1. The diagnostic `memory` has the same where updates arrive one by
    one.

    Repeats the training of the clients of these `rounds` (from 1; None: all) with the same bits, in this process, and
    that of the rounds between them and a checkpoint. `samples`: the first ones of the public data; None: all. Leaves
    out a round whose updates carry no model. Raises `ConfigError` if the run has no `proxy` section.
    """
    import pandas

    replay, rows = Replay(folder), []
    if replay.experiment.proxy is None:
        raise ConfigError(f"{folder}: its configuration has no `proxy` section, on which memory drift is measured")
    bench = replay.bench
    proxy = TensorProxy(bench.normalizer(np.array(bench.load_proxy()[0].x[:samples])))
    last = replay.experiment.rounds * len(replay.scenario.stages)
    for done in range(1, last + 1) if rounds is None else sorted(set(rounds)):
        replay.goto(done - 1)
        ctx = bench.context(replay.next_round())
        answers = []
        for _, update, _ in replay.clients():
            model = None if update is None else bench.algorithm.model_of(ctx, update)
            if model is not None:
                answers.append(logits(ctx, *model, proxy))
        after = bench.algorithm.model_of(ctx, replay.goto(done).state)
        if answers and after is not None:
            loss = kl(torch.stack(answers).mean(dim=0), logits(ctx, *after, proxy))
            rows.append({"done": done, "ensemble_drift": float(loss)})
    return pandas.DataFrame(rows, columns=["done", "ensemble_drift"])
