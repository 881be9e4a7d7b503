"""`flray show`: a run in a few lines, also one that is half finished or damaged."""

import math

import pytest

import flray
from flray.config.loader import load_config
from flray.core.schema.errors import CheckpointError
from flray.results.essentials import about, essentials, sparkline
from flray.rundir.lock import FolderLock
from flray.rundir.reader import Run
from tests.support.continual_runs import drift, watched
from tests.support.tables import config, folder

WINDOW = [[50, 50], [80, 80], [90, 90], [20, 100], [0, 100], [70, 90], [90, 40]]


def test_a_line_of_bars_by_hand():
    """Eight steps from the smallest to the largest; a hole stays a hole, and parts are drawn by their means."""
    assert sparkline(range(8)) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, math.nan, 3.0, math.inf, 2.0]) == "▁ █ ▅"
    assert sparkline([5.0, 5.0]) == "▁▁" and sparkline([]) == "" and sparkline([math.nan]) == " "
    assert sparkline([0, 0, 7, 7, 3, 4, math.nan, math.nan], width=4) == "▁█▅ "
    assert len(sparkline(range(1000))) == 40


def test_what_a_real_run_says(tmp_path):
    """An accuracy's best is the largest, a loss's the smallest; bytes and steps are the sums of the table."""
    run = flray.run(
        load_config(
            {
                "seed": 3, "rounds": 4, "data": {"source": "iris"}, "partition": {"name": "iid", "clients": 4},
                "model": {"name": "mlp", "hidden": [8]}, "algorithm": {"name": "fedavg", "lr": 0.1, "batch_size": 8},
                "evaluate": {"finetune_epochs": [0, 1]}, "resources": {"executor": "local"}, "cohort": {"size": 3},
            }
        )[0],
        out=tmp_path / "run",
        progress=False,
    )  # fmt: skip
    found = essentials(run)
    assert found["run"] == "FedAvg on iris; iid over 4 clients, 3 a round; seed 3" and found["status"] == "finished"
    assert found["rounds"].startswith("4 of 4 in ")
    rounds = run.rounds
    best, least = rounds["test/acc"].idxmax(), rounds["test/loss"].idxmin()
    assert found["test/acc"].split()[:2] == [f"{100 * rounds['test/acc'].iloc[-1]:.2f}", "%"]
    assert found["test/acc"].endswith(f"best {100 * rounds['test/acc'][best]:.2f} % in round {best + 1}")
    assert found["test/loss"].endswith(f"in round {least + 1}")
    assert f"{int(rounds['client_steps'].sum())} local steps" in found["cost"]
    assert "over 3 clients; minority " in found["clients"]
    assert found["clients"].endswith("(1 client): own training data, after local training in round 4")
    assert [name for name in found if name.startswith("own tests")] == ["own tests, 0 epochs", "own tests, 1 epochs"]
    assert "Gini" in found["own tests, 1 epochs"] and "over 4 clients; minority " in found["own tests, 1 epochs"]
    last = run.tests.iloc[-1]
    shares = [right / total for right, total in zip(last["class_right"], last["class_total"], strict=True)]
    worst = shares.index(min(shares))
    assert found["worst class"] == f"class {worst} with {100 * shares[worst]:.2f} %"
    assert "damaged" not in found


def test_over_tasks_no_round_is_called_the_best(tmp_path):
    """Round 1 is tested on the first task's classes alone, so its accuracy is no achievement."""
    section = {"name": "class_incremental", "num_tasks": 3}
    over_tasks = folder(tmp_path / "tasks", config(tasks=section), [0.9, 0.4, 0.3])
    plain = folder(tmp_path / "plain", config(), [0.9, 0.4, 0.3])
    line = essentials(Run(over_tasks))["test/acc"]
    assert "best" not in line and line.startswith("  30.00 %")
    assert essentials(Run(plain))["test/acc"].endswith("best 90.00 % in round 1")


def test_a_drift_is_shown_with_its_worst_class_and_its_alarms(tmp_path):
    found = essentials(Run(watched(drift(tmp_path / "a", WINDOW, 3, 5), {2, 4, 5})))
    assert found["worst class"] == "class 1 with 40.00 %"
    assert (
        found["alarms"] == "latent_forgetting: in rounds 2, 4-5"
        and found["diagnostics"] == "latent_forgetting (6 rows)"
    )
    assert "drift remove_classes" in found["run"]


def test_what_there_is_of_a_run_that_just_started_or_is_damaged_is_shown(tmp_path):
    new = folder(tmp_path / "new", None, [], "starting")
    lock = FolderLock.acquire(new)
    assert essentials(Run(new)) == {"run": str(new), "status": "starting", "rounds": "0"}
    lock.release()
    torn = folder(tmp_path / "torn", config(), [0.5, 0.6])
    (torn / "tests").mkdir()
    (torn / "tests" / "part-0000.parquet").write_bytes(b"PAR1")
    found = essentials(Run(torn))
    assert found["rounds"] == "2 of 3 in 1.0 s" and "60.00 %" in found["test/acc"]
    assert str(torn / "tests") in found["damaged"] and "worst class" not in found
    with pytest.raises(CheckpointError, match="is not a run folder"):
        essentials(Run(tmp_path / "torn" / "rounds"))


def test_a_configuration_in_a_line():
    assert about({"algorithm.name": "fedsol"}) == "FedSOL" and about({}) == ""
    words = about({
        "algorithm.name": "fedavg", "data.source": "digits", "partition.name": "dirichlet", "partition.alpha": 0.3,
        "partition.clients": 20, "tasks.num_tasks": 5, "seed": 1,
    })  # fmt: skip
    assert words == "FedAvg on digits; dirichlet 0.3 over 20 clients; 5 tasks; seed 1"
    table = {"partition.name": "table", "partition.clients": None, "cohort.size": 4}
    assert about(table) == "table, 4 a round", "the table's rows are its clients"
    assert about({**table, "partition.clients": 1, "cohort.size": None}) == "table over 1 client"


def test_a_run_without_its_configuration_says_so(tmp_path):
    (tmp_path / "STATUS").write_text("finished\n")
    assert "config.yaml is missing" in essentials(Run(tmp_path))["damaged"]
    (tmp_path / "STATUS").write_text("starting\n")  # it is not written yet
    assert "damaged" not in essentials(Run(tmp_path))
