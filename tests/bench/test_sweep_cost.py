"""A sweep's cost in its two parts; no timed assertion."""

from pathlib import Path

import pytest

from flray.bench import sweep_cost


def test_fixed_cost_and_cost_of_each_are_the_line_through_both_sizes():
    """10 s whatever is tried and 0.5 s a trial: 10.5 s for one, 14 s for eight."""
    assert sweep_cost.apart({1: 10.5, 8: 14.0}) == (10.0, 0.5)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_rows_of_a_sweep_and_of_the_same_runs(tmp_path: Path):
    rows = sweep_cost.costs(tmp_path, repeats=1, rounds=1)
    assert [row["what"] for row in rows] == ["fixed cost", "cost per trial", "1 trial", "8 trials"]
    one, eight = rows[2:]
    for way in ("sweep, s", "in a row, s"):
        assert rows[0][way] + rows[1][way] == pytest.approx(one[way])
        assert rows[0][way] + 8 * rows[1][way] == pytest.approx(eight[way])
    assert len(list(tmp_path.glob("sweep-*/trials/0007/model.safetensors"))) == 1
    assert len(list(tmp_path.glob("row/*/model.safetensors"))) == 8
