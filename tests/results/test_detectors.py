"""Detectors side by side on what runs wrote down, against their scores one by one."""

from __future__ import annotations

import math

import pytest

import flray
from flray.config.loader import load_config
from flray.core.schema.errors import ConfigError
from flray.metrics.detection import scores
from flray.ops.detect import Detector
from flray.results.detectors import compare_detectors
from tests.support.latent import CONFIG

DRIFT = {"name": "remove_classes", "from_round": 6, "to_round": 9}


def test_every_detector_reads_the_signal_of_every_run(tmp_path):
    runs = [
        flray.run(load_config({**CONFIG, "seed": seed, "drift": drift})[0], out=tmp_path / f"{seed}", progress=False)
        for seed, drift in ((0, DRIFT), (1, DRIFT), (2, None))
    ]
    quick = Detector(W=5, m=1, guard=0, warmup=5, rho=0.3)
    table = compare_detectors(runs, {"quick": quick, "never": quick.model_copy(update={"warmup": 99})})
    labels = [6 <= done < 9 for done in range(1, 10)]
    found = [scores(labels, quick.alarms(run.diagnostics["latent_forgetting"]["wv"])) for run in runs[:2]]
    row, never = table.loc["quick"], table.loc["never"]
    for i, name in enumerate(("precision", "recall", "f1")):
        assert row[name] == pytest.approx((found[0][i] + found[1][i]) / 2)
    quiet = quick.alarms(runs[2].diagnostics["latent_forgetting"]["wv"])
    assert row["quiet"] == pytest.approx(sum(quiet) / 9)
    assert never["missed"] == 2 and never["recall"] == never["false_alarms"] == 0 and math.isnan(never["delay"])
    assert never["on_before"] == 0 and 0 <= row["on_before"] <= 2
    unwatched = flray.run(load_config({**CONFIG, "diagnostics": []})[0], out=tmp_path / "none", progress=False)
    with pytest.raises(ConfigError, match=r"diagnostics=\[latent_forgetting\]"):
        compare_detectors([unwatched])
