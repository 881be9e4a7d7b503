"""Gauges of a run on a cluster of one's own, as Prometheus reads them, beside the run's rows."""

import json
import re
import subprocess
import time
from pathlib import Path
from urllib.request import urlopen

import pandas
import pytest

from flray.engine.ray.calls import GAUGES
from tests.support.heads import BIN, Head, ray_head

ROOT = Path(__file__).parents[3]


def scraped(head: Head) -> dict[str, float]:
    """The run's gauges by name."""
    with urlopen(f"http://127.0.0.1:{head.metrics}/metrics", timeout=10) as page:
        text = page.read().decode()
    lines = re.findall(r'^ray_(flray_\w+)\{[^}]*run="watched"[^}]*\} (\S+)$', text, re.MULTILINE)
    return {name: float(value) for name, value in lines}


def test_the_board_draws_every_gauge_and_no_other() -> None:
    board = json.loads((ROOT / "configs" / "cluster" / "grafana.json").read_text())
    drawn = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert sorted(drawn) == sorted(f'ray_{name}{{run=~"$run"}}' for name in GAUGES)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_gauges_say_what_the_rows_say_and_the_actors_have_names(tmp_path: Path) -> None:
    with ray_head() as cluster:
        command = [
            BIN / "python", "-m", "flray", "run", ROOT / "configs" / "quickstart.yaml", "name=watched", "rounds=5000",
            f"address={cluster.address}", "resources.executor=calls", "--out", tmp_path / "run",
        ]  # fmt: skip
        with subprocess.Popen(command, env=cluster.environment, cwd=tmp_path) as run:
            until, gauges = time.monotonic() + 300, {}
            while not gauges.get("flray_round") and time.monotonic() < until:
                time.sleep(1)
                gauges = scraped(cluster)
            listed = subprocess.run(
                [BIN / "ray", "list", "actors", "--address", cluster.dashboard, "--format", "json"],
                env=cluster.environment, stdout=subprocess.PIPE, check=True, timeout=120,
            )  # fmt: skip
            run.terminate()
        names = {actor["name"] for actor in json.loads(listed.stdout) if actor["name"].startswith("flray:")}
        assert names == {"flray:watched:server", "flray:watched:client-0", "flray:watched:client-1"}
    assert set(gauges) == set(GAUGES)
    rows = pandas.read_parquet(tmp_path / "run" / "rounds").set_index("done")
    # the gauges of a round are set one after the other: an export may fall between two of them
    near = rows.loc[[done for done in (gauges["flray_round"], gauges["flray_round"] + 1) if done in rows.index]]
    for name, column in {"accuracy": "test/acc", "loss": "train/loss", "up_bytes": "comm/up_bytes"}.items():
        assert gauges[f"flray_{name}"] in near[column].tolist()
