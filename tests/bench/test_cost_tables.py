"""What algorithms and diagnostics cost, as tables: FedProj's Table 5, a diagnostic's round; tensors that are alive."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from flray.bench import diagnostics_cost, overhead
from flray.bench.bare import Workload
from flray.cli import app
from flray.engine.live_bytes import Alive
from flray.metrics.probes import PROBES
from flray.reference.papers import read_csv

TINY = Workload(4, 32, (8, 8, 1), 2, 8, {"name": "mlp", "hidden": [16]}, tested=20)


def test_the_papers_model_gives_the_papers_milliseconds() -> None:
    """5.22 and 19.76, 10.57 and 25.11; the overheads are their ratios."""
    printed = {row["method"]: row for row in read_csv("fedproj_000_table5_overhead.csv")}
    for method in overhead.PASSES:
        client, one = overhead.modelled(method)
        assert f"{client:.2f}" == printed[method]["client_time_ms"]
        assert f"{one:.2f}" == printed[method]["round_time_ms"]
    ratios = [a / b for a, b in zip(overhead.modelled("FedProj"), overhead.modelled("FedAvg"), strict=True)]
    assert ratios == pytest.approx([2.03, 1.27], abs=0.01)


def test_tensors_that_are_alive_by_hand() -> None:
    """1,000 floats, their copy and a view of it, then another one when the first is gone; small ones do not count."""
    with Alive(size=100) as alive:
        first = torch.zeros(1000)
        second = first + 1
        _, _ = second.view(10, 100) * 1, torch.zeros(3)
        assert alive.most == 3 * 4000  # the product as well
        del first
        third = second.clone()
        assert alive.most == 3 * 4000
        fourth, fifth = third + 1, third + 2
    assert alive.most == 4 * 4000 and len(fourth) == len(fifth)


def test_table_5_of_a_tiny_run(tmp_path: Path) -> None:
    """FedProj's step has a second gradient: as many FLOPs again where the memory's batch is as large; the columns that
    the clock fills are only there."""
    rows = {row["method"]: row for row in overhead.table(1, tmp_path, 2, TINY)}
    assert list(rows) == ["FedAvg", "FedDF", "FedProj", "overhead"]
    assert rows["overhead"]["GFLOP here"] == pytest.approx(2.0) and rows["overhead"]["GFLOP model"] == 2.0
    assert rows["FedAvg"]["GFLOP here"] == rows["FedDF"]["GFLOP here"]
    assert rows["overhead"]["vectors model"] == 1.75 and rows["overhead"]["vectors here"] > 1
    assert rows["FedAvg"]["MB here"] == rows["FedDF"]["MB here"] < rows["FedProj"]["MB here"]
    assert all(rows[name]["round ms here"] > rows[name]["client ms here"] > 0 for name in overhead.PASSES)


@pytest.mark.slow
def test_every_diagnostic_has_its_cost(tmp_path: Path) -> None:
    rows = diagnostics_cost.costs(1, tmp_path, TINY)
    assert [row["diagnostic"] for row in rows] == PROBES.names()
    assert all(row["round / without"] > 0 and row["adds MB"] >= 0 for row in rows), rows


def test_a_table_of_rows_in_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"diagnostic": "a", "adds ms": 1.5}, {"diagnostic": "b", "note": "needs a proxy"}]
    monkeypatch.setattr(diagnostics_cost, "costs", lambda repeats, home: rows)
    done = CliRunner().invoke(app, ["bench", "--only", "diagnostics", "--format", "markdown"])
    assert done.stdout.splitlines() == [
        "| diagnostic | adds ms | note |", "| --- | --- | --- |", "| a | 1.5 |  |", "| b |  | needs a proxy |",
    ]  # fmt: skip
    done = CliRunner().invoke(app, ["bench", "--only", "diagnostics", "--format", "json"])
    assert json.loads(done.stdout) == rows
