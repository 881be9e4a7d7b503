"""Reports: hand-written run folders whose verdict is known, and a real run's page, read as a browser would."""

import json
import re
import shutil
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt
from scipy.stats import ttest_rel

import flray
from flray.core.schema.errors import ConfigError, FlrayError
from flray.results import compare, summary
from flray.results.answers import survivors, unequal_cost, verdict, without_value
from flray.results.comparison import comparison
from flray.results.paired import paired
from flray.results.rendering import in_markdown, to_markdown
from flray.results.report_page import as_json, as_markdown, gather, report
from flray.rundir.reader import Run
from tests.support.commands import invoke
from tests.support.iris import TOY
from tests.support.tables import by_seed, config, folder

ACCURACY = {"fedavg": [0.70, 0.72, 0.71, 0.74], "fedsol": [0.75, 0.78, 0.77, 0.80]}  # by seed


def hand_made(root: Path, algorithm: str, seed: int, steps: int, up: int) -> Path:
    costs = {"client_steps": steps, "comm/up_bytes": up, "comm/down_bytes": 100}
    accuracies = [0.5, ACCURACY[algorithm][seed]]
    return folder(root / f"{algorithm}-{seed}", config(algorithm, seed, rounds=2), accuracies, **costs)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [
        hand_made(root, name, seed, steps, up)
        for name, steps, up in (("fedavg", 10, 100), ("fedsol", 20, 103))
        for seed in range(4)
    ]


def test_the_answers_are_those_of_the_numbers(folders: list[Path]) -> None:
    found = gather(folders, drawn=False)
    best, chance, cost = found.answers
    assert best == "FedSOL has the highest mean, test/acc 77.50 % (mean of 4 seeds); it differs from the other one."
    p = ttest_rel(ACCURACY["fedsol"], ACCURACY["fedavg"]).pvalue
    assert chance.startswith("+5.75 points above FedAvg on 4 shared seeds (95 % interval +4.")
    assert chance.endswith(f"p {p:.2g}): significant.")
    assert cost == "A comparison at unequal cost: beside FedAvg, FedSOL took 2 times the local steps."
    runs = [flray.load(path) for path in folders]
    assert unequal_cost(runs, compare(runs)) == (
        "A comparison at unequal cost: local steps up to 2 times (FedSOL against FedAvg)."
    )
    assert unequal_cost(runs[:4], compare(runs[:4])) == ""
    assert found.costs.set_index("setting")["client_steps"].to_dict() == {"FedAvg": 20, "FedSOL": 40}
    assert "## Cost\n" in as_markdown(found)


@pytest.mark.parametrize("kind", [str, Path, flray.load, lambda path: {"algorithm": "fedsol"}])
def test_a_report_takes_a_reference_of_any_form(folders: list[Path], tmp_path: Path, kind: Any) -> None:
    sol = next(path for path in folders if "fedsol" in (path / "config.yaml").read_text())
    by_text = flray.report(folders, tmp_path / "b.json", against="fedsol").read_text()
    assert flray.report(folders, tmp_path / "a.json", against=kind(sol)).read_text() == by_text


def test_costs_are_those_of_finished_runs(folders: list[Path], tmp_path: Path) -> None:
    """An interrupted run has sent little: in the mean it would make an equal cost unequal."""
    for path in folders:
        copytree(path, tmp_path / path.name)
    last = sorted(tmp_path.iterdir())[0]
    (last / "STATUS").write_text("interrupted after round 1\n")
    for part in (last / "rounds").iterdir():
        part.unlink()
    found = gather(sorted(tmp_path.iterdir()), drawn=False)
    assert found.costs.set_index("setting")["client_steps"].to_dict() == {"FedAvg": 20, "FedSOL": 40}
    assert "## Cost\n" in as_markdown(found)
    for path in tmp_path.iterdir():
        (path / "STATUS").write_text("interrupted after round 1\n")
    none = gather(sorted(tmp_path.iterdir()), drawn=False)
    assert none.costs.empty and "## Cost\n" not in as_markdown(none) and "## Runs\n" in as_markdown(none)


def test_of_what_one_would_rather_not_have_the_smallest_is_best(folders: list[Path]) -> None:
    """Bytes of a run: 2 rounds x (100 + 100) of FedAvg, 2 x (103 + 100) of FedSOL, with every seed."""
    best, gap, _ = gather(folders, "comm/bytes", drawn=False).answers
    assert best.startswith("FedAvg has the lowest mean, comm/bytes 400 B")
    assert gap == "+6 below FedSOL on each of 4 shared seeds."


ONES = {"fedavg": [0.70, 0.72, 0.71], "fedprox": [0.71, 0.70, 0.73], "feddf": [0.60, 0.61, 0.595]}


def test_no_difference_found_is_the_headline(tmp_path: Path) -> None:
    """FedProx is 0.33 points ahead of FedAvg, and behind it on one of three seeds: it was called best."""
    level = {name: ONES[name] for name in ("fedavg", "fedprox")}
    told = verdict(compare(by_seed(tmp_path / "a", **level)), "test/acc")
    assert told[0] == "No difference found; the highest mean is that of FedProx: test/acc 71.33 % (mean of 3 seeds)."
    told = verdict(compare(by_seed(tmp_path / "b", **ONES)), "test/acc")
    assert told[0] == (
        "FedProx has the highest mean, test/acc 71.33 % (mean of 3 seeds); "
        "it does not differ significantly from FedAvg."
    )
    one = {name: values[:1] for name, values in level.items()}
    told = verdict(compare(by_seed(tmp_path / "c", **one)), "test/acc")
    assert told[0] == "One seed cannot tell; the highest mean is that of FedProx: test/acc 71.00 % (one seed)."
    shown = invoke("compare", tmp_path / "a", "--format", "markdown")
    assert "* No difference found; the highest mean is that of FedProx" in shown.output


def test_settings_that_tie_share_the_highest_mean(tmp_path: Path) -> None:
    """Where the mean of several is the highest none of them is called the best alone."""
    values = {"er": [0.9, 0.8, 0.85], "der": [0.8, 0.9, 0.85], "fedavg": [0.9, 0.8, 0.85], "feddf": [0.2, 0.3, 0.25]}
    told = verdict(compare(by_seed(tmp_path / "a", **values)), "test/acc")
    assert told[0].startswith("ER, DER and FedAvg share the highest mean, test/acc 85.00 %")
    assert told[0].endswith("they differ from the other one.") and not any("DER on" in line for line in told[1:])
    equal = {name: [0.9, 0.8] for name in ("er", "der", "fedavg", "fedprox")}
    told = verdict(compare(by_seed(tmp_path / "b", **equal)), "test/acc")
    assert told == [
        "Two seeds cannot tell; the highest mean is that of ER, DER, FedAvg and FedProx alike: test/acc 85.00 % (mean "
        "of 2 seeds)."
    ]


def test_the_ends_of_an_interval_have_the_digits_that_they_differ_in(tmp_path: Path) -> None:
    """0.400 points on each seed but one, 0.401: the interval is 0.4002 ± 0.0006, with two digits +0.40 to +0.40."""
    low = [0.7, 0.71, 0.72, 0.73, 0.74]
    high = [x + d for x, d in zip(low, [0.004, 0.004, 0.004, 0.004, 0.00401], strict=True)]
    told = verdict(compare(by_seed(tmp_path / "a", **{"fedavg": low, "fedsol": high})), "test/acc")
    assert "95 % interval +0.400 to +0.401" in told[1]
    constant = {"fedavg": [0.75, 0.5], "fedsol": [0.875, 0.625]}  # exact in binary
    table = to_markdown(paired(compare(by_seed(tmp_path / "b", **constant)), reference="fedavg"))
    assert table.splitlines()[3].count(" - ") >= 4 and "+12.50" in table
    assert "(of a difference: at -100 and 100); none of a difference that is the same on every seed\n" in table


def test_the_highest_mean_is_corrected_for_all_pairs(tmp_path: Path) -> None:
    """FedAvg is 1.5, 2 and 2.5 points above FedDF: t = 2 / (0.5 / sqrt 3) on 2 degrees of freedom, p 0.0202. Holm over
    the two pairs of the highest mean gave 0.040; over the three pairs, of which that mean was chosen, it is 0.061. Of
    five seeds of eight equal methods 10 % had a difference that way, with all pairs 3 %."""
    ours = {"fedavg": [0.70, 0.72, 0.71], "fedprox": [0.67, 0.73, 0.705], "feddf": [0.685, 0.70, 0.685]}
    told = verdict(compare(by_seed(tmp_path, **ours)), "test/acc")
    assert told[0].startswith("No difference found; the highest mean is that of FedAvg")
    p = ttest_rel(ours["fedavg"], ours["feddf"]).pvalue
    assert told[2].endswith(f"p {3 * p:.2g}): not significant.") and 2 * p < 0.05


def test_a_mean_of_the_seeds_that_survived_says_so(tmp_path: Path) -> None:
    runs = by_seed(tmp_path, **{name: ONES[name] for name in ("fedavg", "feddf")})
    (tmp_path / "fedavg-2" / "STATUS").write_text("diverged in round 1: loss is nan\n")
    (tmp_path / "feddf-0" / "STATUS").write_text("running\n")
    told = verdict(compare(runs), "test/acc")
    assert "test/acc 71.00 % (mean of 2 of 3 seeds; 1 diverged)" in told[0]
    assert told[-1] == "Not over all seeds: FedDF: mean of 2 of 3 seeds; 1 unfinished."


def test_finished_runs_without_the_metric_are_not_called_unfinished(tmp_path: Path) -> None:
    """FedDF was never tested, FedAvg was not on seed 2; a repeat of a seed that was tested leaves out nothing."""
    runs = by_seed(tmp_path, fedavg=[0.5, 0.6])
    lacking = (("fedavg", 0), ("fedavg", 2), ("feddf", 0))
    runs += [folder(tmp_path / f"none-{name}-{seed}", config(name, seed), [None]) for name, seed in lacking]
    frame = compare(runs)
    assert summary(frame)["unfinished"].tolist() == [0, 0]
    assert survivors(frame, "test/acc") == {
        "FedAvg": "mean of 2 of 3 seeds; 1 without test/acc",
        "FedDF": "no seed; 1 without test/acc",
    }
    assert without_value(frame, "test/acc") == "No test/acc in finished runs of FedAvg (2 of 4); FedDF."
    assert without_value(frame, "test/acc") in comparison([Run(run) for run in runs], at="rounds=1").sentences


def test_what_cannot_be_read_is_named_and_the_rest_is_shown(folders: list[Path], tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    edited = Path(shutil.copytree(folders[0], tmp_path / "damaged"))
    (edited / "rounds" / "part-0000.parquet").write_bytes(b"no table")
    found = gather([*folders, tmp_path / "foreign", edited, tmp_path / "gone"], drawn=False)
    assert len(found.frame) == 8
    assert {Path(broken.folder).name for broken in found.broken} == {"foreign", "damaged", "gone"}
    assert all(broken.why and "\n" not in broken.why for broken in found.broken)
    with pytest.raises(ConfigError, match=r"report: no run folder that can be read: .*gone is not a run folder"):
        report([tmp_path / "gone"], tmp_path / "r.html")
    with pytest.raises(FlrayError, match=r"unknown report format 'htm' .did you mean 'html'"):
        report(folders, tmp_path / "r.html", "htm")


def test_the_same_numbers_as_json_and_markdown(folders: list[Path], tmp_path: Path) -> None:
    values = json.loads(report(folders, tmp_path / "r.json", "json").read_text())
    assert [row["test/acc"] for row in values["runs"]] == [*ACCURACY["fedavg"], *ACCURACY["fedsol"]]
    assert values["same"]["algorithm.lr"] == 0.1 and values["broken"] == []
    text = report(folders, tmp_path / "r.md", "md", against="fedavg").read_text()
    assert text.startswith("# hand\n") and "+5.75" in text and "| algorithm |" in text


def test_plain_text_stays_as_it_is_in_markdown() -> None:
    """`&` without an entity's name and `;` is itself."""
    assert in_markdown("R&D a_b p<0.05 & 1 < 2") == "R&D a_b p<0.05 & 1 < 2"
    assert in_markdown("&lt; &#60;") == r"\&lt; \&#60;"


def test_a_name_is_text_in_markdown(tmp_path: Path) -> None:
    """Rendered, it is as it was in the cells of all tables, and in the line on a folder that is left out."""
    name = "a|b\\|c<e>&lt;<!--"
    for seed in range(3):
        folder(tmp_path / f"one{seed}", config(seed=seed, name=name), [0.5 + seed / 10])
        folder(tmp_path / f"two{seed}", config(seed=seed, name=f"{name}2"), [0.6])
    (tmp_path / "<b>").mkdir()
    runs = [str(tmp_path)]
    pages = [
        report([*runs, tmp_path / "<b>"], tmp_path / "r.md", "md").read_text(),
        invoke("compare", *runs, "--format", "markdown").stdout,
    ]
    for page in pages:
        shown = unescape(re.sub(r"</?[a-z][^>]*>", "\n", MarkdownIt("commonmark").enable("table").render(page)))
        lines = shown.splitlines()
        assert name in lines and f"{name}2" in lines, shown
    assert "<b>" in unescape(MarkdownIt().render(pages[0]))


def test_an_ablations_folder_says_its_reference_and_metric(folders: list[Path]) -> None:
    root = folders[0].parent
    assert "diff" not in gather([root], drawn=False).table
    (root / "ablation.yaml").write_text("against: fedsol-0\nmetric: comm/bytes\naxes: [algorithm]\n")
    found = gather([root], drawn=False)
    assert found.metric == "comm/bytes" and found.table.attrs["reference"] == "FedSOL"
    assert found.table["diff"].tolist()[1] == -6 and gather([root], "test/acc", drawn=False).metric == "test/acc"
    (root / "ablation.yaml").write_text("axes: []\n")
    with pytest.raises(ConfigError, match=r"ablation.yaml is damaged .*; give --metric and --against"):
        gather([root], drawn=False)
    (root / "ablation.yaml").unlink()


def test_the_reference_of_an_ablation_may_be_a_run_that_is_left_out(tmp_path: Path) -> None:
    """Of three seeds the first is damaged: the differences 0.1 and 0.2 of the others stay. Where it is gone nothing
    says which setting it had: there are no differences, and a note."""
    by_seed(tmp_path, fedavg=[0.1, 0.5, 0.5], fedsol=[0.9, 0.6, 0.7])
    (tmp_path / "ablation.yaml").write_text("against: fedavg-0\nmetric: test/acc\naxes: [algorithm]\n")
    (part,) = (tmp_path / "fedavg-0" / "rounds").iterdir()
    part.write_bytes(b"no table")
    found = gather([tmp_path], drawn=False)
    assert found.table.attrs["reference"] == "FedAvg" and found.table["diff"].tolist()[1] == pytest.approx(0.15)
    assert not found.notes and "fedavg-0" in found.broken[0].folder
    shutil.rmtree(tmp_path / "fedavg-0")
    found = gather([tmp_path], drawn=False)
    assert "diff" not in found.table and "ablation's reference fedavg-0: " in found.notes[0]


def test_one_name_of_two_methods_options_is_no_axis(tmp_path: Path) -> None:
    """rho of FedSOL and rho of FedSAM are not one quantity; two values in one method are an axis."""

    def ran(name: str, rho: float) -> Path:
        own = config(name) | {"algorithm": {"name": name, "rho": rho}}
        return folder(tmp_path / f"{name}{rho}", own, [0.5, 0.6])

    apart = [ran("fedsol", 1.0), ran("fedsam", 0.1)]
    assert not [title for title, *_ in gather(apart).pictures if "rho" in title]
    assert "Over algorithm.rho" in [title for title, *_ in gather([*apart, ran("fedsol", 2.0)]).pictures]


def test_what_is_not_comparable_and_who_is_served_how_stand_on_the_page(folders: list[Path], tmp_path: Path) -> None:
    far = hand_made(tmp_path, "fedavg", 0, 10, 100)
    values = yaml.safe_load((far / "config.yaml").read_text())
    (far / "config.yaml").write_text(yaml.safe_dump(values | {"rounds": 9}))
    found = gather([*folders, far], drawn=False)
    assert found.caveats[0].startswith(
        "Not comparable: 1 of 2 settings differ from FedSOL, rounds=2 in rounds (9 against"
    )
    assert found.changed.set_index("key").loc["rounds", "values"] == "2 (8 runs); 9 (1 runs)"
    assert "* of a sweep.\n" in as_markdown(replace(found, caveats=(), notes=("of a sweep",)))
    assert "## What to mind" in as_markdown(found) and json.loads(as_json(found))["caveats"] == list(found.caveats)


def test_a_run_that_diverged_is_none_that_has_not_finished_yet(tmp_path: Path) -> None:
    lost = folder(tmp_path / "a", config(), [0.1], "diverged in round 2: loss is nan")
    assert verdict(compare([lost]), "test/acc") == ["No run has finished with a test/acc: 1 of 1 diverged."]
    on = folder(tmp_path / "b", config(), [0.1], "running")
    assert verdict(compare([on]), "test/acc") == ["No run has finished with a test/acc yet."]


class Page(HTMLParser):
    """Tags that are open, and everything that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.seen.append(tag)
        self.fetched += [value for key, value in attributes if key in ("src", "href") and not value.startswith("#")]
        if tag not in ("meta", "br", "img", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: Any) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_real_run_is_one_page_that_fetches_nothing(tmp_path: Path) -> None:
    held = {"name": "shards", "clients": 3, "shards_per_client": 1}
    changes = {"name": "<iris> & co", "partition": held, "rounds": 3, "diagnostics": ["local_forgetting"]}
    run = flray.run({**TOY, **changes, "resources": {"executor": "local"}}, out=tmp_path / "run", progress=False)
    text = report([run], tmp_path / "r.html").read_text()
    page = Page()
    page.feed(text)
    assert page.open == [] and page.seen.count("svg") == 4  # curve, classes, before and after training, who holds what
    assert not [link for link in page.fetched if not link.startswith("data:")]
    assert "&lt;iris&gt; &amp; co" in text and "<iris>" not in text
    assert "currentColor" in text and "prefers-color-scheme: dark" in text and "width=device-width" in text
    acc = float(run.rounds["test/acc"].iloc[-1])
    assert f"FedAvg: test/acc {100 * acc:.2f} % (one seed)." in text
