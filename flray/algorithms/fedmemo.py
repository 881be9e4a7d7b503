"""FedMemo: detect the latent forgetting of classes that vanish from the clients, and repair it with proxy data.

Step 1 is FedAvg's: w' = sum_i N_i w_i / sum_i N_i. WV = Var(w' - w) over the parameters falls when classes vanish. The
detector (`ops/detect.py`) compares its moving mean with that of earlier rounds. During an alarm comes step 2:

    w_p: w' after training on proxy data (one epoch, or one gradient step)
    w'' = (1 - gamma) w' + gamma w_p,   gamma = N_p / (sum_i N_i + N_p)

`mode: server`: the proxy data are samples of a conditional GAN, which the server trained on a small held-out set.
`mode: client`: at the alarm the server trains a generator on the model alone and sends it, once in an episode of
alarms. The cohort trains on its samples in a second exchange of the round (`two_phase`), or beside the real data of the
next round (`piggyback`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor, nn

from flray.algorithms.fedavg import FedAvg, OwnStatistics, SGDState
from flray.algorithms.memo_proxy import Generators, ProxySource
from flray.algorithms.private_updates import PrivateUpdates
from flray.core.messages import Broadcast, Cohort, Metrics, ServerState, Update
from flray.core.messages.fields import shared
from flray.core.protocol.algorithm_section import Setting
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.inputs import Inputs
from flray.core.protocol.samples import ClientData
from flray.core.schema.errors import ConfigError, DataError
from flray.core.schema.hp import hp
from flray.ops.detect import Detection, Detector, Episode, Trigger, episode_after, mitigates
from flray.ops.proxy_step import mixing_weight, two_step

RENAMED = {  # keys of options before the sections detector, proxy and privacy
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
    """The global model, the states of detector and episode, and the generators of proxy data."""

    detection: Detection
    episode: Episode
    active: bool  # whether the last round took step 2
    examples: float  # sum_i N_i of step 1
    generators: Generators


class MemoDown(Broadcast):
    """The model and, for clients that train on proxy data, the generators."""

    generators: Generators = shared()


class MemoUpdate(Update):
    """Of `piggyback`: the client's model after training on real data, and another after training on proxy data."""

    w_proxy: Tensor
    b_proxy: Tensor


class MemoDetector(Detector, frozen=True):
    """The detector with `rho_off`, a smaller drop of WV that keeps an alarm on, because step 2 raises WV again."""

    shorthand: ClassVar[Mapping[type, str]] = {str: "method"}

    rho_off: float | None = hp(0.4, gt=0, lt=1, doc="drop of WV that keeps the alarm on; none: rho")


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
        doc="rounds with step 2: during an alarm, from the first alarm on, after a delay, or from r0 to r1 without "
        "the detector",
    )
    min_on: int = hp(
        10, ge=1, doc="while_alarm: smallest number of rounds with step 2, from the alarm's first round on"
    )
    delay: int = hp(8, ge=0, doc="delayed: rounds from an alarm's first round to step 2")
    r0: int = hp(1, ge=1, doc="scheduled: first round (from 1) with step 2")
    r1: int | None = hp(None, ge=1, doc="scheduled: first round without step 2 again; none: step 2 to the end")
    client_exchange: Literal["two_phase", "piggyback"] = hp(
        "two_phase",
        doc="client: step 2 in a second exchange of the round, from w'; or in the next round's training, from w",
    )

    def unsuited(self, setting: Setting) -> tuple[str, ...]:
        rounds, warmup = setting.rounds * setting.tasks, self.detector.warmup
        if self.trigger == "scheduled" or rounds > warmup:
            return ()
        few = f"the detector judges from round {warmup + 1} on, and the run has {rounds}: no alarm can begin"
        return (f"{few}; lower algorithm.detector.warmup, or raise rounds",)

    @property
    def needs_proxy(self) -> bool:  # type: ignore[override]
        """The server's proxy data come from held-out samples; the clients' generator needs none."""
        return self.mode == "server"

    def networks(self, model: nn.Module, inputs: Inputs) -> Mapping[str, nn.Module]:
        return self.proxy.gan(inputs) if self.mode == "server" else self.proxy.data_free_generator(inputs)

    # server -----------------------------------------------------------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> MemoState:
        self.privacy.check(ctx, self.buffers)
        if self.detector.reads_classes and self.trigger != "scheduled":
            self._check_rows()
        if self.mode == "server":
            try:
                ctx.require_proxy().labels(np.arange(1))
            except DataError:
                raise ConfigError(
                    "proxy: fedmemo with mode: server needs labels of the held-out data; set proxy.labelled: true"
                ) from None
        start, generators = self.detector.initial_state(), Generators.untrained(ctx.device)
        return MemoState(w, b, start, Episode(-1, False), False, 0.0, generators)

    def _check_rows(self) -> None:
        """Raises `ConfigError` for options under which a row of the head rises although nobody holds its class."""
        hides = {"privacy.clip": self.privacy.clip is not None, "weight_decay": self.weight_decay > 0}
        for option, given in hides.items():
            if given:
                raise ConfigError(
                    f"algorithm.{option}: detector.method {self.detector.method} reads the signs of the head's update, "
                    f"which {option} changes; leave it out, or set detector.method: cusum"
                )

    def next_exchange(self, ctx: Context, state: MemoState) -> Exchange | None:
        if ctx.clock.phase == "round" and ctx.clock.exchange == 1 and state.active and self.in_two_phases:
            repair = Exchange("proxy", self.broadcast_generators, self.aggregate_proxy, self.train_on_proxy)
            return repair
        return super().next_exchange(ctx, state)

    @property
    def in_two_phases(self) -> bool:
        return self.mode == "client" and self.client_exchange == "two_phase"

    def broadcast(self, ctx: Context, state: MemoState) -> Broadcast:
        piggyback = self.mode == "client" and self.client_exchange == "piggyback" and state.active
        return self.broadcast_generators(ctx, state) if piggyback else super().broadcast(ctx, state)

    def broadcast_generators(self, ctx: Context, state: MemoState) -> MemoDown:
        return MemoDown(state.w, state.b, state.generators)

    def aggregate(self, ctx: Context, state: MemoState, updates: Update, cohort: Cohort) -> tuple[MemoState, Metrics]:
        noise = self.privacy.noise_variance(cohort)
        signal = self.detector.measure(ctx.objective, state.w, updates.w, cohort.weights, noise)
        values = self.detector.compare(state.detection, signal)
        detection, alarm = self.detector.detect(state.detection, signal)
        episode = episode_after(state.episode, alarm, ctx.clock.done)
        active = self.takes_step_2(ctx, episode)
        after = state.replace(
            w=updates.w,
            b=self.statistics(state, updates.b),
            detection=detection,
            episode=episode,
            active=active,
            examples=float(cohort.num_examples.sum()),
        )
        metrics: dict[str, Any] = {f"memo/{name}": value for name, value in values.row.items() if math.isfinite(value)}
        if values.vanished is not None:
            metrics["memo/vanished"] = values.vanished
        metrics |= {"memo/alarm": alarm, "memo/active": active, **self.privacy.account(ctx)}
        if self.mode == "client":
            # an alarm that begins while step 2 goes on (min_on, latched) is a new episode, with a new generator
            new_episode = self.trigger != "scheduled" and episode.began > state.episode.began
            if active and (new_episode or not state.active):
                after = after.replace(generators=self.proxy.fit_without_data(ctx, after.w, after.b))
            if isinstance(updates, MemoUpdate):
                return self.mix(after, updates.w_proxy, updates.b_proxy, after.examples, metrics)
            return after, {**metrics, "memo/gamma": 0.0}
        if not active:
            return after, {**metrics, "memo/gamma": 0.0}
        if self.proxy.data == "gan" and not len(after.generators.w):
            after = after.replace(generators=self.proxy.fit_gans(ctx))
        proxy = self.proxy.server_samples(ctx, after.generators)
        w, b = self.proxy.train(ctx, after.w, after.b, proxy)
        metrics["proxy_examples"] = float(proxy.size * (1 if self.proxy.one_step else self.proxy.epochs))
        return self.mix(after, w, b, proxy.size, metrics)

    def takes_step_2(self, ctx: Context, episode: Episode) -> bool:
        """Whether this round takes step 2. The options `r0` and `r1` count rounds from 1, the clock from 0."""
        r1 = None if self.r1 is None else self.r1 - 1
        how: dict[str, Any] = {"min_on": self.min_on, "d": self.delay, "r0": self.r0 - 1, "r1": r1}
        return mitigates(self.trigger, episode, ctx.clock.done, **how)

    def mix(
        self, state: MemoState, w_p: Tensor, b_p: Tensor, num_proxy: float, metrics: Metrics
    ) -> tuple[MemoState, Metrics]:
        """w'' = (1 - gamma) w' + gamma w_p: the state after step 2 with N_p = `num_proxy` proxy samples."""
        gamma = mixing_weight(state.examples, num_proxy)
        w, b = two_step(state.w, w_p, gamma), state.b
        if self.buffers == "average":
            b = two_step(state.b, b_p, gamma)
        return state.replace(w=w, b=b), {**metrics, "memo/gamma": gamma, "memo/proxy": num_proxy}

    def aggregate_proxy(
        self, ctx: Context, state: MemoState, updates: Update, cohort: Cohort
    ) -> tuple[MemoState, Metrics]:
        return self.mix(state, updates.w, updates.b, float(cohort.num_examples.sum()), {})

    # client -----------------------------------------------------------------------------------
    def end(
        self, ctx: ClientContext, broadcast: Broadcast, client: OwnStatistics, local: SGDState, data: ClientData
    ) -> tuple[Update, OwnStatistics]:
        update, client = super().end(ctx, broadcast, client, local, data)
        if self.privacy.clip is not None:
            update = Update(self.privacy.privatise(ctx, broadcast.w, local.w, "real"), broadcast.b)
        if not isinstance(broadcast, MemoDown):
            return update, client
        w, b = self.proxy_model(ctx, broadcast, data)
        return MemoUpdate.of(update, w_proxy=w, b_proxy=b), client

    def train_on_proxy(
        self, ctx: Context, broadcast: MemoDown, client: OwnStatistics, data: ClientData
    ) -> tuple[Update, OwnStatistics, Metrics]:
        return Update(*self.proxy_model(ctx, broadcast, data)), client, {}

    def proxy_model(self, ctx: Context, broadcast: MemoDown, data: ClientData) -> tuple[Tensor, Tensor]:
        """`(w_p [P], b_p [Q])` of a client, privatised, after training on as many proxy samples as it has real ones."""
        proxy = self.proxy.client_samples(ctx, broadcast.generators, data.num_examples)
        w, b = self.proxy.train(ctx, broadcast.w, broadcast.b, proxy)
        return self.privacy.privatise(ctx, broadcast.w, w, "proxy"), b
