"""Clients and classes: hand-written run folders whose spread, minority and worst class are known."""

import math
from pathlib import Path

import numpy as np
import pandas
import pytest
from scipy.stats import t

from flray.metrics.fairness import minority
from flray.results import compare
from flray.results.by_mode import TRAINED, fairness, over_clients
from flray.rundir.reader import Run
from tests.support.commands import invoke
from tests.support.continual_runs import counted, written
from tests.support.tables import config, put

HELD = [[8, 2], [8, 2], [1, 9], [9, 1]]  # 26 and 14: shares .65 .35; distances .15 .15 .55 .25


def run(path: Path, seed: int, own: list[float], algorithm: str = "fedavg") -> Path:
    """Four clients with `own` test accuracies; of 10 samples each class 0 has 9 right and class 1 5."""
    written(path, config(algorithm, seed), [counted("test", "global", [9, 5], [10, 10], done=2)], 2)
    put(path, "personal", {"done": 2, "client": range(4), "finetune_epochs": 0, "test/acc": own})
    (path / "partition").mkdir()
    pandas.DataFrame(HELD).rename_axis("client").to_csv(path / "partition" / "table.csv")
    return path


def test_the_minority_by_hand() -> None:
    assert minority(np.array(HELD)).tolist() == [2] and minority(np.array(HELD), 0.5).tolist() == [2, 3]
    assert minority(np.array(HELD), 0.75).tolist() == [0, 2, 3]  # of equals the first
    assert minority(np.array([[0, 0], [3, 0], [1, 9]]), 1).tolist() == [1, 2]  # one without samples is none
    assert minority(np.array([[2, 4], [1, 2]])).tolist() == [] == minority(np.zeros((2, 2))).tolist()


def test_one_run(tmp_path: Path) -> None:
    """.2 .4 .4 .9: mean .475, p10 .2 + .3 * .2, Gini 2 (.2 + 2 * .4 + 3 * .4 + 4 * .9) / (4 * 1.9) - 5 / 4."""
    found = over_clients(Run(run(tmp_path / "a", 0, [0.9, 0.2, 0.4, 0.4])))["own tests, 0 epochs"]
    assert found["client/acc_minority"] == 0.4 and (found["clients"], found["minority"]) == (4, 1)
    assert [found[f"client/{name}"] for name in ("acc_mean", "acc_p10", "acc_worst", "gini")] == pytest.approx(
        [0.475, 0.26, 0.2, 2 * 5.8 / 7.6 - 1.25]
    )
    put(tmp_path / "a", "clients", {"done": [1, 2, 2], "client": [0, 1, 3], "client/acc_after": [0.1, 0.6, 0.8]})
    trained = over_clients(Run(tmp_path / "a"))[TRAINED]
    assert (
        trained["client/acc_mean"] == pytest.approx(0.7) and "client/acc_minority" not in trained
    )  # client 2 is not in


def test_settings_over_seeds_and_the_command(tmp_path: Path) -> None:
    run(tmp_path / "a0", 0, [0.9, 0.2, 0.4, 0.4])
    run(tmp_path / "a1", 1, [0.9, 0.4, 0.6, 0.4])
    run(tmp_path / "b0", 0, [0.5] * 4, "fedsol")
    table = fairness(compare(sorted(tmp_path.iterdir())))
    first, second = table.to_dict("records")
    assert (first["algorithm"], first["n"], second["algorithm"], second["n"]) == ("fedavg", 2, "fedsol", 1)
    assert (first["client/acc_minority"], first["client/acc_worst"]) == (pytest.approx(0.5), pytest.approx(0.3))
    assert first["class/acc_worst"] == 0.5 == second["class/acc_worst"] and second["client/gini"] == 0
    assert first["client/acc_minority_low"] == 0 and math.isnan(second["client/gini_low"])  # of two seeds, cut off
    half = t.ppf(0.975, 1) * 0.1  # 0.4 and 0.6: std 0.2 / sqrt 2, over sqrt 2
    assert first["client/acc_minority_half"] == pytest.approx(half)  # not cut off: ± is the interval's width
    shown = invoke("compare", tmp_path, "--format", "markdown", "--stats")
    assert "Over clients and classes" in shown.output and "±" not in shown.output, "two seeds cannot tell"
    run(tmp_path / "a2", 2, [0.9, 0.3, 0.5, 0.4])
    shown = invoke("compare", tmp_path, "--format", "markdown", "--stats")
    assert "| 50.00 ± 24.84 |" in shown.output, "0.4, 0.6 and 0.5: t(0.975, 2) 0.1 / sqrt 3 is 0.2484"
    one = invoke("show", tmp_path / "a0")
    assert "minority 40.00 % (1 client)" in one.output and "class 1 with 50.00 %" in one.output


def test_a_number_of_fewer_seeds_says_of_how_many(tmp_path: Path) -> None:
    """The minority, client 2, was tested in two of four seeds, all clients in the others: no interval of two seeds."""
    own = [[0.9, 0.2, 0.4, 0.4], [0.9, 0.2, 0.6, 0.4], [0.9, 0.2, 0.5, 0.4], [0.9, 0.2, 0.5, 0.4]]
    runs = [run(tmp_path / str(seed), seed, values) for seed, values in enumerate(own)]
    shown = [(3, "50.00 ± 24.84 (3 seeds)"), (2, "50.00 (2 seeds)"), (1, "40.00 (1 seed)")]
    for (seeds, text), path in zip(shown, runs[::-1], strict=False):
        rows = pandas.read_parquet(path / "personal")
        put(path, "personal", rows[rows["client"] != 2])
        (row,) = fairness(compare(runs)).to_dict("records")
        assert (row["n"], row["client/acc_minority_seeds"]) == (4, seeds) and "client/acc_mean_seeds" not in row
        assert f"| {text} |" in invoke("compare", tmp_path, "--format", "markdown", "--stats").output


def test_a_run_whose_partition_cannot_be_read_says_so(tmp_path: Path) -> None:
    run(tmp_path / "a", 0, [0.5] * 4)
    (tmp_path / "a" / "partition" / "table.csv").write_text("")
    assert len(fairness(compare([tmp_path / "a"]))) == 0
    assert "table.csv is damaged" in invoke("show", tmp_path / "a").output
