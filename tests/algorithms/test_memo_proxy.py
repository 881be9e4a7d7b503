"""FedMemo's proxy data: scale, labels, balance, and whose generator makes what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from flray.algorithms.held_out_gan import labelled, pixels, scaled
from flray.core.protocol.clock import Clock
from tests.contracts.inprocess import Local
from tests.contracts.table import experiment

DIGITS = {"data": {"source": "digits", "train_size": 300}, "model": {"name": "mlp", "hidden": [8]}}
HELD_OUT = {"proxy": {"source": "holdout", "size": 60}}


def parts(tmp_path, options=None, **sections):
    local = Local(experiment("fedmemo", options, **DIGITS, **{**HELD_OUT, **sections}), tmp_path)
    return local.experiment.algorithm, local.server.bench.context(Clock(0, 4, done=4)), local


def test_images_reach_the_gan_in_minus_one_to_one_and_come_back(tmp_path):
    _, ctx, _ = parts(tmp_path)
    x = ctx.require_proxy().inputs(np.arange(60))
    seen = pixels(ctx, x)
    assert seen.min() == -1 and seen.max() == 1
    torch.testing.assert_close(scaled(ctx, seen), x, rtol=1e-5, atol=1e-6)


def test_the_servers_samples_are_balanced_the_same_every_round_and_noisy_by_request(tmp_path):
    algorithm, ctx, _ = parts(tmp_path)
    maker = algorithm.fitted(ctx)
    first = algorithm.drawn(ctx, maker)
    assert torch.bincount(first.labels(np.arange(30))).tolist() == [3] * 10
    later = replace(ctx, clock=Clock(0, 9, done=9))
    assert torch.equal(first.x, algorithm.drawn(later, maker).x)
    fresh = algorithm.model_copy(update={"proxy_refresh": True})
    assert not torch.equal(fresh.drawn(ctx, maker).x, fresh.drawn(later, maker).x)
    noisy = algorithm.model_copy(update={"label_noise": 0.2}).drawn(ctx, maker)
    assert int((noisy.y != first.y).sum()) == 6 and torch.equal(noisy.x, first.x)


def test_the_real_samples_are_a_draw_of_the_section(tmp_path):
    algorithm, ctx, local = parts(tmp_path, {"proxy_data": "real", "proxy_size": 20})
    proxy = algorithm.drawn(ctx, local.state.maker)
    known = ctx.require_proxy()
    everything = known.inputs(np.arange(60))
    assert proxy.size == 20
    for x, y in zip(proxy.x, proxy.y, strict=True):
        (place,) = torch.nonzero((everything == x).flatten(1).all(1))[:1]
        assert known.labels(place.numpy()).item() == y


@pytest.mark.parametrize(("labels", "networks"), [("acgan", 1), ("per_class", 10), ("teacher", 1)])
def test_each_way_to_labels(tmp_path, labels, networks):
    algorithm, ctx, _ = parts(tmp_path, {"proxy_labels": labels, "proxy_size": 40})
    maker = algorithm.fitted(ctx)
    assert len(maker.w) == networks and bool(len(maker.labeller_w)) == (labels == "teacher")
    proxy = algorithm.drawn(ctx, maker)
    assert proxy.x.shape == (40, 1, 8, 8)
    if labels == "teacher":
        assert torch.equal(proxy.y, labelled(ctx, maker, proxy.x))
    else:
        assert torch.bincount(proxy.y).tolist() == [4] * 10


def test_a_clients_samples_are_labelled_by_the_model_at_the_alarm_and_balanced_by_rejection(tmp_path):
    algorithm, ctx, local = parts(tmp_path, {"mode": "client", "generator_steps": 1}, proxy=None)
    local.play(3)
    maker = algorithm.fitted_without_data(ctx, local.state.w, local.state.b)
    two, three = (local.executor.client.context(ctx.clock, k, 1.0, np.zeros(0, int)) for k in (2, 3))
    proxy = algorithm.drawn_without_data(two, maker, 30)
    assert proxy.size == 30 and torch.equal(proxy.y, labelled(ctx, maker, proxy.x))
    plain = algorithm.drawn_without_data(two, maker, 30, tries=1)
    assert torch.bincount(proxy.y, minlength=10).max() <= torch.bincount(plain.y, minlength=10).max()
    assert not torch.equal(algorithm.drawn_without_data(three, maker, 30).x, proxy.x)
