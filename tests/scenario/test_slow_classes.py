"""Classes that the slowest devices hold: `partition.slow_classes` deals the same shares out anew."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flray
from flray.config.loader import load_config
from flray.core.schema.errors import ConfigError
from flray.engine.prepare import build_data, build_scenario

SECTIONS: dict[str, Any] = {
    "seed": 3,
    "rounds": 1,
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 15, "alpha": 0.2, "min_size": 2},
    "model": {"name": "mlp", "hidden": [4]},
    "algorithm": {"name": "fedavg", "lr": 0.05, "local_epochs": 1, "batch_size": 16},
    "devices": {"speed": {"name": "lognormal", "sigma": 1.0}},
    "resources": {"executor": "local"},
}
SLOW = "partition.slow_classes=[8, 9]"


@functools.cache
def scenario(*overrides: str) -> Any:
    experiment = load_config(SECTIONS, list(overrides))[0]
    data = build_data(experiment)
    return build_scenario(experiment, data), np.asarray(data.dataset.train.y)


def shares(found: Any) -> list[tuple[int, ...]]:
    (partition,) = found.partitions
    return [tuple(partition.client(k).tolist()) for k in range(15)]


def test_the_shares_stay_and_the_slowest_have_most_of_the_classes() -> None:
    """Also with equal speeds, and with a validation split."""
    for more in ((), ("devices={speed: equal}",), ("evaluate.validation=0.2",)):
        plain, labels = scenario(*more)
        slow, _ = scenario(*more, SLOW)
        assert sorted(shares(slow)) == sorted(shares(plain))
        order = np.argsort(slow.devices.speeds(np.arange(15)), kind="stable")
        parts = [np.isin(labels[list(shares(slow)[k])], [8, 9]).mean() for k in order]
        # of equal parts the share of the smaller number comes first
        old = {share: number for number, share in enumerate(shares(plain))}
        numbers = [old[shares(slow)[k]] for k in order]
        assert list(zip(parts, numbers, strict=True)) == sorted(
            zip(parts, numbers, strict=True), key=lambda at: (-at[0], at[1])
        )


def test_a_run_has_the_dealt_shares(tmp_path: Path) -> None:
    run = flray.run(SECTIONS, SLOW, out=tmp_path / "run", progress=False)
    table = np.loadtxt(run.folder / "partition" / "table.csv", delimiter=",", skiprows=1, dtype=int)
    sizes = [len(share) for share in shares(scenario(SLOW)[0])]
    assert table[:, 1:].sum(1).tolist() == sizes


@pytest.mark.parametrize(
    "overrides, problem",
    [
        (["devices=none", SLOW], "partition.slow_classes needs devices; add"),
        (["partition={name: csv, file: x.csv, slow_classes: [1]}"], "the clients of csv are those of the data"),
        (["partition.slow_classes=[-1]"], "partition.slow_classes"),
    ],
)
def test_what_it_does_not_go_with_is_said(overrides: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem.replace(".", r"\.")):
        load_config(SECTIONS, overrides)


def test_a_class_that_the_data_do_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"partition\.slow_classes: the data set has no class 10; choose from 0 to 9"):
        scenario("partition.slow_classes=[10]")
