"""Each transform in closed form, alone and in an order: clipping, noise, attacks."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from flray.core.protocol.seeding import rng
from flray.core.schema.errors import AlgorithmError, ConfigError, OwnCodeError
from flray.engine.health import reported
from flray.uplink import Received, Receiver, Sender, Sent, TopK, Uplink
from flray.uplink.attack import Scaled, SignFlip, attackers
from flray.uplink.clip import Clip, clipped
from flray.uplink.gaussian import Gaussian
from flray.uplink.transform import Transform

X = torch.tensor([3.0, 4.0, 0.0])  # of norm 5
B = torch.tensor([1.0])


def context(client=0, cohort=4, population=10, round=0, size=3):
    return SimpleNamespace(
        client=client,
        seed=3,
        cohort_size=cohort,
        population=population,
        mask=lambda part: torch.ones(size),
        rng=lambda *purpose: rng(3, round, client, *purpose),
    )


def way(*transforms, client=0, states=None, residual=None, x=X):
    return Uplink(transforms).of_client(context(client), Sent(x, B), states or {}, 10, residual)


def mean(*transforms, count=4, states=None, w=X, round=0, **cohort):
    uplink = Uplink(transforms)
    ctx, rates = context(round=round, size=len(w), **cohort), ((0.4, round + 1),)
    return uplink.of_mean(ctx, Received(w, count), states or {}, True, rates)


def test_clipping_scales_to_the_norm_and_leaves_what_is_within():
    assert way(Clip(norm=1.0)).w.tolist() == pytest.approx([0.6, 0.8, 0.0])
    assert way(Clip(norm=5.0)).w is X, "its own bits"
    lost = way(Clip(norm=1.0), x=torch.tensor([math.nan, 1e3, 0.0])).w
    assert lost.isnan().all(), "an update that cannot be measured is not sent unclipped"
    both = way(Clip(norm=1.0), Clip(norm=0.5))
    assert float(both.w.norm()) == pytest.approx(0.5) and both.norm == 0.5


def test_an_exploding_update_is_clipped_where_its_square_overflows():
    """(3, 4) x 1e25 has norm 5e25, whose square float32 cannot hold: the update became 0, as if nothing had changed."""
    torch.testing.assert_close(clipped(torch.tensor([3e25, 4e25]), 2.0), torch.tensor([1.2, 1.6]))


def test_attackers_are_a_share_that_stays_and_hangs_on_the_occurrence():
    drawn = attackers(3, "sign_flip", 0.2, 10)
    assert len(drawn) == 2 and drawn <= set(range(10)) and drawn == attackers(3, "sign_flip", 0.2, 10)
    others = {attackers(seed, address, 0.2, 1000) for seed in (3, 4) for address in ("sign_flip", "sign_flip 2")}
    assert len(others) == 4 and {len(clients) for clients in others} == {200}
    chosen, honest = min(drawn), min(set(range(10)) - drawn)
    for transform, factor in ((SignFlip(clients=0.2), -1.0), (SignFlip(clients=1.0), -1.0)):
        flipped = way(transform, client=chosen)
        assert flipped.w.tolist() == (factor * X).tolist() and flipped.b.tolist() == [factor]
    assert way(SignFlip(clients=0.2), client=honest).w is X
    assert way(Scaled(clients=1.0, factor=10.0)).w.tolist() == [30.0, 40.0, 0.0]
    assert Uplink((TopK(), SignFlip(), SignFlip())).steps[2].address == "sign_flip 2", "by name, not by place"
    with pytest.raises(ConfigError, match=r"uplink\.sign_flip\.clients: 0\.05 of 10 clients is none; raise it"):
        Uplink((SignFlip(clients=0.05),)).start(context(), (), 10)


def test_an_attacker_ignores_the_clipping_before_it_and_a_server_that_adds_noise_clips_it():
    attack = Scaled(clients=1.0, factor=2.0)
    assert way(Clip(norm=1.0), attack).w.tolist() == [6.0, 8.0, 0.0]
    assert float(way(attack, Clip(norm=1.0)).w.norm()) == pytest.approx(1.0)
    assert float(way(Clip(norm=1.0), attack, Gaussian(noise=1.0)).w.norm()) == pytest.approx(1.0)


def test_a_server_that_adds_noise_clips_again_what_was_compressed():
    """x = C (0.6, 0.8, 0) + e, e = (0, 0, 9): the largest entry is e's."""
    e = torch.tensor([0.0, 0.0, 9.0])
    alone = way(Clip(norm=1.0), TopK(fraction=0.5), residual=e)
    private = way(Clip(norm=1.0), TopK(fraction=0.5), Gaussian(noise=1.0), residual=e)
    assert alone.w.tolist() == [0.0, 0.0, 9.0] and private.w.tolist() == [0.0, 0.0, 1.0]
    assert private.residual.tolist() == alone.residual.tolist() == pytest.approx([0.6, 0.8, 0.0])


@pytest.fixture
def accounting():
    pytest.importorskip("opacus")


@pytest.mark.usefixtures("accounting")
def test_the_noise_is_z_c_over_q_n_once_on_the_mean_over_the_fixed_denominator():
    """3 of an expected 4 clients deliver: the mean counts 3/4. 10,000 draws of N(0, (1.5 * 2 / 4)^2)."""
    private = (Clip(norm=2.0), Gaussian(noise=1.5))
    states = Uplink(private).start(SimpleNamespace(population=10), ((0.4, 3),), 10)
    x = torch.full((10_000,), 0.5)
    after, states = mean(*private, count=3, states=states, w=x)
    noise = after.w - 0.5 * 3 / 4
    assert float(noise.std()) == pytest.approx(0.75, rel=0.02) and abs(float(noise.mean())) < 4 * 0.75 / 100
    again, _ = mean(*private, count=3, states=states, w=x)
    later, _ = mean(*private, count=3, states=states, w=x, round=1)
    assert torch.equal(after.w, again.w) and abs(np.corrcoef(noise, later.w)[0, 1]) < 0.04
    nobody, _ = mean(*private, count=0, states=states, w=torch.zeros(10_000))
    assert float(nobody.w.std()) == pytest.approx(0.75, rel=0.02), "an empty cohort has the noise as well"


@pytest.mark.usefixtures("accounting")
def test_the_norm_follows_the_quantile_of_andrew_et_al():
    """C' = C exp(-eta (b - gamma)); with noise b = 1/2 + (sum (b_k - 1/2) + N(0, sigma_b^2)) / qN."""
    clip = Clip(norm=2.0, adaptive=0.5, adaptive_lr=0.2)
    sent = way(clip, states={"clip": 4.0})
    assert float(sent.w.norm()) == pytest.approx(4.0) and sent.bits == {"clip": False}
    receiver = Receiver(context(), "clip", 2.0, True, private=False)
    after, norm = clip.pooled(receiver, Received(X, 4, bits={"clip": 3}))
    assert norm == pytest.approx(2 * math.exp(-0.2 * (0.75 - 0.5))) and after.norm == 2.0
    noisy = Clip(norm=2.0, adaptive=0.5, adaptive_lr=0.2, adaptive_noise=1e-6)
    _, norm = noisy.pooled(receiver._replace(private=True), Received(X, 3, bits={"clip": 3}))
    assert norm == pytest.approx(2 * math.exp(-0.2 * (0.5 + 1.5 / 4 - 0.5)), rel=1e-5), "an absent client counts 1/2"
    shares = []
    for round in range(400):
        ctx = receiver._replace(private=True, ctx=context(round=round, cohort=40))
        after, _ = clip.pooled(ctx, Received(X, 40, bits={"clip": 20}))
        shares.append(after.metrics["clip/within"])
    assert np.std(shares) == pytest.approx(2 / 40, rel=0.15) and after.bit_noise == (2.0,), "sigma_b = qN / 20"


def test_each_adaptive_clip_has_its_norm_and_share_in_the_row():
    """Of 4 updates 3 are within the first norm and 1 within the second; a fixed clip between them has none."""
    uplink = Uplink((Clip(norm=2.0, adaptive=0.5), Clip(norm=1.5), Clip(norm=1.0, adaptive=0.9)))
    states = uplink.start(context(), (), 10)
    after, _ = uplink.of_mean(context(), Received(X, 4, bits={"clip": 3, "clip 3": 1}), states, False)
    within = {"clip/norm": 2.0, "clip/within": 0.75, "clip 3/norm": 1.0, "clip 3/within": 0.25}
    assert after.metrics == within and after.norm == 1.0
    single = Uplink((Clip(norm=2.0), Clip(norm=1.0, adaptive=0.5)))
    after, _ = single.of_mean(context(), Received(X, 4, bits={"clip 2": 1}), single.start(context(), (), 10), False)
    assert after.metrics == {"clip/norm": 1.0, "clip/within": 0.25}


class Larger(Transform, frozen=True):
    """Sends a thousand times the update, and says that it is within another norm."""

    way: str = "new"

    def client(self, sender, sent):
        if self.way == "same":
            return sent
        if self.way == "new":
            return sent._replace(w=sent.w * 1000.0)
        if self.way == "norm":
            return sent._replace(w=sent.w * 1000.0, norm=1e6, bounded=True)
        sent.w.numpy()[:] *= 1000.0  # which no counter of writes sees
        return sent


class ClipsLittle(Clip, frozen=True):
    """Sends what it was given, and says that it is within another norm."""

    def client(self, sender, sent):
        return sent._replace(norm=1e6, bounded=True)


@pytest.mark.parametrize("where", ["server", "client"])
@pytest.mark.parametrize("step", [*(Larger(way=way) for way in ("new", "norm", "numpy")), ClipsLittle(norm=1.0)])
def test_noise_is_of_the_norm_of_the_clip_whatever_a_transform_of_ones_own_makes_of_it(step, where):
    """z = 1e-6: the noise is lost beside an update of norm 1."""
    sent = way(Clip(norm=1.0), step, Gaussian(noise=1e-6, where=where), x=X.clone())
    assert sent.w.tolist() == pytest.approx([0.6, 0.8, 0.0], abs=1e-4) and sent.norm == 1.0
    alike = [way(Clip(norm=1.0), *own, Gaussian(noise=1.0, where=where)) for own in ((), (Larger(way="same"),))]
    assert torch.equal(alike[0].w, alike[1].w), "an update that is left alone keeps its bits"


class Bound(Clip, frozen=True):
    def bound(self, state):
        return 2.5


class Begins(Clip, frozen=True):
    def start(self, plan):
        return 2.5

    def broadcast(self, state):
        return state


class Sends(Clip, frozen=True):
    """An adaptive clip whose clients get half of C."""

    adaptive: float | None = 0.5
    adaptive_noise: float | None = 3.0

    def start(self, plan):
        return 5.0

    def broadcast(self, state):
        return state / 2


@pytest.mark.usefixtures("accounting")
@pytest.mark.parametrize("kind", [Bound, Begins, Sends])
def test_the_noise_is_of_the_norm_to_which_a_clip_of_ones_own_bounds(kind):
    """Clients are clipped at 2.5, not at `norm`: the noise is z 2.5 / 4."""
    steps = kind(norm=0.01), Gaussian(noise=2.0)
    uplink = Uplink(steps)
    states = uplink.start(SimpleNamespace(population=10), ((0.4, 3),), 10)
    assert float(way(*steps, states=uplink.broadcast(states)).w.norm()) == pytest.approx(2.5)
    after, following = mean(*steps, states=states, w=torch.zeros(10_000))
    z = Gaussian.noise_of_updates(2.0, after.bit_noise)
    assert after.norm == 2.5 and float(after.w.std()) == pytest.approx(z * 2.5 / 4, rel=0.03)
    if kind is Sends:  # C follows, not what the clients got of it
        c = following[uplink.steps[0].address]
        assert c == pytest.approx(5 * math.exp(-0.2 * (after.metrics["clip/within"] - 0.5)))


class Layers(Clip, frozen=True):
    """Its state is no norm."""

    def start(self, plan):
        return {"first": 2.0}

    def client(self, sender, sent):
        return sent._replace(w=sent.w.clamp(max=sender.state["first"]))


def test_without_noise_the_state_of_a_clip_of_ones_own_is_its_own():
    states = Uplink((Layers(),)).start(context(), (), 10)
    assert way(Layers(), states=states).w.tolist() == [2.0, 2.0, 0.0]
    assert mean(Layers(), states=states)[0].w is X


def test_noise_of_each_client_is_of_the_norm_of_a_clip_of_ones_own():
    uplink = Uplink((Bound(norm=0.01), Gaussian(noise=2.0, where="client")))
    assert uplink.update_noise == (2.5, 2.0)


class Counts(Transform, frozen=True):
    """Says of a client that it counts a million times among those within the norm."""

    where: str = "client"

    def client(self, sender, sent):
        return self.counted(sent) if self.where == "client" else sent

    def server(self, sender, sent):
        return self.counted(sent) if self.where == "server" else sent

    def counted(self, sent):
        return sent._replace(bits=dict.fromkeys(sent.bits, 10**6))


class CountsItself(Clip, frozen=True):
    def client(self, sender, sent):
        return sent._replace(bits={sender.address: 10**6})


@pytest.mark.parametrize("own", [Counts(), Counts(where="server"), CountsItself(adaptive=0.5)])
def test_a_client_of_a_private_run_has_one_bit_of_each_clip_whatever_a_transform_of_ones_own_makes_of_it(own):
    """The noise sigma_b is made for a number that one client changes by one. Norm 1: the update, of 5, is outside."""
    sent = way(Clip(adaptive=0.5), own, Gaussian(noise=1.0))
    assert sent.bits["clip"] is False and max(sent.bits.values()) <= 1


class Less(Gaussian, frozen=True):
    """Noise of one's own."""


class Reports(Transform, frozen=True):
    """Reports a value as the metric `mine/NAME`, or writes it into those that it got."""

    name: str
    value: Any
    in_place: bool = False

    def pooled(self, receiver, mean):
        if self.in_place:
            mean.metrics[f"mine/{self.name}"] = self.value
            return mean, None
        return mean._replace(metrics={**mean.metrics, f"mine/{self.name}": self.value}), None


def test_a_step_answers_for_the_metrics_that_it_adds_or_replaces():
    """A vector is a list in the table, and the next transform gets it so."""
    asked = []

    def report(metrics, method):
        asked.append((type(method.__self__).__name__, *metrics))
        return reported(metrics, method)

    steps = (Reports(name="x", value=torch.tensor([1.0, 2.0])), Clip(norm=1.0), Reports(name="x", value=3))
    after, _ = Uplink(steps[:2]).of_mean(context(), Received(X, 4), {}, False, (), report)
    assert after.metrics == {"mine/x": [1.0, 2.0]} and asked == [("Reports", "mine/x"), ("Clip",)]
    after, _ = Uplink(steps).of_mean(context(), Received(X, 4), {}, False, (), reported)
    assert after.metrics == {"mine/x": 3.0}
    written = Reports(name="y", value=torch.tensor([3.0]), in_place=True)
    after, _ = Uplink((steps[2], written)).of_mean(context(), Received(X, 4), {}, False, (), reported)
    assert after.metrics == {"mine/x": 3.0, "mine/y": [3.0]}


class Mine(Transform, frozen=True):
    """Its state counts up by the mean; `way`: a slip."""

    way: str = "right"

    def start(self, plan):
        return {"a set": {"n": set()}, "a NumPy number": {"n": np.float64(1.0)}}.get(self.way, {"n": np.zeros(3)})

    def client(self, sender, sent):
        if self.way == "broadcast in place":
            sender.state["n"].add_(1)
        return sent

    def pooled(self, receiver, mean):
        n, w = receiver.state["n"], mean.w
        if self.way == "mean in place":
            w.mul_(0.5)
        if self.way == "state in place":
            n.add_(1)
        if self.way == "a set later":
            return mean, {"n": set()}
        w = {"one number": w.mean(), "double": w.double(), "none": None}.get(self.way, w)
        return mean._replace(w=w), {"n": np.asarray(n) + X.numpy()}


def test_a_state_of_arrays_has_tensors_from_the_first_round_on():
    """As after a resume: 0, X, 2 X, in float64."""
    uplink = Uplink((Mine(),))
    states = uplink.start(context(), (), 10)
    for count in range(3):
        ((n,),) = (state.values() for state in states.values())
        assert isinstance(n, torch.Tensor) and n.dtype == torch.float64 and n.tolist() == (count * X).tolist()
        _, states = uplink.of_mean(context(), Received(X, 4), states, False)


NUMBERS = np.arange(3.0)


class CountsBackwards(Transform, frozen=True):
    """Its state is `NUMBERS`, which it counts up in place; `backwards`: from the end."""

    backwards: bool = False

    def start(self, plan):
        return {"n": NUMBERS[::-1] if self.backwards else NUMBERS}

    def pooled(self, receiver, mean):
        NUMBERS[:] += 1
        return mean, self.start(None)


@pytest.mark.parametrize(("backwards", "places"), [(False, [0, 1, 2]), (True, [2, 1, 0])])
def test_a_state_is_a_copy_of_the_transforms_array(backwards, places):
    """A rollback reads the state of the round before, which the next one has written over in the array."""
    NUMBERS[:] = np.arange(3.0)
    uplink = Uplink((CountsBackwards(backwards=backwards),))
    before = uplink.start(context(), (), 10)
    _, after = uplink.of_mean(context(), Received(X, 4), before, False)
    assert [[n.tolist() for n in state.values()] for state in before.values()] == [[places]]
    assert [[n.tolist() for n in state.values()] for state in after.values()] == [[[n + 1 for n in places]]]


STATE = r"its state's \[n\] is"
HERE = r" \(test_transforms.py, line \d+\)"


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("a set", f"Mine.start{HERE}: {STATE} a set"),
        ("a NumPy number", f"Mine.start{HERE}: {STATE} a float64.*, which a resume would give back as a plain float"),
        ("a set later", f"Mine.pooled{HERE}: {STATE} a set"),
        ("broadcast in place", f"Mine.client{HERE} wrote into its state in place; work on a copy"),
        ("state in place", f"Mine.pooled{HERE} wrote into its state in place; work on a copy"),
        ("mean in place", rf"Mine.pooled{HERE} wrote into the update in place; return mean\._replace\(w=\.\.\.\)"),
        ("one number", rf"Mine.pooled{HERE} returned a Tensor \[\] of float32 as w; w is a float32 tensor \[3\]"),
        ("double", rf"Mine.pooled{HERE} returned a Tensor \[3\] of float64 as w; w is a float32 tensor \[3\]"),
        ("none", rf"Mine.pooled{HERE} returned None .*as w; w is a float32 tensor \[3\]"),
    ],
)
def test_a_slip_after_pooling_or_in_a_state_is_named_with_its_method(way, says):
    uplink, x = Uplink((Mine(way=way),)), X.clone()
    with pytest.raises((AlgorithmError, OwnCodeError), match=says):
        states = uplink.start(context(), (), 10)
        uplink.of_client(context(), Sent(x, B), states, 10)
        uplink.of_mean(context(), Received(x, 4), states, False)


class Makes(Transform, frozen=True):
    """Makes a mean where there is none."""

    def pooled(self, receiver, mean):
        return mean._replace(w=X), None


def test_no_mean_stays_none():
    assert Uplink((Reports(name="x", value=1),)).of_mean(context(), Received(None, 4), {}, False)[0].w is None
    with pytest.raises(OwnCodeError, match=rf"Makes.pooled{HERE} returned a Tensor \[3\] as w; w is None"):
        Uplink((Makes(),)).of_mean(context(), Received(None, 4), {}, False)


def test_noise_on_the_bits_is_paid_by_more_noise_on_the_updates():
    """z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2); z = 1, sigma_b = 2: (1 - 1/16)^(-1/2)."""
    assert Gaussian.noise_of_updates(1.0, ()) == 1.0
    assert Gaussian.noise_of_updates(1.0, (2.0,)) == pytest.approx((15 / 16) ** -0.5)
    with pytest.raises(ConfigError, match=r"adaptive_noise: .* set it above 0\.5"):
        Gaussian.noise_of_updates(1.0, (0.4,))


@pytest.mark.parametrize(
    ("transforms", "words"),
    [
        ((Gaussian(noise=1.0),), "gaussian needs a bound of each update"),
        ((Gaussian(noise=1.0), Clip()), "gaussian needs a bound of each update"),
        ((Clip(), Gaussian(noise=1.0), TopK()), "topk stands behind it; move it before"),
        ((Clip(), Less(noise=1.0)), "Less is a gaussian of your own, whose epsilon flray cannot know; take gaussian"),
        ((Clip(), Makes(), Gaussian(noise=1.0)), "Makes.pooled may change that mean; leave one of the two out"),
        ((Clip(), Gaussian(noise=1.0), Makes()), "Makes.pooled may change that mean; leave one of the two out"),
        ((Clip(), Gaussian(noise=1.0), Gaussian(noise=1.0)), "gaussian and gaussian 2 both add noise"),
        ((TopK(), TopK()), "topk and topk 2 both compress"),
        ((Clip(), TopK(), Gaussian(noise=1.0, where="client")), "with gaussian.where: client"),
    ],
)
def test_what_does_not_fit_together_is_one_line(transforms, words):
    with pytest.raises(ConfigError, match=words):
        Uplink(transforms)


def test_the_mean_of_updates_that_clients_made_private_is_free():
    assert Uplink((Clip(), Makes(), Gaussian(noise=1.0, where="client")))


def test_noise_or_epsilon():
    for options in ({}, {"noise": 1.0, "epsilon": 8.0}):
        with pytest.raises(ConfigError, match=r"uplink\.gaussian: give noise \(z\) or epsilon"):
            Gaussian(**options)


@pytest.mark.slow
@pytest.mark.usefixtures("accounting")
def test_what_epsilon_cannot_be_is_one_line():
    with pytest.raises(ConfigError, match=r"delta: 0\.2 is not below 1 / N, N = 10 clients"):
        Gaussian(noise=1.0, delta=0.2).start(SimpleNamespace(ctx=SimpleNamespace(population=10), rates=()))
    private = (Clip(), Gaussian(epsilon=2.0))
    states = Uplink(private).start(SimpleNamespace(population=10), ((0.4, 2),), 10)
    for round in range(2):
        after, states = mean(*private, states=states, round=round)
    assert after.metrics["dp/epsilon"] == pytest.approx(2.0, rel=1e-3)
    Uplink(private).check_budget(states, ((0.4, 2),), [4])
    with pytest.raises(ConfigError, match=r"3 rounds would bring the run to .* start again with this number of rounds"):
        Uplink(private).check_budget(states, ((0.4, 3),), [4])


def test_a_transform_of_ones_own_reads_what_it_needs():
    sender = Sender(context(client=5), "mine", 10)
    assert sender.rng().random() == rng(3, 0, 5, "uplink", "mine").random()
