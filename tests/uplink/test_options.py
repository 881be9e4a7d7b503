"""Every option of every transform changes the outcome: a row for each."""

import pytest

from flray.contracts.played import Local, bits
from flray.core.schema.hp import hyperparameters
from flray.uplink import UPLINKS
from tests.contracts.table import experiment

CLIP, CLIENT = {"name": "clip", "norm": 0.5}, {"name": "gaussian", "where": "client", "noise": 1.0}
FOLLOWING = {**CLIP, "adaptive": 0.5}
NOISE = {"name": "gaussian", "noise": 1.0}
QUANTIZE = {"name": "quantize", "bits": 4, "bucket": 16}
ROWS = {  # transform.option -> the list of transforms before and after the change
    "topk.fraction": ([{"name": "topk", "fraction": 0.1}], [{"name": "topk", "fraction": 0.2}]),
    "topk.feedback": ([{"name": "topk", "fraction": 0.1}], [{"name": "topk", "fraction": 0.1, "feedback": False}]),
    "quantize.bits": ([QUANTIZE], [{**QUANTIZE, "bits": 2}]),
    "quantize.bucket": ([QUANTIZE], [{**QUANTIZE, "bucket": 32}]),
    "quantize.rounding": ([QUANTIZE], [{**QUANTIZE, "rounding": "stochastic"}]),
    "quantize.feedback": ([QUANTIZE], [{**QUANTIZE, "feedback": False}]),
    "clip.norm": ([CLIP], [{**CLIP, "norm": 0.4}]),
    "clip.adaptive": ([CLIP], [FOLLOWING]),
    "clip.adaptive_lr": ([FOLLOWING], [{**FOLLOWING, "adaptive_lr": 0.5}]),
    "clip.adaptive_noise": (
        [{**FOLLOWING, "adaptive_noise": 2.0}, NOISE],
        [{**FOLLOWING, "adaptive_noise": 3.0}, NOISE],
    ),
    "gaussian.noise": ([CLIP, NOISE], [CLIP, {**NOISE, "noise": 1.1}]),
    "gaussian.epsilon": ([CLIP, NOISE], [CLIP, {"name": "gaussian", "epsilon": 9.0}]),
    "gaussian.delta": (
        [CLIP, {"name": "gaussian", "epsilon": 9.0}],
        [CLIP, {"name": "gaussian", "epsilon": 9.0, "delta": 1e-3}],
    ),
    "gaussian.where": ([CLIP, NOISE], [CLIP, CLIENT]),
    "sign_flip.clients": ([{"name": "sign_flip", "clients": 0.2}], [{"name": "sign_flip", "clients": 0.6}]),
    "scaled.clients": ([{"name": "scaled", "clients": 0.2}], [{"name": "scaled", "clients": 0.6}]),
    "scaled.factor": ([{"name": "scaled", "clients": 0.6}], [{"name": "scaled", "clients": 0.6, "factor": -2.0}]),
}

SOLVED = ("gaussian.epsilon", "gaussian.delta")  # the noise is searched for


def test_every_option_has_a_row():
    assert set(ROWS) == {
        f"{name}.{hp.name}" for name in UPLINKS.own_paths() for hp in hyperparameters(UPLINKS.get(name))
    }


@pytest.mark.parametrize("option", [pytest.param(o, marks=pytest.mark.slow if o in SOLVED else ()) for o in ROWS])
def test_an_option_changes_the_outcome(tmp_path, option):
    if "gaussian" in str(ROWS[option]):
        pytest.importorskip("opacus")
    options = {"buffers": "keep", "weighting": "uniform"}
    one, other = (
        bits(Local(experiment("fedavg", options, uplink=uplink), tmp_path / str(place)).play(2))
        for place, uplink in enumerate(ROWS[option])
    )
    assert one != other
