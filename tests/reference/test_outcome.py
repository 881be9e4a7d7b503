"""From runs to verdicts and pages: real runs of one and two rounds, and cases by hand."""

import math
import shlex
from pathlib import Path

import pandas
import pytest

from flray.cli.reproduce import _again
from flray.config.loader import load_config
from flray.reference import outcome
from flray.reference.evidence import ROWS, read_table
from flray.reference.outcome import Compared, Judged, _judged, common, course, judge, shared, table_of
from flray.reference.papers import Printed, chosen, with_methods
from flray.reference.plan import PlannedRun, RunPlan
from flray.reference.verdict import FAILS, HOLDS, INCOMPLETE, INCONCLUSIVE, REPRODUCED, claims, compared
from flray.running import simulate
from tests.support.commands import invoke, succeeded
from tests.support.tables import config, folder

QUICK = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
SMALL = ["resources.executor=local", "rounds=1", "evaluate.clients=false", "partition.clients=4", "cohort.size=2"]


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """FedAvg and FedProx of FedSOL's Table 2, CIFAR-10, LDA 0.1, as runs of digits; FedSOL cannot run."""
    root = tmp_path_factory.mktemp("runs")
    setting = chosen("fedsol/table2", ["CIFAR-10, LDA 0.1"])[0]
    found = RunPlan([], [])
    for cell_run in with_methods(setting, ["FedAvg", "FedProx"]):
        name = cell_run.rows[0].shown.casefold()
        for experiment in load_config(QUICK, [*SMALL, f"algorithm={name}", "seed=0,1"]):
            found.runs.append(PlannedRun(setting, cell_run, experiment, root / f"{name}-seed{experiment.seed}"))
    for run in found.runs[:3]:  # the last is still to do
        simulate(run.experiment, run.folder)
    found.skipped.append((setting, with_methods(setting, ["FedSOL"])[0], "the data set is not below data.root"))
    return found


def said(judged):
    """What stands behind the reason of a verdict."""
    return outcome.worth(table_of([judged], "full", "again").iloc[0])


def test_ours_is_what_the_runs_have_in_per_cent(planned):
    (judged,) = judge(planned, "small", [], 2.0)
    fedavg, fedprox = judged.rows
    rounds = pandas.read_parquet(planned.runs[0].folder / "rounds")
    assert fedavg.ours[0] == pytest.approx(100 * rounds["test/acc"].iloc[-1]) and len(fedavg.ours) == 2
    assert (fedprox.unfinished, fedprox.diverged, len(fedprox.ours)) == (1, 0, 1)
    assert (fedavg.printed.mean, fedprox.printed.mean, fedavg.printed.std) == (56.13, 59.80, None)
    assert judged.skipped == [("FedSOL", "the data set is not below data.root")]
    (claim,) = judged.claims
    assert (claim.better, claim.worse, claim.printed) == ("FedProx", "FedAvg", pytest.approx(3.67))
    assert claim.ours == pytest.approx(fedprox.ours[0] - fedavg.ours[0])  # on the seed that both have
    assert math.isnan(fedavg.p) and "; another scale; " in judged.why
    # FedProx lacks a seed, FedSOL was not run, five methods were not asked for: nothing is said of the rest alone
    assert judged.verdict == INCOMPLETE and said(judged) == []
    told = "without FedProx (seeds: 1 of 2; 1 to do), FedSOL (not run: the data set is not below data.root); another"
    assert judged.why.startswith(f"3 of the table's 8 methods; {told}")
    assert not math.isnan(judge(planned, "full", [], 2.0)[0].rows[0].p)
    assert judge(planned, "full", ["rounds=1"], 2.0)[0].another == "changed by rounds=1"


def test_a_run_that_diverged_is_none_to_do(planned, tmp_path):
    lost = folder(tmp_path / "lost", config("fedprox", 1), [0.1], "diverged in round 1: client 0")
    runs = [*planned.runs[:3], planned.runs[3]._replace(folder=lost)]
    (judged,) = judge(RunPlan(runs, []), "small", [], 2.0)
    assert [(row.diverged, row.unfinished) for row in judged.rows] == [(0, 0), (1, 0)]


def test_what_is_written_is_found_again(planned, tmp_path):
    judged = judge(planned, "small", [], 2.0)
    paths = outcome.write(tmp_path, table_of(judged, "small", "flray papers reproduce fedsol/table2"))
    assert [path.name for path in paths] == ["reproduce.md", "reproduce.csv"]
    frame = pandas.read_csv(paths[1])
    assert frame["paper"].tolist()[:2] == [56.13, 59.80] and set(frame["verdict"]) == {judged[0].verdict}
    text = paths[0].read_text()
    assert "| FedAvg | 56.13 |" in text and "* FedSOL: not run: the data set is not below data.root." in text
    assert "    flray papers reproduce fedsol/table2\n" in text and "| FedSOL | - | - | 0 | - |" in text


def test_a_cell_of_which_nothing_ran_says_why(planned):
    (judged,) = judge(RunPlan([], planned.skipped), "small", [], 2.0)
    assert (judged.verdict, judged.rows) == (INCOMPLETE, [])
    assert judged.why == "1 of the table's 8 methods; the data set is not below data.root"
    assert table_of([judged], "small", "again")["n"].tolist() == [0]
    assert "incomplete" in outcome.render(table_of([judged], "small", "again")).title
    (judged,) = judge(RunPlan([run._replace(folder=Path("nowhere")) for run in planned.runs], []), "small", [], 2.0)
    assert judged.why.endswith("; no run has finished") and [row.unfinished for row in judged.rows] == [2, 2]


def section(verdict, ours=61.0):
    setting = chosen("fedsol/table2", ["MNIST, LDA"])[0]
    rows = [
        Compared("FedAvg", Printed(60.0, 1.5, 3, "odd"), {0: 50.0, 1: 52.0}, 0, 0, None),
        Compared("FedSOL", Printed(64.0, None, None), {0: ours}, 1, 0, None),
    ]
    found = claims({"FedAvg": Printed(60.0), "FedSOL": Printed(64.0)}, {row.name: row.ours for row in rows})
    return Judged(setting, "accuracy", rows, found, verdict, "because", "another scale", [])


def test_the_reason_of_a_cell_without_methods_stands_once_on_the_page():
    nothing = section(INCOMPLETE)._replace(rows=[], claims=[], why="no method was asked for")
    text = outcome.markdown(table_of([nothing], "small", "again"))
    assert text.count("no method was asked for") == 1 and "| - | - | - | 0 | - |" in text


def test_a_page_keeps_the_other_sections_and_writes_its_own_again(tmp_path):
    page, other = tmp_path / "reproduced.md", chosen("fedproj/table1", ["CIFAR-10, beta 0.3"])[0]
    for judged in (section("stale"), section("kept")._replace(setting=other), section(HOLDS)):
        beside = outcome.put_on_page(page, table_of([judged], "small", "flray again"))
    text = page.read_text()
    assert len(pandas.read_parquet(beside)) == 4 and "\n\n\n" not in text
    assert "stale" not in text and HOLDS in text and "kept" in text and text.count("## FedSOL, Table 2") == 1
    assert "| FedSOL | 64.00 | 61.00 | 1 of 2; 1 diverged | -3.00 |" in text and "* FedAvg: odd." in text
    assert "    flray again\n" in text


def test_the_stored_rows_are_those_of_the_papers_tables():
    """Each method is one of its cell, with the printed number."""
    rows = read_table(outcome.STORED, ROWS)
    assert len(rows) == 51 and outcome.markdown(rows).count("\n### ") == 13
    for (key, name), own in rows.groupby(["table", "cell"]):
        (setting,) = chosen(key, [name])
        found = {row.shown: setting.printed(row, setting.measures(run.line)[0], run.line)
                 for run in setting.runs for row in run.rows}  # fmt: skip
        first = own[own["measure"] == own["measure"].iloc[0]]
        names = [method for method in first["method"] if found[method] is not None]
        assert names and set(own["method"]) <= set(found), (key, name)


def of(planned, rows, measure="accuracy", other="another scale", skipped=()):
    return _judged(
        planned.runs[0].setting, measure, rows, list(skipped), other, 2.0, {"FT" if measure == "FT" else "x"}
    )


def test_a_reversed_pair_is_told_in_words_that_fit_a_measure_of_which_less_is_better(planned):
    """FedAvg forgets 5 and FedProx 9, where the paper has it the other way round: t = 41 on 1 degree of freedom."""
    printed, ours = {"FedAvg": 8.0, "FedProx": 4.0}, {"FedAvg": {0: 5.0, 1: 5.6}, "FedProx": {0: 9.0, 1: 9.8}}
    rows = [Compared(name, Printed(printed[name], None, None), ours[name], 0, 0, None) for name in ours]
    told = of(planned, rows, "FT")
    assert told.verdict == FAILS and "FedAvg is ahead of FedProx by 4.1 (Holm p 0.016)" in told.why
    assert told.chance == pytest.approx(0.025, abs=0.007) and said(told)[0].endswith(" % where no two methods differ")
    # differences 4.0 and 4.2: standard error 0.1; on 1 degree of freedom 80 % power takes 17.6 times as much
    assert told.seen == pytest.approx(1.6, abs=0.2) and said(told)[1].endswith(" points between two methods")
    assert of(planned, rows[::-1]).verdict == FAILS  # of an accuracy FedAvg is ahead in the paper, and FedProx here
    right = [row._replace(printed=Printed(10 - row.printed.mean, None, None)) for row in rows]
    held = of(planned, right, "FT")
    assert (
        held.verdict == HOLDS and "of the one pair that the paper orders 1 has its order, 1 significantly" in held.why
    )


def test_a_diverged_method_is_not_left_out_of_a_claim(planned):
    """FedSOL diverged on each of three seeds; FedAvg and FedProx have the paper's order significantly. The verdict was
    "order holds"."""
    ours = {"FedAvg": {0: 50.0, 1: 50.5, 2: 51.0}, "FedProx": {0: 60.0, 1: 60.4, 2: 61.2}}
    rows = [Compared(name, Printed(mean, None, 3), ours[name], 0, 0, None)
            for name, mean in (("FedAvg", 56.0), ("FedProx", 60.0))]  # fmt: skip
    assert of(planned, rows).verdict == HOLDS
    with_sol = [*rows, Compared("FedSOL", Printed(64.0, None, 3), {}, 3, 0, None)]
    told = of(planned, with_sol)
    assert (
        told.verdict == INCOMPLETE
        and "without FedSOL (seeds: 0 of 3; 3 diverged)" in told.why
        and "tau" not in told.why
    )
    assert of(planned, rows, skipped=[("FedSOL", "no data")]).verdict == INCOMPLETE
    short = [rows[0], rows[1]._replace(ours={0: 60.0, 1: 60.4}, unfinished=1)]
    assert of(planned, short).verdict == INCOMPLETE


def test_beside_every_verdict_stand_its_chance_and_what_the_seeds_see(planned):
    near = [60.0, 60.1, 60.2]
    row = Compared("FedAvg", Printed(60.0, 0.2, 3), dict(enumerate(near)), 0, 0, compared(near, 60.0, 0.2, 3))
    told = of(planned, [row], other="")
    assert told.verdict == REPRODUCED and "where one mean is 2 points off" in said(told)[0]
    assert 0 < told.chance <= 0.055 and 2.0 < told.seen < 4.0 and said(told)[1].endswith(" points from the paper's")
    wide = [55.0, 60.0, 65.0]
    told = of(planned, [row._replace(ours=dict(enumerate(wide)), against=compared(wide, 60.0, 0.2, 3))], other="")
    assert told.verdict == INCONCLUSIVE and told.seen > 10 and len(said(told)) == 1
    text = outcome.markdown(table_of([told], "full", "again"))
    assert "; with 80 % power these seeds see" in text and "points from the paper's" in text
    assert "80 % power" in outcome.render(table_of([told], "full", "again")).caption


def test_the_page_says_what_the_seeds_share(planned):
    """FedSOL fixes the partition and the clients of every round for all seeds; the quickstart neither."""
    assert common(planned.runs) == ""
    fixed = [
        run._replace(experiment=load_config(QUICK, [*SMALL, "partition.seed=7", "cohort.sampling=numpy_round_seed"])[0])
        for run in planned.runs
    ]
    told = common(fixed)
    assert told.startswith("Our seeds share the partition and the cohorts: ") and "other partitions" in told
    assert told in outcome.markdown(table_of([section(HOLDS)._replace(common=told)], "small", "again"))
    assert shared(planned.runs[0]) == shared(planned.runs[2]) != shared(fixed[0])


def test_numbers_as_text():
    row = table_of([section(HOLDS)], "small", "again").to_dict("records")[0]
    assert outcome._cells(row) == ("FedAvg", "60.00 ± 1.50", "51.00 ± 1.41", "2", "-9.00")
    assert (outcome.table_name("fedsol/table2"), outcome.table_name("fedproj/figure1")) == ("Table 2", "Figure 1")


def test_the_command_of_a_result_is_the_present_verb():
    words = ["flray", "papers", "reproduce", "fedsol/table2", "data.root=a b", "--cells", "MNIST, LDA"]
    command = _again("fedsol/table2", ["data.root=a b"], ["MNIST, LDA"], "FedAvg", 2, "small", 1.0)
    assert command == shlex.join(
        [*words, *["--methods", "FedAvg", "--seeds", "2", "--scale", "small", "--margin", "1"]]
    )


def test_the_list_says_what_can_run_here(monkeypatch, tmp_path):
    monkeypatch.setenv("FLRAY_DATA", str(tmp_path))
    done = succeeded("papers", "reproduce")
    assert "5 papers, 40 tables" in done.output and "fedproj/figure1" in done.output
    assert "the data set cifar10" in done.output.replace("\n", " ")
    assert "bytes are" in invoke("papers", "reproduce", "fedprotip").output
    assert "cola" in invoke("papers", "reproduce", "fedmemo").output, "of a union the set that is missing is named"


@pytest.mark.slow
def test_a_table_that_needs_no_data_set(ray_cluster, tmp_path):
    """The Iris pilot: run, run again (nothing is left to do), and one seed more."""
    words = (
        "papers",
        "reproduce",
        "fedproj/figure1",
        "--scale",
        "full",
        "resources.client_actors=1",
        "--out",
        tmp_path,
    )
    succeeded(*words, "--seeds", 1)
    marks = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/STATUS")}
    assert len(marks) == 3
    succeeded(*words, "--seeds", 2, "--page", tmp_path / "page.md")
    assert {path: path.stat().st_mtime_ns for path in marks} == marks
    assert (
        len(pandas.read_csv(tmp_path / "reproduce.csv")) == 3
        and "FedProj, Figure 1" in (tmp_path / "page.md").read_text()
    )


def test_the_course_of_a_column_over_rounds():
    """r is over rounds with both numbers, 1, 2, 4 with 0.3, 0.2, 0.1: sums of squares about the means 14 / 3 and 0.02,
    of products -0.3."""
    nan = math.nan
    rounds = pandas.DataFrame({"memory/drift": [nan, 1.0, 2.0, 4.0, 9.0], "test/acc": [0.9, 0.3, 0.2, 0.1, nan]})
    found = course(rounds, "memory/drift")
    assert (found["first"], found["last"]) == (1.0, 9.0)
    assert found["r"] == pytest.approx(-0.3 / math.sqrt(14 / 3 * 0.02))
    assert course(rounds, "else") == {} and math.isnan(course(rounds[:2], "memory/drift")["r"])
