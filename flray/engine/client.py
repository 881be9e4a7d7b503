"""The clients' half of an exchange: local training or other work, and the test of the clients' own models.

Any process can run any client: a process stores nothing about a client between two calls.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flray.config.experiment import Experiment
from flray.core.messages import (
    Batch,
    Message,
    Metrics,
    equal,
    map_tensors,
    sendable,
    to_numpy,
    to_torch,
    write_counters,
)
from flray.core.messages.host import Numbers
from flray.core.network.frozen import FrozenCopies, begin, reached_rows
from flray.core.protocol import seeding
from flray.core.protocol.algorithm import Algorithm, Predictor
from flray.core.protocol.clock import Clock
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.probe import ClientView, Observer, Place
from flray.core.protocol.returned import check, check_logits, check_model
from flray.core.protocol.samples import ClientData
from flray.core.schema.errors import (
    AlgorithmError,
    ClientError,
    ConfigError,
    NonFiniteError,
    OwnCodeError,
    TracedError,
    kind_of,
    named,
    traced,
)
from flray.data import Batches
from flray.data.cache import Array
from flray.data.client_data import ClientSamples, Gathered, neighbours
from flray.engine.blame import (
    ONE_SAMPLE,
    errors_of,
    from_signal,
    is_of_one_sample,
    is_own,
    sizes_of_batches,
    write_error,
)
from flray.engine.captured import CapturedSteps, CudaGraphs
from flray.engine.exchanges import Chunk, ChunkResult, ClientReport
from flray.engine.health import client_problem, reported, sums
from flray.engine.runtime import Runtime
from flray.engine.trace import is_profiled, profiled, trace_name
from flray.files import quoted
from flray.metrics.classification import is_right
from flray.ops.pooling import Collector
from flray.scenario.tasks import local_test
from flray.uplink import NONE
from flray.uplink.travel import BufferedState, Travelled, new_state, own_state, travelled

READY_BYTES = 16 * 2**20  # of batches that an actor holds while the server aggregates and others test
VALUE_BYTES = 8  # of a token's number or a float64; a float32 has 4


class Prepared(NamedTuple):
    """A client's context and data, and the seed of the generator that its modules draw from."""

    ctx: ClientContext
    data: ClientSamples
    seed: int


class ClientResult(NamedTuple):
    """The result of a client's work. `steps` and `examples` count the steps taken and the samples read."""

    update: Message
    state: Message
    metrics: Metrics
    steps: int
    examples: int


class ClientRun(NamedTuple):
    """What a client's work gave: its update (None: it is left out), its new state, its report, and its update's
    way to the server."""

    update: Message
    state: Message
    report: ClientReport
    way: Travelled


class Answer:
    """What the clients of neighbouring chunks have given so far; see :class:`ChunkResult`."""

    def __init__(self, updates: Collector) -> None:
        self.updates, self.bits = updates, Counter[str]()
        self.states, self.reports = list[Message](), list[ClientReport]()
        self._rows: Tensor | None = None

    def add(self, position: int, weight: float, run: ClientRun, rows: Tensor | None) -> None:
        """`rows` of the head that the client's gradients reached; None: no row is frozen, or it is left out."""
        left_out = run.update is None
        self.updates.add(position, run.update, weight, run.way.nbytes)
        self.bits.update({} if left_out else run.way.bits)
        self.states.append(None if left_out else () if run.state is None else run.state)
        self.reports.append(run.report)
        if rows is not None:
            self._rows = rows if self._rows is None else self._rows | rows

    def result(self) -> ChunkResult:
        sent = self.updates.sent()  # once for all clients, as what follows
        rows = None if self._rows is None else self._rows.cpu().numpy()
        steps = [report.row["num_steps"] for report in self.reports]
        return ChunkResult(sent, self.states, steps, rows, dict(self.bits))


def train(
    algorithm: Algorithm,
    ctx: ClientContext,
    broadcast: Message,
    client: Message,
    data: ClientData,
    observer: Observer | None = None,
    captured: CapturedSteps | None = None,
) -> ClientResult:
    """One client's local training from `broadcast` and its state `client`, observed by the probes of `observer`.
    `captured` repeats its steps on a GPU.

    The update may contain scratch tensors of the objective, which the next client overwrites.
    """

    def look(place: Place, local: Message, **seen: Message) -> None:
        if observer is not None and observer.wants(place):
            model_of = functools.partial(algorithm.model_of, ctx)
            observer.observe(ctx, ClientView(place, model_of, broadcast, client, local, data, steps, **seen))

    steps = examples = 0
    stepped = None if captured is None else captured.of(algorithm, ctx, broadcast, client)
    local = algorithm.begin(ctx, broadcast, client, data)
    frozen = FrozenCopies(ctx.objective, algorithm.model_of(ctx, local))
    look("start", local)
    for batch in algorithm.batches(ctx, broadcast, client, local, data):
        if not hasattr(batch, "y"):
            given = f"{named(algorithm.batches)} gave {kind_of(batch)} as a batch"
            raise AlgorithmError(f"{given}; give a Batch(x, y), or a record that inherits from it")
        if stepped is None:
            local = algorithm.step(ctx, broadcast, client, local, batch)
        else:
            local = stepped(local, batch)
        if frozen and (model := algorithm.model_of(ctx, local)) is not None:
            frozen.put_back_(model[0])
        steps += 1
        examples += len(batch.y)
        look("step", local, batch=batch)
        if steps == ctx.steps_taken < ctx.num_steps:
            break
    if not steps and ctx.num_steps:
        asked = f"{ctx.num_steps} of {ctx.num_examples} samples are planned"
        raise AlgorithmError(
            f"{named(algorithm.batches)} gave client {ctx.client} no batch, and {asked}; give data.batches(size, "
            "steps=ctx.num_steps), or return 0 from local_steps"
        )
    update, after = algorithm.end(ctx, broadcast, client, local, data)
    look("end", local, update=update)
    return ClientResult(update, after, algorithm.report(ctx, local), steps, examples)


class Client:
    """Runs the clients of one experiment."""

    train = staticmethod(train)

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.algorithm, self.experiment = runtime, runtime.algorithm, runtime.experiment
        device = runtime.objective.device
        recorded = device.type == "cuda" and device.index == torch.cuda.current_device()  # which a graph records
        recorded = recorded and runtime.experiment.resources.client.graphs
        self.captured = CapturedSteps(CudaGraphs()) if recorded else None
        self._planned: dict[int, int] = {}  # local steps by number of samples
        self._ready: tuple[Chunk, list[Prepared]] | None = None  # a chunk whose work comes next
        self._read = True  # batches that were gathered for several clients, since some were made ahead
        self._compared: set[str] = set()  # exchanges in which a client of this process left the broadcast unchanged

    def work_neighbours(
        self,
        chunks: Sequence[Chunk],
        exchange: Exchange,
        broadcasts: Sequence[Message],
        states: Sequence[Sequence[Message] | None],
    ) -> tuple[ChunkResult, list[ClientReport]]:
        """Run the clients of neighbouring chunks one after the other. Broadcasts and the result contain NumPy arrays.

        A chunk's `states` None: no client has a state. Returns the result, as that of one chunk, and a report a client.
        Raises `ClientError` with the client's own traceback, `NonFiniteError` under `on_nonfinite: fail` and `stop`.
        """
        answer, preparations = Answer(Collector(self.runtime.rule_of(exchange))), self._preparations(chunks)
        for chunk, sent, own in zip(chunks, broadcasts, states, strict=True):
            broadcast = to_torch(sent, self.runtime.objective.device)
            writes, standing = write_counters(broadcast), self.runtime.standing(chunk.clock)
            untouched, objective = writes(), self.runtime.objective_of(chunk.clock.task)
            for i, client in enumerate(chunk.clients):
                started = time.perf_counter()  # the first of neighbours pays for what is made for all of them
                prepared, stored = next(preparations), own[i] if own else None
                run = None
                with contextlib.suppress(torch.OutOfMemoryError):  # which holds the client's tensors
                    run = self.run_client(chunk, i, exchange, broadcast, stored, prepared)
                run = run or self.run_again(chunk, i, exchange, broadcast, stored)
                # torch's write counters for every client; all values for the first one in an exchange of this name
                if writes() != untouched or (
                    exchange.name not in self._compared and not equal(sent, to_numpy(broadcast))
                ):
                    raise write_error(self.algorithm, exchange)
                self.runtime.check_networks()
                self._compared.add(exchange.name)
                weight = 1.0 if exchange.order == "sequential" else chunk.weights[i]
                place = {"client": client, "exchange": chunk.clock.exchange, "position": chunk.first + i}
                row = {**place, **run.report.row, "time/client_s": time.perf_counter() - started}
                run = run._replace(report=run.report._replace(row=row))
                answer.add(chunk.first + i, weight, run, None if run.update is None else reached_rows(objective))
            # by NumPy or `.data`
            if is_own(self.algorithm) and len(chunk.clients) and not equal(sent, to_numpy(broadcast)):
                raise write_error(self.algorithm, exchange)
            standing.check(f"while clients trained in {chunk.clock}")
        return answer.result(), answer.reports

    def run_again(self, chunk: Chunk, i: int, exchange: Exchange, broadcast: Message, stored: Message) -> ClientRun:
        """:meth:`run_client` after a first try that found the GPU's memory full: without what nobody uses, and without
        recorded steps from now on."""
        self.captured = None
        gc.collect()
        torch.cuda.empty_cache()
        try:
            return self.run_client(chunk, i, exchange, broadcast, stored)
        except torch.OutOfMemoryError as error:
            raise client_error(error, self.experiment, chunk.clock, int(chunk.shares.clients[i])) from None

    def run_client(
        self,
        chunk: Chunk,
        i: int,
        exchange: Exchange,
        broadcast: Message,
        stored: Message,
        prepared: Prepared | None = None,
    ) -> ClientRun:
        """Run the chunk's i-th client; raises `torch.OutOfMemoryError` as it is, see :meth:`run_again`.

        `broadcast` and the update contain tensors; `stored` and the new state NumPy arrays. `prepared`: of this client.
        """
        clock, client, numbers = chunk.clock, int(chunk.shares.clients[i]), chunk.samples(i)
        ctx, data, seed = prepared or self._prepare(chunk, i)
        state = self.state(ctx, stored)
        self._begin(ctx, seed, stored)
        row: dict[str, Any] = {"num_examples": len(numbers)}
        before = self.algorithm.model_of(ctx, broadcast) if self.experiment.evaluate.clients else None
        right: dict[str, Tensor] = {}
        try:
            if before is not None:
                right["client/acc_before"] = self.right_of_model(ctx, *before, numbers)
            observer = Observer(self.runtime.probes, self.runtime.reveal) if self.runtime.probes else None
            with profiled(is_profiled(self.experiment.profile, clock, client, chunk.first + i)) as trace:
                if exchange.client is None:
                    algorithm = self.runtime.algorithm_at(clock)
                    result = self.train(algorithm, ctx, broadcast, state, data, observer, self.captured)
                    check((result.update, result.state), ("update", "client state"), self.algorithm.end)
                else:
                    result = self.own_work(exchange.client, ctx, broadcast, state, data)
            own, ended = ctx.objective.state.own(), exchange.client or self.algorithm.end
            update = sendable(result.update, ended, "update")
            after = sendable(result.state, ended, "client state", stored=True)
            result = result._replace(update=update, state=out_of_scratch(after, ctx.objective.scratch_tensors.values()))
            model = self.algorithm.model_of(ctx, result.update)
            check_model(model, self.runtime.objective, ended, "update")
            if before is not None and model is not None:
                right["client/acc_after"] = self.right_of_model(ctx, *model, numbers)
            result, way = self.as_sent(ctx, exchange, broadcast, result, stored, own, chunk.uplink)
            judged = sums({"update": result.update, "client state": result.state})
            # one copy of all numbers and of the state: a GPU waits at each
            (judged, measured, right), new_state = _on_host((judged, result.metrics, right), result.state)
            shares = {name: float(count) / max(len(numbers), 1) for name, count in right.items()}
            row |= {name: share for name, share in shares.items() if name == "client/acc_before"}
            row.update(num_steps=result.steps, examples_read=result.examples)
            row.update(reported(measured, exchange.client or self.algorithm.report))
            problem = client_problem(judged, row)
            if problem and self.experiment.on_nonfinite != "skip":
                raise NonFiniteError(f"{problem}; lower algorithm.lr, or set on_nonfinite: skip")
            row |= {} if problem else shares
        except (AlgorithmError, OwnCodeError, ConfigError, torch.OutOfMemoryError):  # the client does not matter
            raise
        except (Exception, SystemExit) as error:
            self.check_batch_norm(error, client, numbers)
            raise client_error(error, self.experiment, clock, client) from None
        row["skipped"] = bool(problem)
        probes = [] if observer is None else observer.rows
        report = ClientReport(row, probes, [(trace_name(clock, client), content) for content in trace])
        return ClientRun(None if problem else result.update, new_state, report, way)

    def _begin(self, ctx: ClientContext, seed: int, stored: Message) -> None:
        """Seed the process's generators, and set what lies in the networks alone to what this client begins with."""
        self.runtime.seed_modules(seed)
        begin(ctx.objective, ctx.net.values(), self.buffers(stored))

    # Any: the algorithm's own messages
    def own_work(
        self, work: Callable[..., Any], ctx: ClientContext, broadcast: Message, state: Message, data: ClientData
    ) -> ClientResult:
        """The `work` of an exchange of the algorithm's own, which takes no local steps."""
        returned = work(ctx, broadcast, state, data)
        check(returned, ("update", "client state", "metrics"), work)
        update, client, metrics = returned
        return ClientResult(update, client, metrics, steps=0, examples=0)

    def as_sent(
        self,
        ctx: ClientContext,
        exchange: Exchange,
        broadcast: Message,
        result: ClientResult,
        stored: Message,
        own: dict[str, Tensor] | None = None,
        states: Mapping[str, Any] | None = None,
    ) -> tuple[ClientResult, Travelled]:
        """(the result with the update as the server pools it and the state as it is stored, how it travelled). The
        experiment's `uplink` is that of local training. `own`: the client's own buffers. `states`: `Chunk.uplink`."""
        uplink = self.runtime.uplink if exchange.client is None else NONE
        clients = self.runtime.summary.population
        sent = travelled(ctx, self.algorithm, uplink, broadcast, result.update, stored, states or {}, clients)
        state = new_state(stored, result.state, sent.residual, own)
        # the row of metrics outlives the client's tensors
        return result._replace(update=sent.update, state=state), sent._replace(update=None, residual={})

    def prepare_ahead(self, chunk: Chunk) -> None:
        """Make the contexts of a chunk whose work comes next, and gather its batches; nothing if they are many, or if
        no client read the ones that were gathered last."""
        x, samples = self.runtime.dataset.train.x, int(chunk.shares.sizes.sum()) * self.algorithm.local_batches[1]
        wanted, self._read = self._read, False
        if wanted and samples * x[:1].size * VALUE_BYTES <= READY_BYTES:
            self._ready = (chunk, list(self._prepared([chunk], gather=True)))

    def _preparations(self, chunks: Sequence[Chunk]) -> Iterator[Prepared]:
        """:meth:`_prepared`, or what :meth:`prepare_ahead` made of the same chunk, each client's until it is asked
        for."""
        ready, self._ready = self._ready, None
        if ready is None or len(chunks) != 1 or not chunks[0].same_as(ready[0]):
            return self._prepared(chunks)
        return (ready[1].pop(0) for _ in range(len(ready[1])))

    def _prepared(self, chunks: Sequence[Chunk], gather: bool = False) -> Iterator[Prepared]:
        """Contexts and data of the chunks' clients, in order.

        Those of neighbours are made together, and so are their batches: a training step displaces from the core's
        cache what the preparation of the next client needs. `gather`: the batches now, not when one is asked for.
        """
        batch_size, epochs = self.algorithm.local_batches
        clients = [(chunk, i) for chunk in chunks for i in range(len(chunk.clients))]
        for places in neighbours([size for chunk in chunks for size in chunk.shares.sizes.tolist()], epochs):
            made = [self._prepare(*clients[place]) for place in places]
            listed = any(clients[place][0].listed is not None for place in places)
            plain = all(client.data.rng is not None and not client.data.augmented for client in made)
            if len(made) > 1 and not listed and plain:
                gathered = Gathered([client.data for client in made], batch_size, epochs)
                if gather:
                    gathered.gather()
                own = [functools.partial(self._read_of, gathered, place) for place in range(len(made))]
                made = [c._replace(data=replace(c.data, gathered=of)) for c, of in zip(made, own, strict=True)]
            yield from made

    def _read_of(self, gathered: Gathered, place: int, batch_size: int, epoch: int) -> list[Batch]:
        batches = gathered.of(place, batch_size, epoch)
        self._read = self._read or bool(batches)
        return batches

    def _prepare(self, chunk: Chunk, i: int) -> Prepared:
        numbers = chunk.samples(i)
        ctx = self.context(chunk.clock, int(chunk.shares.clients[i]), chunk.weights[i], numbers)
        if chunk.taken is not None:
            ctx = replace(ctx, steps_taken=chunk.taken[i])
        data = self.runtime.client_data(ctx, numbers, None if chunk.previous is None else chunk.previous.of(i))
        if chunk.listed is not None:
            data = replace(data, listed=chunk.listed[i])
        return Prepared(ctx, data, self.runtime.module_seed(ctx))

    def context(self, clock: Clock, client: int, weight: float, numbers: np.ndarray) -> ClientContext:
        """The client's context, with its planned number of local steps."""
        size = len(numbers)
        if size not in self._planned:
            self._planned[size] = int(self.algorithm.local_steps(np.array([size]))[0])
        planned = self._planned[size]
        return self.runtime.client_context(clock, client, num_steps=planned, num_examples=size, weight=weight)

    def buffers(self, stored: Message) -> dict[str, Tensor] | None:
        """The client's own buffers in its stored state, as tensors; None: it has none yet."""
        return to_torch(stored.buffers, self.runtime.objective.device) if isinstance(stored, BufferedState) else None

    def state(self, ctx: ClientContext, stored: Message) -> Message:
        """The client's state as tensors: the stored one (NumPy), or `Algorithm.init_client`'s."""
        own = own_state(stored)
        if own is not None:
            return to_torch(own, self.runtime.objective.device)
        with errors_of(self.algorithm, "init_client", ctx.clock):
            first = self.algorithm.init_client(ctx)
            return sendable(first, self.algorithm.init_client, "client's first state", stored=True)

    def check_batch_norm(self, error: BaseException, client: int, numbers: np.ndarray) -> None:
        """Raises `ConfigError` that names a setting, if the error is batch norm's on a batch of one sample, which a
        setting made and no step of the user's own."""
        if not is_of_one_sample(error):
            return
        size, _ = self.algorithm.local_batches
        if size == 1:
            what = "algorithm.batch_size is 1; raise it"
        elif len(numbers) == 1:
            least = 2 * self.experiment.num_tasks
            what = f"the client has only one; set partition.min_size={least}, if the partition has that option"
        elif self.algorithm.last_batch != "keep" or len(numbers) % size != 1:
            if is_own(self.algorithm):
                return
            what = sizes_of_batches("algorithm", self.algorithm)
        else:
            what = (
                f"the last of {len(numbers)} in batches of {size}; set algorithm.last_batch=merge or drop, or "
                "another batch_size"
            )
        raise ConfigError(f"client {client}: {ONE_SAMPLE}: {what}") from None

    # testing ----------------------------------------------------------------------------------
    def personal(
        self, chunk: Chunk, broadcast: Message, states: Sequence[Message], finetune_epochs: Sequence[int]
    ) -> list[dict[str, Any]]:
        """Test every client of the chunk on its own share of its task's test samples, after fine-tuning for each number
        of epochs.

        Each fine-tuning starts from the broadcast. Returns a row a client and number of epochs.
        """
        runtime, rule = self.runtime, self.experiment.evaluate
        broadcast, dataset = to_torch(broadcast, runtime.objective.device), runtime.dataset
        tested = runtime.summary.stages[chunk.clock.task].own(dataset.test)
        rows = []
        for i, client in enumerate(chunk.clients):
            numbers = chunk.samples(i)
            ctx = self.context(chunk.clock, client, chunk.weights[i], numbers)
            state = self.state(ctx, states[i])
            draws = seeding.rng(self.experiment.seed, "local test", client)
            labels, there = dataset.train.y[numbers], dataset.test.y[tested]
            share = tested[local_test(labels, there, dataset.num_classes, rule.local_test, draws, rule.local_test_size)]
            for epochs in finetune_epochs:
                try:
                    predictor = self.predictor(ctx, numbers, broadcast, state, epochs, states[i])
                    method = self.algorithm.personalize
                    right = float(self.right(ctx, predictor, dataset.test.x, dataset.test.y, share, method))
                except (AlgorithmError, OwnCodeError, ConfigError):
                    raise
                except (Exception, SystemExit) as error:
                    self.check_batch_norm(error, client, numbers)
                    raise client_error(error, self.experiment, chunk.clock, client) from None
                row = {
                    "client": client,
                    "finetune_epochs": epochs,
                    "num_examples": len(numbers),
                    "num_test": len(share),
                }
                rows.append({**row, "test/acc": right / len(share) if len(share) else None})
        return rows

    def predictor(
        self,
        ctx: ClientContext,
        numbers: np.ndarray,
        broadcast: Message,
        state: Message,
        finetune_epochs: int,
        stored: Message,
    ) -> Predictor:
        """The client's own predictor after fine-tuning for `finetune_epochs`. It may read scratch tensors. `stored`:
        what holds the client's own buffers."""
        batches = self.runtime.client_data(ctx, numbers).batches(self.algorithm.local_batches[0], finetune_epochs)
        ctx = replace(ctx, num_steps=len(batches), steps_taken=len(batches))
        self._begin(ctx, self.runtime.module_seed(ctx), stored)
        return self.runtime.algorithm_at(ctx.clock).personalize(ctx, broadcast, state, batches)

    def right_of_model(self, ctx: ClientContext, w: Tensor, b: Tensor, numbers: np.ndarray) -> Tensor:
        """:meth:`right` of a model on the training samples `numbers`, without augmentation."""
        train = self.runtime.dataset.train
        return self.right(ctx, self.runtime.objective.at(w, b), train.x, train.y, numbers)

    def right(
        self,
        ctx: ClientContext,
        predictor: Predictor,
        x: Array,
        y: Array,
        numbers: np.ndarray,
        method: Callable[..., Any] | None = None,
    ) -> Tensor:
        """Number of right predictions among the classes of all tasks so far on the samples `numbers`, int64 on the
        device: nothing waits for it.

        `method`: the method of the algorithm that returned the predictor. Raises `AlgorithmError` that names it if the
        predictor returns anything but logits `[B, C]`.
        """
        size, normalizer = self.runtime.evaluation_batch, self.runtime.normalizer
        batches = Batches(x, y, numbers, batch_size=size, epochs=1, rng=None, normalizer=normalizer)
        right = torch.zeros((), dtype=torch.int64, device=self.runtime.objective.device)
        with torch.no_grad():
            for batch in batches:
                logits = predictor(batch.x)
                if method is not None:
                    check_logits(logits, len(batch.y), self.runtime.dataset.num_classes, method)
                right += _right(ctx, logits, batch.y).sum()
        return right


def _right(ctx: Context, logits: Tensor, y: Tensor) -> Tensor:
    """Whether the class with the largest logit of all tasks so far is right, bool `[B]`. An algorithm's own head of
    another size answers with any of its outputs."""
    if ctx.classes is None or logits.shape[1] != ctx.classes.size:
        return logits.argmax(dim=1) == y
    meanings = None if ctx.meanings is None else torch.from_numpy(ctx.meanings).to(y.device)
    right: Tensor = is_right(ctx.classes.seen.largest(logits), y, meanings)
    return right


def out_of_scratch(state: Message, scratch: Iterable[Tensor]) -> Message:
    """A client state whose tensors and arrays are not scratch memory, which the next client overwrites: those that lie
    in it are copied."""
    places = [(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in scratch]

    def own(value: Any) -> Any:
        place = value.data_ptr() if isinstance(value, Tensor) else value.ctypes.data
        shared = any(first <= place < first + size for first, size in places)
        return (value.clone() if isinstance(value, Tensor) else value.copy()) if shared else value

    return map_tensors(own, state)


def _on_host(values: Sequence[Mapping[str, Any]], state: Message) -> tuple[list[dict[str, Any]], Message]:
    """(the same values by name, the state as NumPy arrays), from one copy of what lies on a device."""
    numbers = Numbers(value for part in values for value in part.values())
    packed, arrays = to_numpy((numbers.packed, state))
    read = iter(numbers.unpacked(packed))
    return [{name: next(read) for name in part} for part in values], arrays


def client_error(error: BaseException, experiment: Experiment, clock: Clock, client: int) -> ClientError:
    """The error of one client: the moment, the seed, its traceback, and the command that repeats only this client.

    Re-raises a `SystemExit` of a signal handler, which stops the run.
    """
    if isinstance(error, SystemExit) and from_signal(error):
        raise error
    kind = NonFiniteError if isinstance(error, NonFiniteError) else ClientError
    text = str(error) if isinstance(error, NonFiniteError) else traced(error)
    return kind(
        f"client {client} failed in {clock}, exchange {clock.exchange}, seed {experiment.seed}: {text}\n"
        f"repeat just this client: flray replay RUN_FOLDER --client {client}"
    )


def in_folder(error: TracedError, folder: Path) -> TracedError:
    """The same error with the run's folder in its command. An actor does not know the folder."""
    return type(error)(str(error).replace("RUN_FOLDER", quoted(folder)))
