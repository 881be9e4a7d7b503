"""Detectors side by side on what runs wrote down, against their scores one by one."""

import itertools
import math

import pandas
import pytest

import flray
from flray.config.loader import load_config
from flray.core.schema.errors import ConfigError
from flray.metrics.detection import scores
from flray.ops.detect import Detector
from flray.results.detectors import compare_detectors, recorded, summary
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
    series = [quick.alarms(run.diagnostics["latent_forgetting"]["wv"])[:5] for run in runs[:2]] + [quiet]
    starts = [now and not was for said in series for was, now in itertools.pairwise(said[4:])]
    assert row["begun"] == pytest.approx(1000 * sum(starts) / 4)  # rounds 6 to 9 of the run without a drift
    assert never["missed"] == 2 and never["recall"] == never["false_alarms"] == 0 and math.isnan(never["delay"])
    assert never["on_before"] == 0 and 0 <= row["on_before"] <= 2
    unwatched = flray.run(load_config({**CONFIG, "diagnostics": []})[0], out=tmp_path / "none", progress=False)
    with pytest.raises(ConfigError, match=r"diagnostics=\[latent_forgetting\]"):
        compare_detectors([unwatched])
    with pytest.raises(ConfigError, match="no run"):
        compare_detectors(iter(()))


@pytest.mark.slow
def test_on_recorded_signals_a_detector_says_what_it_says_in_the_run(tmp_path):
    """Of the same seed, recorded under the default detector and judged in the run, by each sequential test."""
    options = {"W": 6, "guard": 0, "warmup": 5, "rate": 0.1, "per_cohort": True}
    config = {**CONFIG, "rounds": 14, "drift": {**DRIFT, "from_round": 9, "to_round": 12, "classes": [0, 1, 2, 3]}}
    base = flray.run(load_config(config)[0], out=tmp_path / "base", progress=False)
    read = recorded(base)
    assert read.inside == [9 <= done < 12 for done in range(1, 15)] and read.classes == (0, 1, 2, 3)
    for method in ("cusum", "classes", "both"):
        probe = {"name": "latent_forgetting", "method": method, **options}
        online = flray.run(load_config({**config, "diagnostics": [probe]})[0], out=tmp_path / method, progress=False)
        table = online.diagnostics["latent_forgetting"]
        assert table["alarm"].tolist() == Detector(method=method, **options).alarms(read.signals)
        assert ("vanished" in table) == (method != "cusum")
    assert table["alarm"].any()
    row = compare_detectors([base], {"classes": Detector(method="classes", **options)}).loc["classes"]
    probabilities = online.diagnostics["latent_forgetting"]["vanished"]
    assert len(probabilities.iloc[-1]) == 10 and 0 <= row["named"] <= 1


def test_the_delay_of_several_runs_is_their_median():
    rows = {
        "detector": "d",
        "seed": range(4),
        "drift": True,
        "begun": 0,
        "quiet": 5,
        "on": 0.1,
        "delay": [0, 1, 8, math.nan],
    }
    found = summary(pandas.DataFrame(rows | {"delay": [0, 1, 8, math.nan]})).loc["d"]
    assert (found["delay"], found["missed"], found["quiet_rounds"]) == (1.0, 1.0, 20.0)
