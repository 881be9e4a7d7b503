"""`flray papers evidence`: the test of a claim against closed forms and scipy, the table of real runs, the page."""

import math
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pandas
import pytest
import yaml
from matplotlib.colors import to_hex
from scipy.stats import binomtest, nct, t, ttest_rel

from flray.config.loader import load_config
from flray.core.schema.errors import CheckpointError, ConfigError
from flray.reference.evidence import (
    Evidence,
    assumption,
    check_read,
    climbed,
    collect,
    configurations,
    differing,
    evidence,
    judge,
    planned,
    read_table,
    updated,
    variant,
    write_table,
)
from flray.reference.evidence_page import (
    MARKS,
    _numbers,
    forest,
    ladder_sentence,
    markdown,
    summary,
    trend,
    trend_sentence,
    write_page,
)
from flray.results.tables import compare
from flray.running import simulate
from tests.support.commands import invoke, succeeded
from tests.support.messages import facts

CONFIGS = Path(__file__).parents[2] / "configs"
ONE = {
    "settings": {"toy": {"config": "toy.yaml", "about": "Digits", "runs": ["algorithm=a,b"], "seeds": 5}},
    "claims": [
        {
            "claim": "A is ahead of B.",
            "paper": "fedsol",
            "setting": "toy",
            "metric": "test/acc",
            "better": {"run": "a"},
            "worse": {"run": "b"},
        }
    ],
}
AHEAD = [0.01, 0.02, 0.03, 0.04, 0.05]


def content(**claim):
    return Evidence.model_validate(ONE | {"claims": [ONE["claims"][0] | claim]})


def table(column="test/acc", a=AHEAD, b=(0.0,) * 5, **more):
    rows = [
        {"setting": "toy", "run": run, "seed": seed, "status": "finished", "done": 3, "git": "", "weights": "",
         "torch": "2", "client_flops": 2e12, "time/s": 360.0, column: value}
        for run, values in (("a", a), ("b", b))
        for seed, value in enumerate(values)
    ]  # fmt: skip
    return pandas.DataFrame(rows).assign(**more)


def test_a_claim_is_a_paired_t_test_over_seeds():
    """Differences of 1 to 5 points: mean 3, s = sqrt(5 / 2), error s / sqrt 5 = sqrt(1 / 2); the statistic is 3 sqrt 2
    on 4 degrees of freedom."""
    base = np.array([0.5, 0.1, 0.3, 0.2, 0.4])
    (tried,) = judge(table(a=base + AHEAD, b=base), content())
    error = math.sqrt(0.5)
    assert tried.mean == pytest.approx(3) and tried.differences == pytest.approx((1, 2, 3, 4, 5))
    assert (tried.low, tried.high) == pytest.approx((3 - t.ppf(0.975, 4) * error, 3 + t.ppf(0.975, 4) * error))
    assert tried.p == pytest.approx(ttest_rel(base + AHEAD, base).pvalue) == pytest.approx(tried.holm)
    assert tried.verdict == "order holds" and tried.p < 0.05
    power = nct.sf(t.ppf(0.975, 4), 4, tried.seen / error)
    assert power == pytest.approx(0.8, abs=1e-3), "the difference that is found with 80 % probability"
    assert tried.hours == pytest.approx(1.0), "ten runs of six minutes"


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"a": (0.0,) * 5, "b": AHEAD}, "order does not hold"),
        ({"a": [0.01, -0.02, 0.03, -0.04, 0.02]}, "inconclusive"),
        ({"a": AHEAD[:3]}, "incomplete"),
        ({"a": AHEAD[:1]}, "not run"),
        ({"status": ["finished"] * 4 + ["diverged"] + ["finished"] * 5}, "incomplete"),
        ({"weights": ["4c77"] * 5 + ["90ef"] * 5}, "other weights"),
        ({"weights": ["4c77"] * 7 + ["90ef"] * 3}, "incomplete"),
    ],
)
def test_what_the_seeds_do_not_show_is_not_claimed(changes, verdict):
    (tried,) = judge(table(**changes), content())
    assert tried.verdict == verdict
    assert math.isnan(tried.p) == (verdict in ("not run", "other weights"))


@pytest.mark.slow
def test_where_two_methods_do_not_differ_an_order_is_said_of_one_claim_in_twenty():
    """The null, simulated: as often for as against the paper, 2.5 % each."""
    draws = np.random.default_rng(0).normal(size=(2000, 2, 5)) / 100
    found = Counter(judge(table(a=a, b=b), content())[0].verdict for a, b in draws)
    for verdict in ("order holds", "order does not hold"):
        assert binomtest(found[verdict], 2000, 0.025).pvalue > 1e-4, found
    assert found.keys() == {"order holds", "order does not hold", "inconclusive"}


def test_a_claim_of_several_settings_is_one_of_each():
    """With the setting's words at its end, its own columns of the CSV, and the claim's own before them."""
    settings = {
        name: ONE["settings"]["toy"] | {"short": name.upper(), "where": {"dataset": name, "metric": "ACC"}}
        for name in ("x", "y")
    }
    claim = ONE["claims"][0] | {"setting": ["x", "y"], "where": {"metric": "FT"}}
    first, second = Evidence.model_validate({"settings": settings, "claims": [claim]}).claims
    assert (first.claim, second.claim) == ("A is ahead of B (X).", "A is ahead of B (Y).")
    assert (second.setting, dict(second.where)) == ("y", {"dataset": "y", "metric": "FT"})


def test_less_forgetting_is_ahead():
    (tried,) = judge(table("FT", b=[value + 0.1 for value in AHEAD[::-1]]), content(metric="FT"))
    assert tried.mean == pytest.approx(10) and tried.verdict == "order holds"


def test_another_inference_mode_and_another_variant_of_a_run_are_read():
    numbers = table(**{"ACC@tip_batch": [0.7] * 5 + [math.nan] * 5}).replace({"run": {"b": "b x=1 y=2"}})
    worse = {"run": "b y=2 x=1", "metric": "test/acc"}
    (tried,) = judge(numbers, content(better={"run": "a", "metric": "ACC@tip_batch"}, worse=worse))
    assert tried.mean == pytest.approx(70) and math.isnan(tried.p), "all differences are the same: no error estimate"
    assert tried.verdict == "inconclusive"


@pytest.mark.parametrize(("least", "says"), [(30.0, "Met: 30.0 % over 5 seeds"), (31, "Not met: 30.0 %")])
def test_the_page_says_whether_the_setting_can_judge(least, says):
    condition = {"learns": {"run": "a", "metric": "test/acc", "at_least": least}}
    read = Evidence.model_validate(ONE | {"settings": {"toy": ONE["settings"]["toy"] | condition}})
    numbers = table(a=[0.1, 0.2, 0.3, 0.4, 0.5])
    (tried,) = judge(numbers, read)
    assert (tried.verdict == "not judged") == says.startswith("Not"), tried.verdict
    assert says in markdown(numbers, read) and "Not known yet" in markdown(numbers[:0], read)


@pytest.mark.parametrize(("forgetting", "least", "judged"), [(True, 30, True), (True, 31, False), (False, 31, True)])
def test_a_claim_about_forgetting_needs_a_setting_that_forgets(forgetting, least, judged):
    """The other claims of the setting do not; the page says of both conditions whether they are met."""
    conditions = {
        "learns": {"run": "a", "metric": "test/acc", "at_least": 1},
        "forgets": {"run": "a", "metric": "FT", "at_least": least},
    }
    read = Evidence.model_validate(
        {
            "settings": {"toy": ONE["settings"]["toy"] | conditions},
            "claims": [ONE["claims"][0] | {"forgetting": forgetting}],
        }
    )
    numbers = table(a=[0.1, 0.2, 0.3, 0.4, 0.5]).assign(FT=0.3)
    assert (judge(numbers, read)[0].verdict != "not judged") == judged
    page = markdown(numbers, read)
    assert f"Condition (of the claims about forgetting): a has at least {least} % of FT. " in page
    assert f"{'Met' if least == 30 else 'Not met'}: 30.0 % over 5 seeds" in page and page.count("Condition") == 2


def test_holm_counts_every_tested_claim():
    two = Evidence.model_validate(ONE | {"claims": ONE["claims"] * 2 + [ONE["claims"][0] | {"worse": {"run": "c"}}]})
    first, second, missing = judge(table(), two)
    assert first.holm == pytest.approx(2 * first.p) and second.holm == first.holm and math.isnan(missing.holm)


# evidence.yaml ------------------------------------------------------------------------------------------
def test_the_papers_differences():
    """Of the printed tables: FedSOL 71.94 and FedAvg 67.32; forgetting of FedAvg 62.90 and FOT 20.86; FedProj 69.88 and
    FedDF 68.04; FedProTIP 86.00 and FOT 41.80; on DomainNet FedProTIP 25.30 and FedAvg 10.72; FedMemo-client 72.97 and
    MFCL 65.48."""
    found = {each.claim: each.printed for each in evidence().claims}
    assert found["FedSOL is more accurate than FedAvg."] == pytest.approx(4.62)
    assert found["FOT forgets less than FedAvg (5 tasks)."] == pytest.approx(42.04)
    small = "(half the side, random weights)."
    assert found[
        f"FedProj, as printed, is more accurate than FedDF, which reads the same public images {small}"
    ] == pytest.approx(1.84)
    tip = "FedProTIP with the task of a batch predicted is more accurate than"
    assert found[f"{tip} FOT (10 tasks)."] == pytest.approx(44.20)
    assert found[f"{tip} FedAvg (digits)."] == pytest.approx(25.30 - 10.72)
    (memo,) = (each for each in evidence().claims if each.worse.run == "mfcl")
    assert memo.printed == pytest.approx(72.97 - 65.48)
    tuned = "fedmemo algorithm.proxy.data=real {}algorithm.trigger=scheduled algorithm.r0={} algorithm.gamma=1.0"
    without = [
        each
        for each in evidence().claims
        if each.printed is None and each.setting not in ("fedsol_starts", "mnist_parts")
    ]
    unprinted = Counter(each.worse.run for each in without)
    assert unprinted == {
        "fot": 10, "fedprotip": 25, "mfcl algorithm.lr=0.03": 2, "ewc algorithm.lam=1.0": 2,
        "centralized algorithm.lr=0.001": 2, "fedavg algorithm.lr=0.03": 4, "fot algorithm.lr=0.03": 3,
        "fedprotip tasks.freeze=['early']": 1, "fedavg": 8, "er": 2, "fedprox": 1,
        "fedavg algorithm.local_epochs=10": 1, "fedmemo": 1, "fedmemo algorithm.trigger=scheduled algorithm.r0=1": 1,
        "fedmemo algorithm.proxy.data=real algorithm.trigger=scheduled algorithm.r0=1": 1, tuned.format("", 1): 1,
        tuned.format("algorithm.proxy.epochs=60 ", 60): 1,
    }  # fmt: skip


def test_stored_rows_are_of_the_present_configurations():
    """Of the rows that note theirs; a change of a setting asks for its runs again."""
    rows, present = read_table(), configurations(evidence(), CONFIGS)
    noted = rows[rows["configuration"].notna()]
    assert len(noted) and all(
        not differing(row["configuration"], present[row["setting"], row["run"]]) for row in noted.to_dict("records")
    )


def test_every_claim_reads_runs_that_its_setting_makes():
    known = evidence()
    for name, setting in known.settings.items():
        base = (CONFIGS / setting.config, setting.overrides)
        runs = {variant(cell, *base) for run in setting.runs for cell in setting.cells(run, CONFIGS)}
        own = [claim for claim in known.claims if claim.setting == name]
        assert {side.run for claim in own for side in (claim.better, claim.worse)} <= runs, name
        assert setting.seeds >= 5
        seeds = [cell for run in setting.runs for cell in setting.cells(run, CONFIGS)]
        pretrained = {
            f"cache://{load_config(CONFIGS / 'pretrain' / f'{recipe}.yaml', overrides)[0].name}"
            for recipe, *overrides in map(str.split, setting.weights)
        }
        assert {start for cell in seeds if (start := cell.model.start.get("weights"))} == pretrained
        drawn = {cell.partition.seed is None and cell.cohort.sampling == "addressed" for cell in seeds}
        assert drawn == {name != "fedsol_tiny_fixed"}


def test_a_printed_number_that_is_not_there_is_one_line():
    wrong = content(csv="fedsol_table2_main.csv", where={"dataset": "cifar11"})
    with pytest.raises(ConfigError, match=facts("fedsol_table2_main.csv", "cifar11")):
        judge(table(), wrong)


def test_rows_of_another_configuration_are_left_out_and_named(real, tmp_path, caplog):
    """The runs were made with 300 training samples; now the setting has 200. One run of the four was repeated."""
    root, configs, read = real
    old = collect(root, configs, read)
    same = updated(old, old.query("seed == 0"), configurations(read, configs))
    assert len(same) == 4 and not caplog.text
    toy = yaml.safe_load((configs / "toy.yaml").read_text())
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(toy | {"data": {"train_size": 200}}))
    now = configurations(read, tmp_path)
    assert {run for _, run in now} == {"fedavg", "fedavg algorithm.local_epochs=2"}
    found = updated(old, old.query("run == 'fedavg' and seed == 0"), now)
    assert found[["run", "seed"]].to_numpy().tolist() == [["fedavg", 0]]
    assert caplog.text.count("data.train_size 300, now 200") == 3
    bare = old.drop(columns="configuration")  # a table of before the column
    assert len(updated(bare, old.query("run == 'fedavg' and seed == 0"), now)) == 4


# runs ---------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Four runs on digits, of two seeds: (root, configs, content)."""
    home = tmp_path_factory.mktemp("evidence")
    config = {"extends": str(CONFIGS / "quickstart.yaml"), "name": "toy", "rounds": 1, "data": {"train_size": 300},
              "proxy": None,
              "resources": {"executor": "local"}, "evaluate": {"clients": False}}  # fmt: skip
    (home / "toy.yaml").write_text(yaml.safe_dump(config))
    setting = {
        "config": "toy.yaml",
        "about": "Digits",
        "seeds": 2,
        "runs": ["algorithm=fedavg", "algorithm=fedavg algorithm.local_epochs=2"],
    }
    sides = {"better": {"run": "fedavg"}, "worse": {"run": "fedavg algorithm.local_epochs=2"}}
    read = Evidence.model_validate({"settings": {"toy": setting}, "claims": [ONE["claims"][0] | sides]})
    cells = list(planned(home / "runs", home, read))
    for cell, folder in cells:
        simulate(cell, folder, progress=False)
    return home / "runs", home, read


def test_the_table_has_what_the_runs_measured(real, tmp_path):
    root, configs, read = real
    write_table(collect(root, configs, read), tmp_path / "t.parquet")
    found = read_table(tmp_path / "t.parquet")
    assert found["run"].tolist() == ["fedavg"] * 2 + ["fedavg algorithm.local_epochs=2"] * 2
    assert found["seed"].tolist() == [0, 1, 0, 1] and set(found["setting"]) == {"toy"}
    folders = [root / "toy" / grid / f"fedavg-seed{seed}" for grid, seed in
               (("algorithm-fedavg", 0), ("algorithm-fedavg", 1), ("algorithm-fedavg-algorithm.local-epochs-2", 0),
                ("algorithm-fedavg-algorithm.local-epochs-2", 1))]  # fmt: skip
    assert found["test/acc"].tolist() == compare(folders)["test/acc"].tolist()
    (tried,) = judge(found, read)
    gap = 100 * (found["test/acc"][:2].to_numpy() - found["test/acc"][2:].to_numpy())
    assert tried.differences == pytest.approx(gap.tolist())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"worse": {"run": "fedavg algorithm.local_epochs=2.0"}},
         "no grid of setting toy has the run 'fedavg algorithm.local_epochs=2.0'; write one of: fedavg; fedavg "
         "algorithm.local_epochs=2"),
        ({"metric": "test/accuracy"}, "unknown metric 'test/accuracy' in the table, in a claim of toy"),
    ],
)  # fmt: skip
def test_a_claim_on_a_run_or_a_metric_that_nothing_has_is_refused(real, tmp_path, changes, says):
    root, configs, read = real
    (tmp_path / "fedsol").mkdir()
    (tmp_path / "fedsol" / "_common.yaml").touch()
    shutil.copy(configs / "toy.yaml", tmp_path)
    values = read.model_dump(mode="json")
    values["claims"] = [values["claims"][0] | changes]
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump(values))
    found = invoke("papers", "evidence", "--claims", tmp_path / "claims.yaml", "--configs", tmp_path, "--table",
                   tmp_path / "t.parquet", "--page", tmp_path / "page.md", "--collect", root)  # fmt: skip
    assert isinstance(found.exception, ConfigError) and str(found.exception).startswith(says)
    check_read(collect(root, configs, read), read, configs)  # a run of the grid that has no rows yet is "not run"
    check_read(collect(root, configs, read).query("run == 'fedavg'"), read, configs)


def test_a_run_that_compare_does_not_count_is_not_collected(real, tmp_path, caplog):
    """One has lost its round, one has another configuration, one a damaged table, one a damaged environment.json; the
    row is the fifth's."""
    root, configs, read = real
    shutil.copytree(root, tmp_path / "runs")
    lost, edited, damaged, whole = sorted(tmp_path.glob("runs/toy/*/*"))
    shutil.copytree(whole, cut := whole.with_name("fedavg-seed2"))
    (cut / "environment.json").write_text("{")
    (part,) = (lost / "rounds").glob("*.parquet")
    part.unlink()
    config = (edited / "config.yaml").read_text()
    (edited / "config.yaml").write_text(config.replace("train_size: 300", "train_size: 200"))
    for part in (damaged / "rounds").glob("*.parquet"):
        part.write_bytes(b"no table")
    found = collect(tmp_path / "runs", configs, read)
    assert found["test/acc"].tolist() == compare([whole])["test/acc"].tolist()
    for run, why in ((lost, "lost"), (edited, "train_size"), (damaged, "damaged"), (cut, "environment.json")):
        (said,) = (line for line in caplog.messages if str(run) in line)
        assert said.startswith("left out: ") and why in said


def test_the_commands_of_the_page_make_the_folders_of_the_plan(real):
    root, _, read = real
    words = [command.split() for command in read.settings["toy"].commands("toy")]
    grids = [root / Path(each[-1]).relative_to("runs/evidence") for each in words]
    assert all(len(list(grid.glob("fedavg-seed?"))) == 2 for grid in grids)


def test_the_verb_runs_what_is_not_finished_and_collects_it(real, tmp_path):
    """One of the four runs is there: the others are trained, and have the numbers of the fixture's."""
    root, configs, read = real
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump(read.model_dump(mode="json")))
    (tmp_path / "fedsol").mkdir()
    (tmp_path / "fedsol" / "_common.yaml").touch()  # what makes a folder the configurations
    shutil.copy(configs / "toy.yaml", tmp_path)
    kept = Path("toy", "algorithm-fedavg", "fedavg-seed1")
    shutil.copytree(root / kept, tmp_path / "runs" / kept)
    before = (tmp_path / "runs" / kept / "STATUS").stat().st_mtime_ns
    common = ["papers", "evidence", "--claims", str(tmp_path / "claims.yaml"), "--configs", str(tmp_path)]
    listed = succeeded(*common, "--run", tmp_path / "runs", "--dry-run")
    assert "4 runs, 1 finished" in listed.output, listed.output
    result = succeeded(*common, "--run", tmp_path / "runs", "--setting", "toy")
    assert (tmp_path / "runs" / kept / "STATUS").stat().st_mtime_ns == before
    where = ["--table", str(tmp_path / "t.parquet"), "--page", str(tmp_path / "page.md")]
    result = succeeded(*common, *where, "--collect", tmp_path / "runs")
    assert "4 runs" in result.output, result.output
    found = read_table(tmp_path / "t.parquet")
    assert found["test/acc"].tolist() == collect(root, configs, read)["test/acc"].tolist()
    refused = invoke(*common, "--run", tmp_path / "runs", "--setting", "toys")
    assert isinstance(refused.exception, ConfigError) and "toy" in str(refused.exception)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("settings: 3", []),
        ("{settings: {toy: {}}, claims: [{claim: A is ahead of B.}, 3]}", []),
        ("settings: {}", []),
        (ONE | {"claims": [ONE["claims"][0] | {"setting": "toys"}]}, ["toys", "toy"]),
        (ONE | {"claims": [ONE["claims"][0] | {"metric": "time/s"}]}, ["time/s", "points"]),
        (ONE | {"claims": [ONE["claims"][0] | {"worse": {"run": "b", "metric": "comm/bytes"}}]}, ["comm/bytes"]),
        (ONE | {"summary": [{"text": "x", "claims": {"A is": "y"}}]}, ["A is", "A is ahead of B."]),
        (
            ONE | {"ladder": [{"claim": "A is ahead of C.", "scales": {"small": "toy", "large": "toy"}}]},
            ["A is ahead of B."],
        ),
        (None, []),
    ],
)
def test_another_file_is_not_claims(tmp_path, text, says):
    if text is not None:
        (tmp_path / "a.yaml").write_text(text if isinstance(text, str) else yaml.safe_dump(text))
    with pytest.raises(ConfigError, match=facts("a.yaml", *says)):
        evidence(tmp_path / "a.yaml")


def test_without_a_finished_run_there_is_no_table(real, tmp_path):
    with pytest.raises(CheckpointError, match=facts("toy", str(tmp_path))):
        collect(tmp_path, *real[1:])


def test_another_file_is_not_the_table(tmp_path):
    (tmp_path / "t.parquet").write_text("no table")
    with pytest.raises(ConfigError, match=facts("t.parquet", "--collect")):
        read_table(tmp_path / "t.parquet")
    pandas.DataFrame({"setting": ["a"]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ConfigError, match=facts("t.parquet", "run")):
        read_table(tmp_path / "t.parquet")


# the page -----------------------------------------------------------------------------------------------
def test_the_forest_plot_draws_each_claim_where_its_numbers_are():
    claims = Evidence.model_validate(ONE | {"claims": [ONE["claims"][0], ONE["claims"][0] | {"worse": {"run": "c"}}]})
    tried = judge(table(), claims)
    (axis,) = forest(dict(enumerate(tried, 4))).axes
    drawn = [line.get_xdata() for line in axis.lines if len(line.get_xdata()) == 2]
    assert any(np.allclose(x, [tried[0].low, tried[0].high]) for x in drawn)
    points = axis.collections
    seeds = [each.get_offsets() for each in points if len(each.get_offsets()) == 5]
    assert any(np.allclose(sorted(each[:, 0]), [1, 2, 3, 4, 5]) for each in seeds)
    assert [label.get_text() for label in axis.get_yticklabels()] == ["4  A is ahead of B.", "5  A is ahead of B."]
    faces = [to_hex(each.get_facecolor()[0]) for each in points if len(each.get_offsets()) == 1]
    assert to_hex(MARKS["order holds"][2]) in faces and tried[0].verdict == "order holds"


def test_a_trend_is_the_difference_against_the_other_side_and_its_change_is_paired(tmp_path):
    """Differences of 1 to 5 points from the first start, and half of each from the second, whose other side is at 40 %:
    the change is -0.5 to -2.5, mean -1.5 with standard error sqrt(2.5) / 2 / sqrt(5)."""
    later = {side: {"run": f"{run} model.weights=w"} for side, run in (("better", "a"), ("worse", "b"))}
    claims = [ONE["claims"][0], ONE["claims"][0] | later]
    second = table(a=0.4 + np.array(AHEAD) / 2, b=(0.4,) * 5)
    rows = pandas.concat([table(), second.assign(run=second["run"] + " model.weights=w")], ignore_index=True)
    toy = ONE["settings"]["toy"] | {"trend": True}
    read = Evidence.model_validate(ONE | {"claims": claims, "settings": {"toy": toy}})
    tried = judge(rows, read)
    (axis,) = trend(dict(enumerate(tried, 4))).axes
    means = [each.get_offsets()[0] for each in axis.collections if len(each.get_offsets()) == 1]
    assert any(np.allclose(at, [0, 3]) for at in means) and any(np.allclose(at, [40, 1.5]) for at in means)
    assert [text.get_text() for text in axis.texts] == ["4", "5"]
    half = t.ppf(0.975, 4) * math.sqrt(2.5) / 2 / math.sqrt(5)
    said = f"changes by -1.5 points ({-1.5 - half:+.1f} to {-1.5 + half:+.1f}, paired over 5 seeds)"
    assert said in trend_sentence(tried) and not trend_sentence(tried[:1])
    assert said in write_page(tmp_path / "evidence.md", rows, read)[0].read_text()


def test_a_sentence_of_the_first_screen_has_its_numbers_and_says_where_they_contradict_it(tmp_path):
    said = [
        {"text": "A is ahead, by {0}.", "claims": {"A is ahead of B.": verdict}}
        for verdict in ("order holds", "inconclusive")
    ]
    read = Evidence.model_validate(ONE | {"summary": said})
    half = t.ppf(0.975, 4) * math.sqrt(0.5)  # of the differences 1 to 5
    text = f"A is ahead, by +3.0 [{3 - half:+.1f} to {3 + half:+.1f}]."
    assert summary(judge(table(), read), read) == [text, f"Not so in these runs: {text}"]
    assert f"1. {text}\n2. Not so" in write_page(tmp_path / "evidence.md", table(), read)[0].read_text()


def test_the_stored_runs_say_what_the_first_screen_says():
    said = summary(judge(read_table(), evidence()), evidence())
    assert len(said) == 6 and not [text for text in said if text.startswith("Not so")]


def test_a_figure_has_at_most_twelve_claims(tmp_path):
    claims = [ONE["claims"][0] | {"claim": f"Claim {number}."} for number in range(25)]
    paths = write_page(tmp_path / "evidence.md", table(), Evidence.model_validate(ONE | {"claims": claims}))
    assert [path.name for path in paths[1:]] == [f"evidence_toy_{part}.png" for part in (1, 2, 3)]


def test_the_page_has_each_claim_its_test_and_its_command(tmp_path):
    sides = [{"run": run, "where": {"method": method}} for run, method in (("a", "FedSOL"), ("b", "FedAvg"))]
    where = {"dataset": "cifar10", "partition": "lda-0.1"}
    read = content(csv="fedsol_table2_main.csv", where=where, better=sides[0], worse=sides[1])
    numbers = table()
    paths = write_page(tmp_path / "evidence.md", numbers, read)
    assert [path.name for path in paths] == ["evidence.md", "evidence_toy.png"]
    assert all(path.stat().st_size > 1000 for path in paths)
    text = paths[0].read_text()
    assert "| 1 | A is ahead of B. | order holds | +3.0 (+1.0 to +5.0) | +8.0 | 0.013 | 5 |" in text
    assert "    flray run configs/toy.yaml algorithm=a,b seed=0..4 --out runs/evidence/toy/algorithm-a-b" in text
    assert "| a | first | 5 | 3.0 ± 2.0 |" in text and "1.0 hours" in text and "0.02 PFLOP" in text
    again = write_page(tmp_path / "evidence.md", numbers, read)[0].read_text()
    assert again == text


def test_runs_that_diverged_stand_beside_the_means_of_those_that_finished():
    rows = pandas.DataFrame(
        {
            "run": ["a", "a", "a", "b", "c"],
            "seed": [0, 1, 2, 0, 0],
            "status": ["finished", "finished", "diverged", "diverged", "finished"],
            "ACC": [0.5, 0.5, 0.1, 0.2, 0.7],
        }
    )
    names, cells = _numbers(rows)
    assert names == ["ACC"]
    assert cells == [
        ["a", "first", "2, 1 diverged", "50.0 ± 0.0"],
        ["b", "-", "0, 1 diverged", ""],
        ["c", "first", "1", "70.0"],
    ]


def test_the_page_counts_printed_numbers_of_another_experiment_apart(tmp_path):
    """Three claims with the paper's number, one of them in another experiment's setting, one of a variant of ours,
    and one without; and what the runs started from."""
    sides = {
        "better": {"run": "a", "where": {"method": "FedSOL"}},
        "worse": {"run": "b", "where": {"method": "FedAvg"}},
    }
    where = {"dataset": "cifar10", "partition": "lda-0.1"}
    printed = ONE["claims"][0] | {"csv": "fedsol_table2_main.csv", "where": where, **sides}
    claims = [printed, printed | {"setting": "small"}, printed | {"ours": True}, ONE["claims"][0]]
    settings = {"toy": ONE["settings"]["toy"], "small": ONE["settings"]["toy"] | {"other": "Half the size."}}
    read = Evidence.model_validate({"settings": settings, "claims": claims})
    numbers = table(git="176f5044805b", weights="90ef4ace9807")
    text = write_page(tmp_path / "e.md", numbers, read)[0].read_text()
    assert "of a setting like this | 1 | 1 order holds | 1 |" in text
    assert "of another variant | 2 | " in text and "without a printed number | 1 | 1 order holds | 1 |" in text
    assert "Not run. The paper (FedSOL) prints +8.0. Half the size." in text
    assert "; weights 90ef4ace; commits 176f5044." in text
    mixed = table(weights=["4c77"] * 5 + ["90ef"] * 5)
    text = write_page(tmp_path / "e.md", mixed, read)[0].read_text()
    assert "Not tested: its runs start from different weights." in text and "| other weights | - |" in text


def test_the_verb_writes_the_page_from_a_table_alone(tmp_path):
    empty = ["--table", str(tmp_path / "none.parquet"), "--page", str(tmp_path / "page.md")]
    succeeded("papers", "evidence", *empty)
    text = (tmp_path / "page.md").read_text()
    claims = evidence().claims
    assert all(each.claim in text for each in claims) and text.count("| not run | - |") == len(claims)
    assert "tested, 0 runs" in text
    refused = invoke("papers", "evidence", *empty, "--dry-run")
    assert refused.exit_code and isinstance(refused.exception, ConfigError)


@pytest.mark.slow
def test_an_installed_package_is_not_written_to(tmp_path, monkeypatch):
    """In a wheel `configs` is in the package: here a copy of the package has it. The page is written into this folder,
    and has what reproduce --scale small says."""
    package = (tmp_path / "site" / "flray").resolve()
    shutil.copytree(CONFIGS, package / "configs")
    before = sorted(package.rglob("*"))
    monkeypatch.setattr("flray.shipped.PACKAGE", package)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    succeeded("papers", "evidence")
    page = Path("evidence.md").read_text()
    assert "FedSOL is more accurate than FedAvg" in page and ladder_sentence().partition("evidence: ")[2] in page
    assert sorted(package.rglob("*")) == before


# several scales ---------------------------------------------------------------------------------------
def laddered(*signs):
    """A claim at as many scales as there are signs, five seeds each; its table has differences of that sign."""
    names = [f"scale{i}" for i in range(len(signs))]
    settings = {name: ONE["settings"]["toy"] | {"overrides": f"rounds={i + 1}"} for i, name in enumerate(names)}
    ladder = [{"claim": "A is ahead of B.", "scales": {f"s{i}": name for i, name in enumerate(names)}}]
    read = Evidence.model_validate({"settings": settings | ONE["settings"], "claims": ONE["claims"], "ladder": ladder})
    rows = [
        table(a=[sign * value for value in AHEAD]).assign(setting=name)
        for name, sign in zip(names, signs, strict=True)
        if sign
    ]
    return read, pandas.concat(rows) if rows else table().iloc[:0]


@pytest.mark.parametrize(
    ("signs", "says"),
    [
        ((1, 1, 1), "In 2 of 2 steps"),
        ((1, -1, -1), "In 1 of 2 steps"),
        ((1, 0, -1), "In 0 of 1 steps"),  # the scale between them was not run
        ((1, 0, 0), "Not known yet"),
        ((0, 0), "Not known yet"),
    ],
)
def test_the_page_counts_how_often_a_scale_keeps_the_sign_of_the_smaller_one(signs, says):
    read, numbers = laddered(*signs)
    page = markdown(numbers, read)
    assert says in page.partition("## A ladder")[2]
    assert "rounds=2 algorithm=a,b seed=0..4" in page


def test_each_scale_has_its_own_paired_test():
    read, numbers = laddered(1, -1)
    (climb,) = climbed(numbers, read)
    expected = 100 * np.mean(AHEAD)
    assert {scale: tried.mean for scale, tried in climb.items()} == pytest.approx({"s0": expected, "s1": -expected})


def test_collected_runs_join_those_of_the_table():
    """A run of the same setting, name and seed is replaced, any other row stays."""
    old, new = table(), table(a=(0.5,) * 5).query("run == 'a' and seed < 2")
    found = updated(old, new, {})
    assert len(found) == 10 and found["seed"].dtype.kind == "i"
    values = found[found["run"] == "a"].sort_values("seed")["test/acc"].tolist()
    assert values == [0.5, 0.5, *AHEAD[2:]]
    assert updated(old.iloc[:0], new, {})["test/acc"].tolist() == [0.5, 0.5]
    bare = [frame.drop(columns=["done", "status"]) for frame in (old, new)]  # the table of detectors
    assert len(updated(*bare, {})) == 10


def test_the_page_says_how_often_assumption_5_5_fails():
    """By hand: seed 0 fails in 2 of 4 steps, one of which raises the loss; seed 1 in none of 2, one raises it."""
    rows = pandas.DataFrame({"kappa": [-1, 0, 1, 1, math.nan], "descent_projected": [-1, 1, 1, 1, -1.0]})
    other = pandas.DataFrame({"kappa": [1, 1], "descent_projected": [-1, 1.0]})
    seen = [assumption(rows), assumption(other)]
    assert seen[0] == {"kappa/looks": 4, "kappa/fails": 0.5, "kappa/rises_there": 0.5, "kappa/rises_elsewhere": 0.0}
    assert assumption(None) == {} and assumption(rows.iloc[4:]) == {}
    numbers = table().query("seed < 2 and run == 'a'").assign(**pandas.DataFrame(seen))
    page = markdown(numbers, content())
    assert "fails in 33.3 % of 6 observed local steps (by seed 0.0 to 50.0 %)" in page
    assert "in 50.0 % of the steps; in the others in 25.0 %" in page


@pytest.mark.parametrize("noted", [{}, {"configuration": '{"lr": 0.1}'}])
def test_rows_of_another_number_of_rounds_are_left_out(caplog, noted):
    """The runs of a configuration that had other rounds: none is noted, or it is in no grid."""
    old, new = table(done=2, **noted), table().query("run == 'a' and seed == 0")
    found = updated(old, new, {})
    assert found[found["run"] == "a"]["done"].tolist() == [3] and len(found[found["run"] == "b"]) == 5
    assert caplog.text.count("left out: toy, a, seed") == 4
