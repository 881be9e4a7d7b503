"""The Ray side of training on all data in one place: a Ray Train `TorchTrainer`, and the actor that holds the state
between its rounds.

One trainer serves a whole run. The driver takes a round's row and state from the server; the workers wait for that
before they offer the next, so what is recorded and what is saved are never apart. A group of workers that Ray Train
starts again begins where the driver is.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flray.config.experiment import Experiment
from flray.core.messages import Message, to_numpy, to_torch
from flray.core.network.objective import Precision
from flray.core.protocol.clock import START, Clock, schedule
from flray.core.schema.errors import ClientError, FlrayError, ServerLostError, described, headline, traced
from flray.engine.learner import Gather, Learner
from flray.engine.ray import Actor, Ref
from flray.engine.ray.actors import Recipe, ServerActor, prepare
from flray.engine.ray.cluster import own_handlers, ray
from flray.engine.ray.placement import scheduling_strategies
from flray.engine.ray.pool import CHECK_S, LOST, ActorPool, call_name
from flray.engine.runtime import Runtime

FAILURES = 3  # of worker groups that Ray Train replaces, where there is room for the same number of workers
CALLERS = 64  # threads of the server for workers; those of a lost group may still wait there
GRACE_S = 20.0  # how long an ending trainer may take
NO_TIMEOUT_S = 7 * 24 * 3600  # of a collective: a driver may pause; a worker that died is noticed by Ray Train


class PeerLostError(Exception):
    """Another worker is gone: Ray Train replaces the group."""


class TrainServer(ServerActor):
    """The server of a run without clients: its state is the one after the last round that the driver took."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self._next: Clock | None = None  # the round that the driver waits for
        self._offer: tuple[dict[str, Any], Any] | None = None
        self._error: FlrayError | None = None
        self._group = 0  # number of the present group of workers

    @ray.method(concurrency_group="workers")
    def take(self, clock: Clock) -> tuple[dict[str, Any], int]:
        """(row of this round, groups of workers so far), as soon as it is there; the state moves on.

        Raises a worker's own error.
        """
        with self._changed:
            self._next = clock
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._offer is not None or self._error is not None)
            if self._error is not None:
                raise self._error
            assert self._offer is not None
            row, state = self._offer
            self.server.state = to_torch(state)
            after = itertools.islice(_rounds(self.server.runtime.experiment, clock), 1, 2)
            self._next, self._offer = next(after, clock._replace(done=clock.done + 1)), None
            self._changed.notify_all()
            return row, self._group

    @ray.method(concurrency_group="workers")
    def begin(self) -> tuple[int, Clock, Any]:
        """(number of the new group, its first round, the state before it); what an earlier group offered and no one
        took is dropped."""
        with self._changed:
            self._group += 1
            self._offer = None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._next is not None)
            assert self._next is not None
            return self._group, self._next, to_numpy(self.server.state)

    @ray.method(concurrency_group="workers")
    def offer(self, group: int, row: dict[str, Any], state: Message) -> bool:
        """Hand in a round, when the one before it was taken; False: another group has begun."""
        with self._changed:
            self._changed.wait_for(lambda: self._offer is None or group != self._group)
            if group != self._group:
                return False
            self._offer = row, state
            self._changed.notify_all()
            return True

    @ray.method(concurrency_group="workers")
    def fail(self, error: FlrayError) -> None:
        """A worker's error ends the run, whichever group it is of: it would come again."""
        with self._changed:
            self._error = error
            self._changed.notify_all()


# the workers --------------------------------------------------------------------------------------
def learn(config: dict[str, Any]) -> None:
    """What each worker of the trainer runs: all rounds from the one that the driver waits for."""
    import torch.distributed as dist

    server, at = config["server"], None
    rank, world, gather = (
        (dist.get_rank(), dist.get_world_size(), _gatherer()) if dist.is_initialized() else (0, 1, None)
    )
    try:
        experiment = config["recipe"].read()
        with config["recipe"].places.named_in_errors(f"worker {rank}"):
            runtime = Runtime(experiment, config["recipe"].summary, _device(config["threads"], experiment.precision))
        learner = Learner(runtime, config["samples"], rank, world, gather, config["drifted"])
        group, first, state = _begin(server, rank, world, runtime.objective.device)
        state = to_torch(state, runtime.objective.device)
        for clock in _rounds(experiment, first):
            at = clock
            state, row = learner.recorded_round(state, clock)
            if rank == 0 and not ray.get(server.offer.remote(group, row, to_numpy(state))):
                raise PeerLostError("this group of workers was replaced")
    except (PeerLostError, *LOST):
        raise
    except FlrayError as error:
        ray.get(server.fail.remote(error))
        raise
    except Exception as error:
        where = "as it started" if at is None else f"in {at}, seed {experiment.seed}"
        text = f"training failed {where}, worker {rank} of {world}: {traced(error)}"
        ray.get(server.fail.remote(ClientError(text)))
        raise


def _rounds(experiment: Experiment, first: Clock) -> Iterator[Clock]:
    transactions = schedule(START, experiment.rounds, experiment.num_tasks)
    return (clock for clock in transactions if clock.phase == "round" and clock.done >= first.done)


def _device(threads: int, precision: Precision) -> torch.device:
    """Fix threads and determinism; the GPU of this worker where it has one."""
    import torch.distributed as dist
    from ray.train.torch import get_device

    device = torch.device(prepare(threads, precision))
    # a group's workers on one node see each other's GPUs
    return get_device() if device.type == "cuda" and dist.is_initialized() else device


def _begin(server: Actor, rank: int, world: int, device: torch.device) -> tuple[int, Clock, Any]:
    """Where to begin, as the server tells rank 0: between two workers' questions the driver may take a round."""
    import torch.distributed as dist

    message: list[Any] = [ray.get(server.begin.remote()) if rank == 0 else None]
    if world > 1:
        with _peers():
            dist.broadcast_object_list(message, src=0, device=device)
    begun: tuple[int, Clock, Any] = message[0]
    return begun


def _gatherer() -> Gather:
    """All-gather into tensors that are kept: fresh memory costs page faults."""
    import torch.distributed as dist

    received: dict[Any, list[Tensor]] = {}

    def gather(sent: Tensor) -> list[Tensor]:
        key = sent.shape, sent.dtype
        if key not in received:
            received[key] = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
        with _peers():
            dist.all_gather(received[key], sent)
        return received[key]

    return gather


@contextlib.contextmanager
def _peers() -> Iterator[None]:
    """A collective fails when another worker is gone: no error of the run."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(str(error)) from error


# the trainer --------------------------------------------------------------------------------------
def fit(loop: dict[str, Any], workers: int, share: dict[str, float]) -> str | None:
    """Run a trainer to its end, as a Ray task: cancelling it ends the trainer and frees what it holds.

    Returns what went wrong.

    One worker runs in this process, without Ray Train: it starts in no time and needs no more than this task has.
    """
    if workers == 1:
        try:
            learn(loop)
        except (Exception, SystemExit) as error:
            return described(error)[:300]
        return None
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"  # `data.root` and the user's modules may be relative
    os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.2"
    os.environ["RAY_TRAIN_V2_ENABLED"] = "1"  # the default from Ray 2.51 on
    from ray import train
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    # before Ray 2.55 Ray Train has no such setting, and its log says more
    quiet = {"logging_config": train.LoggingConfig(log_level="ERROR")} if hasattr(train, "LoggingConfig") else {}
    needs = {"CPU": max(share["num_cpus"], 0.01), "GPU": share["num_gpus"]}  # a bundle that takes nothing is none
    # this process has other tasks to come; the run folder has its own checkpoints
    with own_handlers(), tempfile.TemporaryDirectory(prefix="flray-train-") as scratch:
        trainer = TorchTrainer(
            learn,
            train_loop_config=loop,
            torch_config=TorchConfig(timeout_s=NO_TIMEOUT_S),
            scaling_config=ScalingConfig(num_workers=workers, use_gpu=needs["GPU"] > 0, resources_per_worker=needs),
            run_config=RunConfig(
                name="run",
                storage_path=scratch,
                failure_config=FailureConfig(max_failures=FAILURES, controller_failure_limit=0),
                **quiet,
            ),
        )
        try:
            trainer.fit()
        except (Exception, SystemExit) as error:  # SystemExit: Ray Train's own way to end when it is cancelled
            return described(error)[:300]
    return None


class TrainPool(ActorPool):
    """The server, and the trainer while there are rounds to compute. Its clients' part is empty: there are none."""

    reusable = False

    def __init__(self, run: str, workers: int, share: dict[str, float], server: dict[str, float]) -> None:
        super().__init__(run, 0, share, server, kind=TrainServer, concurrency_groups={"workers": CALLERS})
        self.workers = workers
        here, *others = scheduling_strategies(1, server)
        # a trial of a sweep gives its worker a bundle; a group of workers has one of its own
        alone = (
            {"scheduling_strategy": others[0], **share}
            if workers == 1
            else {"scheduling_strategy": here, "num_cpus": 0}
        )
        self._task = ray.remote(max_retries=0, **alone)(fit)
        self._loop: dict[str, Any] = {}
        self._fit: Ref | None = None
        self._last = False

    def prepare(
        self, recipe: Recipe, samples: Sequence[np.ndarray], drifted: Mapping[int, np.ndarray], threads: int
    ) -> None:
        """What the workers need, with each task's training samples, and what is left of them in the rounds of a drift;
        they start when the first round is asked for."""
        known = {"samples": samples, "drifted": drifted}
        self._loop = {"server": self.server, "recipe": recipe, **known, "threads": threads}

    def round(self, clock: Clock, last: bool) -> dict[str, Any]:
        """The row of a round. Raises `ServerLostError` where the trainer ended, a worker's own error."""
        row = self.start(TrainServer.take, clock, name=call_name(TrainServer.take, f"round {clock.done + 1}"))
        if self._fit is None:
            self._fit = self._task.remote(self._loop, self.workers, self.resources[0])
        self.look()
        while not ray.wait([row, self._fit], num_returns=1, timeout=CHECK_S)[0]:
            self.look()
        if not _ready(row, 0):
            why = self._problem()
            if why is not None or not _ready(row, GRACE_S):
                raise ServerLostError(f"training ended early ({why or 'and does not say why'})")
        result: dict[str, Any]
        result, groups = self.wait(row)
        self.retries, self._last = groups - 1, last
        return result

    def _problem(self) -> str | None:
        try:
            problem: str | None = ray.get(self._fit)
            return problem
        except Exception as error:
            return headline(error)

    def shares(self) -> list[dict[str, float]]:
        share, server = self.resources
        return [server, *[share] * self.workers]

    def kill(self) -> None:
        """End the trainer, which after its last round ends by itself, and the server."""
        if not self.connected():
            return
        if self._fit is not None and not (self._last and _ready(self._fit, GRACE_S)):
            ray.cancel(self._fit)
            _ready(self._fit, GRACE_S)
        self._fit = None
        ray.kill(self.server)


def _ready(ref: Ref, timeout: float) -> bool:
    return bool(ray.wait([ref], timeout=timeout)[0])
