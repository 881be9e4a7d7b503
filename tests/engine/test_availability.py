"""Runs whose clients come and go: who is drawn and who is lost, from a file by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flray
from flray.core.protocol.seeding import rng
from flray.core.schema.errors import ConfigError
from tests.support.even import EVEN

ONE_STEP = {"name": "fedavg", "lr": 0.1, "local_epochs": 1, "batch_size": 8}
BASE = {**EVEN, "cohort": {"size": 3}, "algorithm": ONE_STEP, "checkpoint": {"every": 2}}


def run(folder: Path, *overrides: str, **sections: Any) -> flray.Run:
    return flray.run({**BASE, **sections}, *overrides, out=folder, progress=False)


def trained(found: flray.Run) -> list[list[int]]:
    rows = found.clients.sort_values(["done", "position"])
    return [rows.loc[rows["done"] == done, "client"].tolist() for done in found.rounds["done"]]


def trace(home: Path, text: str) -> dict[str, Any]:
    (home / "there.csv").write_text("client,start,end\n" + text)
    return {"speed": "equal", "availability": {"name": "trace", "file": str(home / "there.csv")}}


def test_a_cohort_is_drawn_among_those_that_are_there(tmp_path: Path) -> None:
    """Clients 0 to 4 are there: of each draw, they stay in its order, and the next draws fill up. Draw 0 is the cohort
    of a run without devices."""
    found = run(tmp_path / "run", devices=trace(tmp_path, "".join(f"{k},0,1e9\n" for k in range(5))))
    for done, clients in enumerate(trained(found)):
        expected, passed, attempt = list[int](), set[int](), 0
        while len(expected) < 3:
            key = (0, done, *([attempt] if attempt else []))
            drawn = rng(3, "cohort", *key).choice(10, min(3 + len(passed), 10), replace=False).tolist()
            new = [k for k in drawn if k not in passed and k not in expected][: 3 - len(expected)]
            expected += [k for k in new if k < 5]
            passed |= {k for k in new if k >= 5}
            attempt += 1
        assert clients == expected


def test_the_clock_waits_for_the_first_who_comes(tmp_path: Path) -> None:
    """Nobody before 7 s, and only clients 2 and 3 then."""
    found = run(tmp_path / "run", devices=trace(tmp_path, "2,7,1e9\n3,7,1e9\n"))
    assert [sorted(clients) for clients in trained(found)] == [[2, 3]] * 4
    assert found.rounds["cohort_size"].tolist() == [2] * 4 and found.rounds["clients_lost"].eq(0).all()
    took = np.diff(found.rounds["time/virtual_s"])
    np.testing.assert_allclose(found.rounds["time/virtual_s"].iloc[0], 7 + took[0], rtol=1e-9)
    np.testing.assert_allclose(took, took[0], rtol=1e-6)


def test_a_client_that_leaves_at_work_is_lost_or_finishes(tmp_path: Path) -> None:
    """Client 4 is there for a nanosecond from the start, 0 and 1 always: in round 1 it is drawn, and leaves."""
    devices = trace(tmp_path, "4,0,1e-9\n0,0,1e9\n1,0,1e9\n")
    finishes = run(tmp_path / "finishes", devices=devices)
    assert sorted(trained(finishes)[0]) == [0, 1, 4] and finishes.rounds["clients_lost"].eq(0).all()
    lost = {**devices, "availability": {**devices["availability"], "leaving": "lose"}}
    found = run(tmp_path / "lost", devices=lost)
    assert [sorted(clients) for clients in trained(found)] == [[0, 1]] * 4
    assert found.rounds["clients_lost"].tolist() == [1, 0, 0, 0]
    down = found.rounds["comm/down_bytes"] / found.rounds["cohort_size"]
    assert down.nunique() == 1  # it had the broadcast


@pytest.mark.parametrize(
    "coordination",
    [{"name": "synchronous"}, {"name": "deadline", "seconds": 9.0}, {"name": "over_selected", "share": 0.7}],
    ids=lambda coordination: coordination["name"],
)
def test_a_round_ends_also_where_clients_leave(tmp_path: Path, coordination: dict[str, Any]) -> None:
    """Round 1 has client 4 alone, which leaves at once: the server waits as long as its work takes, or until the
    deadline. From then on clients 0 to 3 are there."""
    devices = trace(tmp_path, "4,0,1e-9\n" + "".join(f"{k},1e-9,1e9\n" for k in range(4)))
    devices["availability"]["leaving"] = "lose"
    work = run(tmp_path / "work", devices={"speed": "equal"}, rounds=1).rounds["time/virtual_s"].iloc[0]
    found = run(tmp_path / "found", devices=devices, coordination=coordination)
    assert found.rounds["clients_lost"].tolist() == [1, 0, 0, 0] and trained(found)[0] == []
    took = np.diff([0.0, *found.rounds["time/virtual_s"]])
    np.testing.assert_allclose(took, [coordination.get("seconds", work), work, work, work], rtol=1e-9)


def test_where_nobody_ever_comes_one_line_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"devices\.availability: no client is there after"):
        run(tmp_path / "run", devices=trace(tmp_path, "0,0,1e-12\n"))
    with pytest.raises(ConfigError, match=r"devices\.availability"):
        run(tmp_path / "other", devices=trace(tmp_path, "0,0,1e-12\n"), coordination={"name": "buffered", "size": 2})


@pytest.mark.parametrize(
    ("coordination", "says"),
    [
        ("synchronous", "devices.availability: no client is there after 4 virtual seconds; lower rounds to 2"),
        ({"name": "buffered", "size": 3, "concurrency": 3}, "change devices.availability, or lower rounds to 2"),
    ],
    ids=["synchronous", "buffered"],
)
def test_a_trace_that_ends_is_told_before_round_1(tmp_path: Path, coordination: Any, says: str) -> None:
    """All 10 clients take 2 s and leave at 3 s: a third cohort never starts. `until` is an end all the same."""
    unit = run(tmp_path / "unit", devices={"speed": "equal"}, rounds=1).rounds["time/virtual_s"].item()
    devices = trace(tmp_path, "".join(f"{k},0,3\n" for k in range(10)))
    devices["speed"] = {"flops_per_second": 1e9 * unit / 2}
    sections = {"devices": devices, "coordination": coordination, "rounds": 5}
    with pytest.raises(ConfigError, match=says):
        run(tmp_path / "run", **sections)
    assert not (tmp_path / "run").exists()
    with pytest.warns(UserWarning, match="until.virtual_s=9: the run ends with round 2, at 4: "):
        found = run(tmp_path / "until", until={"virtual_s": 9}, **sections)
    assert found.status == "finished" and found.rounds["time/virtual_s"].tolist() == pytest.approx([2.0, 4.0])
    assert len(run(tmp_path / "fewer", **{**sections, "rounds": 2}).rounds) == 2
