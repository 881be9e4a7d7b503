"""When clients worked: what the tables of a run say, and who came too late by the same seconds as in the plan."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flray
from flray.core.schema.errors import ConfigError
from flray.results.client_figures import COLOURS, timeline, worked
from tests.support.timed import TIMED

SPEED = {"name": "lognormal", "sigma": 1.0, "flops_per_second": 1000}
SECTIONS = {**TIMED, "rounds": 6, "cohort": {"size": 5}, "devices": {"speed": SPEED}}
KINDS: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "drop": {"coordination": {"name": "deadline", "seconds": 8}},
    "partial": {"coordination": {"name": "deadline", "seconds": 8, "late": "partial"}},
    "over_selected": {"coordination": {"name": "over_selected", "share": 0.6}},
    "buffered": {"coordination": {"name": "buffered", "size": 2, "concurrency": 5, "max_staleness": 1}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_agrees_with_the_tables(tmp_path: Path, kind: str) -> None:
    """Those who deliver are those of clients/; nobody works twice at once; all work ends with its round or before."""
    run = flray.run({**SECTIONS, **KINDS[kind]}, out=tmp_path / "run", progress=False)
    table = worked(run)
    assert set(table["fate"]) <= set(COLOURS)
    ends = run.rounds.set_index("done")["time/virtual_s"]
    for number, rows in table.groupby("round"):
        delivered = rows[rows["fate"].isin(["delivers", "stops early"])]
        assert set(delivered["client"]) == set(run.clients.loc[run.clients["done"] == number, "client"])
        assert (delivered["until"] <= ends[number] * (1 + 1e-12)).all()
        if kind != "buffered":
            row = run.rounds.set_index("done").loc[number]
            assert rows["until"].max() == pytest.approx(ends[number], rel=1e-12)
            assert rows["fate"].eq("late").sum() == row["clients_late"]
            assert rows["fate"].eq("stops early").sum() == row.get("clients_partial", 0)
    for _, rows in table.groupby("client"):
        rows = rows.sort_values("began")
        assert (rows["began"].to_numpy()[1:] >= rows["until"].to_numpy()[:-1] * (1 - 1e-12)).all()
    if kind == "buffered":
        assert table["fate"].eq("too old").sum() == run.rounds["clients_stale"].sum() > 0
    elif kind != "synchronous":
        assert table["fate"].ne("delivers").any()
    figure = timeline(run)
    bars = [patch for patch in figure.axes[0].patches if patch.get_width() > 0]
    assert len(bars) == len(table)
    np.testing.assert_allclose(max(bar.get_x() + bar.get_width() for bar in bars), table["until"].max(), rtol=1e-9)


def test_a_client_that_leaves_works_until_then(tmp_path: Path) -> None:
    there = {"name": "markov", "on": 20.0, "off": 10.0, "leaving": "lose"}
    devices = {**SECTIONS["devices"], "availability": there}
    run = flray.run({**SECTIONS, "rounds": 20, "devices": devices}, out=tmp_path / "run", progress=False)
    table = worked(run)
    assert table["fate"].eq("leaves").sum() == run.rounds["clients_lost"].sum() > 0
    assert (table["until"] > table["began"]).all()


def test_a_run_without_a_clock_says_so(tmp_path: Path) -> None:
    sections = {name: value for name, value in SECTIONS.items() if name != "devices"}
    run = flray.run(sections, "rounds=1", out=tmp_path / "run", progress=False)
    with pytest.raises(ConfigError, match="no virtual clock; set devices"):
        timeline(run)
