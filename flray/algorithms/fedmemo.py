"""FedMemo: detect the latent forgetting of classes that vanish from the clients, and repair it with proxy data.

Step 1 is FedAvg's: w' = sum N_i w_i / sum N_i. WV = Var(w' - w) over the parameters falls when classes vanish; the
detector (`ops/detect.py`) compares its moving mean with a reference of earlier rounds. While it says so, step 2:

w_p: training on proxy data from w' (one epoch, or one gradient step);  w'' = (1 - gamma) w' + gamma w_p,
gamma = N_p / (sum N_i + N_p).

mode server: proxy data of a conditional GAN that the server trained on a small held-out set. mode client: the server
trains a generator without data on the model at the alarm and sends it, once an episode of alarms; the cohort trains on
what it makes in a second exchange of the round (`two_phase`), or beside its real data in the next round (`piggyback`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor, nn

from flray.algorithms.fedavg import FedAvg, OwnStatistics, SGDState
from flray.algorithms.memo_proxy import Generators, ProxySource
from flray.algorithms.private_updates import PrivateUpdates
from flray.core.messages import Broadcast, Cohort, Metrics, ServerState, Update
from flray.core.messages.fields import shared
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.inputs import Inputs
from flray.core.protocol.samples import ClientData
from flray.core.schema.errors import ConfigError, DataError
from flray.core.schema.hp import hp
from flray.ops.detect import Detection, Detector, Episode, Trigger, episode_after, mitigates
from flray.ops.proxy_step import mixing_weight, two_step

RENAMED = {  # keys of options before the parts had sections of their own
    **{
        key: f"detector.{key}"
        for key in (
            *("layers", "last", "W", "m", "rho", "rho_off", "guard", "warmup", "confirm"),
            *("tranad_threshold", "tranad_level"),
        )
    },
    **{
        key: f"proxy.{key.removeprefix('proxy_')}"
        for key in (
            *("proxy_data", "proxy_labels", "proxy_size", "proxy_refresh", "gan_epochs", "gan_batch_size", "gan_lr"),
            *("labeller_epochs", "generator_steps", "generator_lr", "label_noise", "one_step"),
            *("proxy_lr", "proxy_batch_size", "proxy_epochs", "proxy_bn"),
        )
    },
    **{f"dp_{key}": f"privacy.{key}" for key in ("clip", "epsilon", "delta", "noise")},
}


class MemoState(ServerState):
    detection: Detection
    episode: Episode
    active: bool  # whether this round mitigates
    examples: float  # sum N_i of step 1
    generators: Generators


class MemoDown(Broadcast):
    generators: Generators = shared()


class MemoUpdate(Update):
    """Both models of a client that trained on real and on proxy data at once."""

    w_proxy: Tensor
    b_proxy: Tensor


class MemoDetector(Detector, frozen=True):
    """The robust detector, with a lower drop that keeps the alarm on: step 2 itself raises WV again."""

    shorthand: ClassVar[Mapping[type, str]] = {str: "method"}

    rho_off: float | None = hp(0.4, gt=0, lt=1, doc="drop that keeps the alarm on; none: rho")


class FedMemo(FedAvg[MemoState], frozen=True):
    keeps: ClassVar[str] = "on the server a held-out labelled set (mode: server), or a generator; clients keep nothing"

    renamed: ClassVar[Mapping[str, str]] = RENAMED

    detector: MemoDetector = MemoDetector()
    proxy: ProxySource = ProxySource()
    privacy: PrivateUpdates = PrivateUpdates()
    mode: Literal["server", "client"] = hp(
        "server", choice=("server", "client"), doc="who trains on proxy data: the server, or the cohort's clients"
    )
    trigger: Trigger = hp(
        "while_alarm",
        doc="when step 2 is taken: during an alarm, from the first one on, after a delay, "
        "or in the rounds r0 to r1, whatever the detector says",
    )
    min_on: int = hp(10, ge=1, doc="while_alarm: rounds of step 2 at least, from the one that switched the alarm on")
    delay: int = hp(8, ge=0, doc="delayed: rounds from the beginning of an alarm to step 2")
    r0: int = hp(1, ge=1, doc="scheduled: first round (from 1) with step 2; 1 and no r1: every round")
    r1: int | None = hp(None, ge=1, doc="scheduled: first round without it again; none: to the end")
    client_exchange: Literal["two_phase", "piggyback"] = hp(
        "two_phase", doc="client: in a second exchange of the round, from w'; or with the real data of the next, from w"
    )

    @property
    def needs_proxy(self) -> bool:  # type: ignore[override]
        """Clients make their data without any; the server starts from held-out ones."""
        return self.mode == "server"

    def networks(self, model: nn.Module, inputs: Inputs) -> Mapping[str, nn.Module]:
        return self.proxy.gan(inputs) if self.mode == "server" else self.proxy.data_free_generator(inputs)

    # server -----------------------------------------------------------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> MemoState:
        self.privacy.check(ctx, self.buffers)
        if self.mode == "server":
            try:
                ctx.require_proxy().labels(np.arange(1))
            except DataError:
                raise ConfigError(
                    "proxy: fedmemo reads labels of the held-out data; set proxy.labelled: true"
                ) from None
        start, generators = self.detector.initial_state(), Generators.untrained(ctx.device)
        return MemoState(w, b, start, Episode(-1, False), False, 0.0, generators)

    def next_exchange(self, ctx: Context, state: MemoState) -> Exchange | None:
        if ctx.clock.phase == "round" and ctx.clock.exchange == 1 and state.active and self.in_two_phases:
            repairing = Exchange("proxy", self.with_generators, self.repaired, self.repair)
            return repairing
        return super().next_exchange(ctx, state)

    @property
    def in_two_phases(self) -> bool:
        return self.mode == "client" and self.client_exchange == "two_phase"

    def broadcast(self, ctx: Context, state: MemoState) -> Broadcast:
        beside = self.mode == "client" and self.client_exchange == "piggyback" and state.active
        return self.with_generators(ctx, state) if beside else super().broadcast(ctx, state)

    def with_generators(self, ctx: Context, state: MemoState) -> MemoDown:
        return MemoDown(state.w, state.b, state.generators)

    def aggregate(self, ctx: Context, state: MemoState, updates: Update, cohort: Cohort) -> tuple[MemoState, Metrics]:
        wv = self.detector.measure(ctx.objective, state.w, updates.w, self.privacy.noise_variance(cohort))
        reading = self.detector.compare(state.detection, wv)
        detection, alarm = self.detector.detect(state.detection, wv)
        episode = episode_after(state.episode, alarm, ctx.clock.done)
        active = self.mitigating(ctx, episode)
        after = state.replace(
            w=updates.w,
            b=self.statistics(state, updates.b),
            detection=detection,
            episode=episode,
            active=active,
            examples=float(cohort.num_examples.sum()),
        )
        metrics = {f"memo/{name}": value for name, value in reading.row.items() if value == value}
        metrics |= {"memo/alarm": alarm, "memo/active": active, **self.privacy.account(ctx)}
        again = self.trigger != "scheduled" and episode.began > state.episode.began  # within min_on, or latched
        if self.mode == "client" and active and (again or not state.active):
            after = after.replace(generators=self.proxy.fit_without_data(ctx, after.w, after.b))
        if isinstance(updates, MemoUpdate):
            return self.mixed(after, updates.w_proxy, updates.b_proxy, after.examples, metrics)
        if self.mode == "client" or not active:
            return after, {**metrics, "memo/gamma": 0.0}
        if self.proxy.data == "gan" and not len(after.generators.w):
            after = after.replace(generators=self.proxy.fit_gans(ctx))
        proxy = self.proxy.server_samples(ctx, after.generators)
        w, b = self.proxy.train(ctx, after.w, after.b, proxy)
        metrics["proxy_examples"] = float(proxy.size * (1 if self.proxy.one_step else self.proxy.epochs))
        return self.mixed(after, w, b, proxy.size, metrics)

    def mitigating(self, ctx: Context, episode: Episode) -> bool:
        """Whether this round takes step 2; `r0` and `r1` count rounds from 1, as the tables do."""
        last = None if self.r1 is None else self.r1 - 1
        how: dict[str, Any] = {"min_on": self.min_on, "d": self.delay, "r0": self.r0 - 1, "r1": last}
        return mitigates(self.trigger, episode, ctx.clock.done, **how)

    def mixed(self, state: MemoState, w: Tensor, b: Tensor, size: float, metrics: Metrics) -> tuple[MemoState, Metrics]:
        """Step 2: the state after mixing in what `size` proxy samples made of the model."""
        gamma = mixing_weight(state.examples, size)
        b = two_step(state.b, b, gamma) if self.buffers == "average" else state.b
        return state.replace(w=two_step(state.w, w, gamma), b=b), {**metrics, "memo/gamma": gamma, "memo/proxy": size}

    # client -----------------------------------------------------------------------------------
    def end(
        self, ctx: ClientContext, broadcast: Broadcast, client: OwnStatistics, local: SGDState, data: ClientData
    ) -> tuple[Update, OwnStatistics]:
        update, client = super().end(ctx, broadcast, client, local, data)
        if self.privacy.clip is not None:
            update = Update(self.privacy.privatise(ctx, broadcast.w, local.w, "real"), broadcast.b)
        if not isinstance(broadcast, MemoDown):
            return update, client
        w, b = self.train_on_generated(ctx, broadcast, data)
        return MemoUpdate.of(update, w_proxy=w, b_proxy=b), client

    def repair(
        self, ctx: Context, broadcast: MemoDown, client: OwnStatistics, data: ClientData
    ) -> tuple[Update, OwnStatistics, Metrics]:
        return Update(*self.train_on_generated(ctx, broadcast, data)), client, {}

    def train_on_generated(self, ctx: Context, broadcast: MemoDown, data: ClientData) -> tuple[Tensor, Tensor]:
        """What a client sends of its training on as many generated samples as it has real ones, with noise as well."""
        proxy = self.proxy.client_samples(ctx, broadcast.generators, data.num_examples)
        w, b = self.proxy.train(ctx, broadcast.w, broadcast.b, proxy)
        return self.privacy.privatise(ctx, broadcast.w, w, "proxy"), b

    def repaired(self, ctx: Context, state: MemoState, updates: Update, cohort: Cohort) -> tuple[MemoState, Metrics]:
        return self.mixed(state, updates.w, updates.b, float(cohort.num_examples.sum()), {})
