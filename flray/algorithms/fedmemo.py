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

from typing import Any, ClassVar, Literal

from torch import Tensor

from flray.algorithms.fedavg import FedAvg, OwnStatistics, SGDState
from flray.algorithms.held_out_gan import Maker
from flray.algorithms.memo_proxy import ProxySource
from flray.algorithms.private_updates import PrivateUpdates
from flray.core.messages import Broadcast, Cohort, Metrics, ServerState, Update
from flray.core.messages.fields import shared
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from flray.ops.detect import Detection, Detector, Episode, Rule, Signal, episode_after, mitigates
from flray.ops.proxy_step import mixing_weight, two_step


class MemoState(ServerState):
    detection: Detection
    episode: Episode
    active: bool  # whether this round mitigates
    examples: float  # sum N_i of step 1
    maker: Maker


class MemoDown(Broadcast):
    maker: Maker = shared()


class MemoUpdate(Update):
    """Both models of a client that trained on real and on proxy data at once."""

    w_proxy: Tensor
    b_proxy: Tensor


class FedMemo(ProxySource, Signal, Detector, PrivateUpdates, FedAvg[MemoState], frozen=True):
    keeps: ClassVar[str] = "on the server a held-out labelled set (mode: server), or a generator; clients keep nothing"

    rho_off: float | None = hp(0.4, gt=0, lt=1, doc="drop that keeps the alarm on; none: rho")
    trigger: Rule = hp(
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

    # server -----------------------------------------------------------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> MemoState:
        self.check_privacy(ctx, self.buffers)
        self.check_labels(ctx)
        return MemoState(w, b, self.nothing_seen(), Episode(-1, False), False, 0.0, self.no_maker(ctx))

    def next_exchange(self, ctx: Context, state: MemoState) -> Exchange | None:
        if ctx.clock.phase == "round" and ctx.clock.exchange == 1 and state.active and self.in_two_phases:
            return Exchange("proxy", self.sent, self.repaired, self.repair)
        return super().next_exchange(ctx, state)

    @property
    def in_two_phases(self) -> bool:
        return self.mode == "client" and self.client_exchange == "two_phase"

    def broadcast(self, ctx: Context, state: MemoState) -> Broadcast:
        beside = self.mode == "client" and self.client_exchange == "piggyback" and state.active
        return self.sent(ctx, state) if beside else super().broadcast(ctx, state)

    def sent(self, ctx: Context, state: MemoState) -> MemoDown:
        return MemoDown(state.w, state.b, state.maker)

    def aggregate(self, ctx: Context, state: MemoState, updates: Update, cohort: Cohort) -> tuple[MemoState, Metrics]:
        reading = self.read(state.detection, self.measure(ctx.objective, state.w, updates.w, self.known_noise(cohort)))
        detection, alarm = self.detect(state.detection, reading.wv)
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
        metrics |= {"memo/alarm": alarm, "memo/active": active, **self.account(ctx)}
        again = self.trigger != "scheduled" and episode.began > state.episode.began  # within min_on, or latched
        if self.mode == "client" and active and (again or not state.active):
            after = after.replace(maker=self.fitted_without_data(ctx, after.w, after.b))
        if isinstance(updates, MemoUpdate):
            return self.mixed(after, updates.w_proxy, updates.b_proxy, after.examples, metrics)
        if self.mode == "client" or not active:
            return after, {**metrics, "memo/gamma": 0.0}
        if self.proxy_data == "gan" and not len(after.maker.w):
            after = after.replace(maker=self.fitted(ctx))
        proxy = self.drawn(ctx, after.maker)
        w, b = self.trained(ctx, after.w, after.b, proxy)
        metrics["proxy_examples"] = float(proxy.size * (1 if self.one_step else self.proxy_epochs))
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
        if self.dp_clip is not None:
            update = Update(self.private(ctx, broadcast.w, local.w, "real"), broadcast.b)
        if not isinstance(broadcast, MemoDown):
            return update, client
        w, b = self.trained_on_made(ctx, broadcast, data)
        return MemoUpdate.of(update, w_proxy=w, b_proxy=b), client

    def repair(
        self, ctx: Context, broadcast: MemoDown, client: OwnStatistics, data: ClientData
    ) -> tuple[Update, OwnStatistics, Metrics]:
        return Update(*self.trained_on_made(ctx, broadcast, data)), client, {}

    def trained_on_made(self, ctx: Context, broadcast: MemoDown, data: ClientData) -> tuple[Tensor, Tensor]:
        """What a client sends of its training on as many made samples as it holds real ones, with noise as well."""
        proxy = self.drawn_without_data(ctx, broadcast.maker, data.num_examples)
        w, b = self.trained(ctx, broadcast.w, broadcast.b, proxy)
        return self.private(ctx, broadcast.w, w, "proxy"), b

    def repaired(self, ctx: Context, state: MemoState, updates: Update, cohort: Cohort) -> tuple[MemoState, Metrics]:
        return self.mixed(state, updates.w, updates.b, float(cohort.num_examples.sum()), {})
