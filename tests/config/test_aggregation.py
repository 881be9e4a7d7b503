"""The key `aggregation`: in YAML, on the command line, in tables and in grids."""

from pathlib import Path

import pytest
import yaml

from flray.aggregations.fedadam import FedAdam
from flray.aggregations.krum import Krum
from flray.aggregations.mean import Mean
from flray.config.grid import labels
from flray.config.loader import load_config
from flray.core.schema.errors import ConfigError

QUICK = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


def read(overrides=(), **values):
    return load_config({"extends": str(QUICK), **values}, overrides)


@pytest.mark.parametrize(
    ("values", "overrides"),
    [
        ({"aggregation": {"name": "krum", "faulty": 0.1}}, []),
        ({}, ["aggregation=krum", "aggregation.faulty=0.1"]),
        ({}, ["aggregation.name=krum", "aggregation.faulty=0.1"]),
        ({}, {"aggregation": {"name": "krum", "faulty": 0.1}}),
        ({"aggregation": "median"}, ["aggregation={name: krum, faulty: 0.1}"]),
        ({"aggregations": {"krum": {"faulty": 0.1}, "median": None}}, ["aggregation=krum"]),
        ({"aggregation": {"name": "multi_krum", "faulty": 0.1, "models": 3}}, ["aggregation=krum"]),
    ],
)
def test_a_rule_and_its_options_are_named_in_each_way(values, overrides):
    (experiment,) = read(overrides, **values)
    assert experiment.aggregation == experiment.rule == Krum(faulty=0.1)
    assert experiment.dump()["aggregation"] == {"name": "krum", "faulty": 0.1}
    assert load_config(yaml.safe_load(experiment.yaml()))[0] == experiment


def test_without_one_the_algorithm_has_its_own():
    (plain,) = read()
    assert plain.aggregation is plain.rule is None and plain.dump()["aggregation"] is None
    assert read(["aggregation=none"], aggregation="median")[0].aggregation is None
    (named,) = read(["algorithm=fedadam", "algorithm.server_lr=0.3"], algorithms={"fedadam": {"beta_2": 0.9}})
    assert named.aggregation is None and named.rule is named.algorithm
    assert isinstance(named.rule, FedAdam) and (named.rule.server_lr, named.rule.beta_2) == (0.3, 0.9)


def test_a_grid_names_its_folders_by_the_rule():
    cells = read(["algorithm=fedavg,fedsol", "aggregation=mean,fedadam,median"])
    assert labels(cells) == [f"{a}-{r}" for a in ("fedavg", "fedsol") for r in ("mean", "fedadam", "median")]
    assert cells[0].aggregation == Mean()
    varied = read(["aggregation=krum", "aggregation.faulty=0.1,0.2"])
    assert labels(varied) == ["fedavg-faulty0.1", "fedavg-faulty0.2"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["aggregation=medain"], "unknown aggregation 'medain' .did you mean 'median'"),
        (["aggregation=median", "aggregation.trim=0.2"], "aggregation.trim: unknown key"),
        (["aggregation=trimmed_mean", "aggregation.trim=0.5"], "aggregation.trim: .*less than 0.5"),
        (["aggregation.trim=0.2"], "aggregation: the name is missing"),
        (["aggregation=feddf", "proxy=null"], "aggregation feddf needs public data"),
        (["aggregation=fedmemo", "model.dtype=float64"], "aggregation fedmemo .its detector"),
        (
            ["algorithm=fedsol", "algorithm.proximal=feddyn", "aggregation=median"],
            "the server of feddyn .*h and w move",
        ),
        (
            ["aggregation={name: fedmemo, detector: {method: classes}}", "algorithm.weight_decay=0.1"],
            "algorithm.weight_decay: detector.method classes reads the signs",
        ),
    ],
)
def test_what_is_wrong_is_one_line(overrides, words):
    with pytest.raises(ConfigError, match=words):
        read(overrides)
