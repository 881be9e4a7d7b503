"""FedMemo's proxy data: scale, labels, balance, and whose generator makes what."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from flray.aggregations.memo_proxy import from_gan_scale, pseudo_labels, to_gan_scale
from flray.contracts.played import Local
from flray.core.protocol.clock import Clock
from tests.contracts.table import experiment

DIGITS = {"data": {"source": "digits", "train_size": 300}, "model": {"name": "mlp", "hidden": [8]}}
HELD_OUT = {"proxy": {"source": "holdout", "size": 60}}


def parts(tmp_path, options=None, **sections):
    local = Local(experiment("fedmemo", options, **DIGITS, **{**HELD_OUT, **sections}), tmp_path)
    return local.experiment.algorithm.proxy, local.server.runtime.context(Clock(0, 4, done=4)), local


def test_images_reach_the_gan_in_minus_one_to_one_and_come_back(tmp_path):
    _, ctx, _ = parts(tmp_path)
    x = ctx.require_proxy().inputs(np.arange(60))
    seen = to_gan_scale(ctx, x)
    assert seen.min() == -1 and seen.max() == 1
    torch.testing.assert_close(from_gan_scale(ctx, seen), x, rtol=1e-5, atol=1e-6)


def test_the_servers_samples_are_balanced_the_same_every_round_and_noisy_by_request(tmp_path):
    source, ctx, _ = parts(tmp_path)
    generators = source.fit_gans(ctx)
    first = source.server_samples(ctx, generators)
    assert torch.bincount(first.labels(np.arange(30))).tolist() == [3] * 10
    later = replace(ctx, clock=Clock(0, 9, done=9))
    assert torch.equal(first.x, source.server_samples(later, generators).x)
    fresh = source.model_copy(update={"refresh": True})
    assert not torch.equal(fresh.server_samples(ctx, generators).x, fresh.server_samples(later, generators).x)
    noisy = source.model_copy(update={"label_noise": 0.2}).server_samples(ctx, generators)
    assert int((noisy.y != first.y).sum()) == 6 and torch.equal(noisy.x, first.x)


def test_the_real_samples_are_a_draw_of_the_section(tmp_path):
    source, ctx, local = parts(tmp_path, {"proxy.data": "real", "proxy.size": 20})
    proxy = source.server_samples(ctx, local.state.rule.generators)
    known = ctx.require_proxy()
    everything = known.inputs(np.arange(60))
    assert proxy.size == 20
    for x, y in zip(proxy.x, proxy.y, strict=True):
        (place,) = torch.nonzero((everything == x).flatten(1).all(1))[:1]
        assert known.labels(place.numpy()).item() == y


@pytest.mark.parametrize(("labels", "networks"), [("acgan", 1), ("per_class", 10), ("teacher", 1)])
def test_each_way_to_labels(tmp_path, labels, networks):
    source, ctx, _ = parts(tmp_path, {"proxy.labels": labels, "proxy.size": 40})
    generators = source.fit_gans(ctx)
    assert len(generators.w) == networks and bool(len(generators.labeller_w)) == (labels == "teacher")
    proxy = source.server_samples(ctx, generators)
    assert proxy.x.shape == (40, 1, 8, 8)
    if labels == "teacher":
        assert torch.equal(proxy.y, pseudo_labels(ctx, generators, proxy.x))
    else:
        assert torch.bincount(proxy.y).tolist() == [4] * 10


def test_a_clients_samples_are_labelled_by_the_model_at_the_alarm_and_balanced_by_rejection(tmp_path):
    source, ctx, local = parts(tmp_path, {"mode": "client", "proxy.generator_steps": 1}, proxy=None)
    local.play(3)
    generators = source.fit_without_data(ctx, local.state.w, local.state.b)
    two, three = (local.executor.client.context(ctx.clock, k, 1.0, np.zeros(0, int)) for k in (2, 3))
    proxy = source.client_samples(two, generators, 30)
    assert proxy.size == 30 and torch.equal(proxy.y, pseudo_labels(ctx, generators, proxy.x))
    plain = source.client_samples(two, generators, 30, tries=1)
    assert torch.bincount(proxy.y, minlength=10).max() <= torch.bincount(plain.y, minlength=10).max()
    assert not torch.equal(source.client_samples(three, generators, 30).x, proxy.x)
