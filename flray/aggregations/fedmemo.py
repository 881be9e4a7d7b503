"""FedMemo: detect the latent forgetting of classes that vanish from the clients, and repair it with proxy data.

Step 1 is the mean: w' = sum_i N_i w_i / sum_i N_i. WV = Var(w' - w) over the parameters falls when classes vanish. The
detector (`ops/detect.py`) compares its moving mean with that of earlier rounds. During an alarm comes step 2:

    w_p: w' after training on proxy data (one epoch, or one gradient step)
    w'' = (1 - gamma) w' + gamma w_p,   gamma = N_p / (sum_i N_i + N_p)

`mode: server`: the proxy data are samples of a conditional GAN, which the server trained on a small held-out set.
`mode: client`: at the alarm the server trains a generator on the model alone and sends it, once in an episode of
alarms. The cohort trains on its samples in a second exchange of the round.
Weights: p_k, those of the algorithm. Statistics `b`: their mean, then mixed as w is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from flray.aggregations.memo_proxy import Generators, ProxySource
from flray.core.messages import Broadcast, Cohort, HasModel, Message, Metrics, Record, ServerState, Update
from flray.core.messages.fields import shared
from flray.core.protocol.aggregation import Aggregated, Aggregation, Buffers
from flray.core.protocol.algorithm_section import AlgorithmSection, Setting
from flray.core.protocol.context import Context
from flray.core.protocol.inputs import Inputs
from flray.core.protocol.samples import ClientData
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.core.schema.section import Section
from flray.ops.detect import Detection, Detector, Episode, Trigger, episode_after, mitigates
from flray.ops.proxy_step import mixing_weight, two_step
from flray.uplink.gaussian import Gaussian, aggregate_noise, privatised


class MemoState(Record):
    """The states of detector and episode, and the generators of proxy data."""

    detection: Detection
    episode: Episode
    active: bool  # whether the last round took step 2
    examples: float  # sum_i N_i of step 1
    generators: Generators


class MemoDown(Broadcast):
    """The model and, for clients that train on proxy data, the generators."""

    generators: Generators = shared()


class MemoDetector(Detector, frozen=True):
    """The detector with `rho_off`, a smaller drop of WV that keeps an alarm on, because step 2 raises WV again."""

    shorthand: ClassVar[Mapping[type, str]] = {str: "method"}

    rho_off: float | None = hp(0.4, gt=0, lt=1, doc="drop of WV that keeps the alarm on; none: rho")


class FedMemo(Aggregation[MemoState], frozen=True):
    asynchronous: ClassVar[bool] = False
    float32_only: ClassVar[str] = "its detector"

    detector: MemoDetector = MemoDetector()
    proxy: ProxySource = ProxySource()
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
    gamma: float | None = hp(
        None, gt=0, le=1, doc="weight of w_p in step 2; none: N_p / (sum_i N_i + N_p); 1: step 2 is fine-tuning"
    )

    def unsuited(self, setting: Setting) -> tuple[str, ...]:
        rounds, warmup = setting.rounds * setting.tasks, self.detector.warmup
        if self.trigger == "scheduled" or rounds > warmup:
            return ()
        few = f"the detector judges from round {warmup + 1} on, and the run has {rounds}: no alarm can begin"
        return (f"{few}; lower {self.key}.detector.warmup, or raise rounds",)

    def reads_proxy(self) -> bool:
        """The server's proxy data come from held-out samples; the clients' generator needs none."""
        return self.mode == "server"

    def networks(self, model: nn.Module, inputs: Inputs) -> Mapping[str, nn.Module]:
        return self.proxy.gan(inputs) if self.mode == "server" else self.proxy.data_free_generator(inputs)

    def check(self, algorithm: AlgorithmSection, uplink: Sequence[Section]) -> None:
        """Raises `ConfigError` for options under which a row of the head rises although nobody holds its class."""
        if not self.detector.reads_classes or self.trigger == "scheduled":
            return
        noisy = any(isinstance(transform, Gaussian) for transform in uplink)
        hides = {"uplink.gaussian": noisy, "algorithm.weight_decay": getattr(algorithm, "weight_decay", 0.0) > 0}
        # noise hides WV, which CUSUM reads, as well
        instead = {"uplink.gaussian": "trigger: scheduled", "algorithm.weight_decay": "detector.method: cusum"}
        for option, given in hides.items():
            if given:
                raise ConfigError(
                    f"{option}: detector.method {self.detector.method} reads the signs of the head's update, "
                    f"which {option} changes; leave it out, or set {instead[option]}"
                )

    def initial(self, ctx: Context, w: Tensor, b: Tensor) -> MemoState:
        if self.mode == "server" and not ctx.require_proxy().same_labels:
            raise ConfigError(
                "proxy: fedmemo with mode: server needs labels of the private data's classes; set proxy.labelled: "
                "true, and proxy.same_labels: true if another source has the same classes"
            )
        start, generators = self.detector.initial_state(), Generators.untrained(ctx.device)
        return MemoState(start, Episode(-1, False), False, 0.0, generators)

    # step 1, and step 2 on the server ---------------------------------------------------------
    def combine(
        self, ctx: Context, own: MemoState, before: HasModel, updates: HasModel, cohort: Cohort, buffers: Buffers
    ) -> Aggregated:
        noise = 0.0 if ctx.update_noise is None else aggregate_noise(*ctx.update_noise, cohort.weights)
        signal = self.detector.measure(ctx.objective, before.w, updates.w, cohort.weights, noise)
        values = self.detector.compare(own.detection, signal)
        detection, alarm = self.detector.detect(own.detection, signal)
        episode = episode_after(own.episode, alarm, ctx.clock.done)
        active = self.takes_step_2(ctx, episode)
        model = Update(updates.w, before.b if buffers == "keep" else updates.b)
        examples = float(cohort.num_examples.sum())
        after = own.replace(detection=detection, episode=episode, active=active, examples=examples)
        metrics: dict[str, Any] = {f"memo/{name}": value for name, value in values.row.items() if math.isfinite(value)}
        if values.vanished is not None:
            metrics["memo/vanished"] = values.vanished
        metrics |= {"memo/alarm": alarm, "memo/active": active, "memo/gamma": 0.0}
        if self.mode == "client":
            # an alarm that begins while step 2 goes on (min_on, latched) is a new episode, with a new generator
            new_episode = self.trigger != "scheduled" and episode.began > own.episode.began
            if active and (new_episode or not own.active):
                after = after.replace(generators=self.proxy.fit_without_data(ctx, model.w, model.b))
        elif active:
            if self.proxy.data == "gan" and not len(after.generators.w):
                after = after.replace(generators=self.proxy.fit_gans(ctx))
            proxy = self.proxy.server_samples(ctx, after.generators)
            repaired = self.proxy.train(ctx, model.w, model.b, proxy)
            metrics["proxy_examples"] = float(proxy.size * (1 if self.proxy.one_step else self.proxy.epochs))
            return self.mix(after, model, Update(*repaired), proxy.size, buffers, metrics)
        return Aggregated(model.w, model.b, after, metrics)

    def takes_step_2(self, ctx: Context, episode: Episode) -> bool:
        """Whether this round takes step 2. The options `r0` and `r1` count rounds from 1, the clock from 0."""
        r1 = None if self.r1 is None else self.r1 - 1
        return mitigates(self.trigger, episode, ctx.clock.done, min_on=self.min_on, d=self.delay, r0=self.r0 - 1, r1=r1)

    def mix(
        self, own: MemoState, model: HasModel, proxy: HasModel, size: float, buffers: Buffers, metrics: Metrics
    ) -> Aggregated:
        """w'' = (1 - gamma) w' + gamma w_p from w' in `model` and w_p in `proxy`, trained on N_p = `size` samples."""
        gamma = mixing_weight(own.examples, size) if self.gamma is None else self.gamma
        w, b = two_step(model.w, proxy.w, gamma), model.b
        if buffers == "average":
            b = two_step(b, proxy.b, gamma)
        return Aggregated(w, b, own, {**metrics, "memo/gamma": gamma, "memo/proxy": size})

    # step 2 at the clients --------------------------------------------------------------------
    def asks_again(self, own: MemoState) -> bool:
        return self.mode == "client" and own.active

    def broadcast_again(self, ctx: Context, state: ServerState) -> MemoDown:
        return MemoDown(state.w, state.b, state.rule.generators)

    def client_work(
        self, ctx: Context, broadcast: MemoDown, client: Message, data: ClientData
    ) -> tuple[Update, Message, Metrics]:
        return Update(*self.proxy_model(ctx, broadcast, data)), client, {}

    def combine_again(
        self, ctx: Context, own: MemoState, before: HasModel, updates: HasModel, cohort: Cohort, buffers: Buffers
    ) -> Aggregated:
        return self.mix(own, before, updates, float(cohort.num_examples.sum()), buffers, {})

    def proxy_model(self, ctx: Context, broadcast: MemoDown, data: ClientData) -> tuple[Tensor, Tensor]:
        """`(w_p [P], b_p [Q])` of a client after training on as many proxy samples as it has real ones, with the noise
        of `ctx.update_noise`."""
        proxy = self.proxy.client_samples(ctx, broadcast.generators, data.num_examples)
        w, b = self.proxy.train(ctx, broadcast.w, broadcast.b, proxy)
        if ctx.update_noise is None:
            return w, b
        draws = ctx.rng("privacy", "proxy")
        return broadcast.w + privatised(w - broadcast.w, *ctx.update_noise, draws, ctx.mask("all")), b
