"""Contract 12: a server that does not wait, with equal durations and size = concurrency = cohort, is synchronous."""

from __future__ import annotations

from pathlib import Path

import pytest

from flray.core.schema.errors import ConfigError
from flray.running import simulate
from tests.contracts.table import TABLE, experiment
from tests.support.kinds import by_default

EVEN = {
    "partition": {"name": "iid", "clients": 5},
    "devices": {"speed": "equal"},
    "rounds": 3,
    "resources": {"executor": "local", "server": {"threads": 1}},
}
BUFFERED = {"name": "buffered", "size": 3}


def allowed(name: str) -> bool:
    try:
        experiment(name, **EVEN, coordination=BUFFERED)
    except ConfigError as error:
        assert "\n" not in str(error)
        return False
    return True


NAMES = [name for name in TABLE if allowed(name)]


def test_the_methods_of_the_design_are_allowed() -> None:
    """SCAFFOLD, FedDyn and MOON, and those whose server half is only the average; none with several exchanges."""
    assert {"fedavg", "fedprox", "fedsol", "fedntd", "fedsam", "scaffold", "feddyn", "moon", "fedadam"} <= set(NAMES)
    assert not {
        "fedproj",
        "fedet",
        "fedscr",
        "fedcurv",
        "fednova",
        "fedprotip",
        "fot",
        "fedmemo",
        "centralized",
        "local",
    } & set(NAMES)


@pytest.mark.parametrize("name", by_default(("fedavg", "scaffold", "fedsol", "fedadam", "moon", "fedntd"), NAMES))
def test_with_equal_durations_nothing_changes(name: str, tmp_path: Path) -> None:
    models = []
    for kind, coordination in (("waits", {"name": "synchronous"}), ("goes on", BUFFERED)):
        simulate(experiment(name, **EVEN, coordination=coordination), tmp_path / kind)
        models.append((tmp_path / kind / "model.safetensors").read_bytes())
    assert models[0] == models[1]
