"""The moment at which a number is read: the window of a cell's drift, the test set of one task."""

import math
from pathlib import Path

import pandas
import pytest

from flray.config.loader import load_config
from flray.reference.outcome import at_moment, judge
from flray.reference.papers import Measure, chosen, with_methods
from flray.reference.plan import PlannedRun, RunPlan, configs_folder, window_of
from flray.running import simulate

QUICK = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
SMALL = ["resources.executor=local", "evaluate.clients=false", "partition.clients=4", "cohort.size=2"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """FedAvg without a drift and FedProx with one in rounds 2 and 3 of 5, on digits in the place of Table 3's data."""
    root = tmp_path_factory.mktemp("moments")
    setting = chosen("fedmemo/table3", ["CIFAR-10"])[0]
    found = []
    for name, method, drift in (("fedavg", "no drop", "null"), ("fedprox", "FedProx", "{name: remove_classes}")):
        cell_run = with_methods(setting, [method])[0]
        window = [] if drift == "null" else ["drift.from_round=2", "drift.to_round=4"]
        words = [*SMALL, "rounds=5", f"algorithm={name}", f"drift={drift}", *window]
        (experiment,) = load_config(QUICK, words)
        found.append(PlannedRun(setting, cell_run, experiment, root / name, range(2, 4)))
        simulate(experiment, root / name)
    return found


def test_the_end_of_the_window_is_its_last_test_also_where_nothing_drifts(runs):
    by_measure = {judged.measure: judged for judged in judge(RunPlan(runs, []), "small", [], 2.0)}
    for run, name in zip(runs, ("no drop", "FedProx"), strict=True):
        rounds = pandas.read_parquet(run.folder / "rounds").set_index("done")["test/acc"]
        for measure, done in (("end of the window", 3), ("final", 5)):
            (row,) = [row for row in by_measure[measure].rows if row.name == name]
            assert row.ours == {0: pytest.approx(100 * rounds[done])}
    assert [row.printed.mean for row in by_measure["end of the window"].rows] == [70.36, 39.25]


def test_moments_of_a_run(runs):
    folder = runs[1].folder
    rounds = pandas.read_parquet(folder / "rounds").set_index("done")["test/acc"]
    mean = at_moment(folder, Measure(moment="window_mean"), None, range(2, 4))
    assert mean == pytest.approx((rounds[2] + rounds[3]) / 2)
    assert math.isnan(at_moment(folder, Measure(moment="window_end"), None, range(6, 9))), "nothing was tested there"
    assert math.isnan(at_moment(folder, Measure(moment="window_end"), None, None))
    assert math.isnan(at_moment(folder, Measure(column="no/such"), None, None))


def test_the_accuracy_on_one_task(tmp_path):
    """The last test of `task-0` is that after task 2; inside rounds 1 and 2 it is that after task 1."""
    (experiment,) = load_config(
        QUICK, [*SMALL, "algorithm=fedavg", "tasks={name: class_incremental, num_tasks: 2}", "rounds=2"]
    )
    simulate(experiment, tmp_path / "run")
    tests = pandas.read_parquet(tmp_path / "run" / "tests")
    tests = tests[tests["set"] == "task-0"]
    for mode in ("global", "task_aware"):
        own = tests[tests["mode"] == mode].set_index("done")
        for done, measure in ((4, Measure(of="task-0")), (2, Measure(of="task-0", moment="window_end"))):
            last = own.loc[done].iloc[-1]
            found = at_moment(tmp_path / "run", measure, None if mode == "global" else mode, range(1, 3))
            assert found == pytest.approx(last["right"] / last["total"])
    assert math.isnan(at_moment(tmp_path / "run", Measure(of="cola"), None, None))


@pytest.mark.parametrize(
    "key, cell, scale, window",
    [
        ("fedmemo/table3", "CIFAR-10", "full", range(100, 130)),
        ("fedmemo/table3", "SVHN", "small", range(40, 70)),
        ("fedmemo/table4", "gradual", "full", range(25, 35)),
        ("fedmemo/table9", "no drop", "small", range(15, 25)),
        ("fedmemo/table8", "from round 25", "full", range(25, 51)),
        ("fedsol/table5", "CIFAR-10, LDA 0.1", "full", None),
    ],
)
def test_the_window_of_a_cell_is_its_configurations(key, cell, scale, window):
    """FedMemo's vision tables: rounds 100 to 129; GLUE: rounds 25 to 34, long-term to the last of 50."""
    (setting,) = chosen(key, [cell])
    assert window_of(setting, scale, configs_folder()) == window


def test_what_table_4_compares_is_inside_the_window():
    """The paper's 25.69 points between FedMemo and FedProx; Table 8 repeats its number without a drop, of round 50."""
    settings = {setting.name: setting for setting in chosen("fedmemo/table4", [])}
    moments = {
        name: {measure.moment for line in setting.lines for measure in setting.measures(line)}
        for name, setting in settings.items()
    }
    assert moments == {"no drop": {"last"}, "short-term": {"window_end"}, "gradual": {"window_end"}}
    short = settings["short-term"]
    (line,) = short.lines
    (measure,) = short.measures(line)
    fedprox, fedmemo = (short.printed(rows[0], measure, line).mean for rows in line.rows)
    assert round(fedmemo - fedprox, 2) == 25.69
