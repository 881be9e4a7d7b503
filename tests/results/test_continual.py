"""What runs learned and forgot, read from folders written by hand."""

import json
import math
from pathlib import Path

import numpy as np
import pandas
import pytest
import yaml

from flray.cli.output import records
from flray.config.loader import load_config
from flray.core.schema.errors import CheckpointError, ConfigError
from flray.files import with_checksum
from flray.metrics.names import METRICS, OF_ALARMS, OF_DRIFT, OF_TASKS
from flray.results import by_mode, compare, paired, render, summary, to_markdown
from flray.results.alarms import alarms, signals
from flray.results.answers import never, verdict, without_value
from flray.results.by_mode import modes_of
from flray.results.comparison import comparison
from flray.results.continual import drift_window, numbers
from flray.results.essentials import essentials
from flray.results.intervals import interval
from flray.results.rendering import spelled
from flray.results.report_page import report
from flray.results.tables import settings
from flray.rundir.by_task import class_counts, task_tests
from flray.rundir.reader import Run
from flray.tuning.comparison import check_comparison
from tests.support.commands import invoke
from tests.support.continual_runs import counted, drift, tasks, watched, written
from tests.support.tables import by_seed, changed, config, folder, put

QUICK = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
THREE = [[80, 10, 20], [90, 70, 40], [50, 60, 100]]  # of tests/metrics/test_forgetting.py, in per cent
WINDOW = [[50, 50], [80, 80], [90, 90], [20, 100], [0, 100], [70, 90], [90, 90]]  # class 0 is missing in 3 and 4


def test_the_matrix_of_each_mode_is_that_of_its_tests_at_the_ends_of_tasks(tmp_path):
    run = Run(tasks(tmp_path / "a", THREE))
    found = task_tests(run.tests)
    assert list(found) == ["global", "aware", "tip"]
    np.testing.assert_allclose(found["global"].matrix, np.array(THREE) / 100)
    np.testing.assert_allclose(found["aware"].matrix[0], [0.85, 0.15, 0.25])
    np.testing.assert_array_equal(found["global"].initial, [0.1] * 3)
    assert found["global"].predicted is None and found["tip"].predicted[2].tolist() == [
        [100, 0, 0],
        [40, 60, 0],
        [0, 0, 100],
    ]
    assert run.task_tests().matrix is not None and run.task_tests("aware").right[0, 0] == 85


def test_the_numbers_of_a_run_by_mode(tmp_path):
    """Those of the matrix by hand; b = .1 gives FWT ((.1 - .1) + (.4 - .1)) / 2; 260 of 300 to their task."""
    run = Run(tasks(tmp_path / "a", THREE))
    found = numbers(run, settings(run))
    whole = {
        "ACC": 0.7, "FT": 0.5 / 3, "AIA": 2.3 / 3, "BWT": -0.2, "FWT": 0.15, "ACC_pooled": 0.7, "FT_std": 0.25,
    }  # fmt: skip
    assert found["global"] == pytest.approx(whole)
    assert found["tip"] == pytest.approx({**whole, "task_prediction": 260 / 300})
    assert found["aware"]["ACC"] == pytest.approx((0.55 + 0.65 + 1) / 3)
    assert set(found["tip"]) == set(OF_TASKS) <= set(METRICS) and set(OF_DRIFT) <= set(METRICS)


def test_of_a_run_that_goes_on_the_tasks_that_have_ended_count(tmp_path):
    run = Run(tasks(tmp_path / "a", THREE, ended=2))
    found = numbers(run, settings(run))["global"]
    assert found["ACC"] == pytest.approx(0.8) and found["FT"] == pytest.approx(-0.1 / 2)
    assert run.task_tests().matrix.shape == (2, 3)
    just_begun = Run(tasks(tmp_path / "b", THREE, ended=0))
    assert numbers(just_begun, settings(just_begun)) == {}
    with pytest.raises(ConfigError, match="has no test of single tasks at the end of a task"):
        just_begun.task_tests()
    with pytest.raises(ConfigError, match="no inference mode 'x'; choose one of global, aware, tip"):
        run.task_tests("x")


def test_a_drift_in_numbers(tmp_path):
    """Overall .5 .8 .9 .6 .5 .8 .9: .9 before round 3, .5 in round 4, back at .9 two rounds after it; class 0 has 0."""
    run = Run(drift(tmp_path / "a", WINDOW, 3, 5))
    wanted = {
        "drift/acc_before": 0.9, "drift/acc_end": 0.5, "drift/acc_missing": 0.0, "drift/acc_final": 0.9,
        "drift/recovered_after": 2.0, "drift/worst_drop": 0.4,
    }  # fmt: skip
    assert numbers(run, settings(run)) == {"global": pytest.approx(wanted)}


def test_the_missing_classes_of_separate_heads_are_outputs(tmp_path):
    """Two domains of two classes: class 0 is output 0 of the one and 2 of the other, 30 and 10 of 100 in round 4."""
    tests = [
        counted("test", "global", right, [100] * 4, done=done, round=done)
        for done, right in enumerate([[50] * 4, [80] * 4, [90] * 4, [50, 90, 30, 90], [30, 90, 10, 90], [90] * 4])
    ]
    domains = {"name": "domain_incremental", "domains": ["a", "b"], "heads": "separate"}
    window = {"name": "remove_classes", "classes": [0], "from_round": 3, "to_round": 5}
    run = Run(written(tmp_path / "a", config(tasks=domains, drift=window), tests, 5))
    with pytest.raises(CheckpointError, match=r"scenario.json cannot be read .*: the missing classes' outputs"):
        numbers(run, settings(run))
    stages = [{"classes": [0, 1], "outputs": [0, 1]}, {"classes": [0, 1], "outputs": [2, 3]}]
    (run.folder / "partition").mkdir()
    (run.folder / "partition" / "scenario.json").write_text(with_checksum({"stages": stages}))
    assert drift_window(run, settings(run)) == (3, 5.0, (0, 2))
    assert numbers(run, settings(run))["global"]["drift/acc_missing"] == pytest.approx(40 / 200)


def test_a_drift_over_tasks_is_judged_on_the_tasks_before_it(tmp_path):
    """Task 1 begins with round 3, in the window of rounds 2 and 3. On task 0: .8 before, .5 and .6 inside, .8 after.

    On all tasks so far the last tests are (60 + 100) / 200 and (80 + 0) / 200: as if nothing were lost, then all.
    """
    tests = [counted("task-1", "global", [0, 5], [0, 100])]
    for done, right in enumerate([[10], [80], [50], [60, 100], [80, 0]]):
        when = {"done": done, "task": len(right) - 1, "round": done}
        both, all_of = [*right, 0][:2], [100, 100 * (len(right) - 1)]
        tests.append(counted("test", "global", both, all_of, **when))
        tests += [counted(f"task-{n}", "global", np.eye(2)[n] * own, np.eye(2)[n] * 100, **when)
                  for n, own in enumerate(right)]  # fmt: skip
    window = {"name": "remove_classes", "classes": [0], "from_round": 2, "to_round": 4}
    own = config(tasks={"name": "class_incremental", "num_tasks": 2}, drift=window)
    run = Run(written(tmp_path / "a", own, tests, 4))
    wanted = {
        "drift/acc_before": 0.8, "drift/acc_end": 0.6, "drift/acc_missing": 0.6, "drift/acc_final": 0.8,
        "drift/recovered_after": 1.0, "drift/worst_drop": 0.3,
    }  # fmt: skip
    assert numbers(run, settings(run)) == {"global": pytest.approx(wanted)}


def test_a_long_drift_never_ends(tmp_path):
    run = Run(drift(tmp_path / "a", WINDOW[:5], 3, None))
    found = numbers(run, settings(run))["global"]
    assert found["drift/acc_end"] == found["drift/acc_final"] == 0.5 and math.isnan(found["drift/recovered_after"])


def test_a_schedule_of_ones_own_has_the_window_in_which_samples_were_lost(tmp_path):
    """Rounds 3 and 4, classes 0 and 2, as `partition/drift.parquet` has it; what was whole does not count."""
    run = drift(tmp_path / "a", WINDOW, 3, 5)
    own = yaml.safe_load((run / "config.yaml").read_text()) | {"drift": {"name": "table", "file": "mine.csv"}}
    (run / "config.yaml").write_text(yaml.safe_dump(own))
    with pytest.raises(CheckpointError, match=r"drift.parquet cannot be read"):
        drift_window(Run(run), settings(Run(run)))
    assert compare([run])["status"][0].startswith("damaged: ")
    (run / "partition").mkdir()
    rows = [(2, 0, 5, 5), (3, 0, 0, 4), (3, 2, 1, 4), (4, 0, 2, 4), (5, 1, 4, 4)]
    table = pandas.DataFrame(rows, columns=["round", "class", "kept", "of"])
    table.to_parquet(run / "partition" / "drift.parquet")
    assert drift_window(Run(run), settings(Run(run))) == (3, 5.0, (0, 2))
    table[table["kept"] == table["of"]].to_parquet(run / "partition" / "drift.parquet")
    assert drift_window(Run(run), settings(Run(run))) is None
    assert drift_window(Run(run), {}) is None


def test_glue_in_a_union_of_text_misses_classes_of_every_task(tmp_path):
    """Label 1 of each task is class 1 of the first and class 4 of the second; in other data it is class 1."""
    run = drift(tmp_path / "a", WINDOW, 3, 5)
    glue = {"name": "glue", "classes": [1], "from_round": 3, "to_round": 5}
    own = yaml.safe_load((run / "config.yaml").read_text()) | {"drift": glue}
    (run / "config.yaml").write_text(yaml.safe_dump(own))
    assert drift_window(Run(run), settings(Run(run))) == (3, 5.0, (1,))
    (run / "config.yaml").write_text(yaml.safe_dump(own | {"data": {"source": "union"}}))
    (run / "partition").mkdir()
    table = pandas.DataFrame([(3, 4, 2, 5), (4, 1, 3, 4), (4, 0, 4, 4)], columns=["round", "class", "kept", "of"])
    table.to_parquet(run / "partition" / "drift.parquet")
    assert drift_window(Run(run), settings(Run(run))) == (3, 5.0, (1, 4))


def test_counts_by_class_over_rounds_take_the_last_test_of_a_round():
    tests = pandas.DataFrame(
        [
            counted("test", "global", [1, 1], [10, 10]),
            counted("test", "other", [9, 9], [10, 10]),
            counted("test", "global", [2, 3], [10, 10], done=1, round=1),
            counted("test", "global", [4, 5], [10, 10], done=1, round=1, phase="task_end"),
        ]
    )
    found = class_counts(tests)
    assert found.done.tolist() == [0, 1] and found.right.tolist() == [[1, 1], [4, 5]]
    assert class_counts(tests, mode="other").done.tolist() == [0]
    assert class_counts(tests, tested="val") is None and class_counts(tests, mode="none") is None


def test_a_comparison_has_the_numbers_of_all_modes(tmp_path):
    """Over seeds with the interval of a difference, which may lie below 0; and paired."""
    better = [[80, 0, 0], [80, 80, 0], [80, 80, 80]]
    runs = [
        *(tasks(tmp_path / f"a{seed}", np.array(THREE) - seed, seed=seed) for seed in range(3)),
        *(tasks(tmp_path / f"b{seed}", better, seed=seed, algorithm="fedprox") for seed in range(3)),
    ]
    frame = compare(runs)
    assert frame["ACC"].tolist() == pytest.approx([0.7, 0.69, 0.68, 0.8, 0.8, 0.8])
    assert frame["ACC@aware"][0] == pytest.approx(2.2 / 3) and frame["task_prediction@tip"][3] == pytest.approx(
        0.8 + 0.2 / 3
    )
    table = summary(frame, "ACC")
    mean, std, low, high = interval([0.7, 0.69, 0.68], share=True)
    assert table.iloc[0][["mean", "std", "low", "high"]].tolist() == pytest.approx([mean, std, low, high])
    found = paired(frame, "fedavg", "FT")
    assert found["diff"][1] == pytest.approx(-0.5 / 3) and found["p_t"].notna().tolist() == [False, False]
    assert paired(frame, "fedavg", "ACC@aware")["diff"][1] > 0
    with pytest.raises(ConfigError, match="no column 'ACC@none'"):
        summary(frame, "ACC@none")


def test_a_finished_run_without_the_mode_is_not_called_unfinished(tmp_path):
    """FedProx has no mode `tip`; FedAvg's mean in it is that of the matrix, (50 + 60 + 100) / 3."""
    runs = [tasks(tmp_path / f"a{seed}", THREE, seed=seed) for seed in range(2)]
    without = tasks(tmp_path / "p", THREE, algorithm="fedprox")
    tests = pandas.read_parquet(without / "tests")
    runs.append(put(without, "tests", tests[tests["mode"] != "tip"]))
    frame = compare(runs)
    table = summary(frame, "ACC@tip").set_index("algorithm")
    assert table["n"].to_dict() == {"fedavg": 2, "fedprox": 0} and table["unfinished"].to_dict() == {
        "fedavg": 0, "fedprox": 0
    }  # fmt: skip
    assert table["mean"]["fedavg"] == pytest.approx(0.7)
    said = comparison([Run(run) for run in runs], "ACC@tip").sentences
    assert "No ACC@tip in finished runs of FedProx: no such mode." in said
    assert without_value(frame, "ACC@aware") == "" and without_value(frame, "test/acc") == ""


def test_by_mode_over_seeds(tmp_path):
    runs = [tasks(tmp_path / f"a{seed}", np.array(THREE) - seed, seed=seed) for seed in range(3)]
    runs.append(tasks(tmp_path / "going", THREE, seed=7, ended=2))
    table = by_mode(compare(runs))
    assert table["mode"].tolist() == ["global", "aware", "tip"] and table["n"].tolist() == [3, 3, 3]
    assert table["ACC"][0] == pytest.approx(0.69)
    assert (table["ACC_low"][0], table["ACC_high"][0]) == pytest.approx(interval([0.7, 0.69, 0.68], share=True)[2:])
    assert table["task_prediction"].isna().tolist() == [True, True, False]
    (shown,) = spelled(table).values()
    assert list(shown) == ["name", "algorithm", "mode", "n", "ACC %", "FT %", "AIA %", "BWT %", "FWT %", "right task %"]
    assert shown["ACC %"][0] == "69.00 ± 2.48" and shown["right task %"].tolist()[:2] == ["-", "-"]
    assert "| FedAvg    | aware  |" in to_markdown(shown) and render(shown).row_count == 3
    assert by_mode(compare(runs[-1:])).empty


def test_a_delay_of_fewer_seeds_says_of_how_many(tmp_path):
    """Three of four seeds have an alarm in the window 3 to 5, after 1 round; one misses it and has no delay."""
    alarmed = [{4}, {4}, {4}, set()]
    runs = [watched(drift(tmp_path / str(n), WINDOW, 3, 5, seed=n), rounds) for n, rounds in enumerate(alarmed)]
    for count, text in ((4, "1 round ± 0 rounds (3 seeds)"), (3, "1 round ± 0 rounds")):
        assert spelled(by_mode(compare(runs[:count])))["Alarms of latent forgetting"]["delay"].tolist() == [text]
    shown = spelled(by_mode(compare(runs[1:])))["Alarms of latent forgetting"]
    assert (shown["n"].tolist(), shown["delay"].tolist()) == ([3], ["1 round (2 seeds)"])


def test_json_tells_never_from_what_is_not_known(tmp_path):
    """The first run has a round after the window, which is at the level; the second one's is not, the third has none.
    A loss that overflowed has no number either."""
    gone = [*WINDOW[:5], [70, 70], [60, 60]]
    tables = {"back": WINDOW, "gone": gone, "short": WINDOW[:5]}
    runs = [drift(tmp_path / name, table, 3, 5, seed=n) for n, (name, table) in enumerate(tables.items())]
    frame = compare(runs)
    found = [row["drift/recovered_after"] for row in records(frame)]
    assert found == [2.0, "never", None]
    table = summary(frame, "drift/recovered_after")
    assert records(table)[0]["mean"] == "never"
    page = json.loads(report(runs, tmp_path / "r.json", "json").read_text())
    assert [row["drift/recovered_after"] for row in page["runs"]] == found
    assert page["modes"][0]["drift/recovered_after"] == "never"
    lost = pandas.DataFrame({"train/loss": [math.inf, -math.inf], "to/rounds": [-math.inf, math.inf]})
    assert records(lost) == [{"train/loss": None, "to/rounds": None}, {"train/loss": None, "to/rounds": "never"}]


def test_runs_through_a_drift_beside_each_other(tmp_path):
    """One of two seeds never comes back: the cell says on how many of them, and there is no interval of the mean."""
    gone = [*WINDOW[:5], [70, 70], [60, 60]]
    runs = [drift(tmp_path / "a0", WINDOW, 3, 5), drift(tmp_path / "a1", gone, 3, 5, seed=1)]
    table = by_mode(compare(runs))
    assert table["drift/recovered_after"][0] == math.inf and math.isnan(table["drift/recovered_after_low"][0])
    shown = spelled(table)["Through the drift"].iloc[0]
    assert shown["recovered after"] == "never on 1 of 2 seeds"
    assert shown["end of window %"] == "50.00", "two seeds cannot tell"
    assert not any(name.endswith("_never") for name in by_mode(compare(runs[:1]))), "nothing is infinite"
    assert spelled(modes_of(Run(runs[0])))["Through the drift"]["recovered after"].tolist() == ["2 rounds"]
    runs += [drift(tmp_path / f"b{seed}", WINDOW, 3, 5, seed=seed, algorithm="fedprox") for seed in range(2)]
    found = paired(compare(runs), "fedavg", "drift/recovered_after")
    assert found[["diff", "diff_low", "p_t"]][1:].isna().all(axis=None)


@pytest.mark.filterwarnings("error")
def test_a_seed_that_never_recovers_is_said_to_be_why_nothing_was_tested(tmp_path):
    """Both have an infinite value on seed 1, and FedAvg on seed 0 as well."""
    metric = "drift/recovered_after"
    frame = compare(by_seed(tmp_path, fedavg=[0.5] * 4, fedprox=[0.5] * 4, moon=[0.5] * 4))
    inf = math.inf
    half, one, none = [inf, inf, 1.0, 1.0], [1.0, inf, 1.0, 1.0], [1.0, 2.0, 1.0, 1.0]
    said = [*verdict(table := frame.assign(**{metric: [*half, *one, *none]}), metric), *never(table, metric)]
    assert said[0].startswith(f"No difference was tested; the lowest mean is that of MOON: {metric} 1.25 rounds")
    assert said[1:3] == [
        f"The difference to {name} was not tested: it is infinite on a seed." for name in ("FedAvg", "FedProx")
    ]
    assert (
        said[3] == f"{metric} is infinite (never), and so is the mean: FedAvg on 2 of 4 seeds; FedProx on 1 of 4 seeds."
    )
    for name in ("moon", "fedprox"):
        assert paired(table, name, metric)["diff"].isna().all()
    assert verdict(frame.assign(**{metric: half * 3}), metric) == [f"No setting has a finite mean of {metric}."]


def test_what_an_algorithm_keeps_stands_beside_its_accuracy(tmp_path):
    """12 samples of 50 bytes at the last task's end."""
    run = tasks(tmp_path / "a", THREE)
    kept = {"kept/samples": [5, 9, 12], "kept/sample_bytes": [250, 450, 600]}
    put(run, "tasks", {"done": [1, 2, 3], "task": [0, 1, 2], "phase": "task_end", **kept})
    assert numbers(Run(run), settings(Run(run)))["tip"]["exemplars/kept"] == 12
    shown = spelled(by_mode(compare([run, tasks(tmp_path / "b", THREE, algorithm="fedprox")])))["Over tasks"]
    assert shown["exemplars"].tolist() == ["12"] * 3 + ["-"] * 3 and shown["exemplar bytes"][0] == "600 B"
    assert "raw samples of earlier tasks" in shown.attrs["caption"]


def test_what_all_clients_keep_counts_and_not_only_the_last_tasks(tmp_path):
    """Of clients that hold 49 samples those of the last task have 16. Who counts samples and keeps none has no row."""
    run = tasks(tmp_path / "a", THREE)
    ends = {"done": [1, 2, 3], "task": [0, 1, 2], "phase": "task_end"}
    kept = {"kept/samples": [40, 50, 49], "kept/sample_bytes": [2560, 3200, 3136]}
    for own in (kept, kept | {"exemplars/kept": [40, 30, 16]}):
        found = numbers(Run(put(run, "tasks", ends | own)), settings(Run(run)))["global"]
        assert (found["exemplars/kept"], found["exemplars/bytes"]) == (49, 3136)
    put(run, "tasks", ends | {"kept/samples": 0, "kept/sample_bytes": 0})
    assert "exemplars/kept" not in numbers(Run(run), settings(Run(run)))["global"]


def test_alarms_are_judged_by_the_window(tmp_path):
    """Window 3 to 4, alarms in 4 and 5: precision 1/2, recall 1/2, F1 1/2; adjusted 2/3 and 1, F1 0.8; a round late; of
    the 4 quiet rounds 1 has one."""
    run = watched(drift(tmp_path / "a", WINDOW, 3, 5), {4, 5})
    found = numbers(Run(run), settings(Run(run)))["global"]
    assert {name: found[f"{name}@latent_forgetting"] for name in OF_ALARMS} == pytest.approx({
        "detect/precision": 0.5, "detect/recall": 0.5, "detect/f1": 0.5, "detect/f1_adjusted": 0.8, "detect/delay": 1.0,
        "detect/missed": 0.0, "detect/on_before": 0.0, "detect/false_alarms": 0.25,
    })  # fmt: skip
    steady = watched(tasks(tmp_path / "b", THREE), {1})
    only = numbers(Run(steady), settings(Run(steady)))
    assert only["global"]["detect/false_alarms@latent_forgetting"] == pytest.approx(1 / 6)
    assert "detect/f1@latent_forgetting" not in only["global"]
    assert not any(name.startswith("detect/") for name in only["aware"])
    shown = spelled(by_mode(compare([run, steady])))
    assert list(shown) == ["Over tasks", "Through the drift", "Alarms of latent forgetting"]
    assert shown["Alarms of latent forgetting"]["delay"].tolist() == ["-", "1 round"]
    table = by_mode(compare([run, steady]))
    alarms = spelled(table.assign(precision="bf16")[["precision", *table]])["Alarms of latent forgetting"]
    assert set(alarms["precision"]) == {"bf16"} and alarms["precision of alarms"].tolist() == ["-", "0.500"]
    assert set(OF_ALARMS) <= set(METRICS)


def test_an_alarm_that_was_on_before_the_window_is_told_as_that(tmp_path):
    """On in rounds 2 to 5, window 3 to 4: none begins inside. It had a delay of 0 rounds."""
    run = watched(drift(tmp_path / "a", WINDOW, 3, 5), {2, 3, 4, 5})
    table = spelled(modes_of(Run(run)))["Alarms of latent forgetting"]
    shown, caption = table.iloc[0], table.attrs["caption"]
    assert "delay" not in caption and "missed" in caption, "of the columns that are there"
    assert "delay" not in shown and (shown["missed"], shown["on before"], shown["recall"]) == ("1", "1", "1.000")
    assert shown["adjusted F1"] == shown["F1"] == "0.667"


def with_own_alarms(run):
    """FedMemo's columns: alarms in rounds 3 and 4, the window of `WINDOW`."""
    return changed(run, **{"memo/alarm": [0, 0, 1, 1, 0, None], "memo/wv": 0.5})


def test_a_diagnostic_does_not_hide_an_algorithms_own_alarms(tmp_path):
    """FedMemo alarms in 3 and 4, the diagnostic, with other settings, never: the table said recall 0 and no alarm."""
    run = watched(with_own_alarms(drift(tmp_path / "a", WINDOW, 3, 5, algorithm="fedmemo")), set())
    other = watched(drift(tmp_path / "b", WINDOW, 3, 5), {4})
    assert [rounds.tolist() for rounds in alarms(Run(run)).values()] == [[3, 4], []]
    assert signals(Run(run))["fedmemo"]["wv"].tolist() == [0.5] * 6
    assert alarms(Run(tasks(tmp_path / "c", THREE))) == {}
    found = numbers(Run(run), settings(Run(run)))["global"]
    assert (found["detect/recall@fedmemo"], found["detect/recall@latent_forgetting"]) == (1.0, 0.0)
    shown = spelled(by_mode(compare([run, other])))["Alarms of latent forgetting"]
    told = {(row["algorithm"], row["detector"]): row["recall"] for row in shown.to_dict("records")}
    assert list(told.items()) == [
        (("fedavg", "latent_forgetting"), "0.500"),
        (("fedmemo", "fedmemo"), "1.000"),
        (("fedmemo", "latent_forgetting"), "0.000"),
    ]
    assert "delay" in shown and "delay" in shown.attrs["caption"]
    assert "detector" in to_markdown(shown) and essentials(Run(run))["alarms"] == (
        "fedmemo: in rounds 3-4; latent_forgetting: none"
    )


def test_the_command_shows_them(tmp_path):
    tasks(tmp_path / "a", THREE)
    tasks(tmp_path / "b", THREE, seed=1)
    found = invoke("compare", tmp_path, "--stats", catch_exceptions=False)
    assert found.exit_code == 0 and "ACC %" in found.output and "Over tasks" in found.output
    markdown = invoke("compare", tmp_path, "--format", "markdown", "--metric", "FT@aware", "--stats")
    assert markdown.output.count("\n\n") >= 2 and "right task %" in markdown.output
    written = invoke("compare", tmp_path, "--format", "json").stdout
    assert json.loads(written)[0]["ACC@tip"] == pytest.approx(0.7)  # numbers of JSON are not rounded


def test_ordinary_runs_are_read_as_before(tmp_path):
    run = folder(tmp_path / "a", config(), [0.5])
    assert not any("ACC" in column for column in compare([run])) and by_mode(compare([run])).empty
    assert modes_of(Run(run)).empty


def test_lost_rows_make_no_number(tmp_path):
    """The second task's end is lost: what needs it is NaN, ACC is not."""
    run = tasks(tmp_path / "a", THREE)
    table = pandas.read_parquet(run / "tests")
    put(run, "tests", table[~((table["task"] == 1) & (table["phase"] == "task_end"))])
    with pytest.warns(UserWarning, match="has lost rows"):
        found = numbers(Run(run), settings(Run(run)))["global"]
    assert found["ACC"] == pytest.approx(0.7) and math.isnan(found["FT"]) and math.isnan(found["AIA"])


def test_an_ablation_over_tasks_may_compare_what_was_forgotten(tmp_path):
    """Before anything has run: `flray ablate ... --metric FT --against fedavg` is checked against the cells."""
    over = ["algorithm=fedavg,fedprox", "tasks.name=class_incremental", "tasks.num_tasks=2"]
    check_comparison(load_config(QUICK, over), tmp_path, "FT@task_aware", "fedavg")
    with pytest.raises(ConfigError, match="no column 'FT'"):
        check_comparison(load_config(QUICK, over[:1]), tmp_path, "FT", "fedavg")
