"""FedMemo's rounds against its equations, taken apart by hand, and what it does where it cannot work."""

import numpy as np
import pytest
import torch

from flray.contracts.played import Local, bits
from flray.core.protocol.clock import Clock
from flray.core.schema.errors import ConfigError
from flray.ops.detect import Detector
from flray.ops.proxy_step import two_step
from tests.contracts.table import ALARMED, experiment
from tests.support.messages import facts

EVERY_ROUND = {"trigger": "scheduled", "r0": 1}


def played(folder, rounds=2, options=None, **sections):
    local = Local(experiment("fedmemo", options, **sections), folder)
    local.play(rounds)
    return local


def test_step_two_on_the_server_is_the_printed_mean(tmp_path):
    """Round 1 with the held-out samples themselves, one gradient step: w' is FedAvg's, w_p = w' - lr g, gamma of both
    counts; WV is that of step 1."""
    options = {"proxy.data": "real", "proxy.one_step": True, "proxy.lr": 0.3}
    plain, repaired = played(tmp_path / "a", 1, {"r0": 50}), played(tmp_path / "b", 1, options)
    runtime = repaired.server.runtime
    ctx = runtime.context(Clock())
    index = np.arange(runtime.proxy.size)
    x, y = runtime.proxy.inputs(index), runtime.proxy.labels(index)
    w, b = plain.state.w, plain.state.b
    _, g = ctx.objective.value_and_grad(lambda f: torch.nn.functional.cross_entropy(f(x), y), w, b, "eval")
    row = repaired.rows[0]
    gamma = 24 / (repaired.state.rule.examples + 24)
    assert row["memo/gamma"] == pytest.approx(gamma) and row["memo/proxy"] == 24
    torch.testing.assert_close(repaired.state.w, two_step(w, w - 0.3 * g, gamma))
    torch.testing.assert_close(repaired.state.b, b)
    assert row["memo/wv"] == plain.rows[0]["memo/wv"]


def test_gamma_1_is_fine_tuning_on_the_servers_labels(tmp_path):
    """w'' is w_p: two epochs of plain SGD from FedAvg's model on the held-out samples."""
    real = {"proxy.data": "real", "proxy.epochs": 2, "proxy.lr": 0.3, "proxy.batch_size": 24}
    plain, tuned = played(tmp_path / "a", 1, {"r0": 50}), played(tmp_path / "b", 1, {**real, "gamma": 1.0})
    runtime = tuned.server.runtime
    index = np.arange(runtime.proxy.size)
    x, y = runtime.proxy.inputs(index), runtime.proxy.labels(index)
    w, loss = plain.state.w, torch.nn.functional.cross_entropy
    for _ in range(2):
        _, g = runtime.objective.value_and_grad(lambda f: loss(f(x), y), w, plain.state.b, "eval")
        w = w - 0.3 * g
    torch.testing.assert_close(tuned.state.w, w)
    assert tuned.rows[0]["memo/gamma"] == 1.0


def test_the_second_round_is_measured_from_the_repaired_model(tmp_path):
    """WV is of w' against the model that was broadcast, so the repair of the round before is not in it."""
    local = played(tmp_path, 1)
    before = local.state.w.double().clone()
    seen = []
    local.executor.watch = lambda half, function, *given: (
        (seen.append(given) if half == "server" else None) or function(*given)
    )
    local.play(1)
    (_, _, updates, _), layout = seen[-1], local.server.runtime.objective.layout
    used = layout.mask(lambda name: True) > 0
    assert local.rows[1]["memo/wv"] == pytest.approx(np.var((updates.w.double() - before)[used].numpy()), rel=1e-9)


def test_the_proxy_set_is_drawn_once_and_whenever_it_is_needed_first(tmp_path):
    """The GAN's draws have the address of the beginning: the same generator in round 1 as in round 2."""
    one, two = (played(tmp_path / str(r), 2, {"r0": r}).state.rule.generators for r in (1, 2))
    assert bits(one) == bits(two)
    never = played(tmp_path / "never", 2, {"r0": 9}).state.rule.generators
    assert not len(never.w)


def test_clients_train_on_made_data_in_a_second_exchange(tmp_path):
    """Down: the generator and the model at the alarm once a client; up: twice the model while it mitigates."""
    local = played(tmp_path, 3, {"mode": "client", "r0": 2, "r1": 3})
    state, size = local.state, 4 * (local.state.w.numel() + local.state.b.numel())
    assert [row["memo/active"] for row in local.rows] == [False, True, False]
    assert [sent["up"] for sent in local.sent] == [3 * size, 6 * size, 3 * size]
    size_of_generators = sum(t.numel() * 4 for t in vars(state.rule.generators).values())
    assert [sent["down"] for sent in local.sent] == [3 * size, 6 * size + 3 * size_of_generators, 3 * size]
    assert local.rows[1]["memo/gamma"] == 0.5, "as many made samples as real ones"


def test_piggyback_trains_beside_the_real_data_of_the_next_round(tmp_path):
    local = played(tmp_path, 3, {"mode": "client", "r0": 1, "r1": 2, "client_exchange": "piggyback"})
    size = 4 * (local.state.w.numel() + local.state.b.numel())
    assert [sent["up"] for sent in local.sent] == [3 * size, 6 * size, 3 * size]
    assert [row["memo/gamma"] for row in local.rows] == [0.0, 0.5, 0.0]


@pytest.mark.parametrize("options", [{"proxy.labels": "teacher"}, {"proxy.bn": "update"}], ids=str)
def test_proxy_data_that_end_in_one_sample_train_batch_norm(tmp_path, options):
    """9 held-out and 9 made samples in batches of 8: the ninth joins the eighth, in train mode alone."""
    features = {"data": {"source": "synthetic", "options": {"shape": 6, "num_classes": 3, "num_train": 60}}}
    sizes = {"proxy.size": 9, "proxy.batch_size": 8, "batch_size": 100}
    proxy = {"source": "holdout", "size": 9, "labelled": True}
    network = {"model": {"name": "tests.contracts.networks:SampleNorm"}}
    local = played(tmp_path, 1, {**options, **sizes}, proxy=proxy, **features, **network)
    assert local.rows[0]["memo/proxy"] == 9
    algorithm, ctx = local.experiment.algorithm, local.server.runtime.context(Clock())
    assert [len(part) for part in algorithm.proxy.batch_order(ctx, 17, 2, "any", "train")] == [8, 9] * 2
    assert [len(part) for part in algorithm.proxy.batch_order(ctx, 17, 1, "any", "eval")] == [8, 8, 1]


def test_the_alarm_is_the_detectors_on_the_reported_signal(tmp_path):
    options = {**ALARMED, "detector.rho_off": 0.2, "min_on": 2, "lr_decay": 0.7}
    rows = played(tmp_path, 9, options).rows
    chosen = {key.removeprefix("detector."): value for key, value in options.items() if key.startswith("detector.")}
    alarms = Detector(**chosen).alarms([row["memo/wv"] for row in rows])
    assert [bool(row["memo/alarm"]) for row in rows] == alarms and any(alarms)
    assert all(row["memo/active"] or not alarm for row, alarm in zip(rows, alarms, strict=True))
    assert any(row["proxy_examples"] for row in rows if "proxy_examples" in row)


@pytest.mark.parametrize("trigger", ["while_alarm", "latched", "scheduled"])
def test_a_new_episode_has_a_generator_of_its_own(tmp_path, trigger):
    """Also where step 2 went on from the episode before, by min_on or to the end; within an episode it stays. The
    reference of 1e9 makes every round an alarm."""
    options = {"mode": "client", "trigger": trigger, "detector.rho_off": 0.5, "detector.warmup": 0, "detector.m": 1}
    local = played(tmp_path, 1, options)
    high = torch.full((5,), 1e9, dtype=torch.float64)
    state = local.server.state
    detection = state.rule.detection.replace(reference=high, on=False)
    episode = state.rule.episode.replace(began=0, lasts=False)
    first = trained(local, state)
    rule = state.rule.replace(detection=detection, episode=episode, active=True, generators=first)
    local.server.state = state.replace(rule=rule)
    generators = [bits(local.state.rule.generators)]
    for _ in range(2):
        local.play(1)
        assert local.rows[-1]["memo/alarm"] and local.rows[-1]["memo/active"]
        generators.append(bits(local.state.rule.generators))
    assert (generators[0] != generators[1]) == (trigger != "scheduled") and generators[1] == generators[2]


def trained(local, state):
    return local.experiment.algorithm.proxy.fit_without_data(local.server.runtime.context(Clock()), state.w, state.b)


@pytest.mark.filterwarnings("ignore:Optimal order")  # next to no noise
def test_private_updates_are_accounted_for(tmp_path):
    pytest.importorskip("opacus")
    noise = [{"name": "clip", "norm": 1e-3}, {"name": "gaussian", "where": "client", "noise": 1e-6}]
    private = {"buffers": "keep", "r0": 50}
    rows = played(tmp_path / "private", 2, private, uplink=noise).rows
    assert rows[1]["dp/epsilon"] > rows[0]["dp/epsilon"] > 0 and rows[0]["dp/delta"] == 1e-5
    start = Local(experiment("fedmemo", private), tmp_path / "start").state.w
    moved = played(tmp_path / "clipped", 1, private, uplink=noise).state.w - start
    assert 0 < float(moved.norm()) <= 1e-3 + 1e-7, "a mean of clipped updates is no longer than the clipping norm"
    with pytest.raises(ConfigError, match=r"set algorithm\.buffers: keep"):
        played(tmp_path / "norms", 1, uplink=noise)


@pytest.mark.parametrize("options", [{"proxy.data": "real"}, {"proxy.labels": "acgan"}, {"proxy.labels": "teacher"}])
def test_labels_of_other_classes_are_not_trained_on(tmp_path, options):
    """Four synthetic classes beside three: class 0 of the public set is no class of the clients."""
    private = {"num_classes": 3, "num_train": 60, "num_test": 30, "shape": [8, 8, 1]}
    others = {"source": "synthetic", "size": 24, "options": {**private, "num_classes": 4}}
    sections = {"data": {"source": "synthetic", "options": private}, "model": "mlp", "proxy": others}
    with pytest.raises(ConfigError, match=facts("mode: server", "proxy.same_labels: true")):
        played(tmp_path, 1, {**EVERY_ROUND, **options}, **sections)


def test_what_it_cannot_do_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"set proxy\.labelled: true"):
        played(tmp_path, 1, proxy={"source": "holdout", "size": 24, "labelled": False})
    with pytest.raises(ConfigError, match="fedmemo needs public data"):
        experiment("fedmemo", proxy=None)
    assert experiment("fedmemo", {"mode": "client"}, proxy=None).proxy is None
    with pytest.raises(ConfigError, match=facts("9x9", "data.resize")):
        played(tmp_path, 1, data={"source": "digits", "resize": 9}, model="mlp")
    options = {"detector.method": "classes", "trigger": "while_alarm", "buffers": "keep"}
    with pytest.raises(ConfigError, match=r"weight_decay.*set detector\.method: cusum"):
        played(tmp_path / "decay", 1, {**options, "weight_decay": 1e-4})
    noise = [{"name": "clip"}, {"name": "gaussian", "where": "client", "noise": 1.0}]
    with pytest.raises(ConfigError, match=r"uplink\.gaussian.*set trigger: scheduled"):
        played(tmp_path / "noise", 1, options, uplink=noise)


def test_vanished_classes_are_named_in_the_rounds(tmp_path):
    """Classes 0 and 1 leave all clients in round 9; the model is the contracts' own, which has batch norm."""
    options = {"trigger": "while_alarm", "detector.method": "both", "detector.warmup": 5, "detector.guard": 0}
    drift = {"name": "remove_classes", "classes": [0, 1], "from_round": 9}
    local = Local(experiment("fedmemo", {**options, "detector.rate": 0.1}, drift=drift, rounds=12), tmp_path)
    local.play(12)
    vanished = np.array([np.asarray(row["memo/vanished"]) for row in local.rows])
    assert (vanished[-1][:2] > 0.9).all() and (vanished[-1][2:] < 0.1).all() and not vanished[:6].any()
    assert local.rows[-1]["memo/alarm"]
