"""The server: it plans exchanges, finishes them and tests the model. It uses neither Ray nor a folder.

A round, the beginning of a task and its end are transactions. The server stages what an exchange changes; later
exchanges of the same transaction read the staged state; the driver commits all of it at once.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flray.core.messages import (
    Cohort,
    Message,
    ServerState,
    Update,
    is_none,
    leaves,
    map_tensors,
    nbytes,
    nbytes_by_field,
    of_tensors,
    sendable,
    to_numpy,
    to_torch,
    write_counters,
)
from flray.core.messages.packed import Packed
from flray.core.messages.shared import join, received, split
from flray.core.network.frozen import begin, reached_rows, restore_frozen
from flray.core.protocol.aggregation import Aggregation
from flray.core.protocol.clock import PHASES, START, Clock, Position
from flray.core.protocol.context import Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.probe import FinishView, Observer, RoundView
from flray.core.protocol.returned import check, check_model
from flray.core.schema.errors import AlgorithmError, ConfigError, named
from flray.engine import devices
from flray.engine.arrivals import planned_work
from flray.engine.blame import ONE_SAMPLE, Standing, errors_of, is_of_one_sample, is_own, sizes_of_batches
from flray.engine.client import Client
from flray.engine.counts import TestCounts
from flray.engine.exchanges import Aged, Chunk, ChunkResult, ExchangePlan, ProbeRow, ServerReport
from flray.engine.flops import StepFlops, count_step_flops
from flray.engine.health import model_is_finite, reported
from flray.engine.runtime import Runtime
from flray.files import array_checksum
from flray.ops.pooling import pooled
from flray.ops.stale import RebasedModels, rebased_mean
from flray.rundir.checkpoint import Snapshot
from flray.rundir.client_store import ClientStore, MemoryStore
from flray.rundir.progress_file import ProgressFile
from flray.rundir.run_store import FinalModel
from flray.scenario import Work
from flray.uplink.fits import private_cohort
from flray.uplink.transform import Received
from flray.uplink.travel import own_state, stores_residuals


class Commit(NamedTuple):
    """The server's state after a complete transaction. A rollback restores it, and a checkpoint stores it.

    `memory`: the state of the server's probes, by name. `holders`: the clients that have each shared part, by hash.
    `uplink`: the states of the transforms of `uplink`, by address. `versions`: the broadcasts of clients at work.
    """

    position: Position
    state: Message
    memory: dict[str, Message]
    holders: dict[str, np.ndarray]
    uplink: dict[str, Message]
    versions: dict[int, Message]


class Server:
    """The server half of an experiment."""

    def __init__(
        self, runtime: Runtime, clients: ClientStore | None = None, progress: ProgressFile | None = None
    ) -> None:
        """`clients` stores the clients' states; None: in memory. `progress` shows the steps of long work."""
        self.runtime, self.algorithm = runtime, runtime.algorithm
        self.client_store = MemoryStore() if clients is None else clients
        self.progress = progress
        self._residuals = stores_residuals(runtime.uplink, self.algorithm) or runtime.objective.state.local
        self.uplink = runtime.first_uplink()
        with errors_of(self.algorithm, "init_server"):
            first = runtime.initial_state(self.context(Clock()))
        first = sendable(first, self.algorithm.init_server, "server state", stored=True)
        self._check_model(self.context(Clock()), first, self.algorithm.init_server, "server state")
        self.state = of_tensors(first, runtime.objective.device)
        self.memory: dict[str, Any] = {}
        self.holders: dict[str, np.ndarray] = {}
        self.versions: dict[int, Message] = {}  # by server step, of NumPy arrays, under `coordination: buffered`
        self._committed = Commit(START, self.state, self.memory, self.holders, self.uplink, self.versions)
        self.flops: dict[str, StepFlops] = {}  # of a local step, by its kind
        self._finished: dict[Clock, ServerReport] = {}  # of the running transaction: what `finish` returned
        self._parts: dict[Clock, dict[str, np.ndarray]] = {}  # by transaction: the shared parts of its broadcasts
        self._spare: list[Any] = []  # tensors of the last round's sums, used again

    def context(self, clock: Clock) -> Context:
        return self.runtime.context(clock, None if self.progress is None else functools.partial(self.progress, clock))

    def _check_model(self, ctx: Context, message: Message, method: Callable[..., Any], what: str) -> None:
        """Raises `AlgorithmError` if the model in a message that `method` returned is not of the network's form."""
        check_model(self.algorithm.model_of(ctx, message), self.runtime.objective, method, what)

    def facts(self) -> dict[str, Any]:
        """Facts about the model and the data, which the driver prints and records."""
        layout, buffers = self.runtime.objective.layout, self.runtime.objective.buffer_layout
        with errors_of(self.algorithm, "init_client"):
            client = self.algorithm.init_client(self.context(Clock()))
        return {
            "parameters": layout.count,
            "buffers": buffers.count,
            "starts_from": self.runtime.starts_from,
            "threads": torch.get_num_threads(),
            "device": str(self.runtime.objective.device),
            "torch": torch.__version__,
            "arithmetic": devices.arithmetic(self.runtime.objective.device),
            "gpus": devices.gpus(),
            "evaluation_batch": self.runtime.evaluation_batch,
            "sample_bytes": np.asarray(self.runtime.dataset.train.x[:1]).nbytes,  # as a client stores one
            "initial_weights": array_checksum(*(part.cpu().numpy() for part in self.runtime.objective.initial())),
            "fixed_tensors": self.runtime.fixed_tensors(),
            "tensor_names": self.runtime.tensor_names(),
            "own_state": not is_none(client),
            "stateful": not is_none(client) or self._residuals,
        }

    # one exchange -----------------------------------------------------------------------------
    def plan(self, clock: Clock) -> tuple[Message, ExchangePlan | None]:
        """(broadcast as NumPy arrays, plan) of the exchange at this moment; (None, None): the transaction is over."""
        ctx = self.context(clock)
        with self._errors_of(self.algorithm.next_exchange, clock):
            exchange = self.runtime.algorithm_at(clock).next_exchange(ctx, self.state)
            if exchange is not None and not isinstance(exchange, Exchange):
                raise TypeError(
                    f"it returned a {type(exchange).__name__}; it must return an Exchange, or None when the phase is "
                    "over"
                )
        return (None, None) if exchange is None else self.broadcast(clock, exchange)

    def broadcast(self, clock: Clock, exchange: Exchange) -> tuple[Message, ExchangePlan]:
        """(the exchange's broadcast as NumPy arrays, its plan). A sequential exchange asks for them at every turn.

        In place of a shared part the broadcast has its hash; :meth:`part` returns the array.
        """
        with self._errors_of(exchange.broadcast, clock):
            ctx = self.context(clock)
            broadcast = sendable(exchange.broadcast(ctx, self.state), exchange.broadcast, "broadcast")
            if isinstance(broadcast, ServerState):  # the state itself, of which the rule's part stays here
                broadcast = broadcast.replace(rule=None)
            self._check_model(ctx, broadcast, exchange.broadcast, "broadcast")
        rest, parts = split(to_numpy(broadcast))
        self._parts.setdefault(clock.transaction, {}).update(parts)
        if self.runtime.experiment.coordination.size is not None and clock.phase == "round":
            self.versions = {**self.versions, clock.done: join(rest, parts)}
        uplink, sizes = self.runtime.uplink, nbytes_by_field(join(rest, dict.fromkeys(parts)))
        if exchange.client is not None or exchange.who == "nobody" or not uplink:
            return rest, ExchangePlan(clock, exchange, sizes, tuple(parts))
        down = uplink.broadcast(self.uplink)
        sizes |= {address: nbytes(part) for address, part in down.items()}
        return rest, ExchangePlan(clock, exchange, sizes, tuple(parts), down, uplink.private)

    def parts(self) -> dict[str, np.ndarray]:
        """The shared parts of the broadcasts of this transaction and of the one planned ahead, by hash."""
        return {hash: array for named in self._parts.values() for hash, array in named.items()}

    def part(self, hash: str) -> np.ndarray:
        return self.parts()[hash]

    def version(self, number: int) -> Message:
        """The broadcast of server step `number` as NumPy arrays, for the clients that started from it."""
        return self.versions[number]

    def states(self, clients: Sequence[int]) -> list[Message]:
        """The stored states of these clients; None for a client without one."""
        return self.client_store.gather(clients)

    def stateful(self) -> list[int]:
        """Ids of the clients that have a state of the algorithm's own, ascending."""
        clients = self.client_store.clients()
        if not self._residuals:
            return clients
        return [k for k in clients if not is_none(own_state(self.client_store.gather([k])[0]))]

    def stored(self, clients: Sequence[int]) -> list[int]:
        """Those of these clients that have a stored state."""
        return [client for client in clients if client in self.client_store]

    def step_flops(self, kind: str, exchange: Exchange, chunk: Chunk) -> StepFlops:
        """FLOPs of a local step of this kind: those of the one client of `chunk` in the state before the exchange where
        the kind was asked for first. A checkpoint has them: a resume does not count another client."""
        if kind not in self.flops:
            try:
                self.flops[kind] = self._count_step_flops(exchange, chunk)
            except AlgorithmError:
                self.flops[kind] = StepFlops(math.nan, math.nan)  # also after a resume
                raise
        return self.flops[kind]

    def _count_step_flops(self, exchange: Exchange, chunk: Chunk) -> StepFlops:
        with self._errors_of(self.algorithm.step, chunk.clock):
            broadcast = exchange.broadcast(self.context(chunk.clock), self.state)
            broadcast = map_tensors(torch.clone, broadcast)  # a client may write into it
            return count_step_flops(Client(self.runtime), chunk, broadcast, self.client_store.gather(chunk.clients)[0])

    def planned_work(self, chunk: Chunk) -> Work:
        """:func:`flray.engine.arrivals.planned_work`. Changes nothing."""
        return planned_work(self.runtime, chunk)

    def finish(self, plan: ExchangePlan, cohort: Cohort, *results: ChunkResult) -> ServerReport:
        """Complete the tree, run the server half, then scatter the client states.

        `cohort` and the results contain NumPy arrays. An error leaves the state unchanged. A second call for the
        same moment (an actor lost the answer) changes nothing and returns the same report.
        """
        if plan.clock not in self._finished:
            self._finished[plan.clock] = self._finish(plan, to_torch(cohort), results)
        return self._finished[plan.clock]

    def _finish(self, plan: ExchangePlan, cohort: Cohort, results: Sequence[ChunkResult]) -> ServerReport:
        clock, exchange = plan.clock, plan.exchange
        ctx = self.context(clock)
        self.runtime.seed_modules(self.runtime.module_seed(ctx))  # a student with dropout
        client_states = [state for d in results for state in d.states]
        delivered = torch.tensor([state is not None for state in client_states], dtype=torch.bool)
        metrics, probes = dict[str, float | list[float]](), list[ProbeRow]()
        up_bytes, shared_bytes = Counter[str](), 0
        if plan.shared:
            parts = {hash: self.part(hash) for hash in plan.shared}
            shared_bytes, self.holders = received(parts, cohort.client_ids.numpy(), self.holders)
        if exchange.who == "nobody":
            metrics, probes = self._complete(plan, ctx, None, cohort, [], [])
        elif delivered.any() or plan.even_empty:
            share, sent = float(cohort.weights[delivered].sum()), [result.sent for result in results]
            up_bytes = sum((Counter(run.nbytes) for run in sent), Counter())  # of no field of 0 bytes
            rule = self.runtime.rule_of(exchange)
            updates = pooled(sent, None if delivered.all() else share, self.runtime.objective.device, self._spare, rule)
            if plan.aged is not None:
                updates = self._aged(ctx, plan.aged, updates, cohort.weights, delivered)
            states, updates = self._after_pooling(ctx, exchange, updates, results, int(delivered.sum()), metrics)
            steps = torch.tensor([taken for d in results for taken in d.steps], dtype=torch.int64)
            cohort = cohort.replace(num_steps=steps)
            if not delivered.all():
                cohort = map_tensors(lambda part: part[delivered], cohort)
                cohort = cohort.replace(weights=cohort.weights / share)
            client_states = [state for state in client_states if state is not None]
            reached = [d.rows for d in results if d.rows is not None]
            own, probes = self._complete(plan, ctx, updates, cohort, client_states, reached)
            metrics |= own
            self.uplink = states
        skipped, diverged = int((~delivered).sum()), not model_is_finite(self.algorithm.model_of(ctx, self.state))
        return ServerReport(metrics, skipped, dict(up_bytes), shared_bytes, diverged, probes)

    def _aged(self, ctx: Context, aged: Aged, updates: Message, weights: Tensor, delivered: Tensor) -> Message:
        """The pooled update of models that were trained from older ones, as if all had started from the present one."""
        versions = [v for v, there in zip(aged.versions, delivered.tolist(), strict=True) if there]
        rule, present = self.runtime.experiment.rule, self._w(ctx, self.state)
        before = {v: present for v in versions}
        if rule is None or not rule.mixes:
            olds = {v for v in versions if v != ctx.clock.done}
            before |= {v: self._w(ctx, to_torch(self.versions[v], present.device)) for v in olds}
        s = torch.tensor(aged.s, dtype=torch.float64)[delivered]
        if isinstance(updates.w, torch.Tensor):
            return updates.replace(w=rebased_mean(updates.w, present, before, versions, s, weights[delivered]))
        moved = RebasedModels(updates.w, present, [before[v] for v in versions], s.tolist())
        # a field declared `each` is a tuple, whose tensors are read many times
        return updates.replace(w=tuple(moved) if isinstance(updates.w, tuple) else moved)

    def _w(self, ctx: Context, message: Message) -> Tensor:
        """The parameters `w [P]` in a state or a broadcast. Raises `AlgorithmError` for a message without a model."""
        if (model := self.algorithm.model_of(ctx, message)) is None:
            who = f"{type(self.algorithm).__name__}.model_of finds no model in its {type(message).__name__}"
            raise AlgorithmError(f"{who}, which coordination: buffered reads; override it, or leave buffered out")
        return model[0]

    def _after_pooling(
        self,
        ctx: Context,
        exchange: Exchange,
        updates: Message,
        results: Sequence[ChunkResult],
        count: int,
        metrics: dict[str, float | list[float]],
    ) -> tuple[dict[str, Message], Message]:
        """(the next states of `uplink`'s transforms, the pooled update of `count` clients after their steps). Without
        clients the update is the broadcast: `updates` is None."""
        uplink = self.runtime.uplink
        if not uplink or exchange.client is not None:
            return self.uplink, updates
        broadcast = exchange.broadcast(ctx, self.state)
        updates = Update(broadcast.w, broadcast.b) if updates is None else updates
        mean = updates.w - broadcast.w if isinstance(updates.w, torch.Tensor) else None
        bits = sum((Counter(result.bits) for result in results), Counter[str]())
        rates, config = self.runtime.rates(ctx.clock), self.runtime.experiment
        poisson = config.cohort.sampling == "poisson" or all(rate == 1 for rate, _ in rates)
        poisson = poisson or self.algorithm.adds_update_noise  # FedMemo's card says what its epsilon assumes
        standing = Standing(*config.uplink)
        after, states = uplink.of_mean(ctx, Received(mean, count, bits=bits), self.uplink, poisson, rates, reported)
        standing.check(f"at the server, {ctx.clock}")
        metrics.update(after.metrics)
        return states, updates if after.w is mean else updates.replace(w=broadcast.w + after.w)

    def _complete(
        self,
        plan: ExchangePlan,
        ctx: Context,
        updates: Message,
        cohort: Cohort,
        client_states: Sequence[Message],
        reached: Sequence[np.ndarray],
    ) -> tuple[dict[str, float | list[float]], list[ProbeRow]]:
        """(metrics, rows of probes) of the server half on the pooled `updates` of the `cohort`; None: work of the
        server alone.

        `client_states`: the cohort's next states. `reached`: the rows of the head that its gradients reached.
        """
        exchange, clock = plan.exchange, plan.clock
        standing = Standing(self.algorithm, self.runtime.experiment.rule)
        with self._errors_of(exchange.finish, clock), self._batches_of_one(clock):
            begin(ctx.objective, ctx.net.values())
            work = exchange.server_work
            seen = private_cohort(self.algorithm, cohort) if self.runtime.uplink.private else cohort
            returned = work(ctx, self.state) if work else exchange.finish(ctx, self.state, updates, seen)
            self.runtime.check_networks()
            check(returned, ("state", "metrics"), exchange.finish)
            state = sendable(returned[0], exchange.finish, "server state", stored=True)
            self._check_model(ctx, state, exchange.finish, "server state")
            own = reached_rows(ctx.objective)
            rows = None if own is None else torch.from_numpy(np.logical_or.reduce([own.cpu().numpy(), *reached]))
            state = map_tensors(torch.Tensor.detach, of_tensors(state, ctx.device))
            state = restore_frozen(ctx.objective, self.state, state, rows)
            metrics = reported(returned[1], exchange.finish)
            standing.check(f"in {named(exchange.finish)}, {clock}")
        model_of = functools.partial(self.algorithm.model_of, ctx)
        probes = self._look(ctx, FinishView("finish", model_of, self.state, updates, state, cohort))
        self.client_store.scatter(cohort.client_ids.tolist(), client_states, clock.complete.order)
        self.state = state
        return metrics, probes

    def _look(self, ctx: Context, view: FinishView | RoundView) -> list[ProbeRow]:
        """The rows of the server's probes for this view; their memory is staged."""
        observer = Observer(self.runtime.probes, self.runtime.reveal, self.memory)
        if observer.wants(view.place):
            standing = Standing(*self.runtime.probes.values())
            with self._errors_of("diagnostics", ctx.clock):
                observer.observe(ctx, view)
                standing.check(f"in observe, {ctx.clock}")
            self.memory = observer.memory
        return observer.rows

    def observe(self, clock: Clock) -> list[ProbeRow]:
        """(probe, row) of the probes that observe a whole transaction, before its commit."""
        ctx = self.context(clock)
        model_of = functools.partial(self.algorithm.model_of, ctx)
        return self._look(ctx, RoundView("round", model_of, self._committed.state, self.state))

    # the transaction --------------------------------------------------------------------------
    def commit(self, position: Position, versions: Sequence[int] = ()) -> None:
        """Commit the transaction: checkpoints and rollbacks use its state from here on. `versions`: those that
        clients at work started from.

        A second call for the same position changes nothing; the driver repeats a call whose answer was lost.
        """
        if position == self._committed.position:
            return
        # clients drop a part that no broadcast of the complete round named
        named = {hash for clock, parts in self._parts.items() if clock.complete == position for hash in parts}
        if position.phase == "round":
            self.holders = {hash: clients for hash, clients in self.holders.items() if hash in named}
        # the parts of the next transaction stay; those of a personalised test (a phase without commit) go
        self.versions = {v: down for v, down in self.versions.items() if v in versions or v >= position.done}
        ahead = {clock: parts for clock, parts in self._parts.items() if clock.phase in PHASES}
        self._parts = {clock: parts for clock, parts in ahead.items() if clock.complete.order > position.order}
        self._commit(position)

    def _commit(self, position: Position) -> None:
        self._committed = Commit(position, self.state, self.memory, self.holders, self.uplink, self.versions)
        self._finished = {}
        self.client_store.commit()

    def rollback(self) -> None:
        """Restore the last commit, for example after a round that stopped between two exchanges."""
        _, self.state, self.memory, self.holders, self.uplink, self.versions = self._committed
        self._finished = {}
        self.client_store.rollback()

    def snapshot(self) -> Snapshot:
        """The last commit, for a checkpoint. Rolls an open transaction back."""
        self.rollback()
        position, state, memory, holders, uplink, versions = self._committed
        more: dict[str, Any] = {"uplink": to_numpy(uplink)} if uplink else {}
        if versions:
            more["versions"] = {str(number): down for number, down in versions.items()}
        if self.flops:
            more["flops"] = {kind: tuple(flops) for kind, flops in self.flops.items()}
        found = (leaf for _, leaf in leaves(memory) if isinstance(leaf, Tensor | np.ndarray))
        if any(is_array := tuple(isinstance(leaf, np.ndarray) for leaf in found)):  # a probe computes with NumPy
            more["arrays"] = is_array
        engine = Packed.of({"probes": to_numpy(memory), "holders": holders, **more})
        return Snapshot(position, Packed.of(state), self.client_store.save(), engine)

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot. Raises `CheckpointError` where a class of its messages is missing, and
        `ConfigError` where its noise is too small for the rounds of the run."""
        device = self.runtime.objective.device
        self.state = to_torch(snapshot.server.message(), device)
        self.client_store.load(snapshot.clients)
        engine = snapshot.engine.message()
        is_array = iter(engine.get("arrays", ()))
        self.memory = map_tensors(
            lambda array: array.copy() if next(is_array, False) else to_torch(array, device), engine["probes"]
        )
        self.holders = engine["holders"]
        if "uplink" in engine:
            self.uplink = to_torch(engine["uplink"], device)
            self.runtime.check_uplink(self.uplink)
        self.versions = {int(number): down for number, down in engine.get("versions", {}).items()}
        self.flops = {kind: StepFlops(*flops) for kind, flops in engine.get("flops", {}).items()}
        self._commit(snapshot.position)

    def model(self) -> FinalModel:
        """The global model, for `model.safetensors`.

        Raises `AlgorithmError` where `model_of` finds none in the server's state.
        """
        objective, model = self.runtime.objective, self.algorithm.model_of(self.context(Clock()), self.state)
        if model is None:
            what = f"{type(self.algorithm).__name__}.model_of finds no model in its server state"
            raise AlgorithmError(f"{what}; override it, or set global_model = False")
        return FinalModel(objective.state_dict(*model), objective.frozen, self.runtime.experiment.model.sources)

    def stored_sizes(self) -> dict[str, int]:
        """The columns `kept/...` of an algorithm that declares `keeps`.

        Bytes of the clients' states, bytes of the server's state without the model, and the samples that clients store
        by number, with their bytes.
        """
        samples = size = 0
        clients = self.client_store.clients()
        for client in clients:
            (state,) = self.client_store.gather([client])
            own = own_state(state)
            samples, size = samples + (0 if own is None else self.algorithm.num_exemplars(own)), size + nbytes(state)
        model = sum(part.nbytes for part in self.algorithm.model_of(self.context(Clock()), self.state) or ())
        return {
            "kept/clients": len(clients),
            "kept/client_bytes": size,
            "kept/samples": samples,
            "kept/sample_bytes": samples * self.runtime.dataset.train.x[0].nbytes,
            "kept/server_bytes": nbytes(self.state) - model,
        }

    # testing ----------------------------------------------------------------------------------
    def published(self, clock: Clock) -> Message:
        """The message that a test reads (`Algorithm.published`), as NumPy arrays.

        Raises `AlgorithmError` where its model is not the one that `model_of` finds in the server's state.
        """
        with self._errors_of(self.algorithm.published, clock):
            ctx = self.context(clock)
            message = self.algorithm.published(ctx, self.state)
            tested, model = (self.algorithm.model_of(ctx, part) for part in (message, self.state))
            if tested is not None and model is not None and not all(map(_equal, tested, model)):
                name = type(self.algorithm).__name__
                raise AlgorithmError(
                    f"{name}.published returns another model than model_of finds in the server's state, and "
                    f"model.safetensors, diagnostics and Run.weights have the latter; override {name}.model_of so that "
                    "both are the model that tests are to read"
                )
            return to_numpy(sendable(message, self.algorithm.published, "message"))

    def evaluate(self, clock: Clock) -> TestCounts:
        """All tests of the global model, on the server."""
        published = self.published(clock)
        with self._errors_of(self.algorithm.predict, clock):
            return self.runtime.evaluate(published, self.context(clock))

    @contextlib.contextmanager
    def _batches_of_one(self, clock: Clock) -> Iterator[None]:
        """Raises `ConfigError` where a built-in server half trains batch norm on one sample."""
        try:
            yield
        except ValueError as error:
            chosen = self.runtime.experiment.aggregation
            key, part = ("algorithm", self.algorithm) if chosen is None else ("aggregation", chosen)
            if not is_of_one_sample(error) or is_own(part):
                raise
            raise ConfigError(f"the server, in {clock}: {ONE_SAMPLE}: {sizes_of_batches(key, part)}") from None

    @contextlib.contextmanager
    def _errors_of(self, method: Callable[..., Any] | str, clock: Clock) -> Iterator[None]:
        """A context around a method of the algorithm's server half; see :func:`flray.engine.blame.errors_of`.

        Raises `AlgorithmError` if the method wrote into the server's state: a rollback needs the old one.
        """
        writes = write_counters(self.state)
        before = writes()
        try:
            name = method if isinstance(method, str) else method.__name__
            with errors_of(self.algorithm, name, clock):
                yield
            if writes() != before:
                who, returned = method if isinstance(method, str) else named(method), "state.replace(w=...)"
                rule = self.runtime.experiment.rule
                if isinstance(rule, Aggregation) and is_own(rule) and not is_own(self.algorithm):
                    combine = rule.combine_again if name == "aggregate_again" else rule.combine
                    who, returned = named(combine), "Aggregated(w, b)"
                raise AlgorithmError(
                    f"{who} wrote into the server's state in place; work on a copy and return {returned}"
                )
        finally:
            if self.progress is not None:
                self.progress.end()


def _equal(a: Tensor, b: Tensor) -> bool:
    return a is b or torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
