"""Paired comparisons: hand-written run folders; intervals and p-values by closed form and by counting."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given, settings, strategies as st

from flray.core.schema.errors import ConfigError
from flray.results import ablation, compare, paired, render, to_markdown
from flray.results.ablation_figures import ablation_cells
from flray.results.answers import verdict
from flray.results.comparison import comparison
from flray.results.figures import by_setting
from flray.results.intervals import bootstrap, effect, interval
from flray.results.paired import as_text, difference, holm, labels
from flray.results.paper_tables import paper_table
from flray.results.report_page import gather
from flray.rundir.reader import Run
from tests.support.commands import invoke
from tests.support.tables import by_seed, config, folder

T1, T2 = math.tan(math.pi * 0.475), 0.95 / math.sqrt(2 * 0.975 * 0.025)  # t(0.975) with 1 and 2 degrees of freedom


def rows(frame: pandas.DataFrame, **key: Any) -> dict[str, dict[str, Any]]:
    return {row["algorithm"]: row for row in frame.to_dict("records")}


@pytest.mark.parametrize("metric", ["exemplars/bytes", "exemplars/kept", "detect/on_before@fedmemo"])
def test_fewer_stored_samples_and_earlier_alarms_are_better(tmp_path: Path, metric: str) -> None:
    frame = compare(by_seed(tmp_path, er=[0.5], target=[0.5])).assign(**{metric: [8.0, 2.0]})
    assert verdict(frame, metric)[0].split(" of ")[-1].startswith("TARGET")


def test_a_reference_is_a_folder_a_run_or_keys_with_lists(tmp_path: Path) -> None:
    for seed in range(3):
        for hidden in ([16, 8], [32, 8]):
            values = config("fedavg", seed, model={"name": "mlp", "hidden": hidden})
            folder(tmp_path / f"{hidden[0]}-{seed}", values, [0.5 + hidden[0] / 100])
    runs = [Run(path) for path in sorted(tmp_path.iterdir())]
    first = runs[0].folder
    texts = ["model.hidden=[16, 8]", "algorithm=fedavg,model.hidden=[16,8]", "hidden=[16, 8]", str(first.resolve())]
    for reference in (*texts, first, runs[0]):
        table = comparison(runs, against=reference).table
        assert table["diff"].abs().max() == pytest.approx(0.16) and table["diff"].max() > 0, reference
    with pytest.raises(ConfigError, match="lists in brackets"):
        comparison(runs, against="model.hidden=[16, 8")


def test_settings_that_differ_in_the_name_alone_are_told_apart(tmp_path: Path) -> None:
    for name, accuracy in (("before", 0.5), ("after", 0.4)):
        for seed in range(3):
            folder(tmp_path / f"{name}-{seed}", config("fedavg", seed, name=name), [accuracy])
    runs = [Run(path) for path in sorted(tmp_path.iterdir())]
    said = " ".join(comparison(runs).sentences)
    assert "FedAvg, name=before" in said and "one mean" not in said
    assert set(by_setting(runs)) == {"FedAvg, name=before", "FedAvg, name=after"}
    with pytest.raises(ConfigError, match="name=after,algorithm=fedavg; name=before,algorithm=fedavg"):
        comparison(runs, against="fedavg")
    assert comparison(runs, against="name=before").table["diff"].dropna().tolist() == pytest.approx([-0.1])


def test_settings_that_agree_in_six_digits_are_told_apart(tmp_path: Path) -> None:
    """In names, tables, costs and figures; a text is not the number that it looks like."""
    rates = (0.05000001, 0.05000002)
    for lr, seed in itertools.product(rates, range(2)):
        steps = {rates[0]: 10, rates[1]: 30}[lr]
        folder(tmp_path / f"{lr}-{seed}", config("fedavg", seed, lr), [lr * 10], client_steps=steps)
    runs = [Run(path) for path in sorted(tmp_path.iterdir())]
    names = ["FedAvg, lr=0.05000001", "FedAvg, lr=0.05000002"]
    assert {name: len(seeds) for name, seeds in by_setting(runs).items()} == dict.fromkeys(names, 2)
    page = gather(runs, drawn=False)
    assert page.costs[["setting", "client_steps"]].to_numpy().tolist() == [[names[0], 10], [names[1], 30]]
    assert [paired(page.frame, name)["algorithm.lr"].iloc[0] for name in names] == list(rates)
    for text in (to_markdown(page.table), to_markdown(paper_table(page.frame))):
        assert all(f"{lr!r} |" in text for lr in rates)
    _, cells, _ = ablation_cells(page.frame.assign(**{"data.x": [1, 2, 1, 2]}), "data.x", "test/acc")
    assert sorted(cells) == ["lr=0.05000001", "lr=0.05000002"]
    mixed = page.frame.assign(**{"model.x": [1, "1", 1, "1"]})
    assert len(set(map(labels(mixed), mixed.to_dict("records")))) == 4


def test_an_unfinished_repeat_does_not_take_the_place_of_a_finished_run(tmp_path: Path) -> None:
    folder(tmp_path / "a", config("fedavg", 0), [0.5, 0.9])
    folder(tmp_path / "b", config("fedavg", 0), [0.1], status="interrupted after round 1")
    (of_seed,) = by_setting([Run(tmp_path / name) for name in ("a", "b")]).values()
    assert of_seed[0].folder.name == "a"
    (of_seed,) = by_setting([Run(tmp_path / name) for name in ("b", "a")]).values()
    assert of_seed[0].folder.name == "a"


def test_three_seeds_by_closed_form(tmp_path: Path) -> None:
    """Differences 0.02, 0.04, 0.09: mean 0.05, std sqrt(0.0013), t = 0.05 sqrt(3 / 0.0013).

    Student's t with 2 degrees of freedom has the distribution function 1/2 + t / (2 sqrt(2 + t^2)), so p = 1 - t /
    sqrt(2 + t^2). Three differences of one sign: 2 of the 8 assignments of signs are as extreme, p = 1/4.
    """
    table = rows(paired(compare(by_seed(tmp_path, fedavg=[0.5, 0.6, 0.4], fedsol=[0.52, 0.64, 0.49])), "fedavg"))
    other, std = table["fedsol"], math.sqrt(0.0013)
    t = 0.05 / (std / math.sqrt(3))
    assert [other[name] for name in ("n", "pairs", "diverged", "unfinished")] == [3, 3, 0, 0]
    assert other["mean"] == pytest.approx(0.55)
    assert other["diff"] == pytest.approx(0.05)
    assert [other["diff_low"], other["diff_high"]] == pytest.approx(
        [0.05 - T2 * std / math.sqrt(3), 0.05 + T2 * std / math.sqrt(3)]
    )
    assert other["p_t"] == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert other["p_wilcoxon"] == 0.25
    assert (other["holm_t"], other["holm_wilcoxon"]) == (other["p_t"], 0.25)  # one comparison
    reference = table["fedavg"]
    assert (reference["mean"], reference["n"]) == (pytest.approx(0.5), 3)
    assert all(math.isnan(reference[name]) for name in ("diff", "diff_low", "diff_high", "p_t", "p_wilcoxon", "holm_t"))


def test_only_the_seeds_that_both_finished_are_paired(tmp_path: Path) -> None:
    """Seeds 1 and 2 are in both: differences 0.1 and 0.3, 0.2 +- T1 * 0.1 is beyond [-1, 1]; means are over all
    finished runs."""
    folders = [
        folder(tmp_path / f"a{seed}", config(seed=seed), [value]) for seed, value in ((0, 0.9), (1, 0.2), (2, 0.4))
    ]
    folders += [
        folder(tmp_path / f"s{seed}", config("fedsol", seed), [value]) for seed, value in ((1, 0.3), (2, 0.7), (5, 0.8))
    ]
    folders.append(folder(tmp_path / "going", config("fedsol", 0), [0.1], "running"))
    folders.append(folder(tmp_path / "nan", config("fedsol", 3), [0.1], "diverged in round 1: client 2"))
    other = rows(paired(compare(folders), "fedavg"))["fedsol"]
    assert [other[name] for name in ("n", "diverged", "unfinished", "pairs")] == [3, 1, 1, 2]
    assert (other["mean"], other["diff"]) == (pytest.approx(0.6), pytest.approx(0.2))
    assert [other["diff_low"], other["diff_high"]] == [-1, 1]
    assert other["p_wilcoxon"] == 0.5  # 2 of 4 assignments of signs
    assert other["p_t"] == pytest.approx(1 - 2 * math.atan(2) / math.pi)  # t = 2; Cauchy's distribution function


def test_fewer_than_two_pairs_have_no_test(tmp_path: Path) -> None:
    folders = [*by_seed(tmp_path, fedavg=[0.5], fedsol=[0.7]), folder(tmp_path / "m", config("moon", 4), [0.9])]
    table = rows(paired(compare(folders), "fedavg"))
    assert (table["fedsol"]["pairs"], table["fedsol"]["diff"]) == (1, pytest.approx(0.2))
    assert (table["moon"]["pairs"], table["moon"]["n"]) == (0, 1)
    unknown = ("diff_low", "diff_high", "p_t", "p_wilcoxon", "holm_t", "holm_wilcoxon")
    assert all(math.isnan(table[name][column]) for name in ("fedsol", "moon") for column in unknown)
    assert math.isnan(table["moon"]["diff"])


def test_the_bootstrap_by_counting() -> None:
    """Of two values a resample's mean is the smaller one in 1 of 4 cases and the larger one in 1 of 4, so that the
    2.5 % and 97.5 % quantiles are these; of 200 it is nearly the t-interval."""
    assert bootstrap([0.1, 0.3]) == (pytest.approx(0.1), pytest.approx(0.3))
    assert bootstrap([0.2, 0.2, 0.2]) == (pytest.approx(0.2), pytest.approx(0.2))
    assert all(map(math.isnan, (*bootstrap([0.1]), *bootstrap([0.1, math.inf]))))
    sample = np.random.default_rng(3).normal(size=200)
    assert bootstrap(sample) == pytest.approx(interval(sample)[2:], abs=0.02)
    assert bootstrap(sample) == bootstrap(sample)


def test_the_effect_by_closed_form() -> None:
    """J for n = 3 pairs (m = 2): gamma(1) / (1 gamma(1/2)) = 1 / sqrt(pi); for n = 4: gamma(3/2) / (sqrt(3/2) gamma(1))
    = sqrt(pi / 6). 0.02, 0.04, 0.09 have mean 0.05 and standard deviation sqrt(0.0013)."""
    assert effect([0.02, 0.04, 0.09]) == pytest.approx(0.05 / math.sqrt(0.0013) / math.sqrt(math.pi))
    assert effect([-1, 1, 2, 2]) == pytest.approx(1 / math.sqrt(2) * math.sqrt(math.pi / 6))
    assert effect([3.0, 1.0, 2.0]) == -effect([-3.0, -1.0, -2.0])
    assert all(math.isnan(effect(values)) for values in ([0.1, 0.2], [0.1] * 5, [0.1, 0.2, math.inf]))


@pytest.mark.filterwarnings("error")
def test_differences_without_variance() -> None:
    """0.9 - 0.8, 0.5 - 0.4 and 0.3 - 0.2 are three different floats and one number."""
    same = difference(np.array([0.9, 0.5, 0.3]) - np.array([0.8, 0.4, 0.2]))
    assert same["diff"] == pytest.approx(0.1)
    assert (same["diff_low"], same["diff_high"]) == (pytest.approx(0.1), pytest.approx(0.1))
    assert math.isnan(same["p_t"]) and same["p_wilcoxon"] == 0.25
    nothing = difference(np.zeros(5))
    assert [nothing[name] for name in ("diff", "diff_low", "diff_high", "p_t", "p_wilcoxon")] == [0, 0, 0, 1, 1]


@settings(max_examples=40)
@given(st.lists(st.integers(-4, 4), min_size=2, max_size=6).filter(any))
def test_wilcoxon_is_the_share_of_sign_assignments(values: list[int]) -> None:
    """Exact, ties and zeros as well: ranks of |d| without the zeros, ties at their mean; every assignment of signs is
    equally likely, and p is the share of those whose rank sum is as far from the middle."""
    sizes = [abs(v) for v in values if v]
    ranks = [sum(other < size for other in sizes) + (sizes.count(size) + 1) / 2 for size in sizes]
    middle = sum(ranks) / 2
    seen = abs(sum(r for r, v in zip(ranks, [v for v in values if v], strict=True) if v > 0) - middle)
    sums = [sum(itertools.compress(ranks, signs)) for signs in itertools.product((0, 1), repeat=len(ranks))]
    expected = sum(abs(total - middle) >= seen - 1e-9 for total in sums) / len(sums)
    assert difference(np.array(values) / 100)["p_wilcoxon"] == pytest.approx(expected)


def test_holm_by_hand() -> None:
    """Holm's own example form: 0.01 * 4, 0.02 * 3, 0.04 * 2, 0.03 -> the larger may not be below a smaller one's."""
    assert holm(np.array([0.04, 0.01, math.nan, 0.02, 0.9])).tolist() == pytest.approx(
        [max(0.04 * 2, 0.06), 0.04, math.nan, 0.06, 0.9], nan_ok=True
    )
    assert holm(np.array([0.02, 0.021])).tolist() == pytest.approx([0.04, 0.04])
    assert holm(np.array([0.7, 0.8])).tolist() == [1.0, 1.0]
    assert np.isnan(holm(np.array([math.nan]))).all()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_rejects_what_the_step_down_procedure_rejects(p: list[float]) -> None:
    """Holm (1979): reject in order of p while p_(i) <= level / (m - i + 1)."""
    for level in (0.01, 0.05, 0.3):
        order, rejected = sorted(range(len(p)), key=lambda i: p[i]), set()
        for place, i in enumerate(order):
            if p[i] * (len(p) - place) > level:
                break
            rejected.add(i)
        assert {i for i, value in enumerate(holm(np.array(p))) if value <= level} == rejected


def test_correction_is_over_the_settings_compared(tmp_path: Path) -> None:
    """p_wilcoxon is 1/4 for both: Holm gives 1/2 for both."""
    folders = by_seed(tmp_path, fedavg=[0.5, 0.6, 0.4], fedsol=[0.6, 0.8, 0.7], moon=[0.4, 0.4, 0.1])
    table = rows(paired(compare(folders), "fedavg"))
    assert [table[name]["p_wilcoxon"] for name in ("fedsol", "moon")] == [0.25, 0.25]
    assert [table[name]["holm_wilcoxon"] for name in ("fedsol", "moon")] == [0.5, 0.5]
    assert table["moon"]["diff"] == pytest.approx(-0.2)


def test_naming_the_reference(tmp_path: Path) -> None:
    folders = [
        folder(tmp_path / f"{lr}-{seed}", config(seed=seed, lr=lr), [lr + seed / 10])
        for lr in (0.1, 0.2)
        for seed in (0, 1)
    ]
    folders += [folder(tmp_path / f"s{seed}", config("fedsol", seed), [0.5]) for seed in (0, 1)]
    frame = compare(folders)
    for reference in (
        {"algorithm.lr": 0.2},
        {"lr": "0.2"},
        "lr=0.2",
        "lr=2e-1",
        "algorithm=fedavg, lr=0.2",
        "fedavg, lr=0.2",
        str(folders[2]),
        f"{folders[3]}/",
    ):
        table = paired(frame, reference)
        assert table["algorithm.lr"].tolist() == [0.2, 0.1, 0.1], reference
        assert table.attrs["reference"] == "FedAvg, lr=0.2"
    for reference in ("fedsol", "FedSOL"):  # as it is typed, and as tables name it
        assert paired(frame, reference)["algorithm"].tolist() == ["fedsol", "fedavg", "fedavg"]
    with pytest.raises(
        ConfigError,
        match=r"'fedavg' is 2 settings, say which: algorithm=fedavg,algorithm\.lr=0\.1; algo",
    ):
        paired(frame, "fedavg")
    with pytest.raises(
        ConfigError, match=r"'lr=0\.3' is none of the settings: algorithm=fedavg,algorithm\.lr=0\.1; algo"
    ):
        paired(frame, "lr=0.3")
    with pytest.raises(ConfigError, match=r"unknown reference 'fedsoll' in the runs .*did you mean 'fedsol'"):
        paired(frame, "fedsoll")
    with pytest.raises(ConfigError, match=r"unknown key 'rho'"):
        paired(frame, {"rho": 1})
    with pytest.raises(ConfigError, match="no column 'test/auc'"):
        paired(frame, "fedsol", "test/auc")


def test_a_section_names_its_key_as_flray_run_takes_it(tmp_path: Path) -> None:
    """`aggregation=mean`, where the key is `aggregation.name`."""
    rules = ("mean", "median")
    frame = compare([folder(tmp_path / rule, config(aggregation={"name": rule}), [0.5]) for rule in rules])
    for reference in ("aggregation=median", "aggregation.name=median", {"aggregation": "median"}):
        table = paired(frame, reference)
        assert table["aggregation.name"].tolist() == ["median", "mean"], reference


def test_a_setting_that_an_error_lists_is_a_reference(tmp_path: Path) -> None:
    """Pasted as it stands there, also with a number of many digits."""
    rates = (0.12345678, 0.12345679, 1e-05)
    frame = compare([folder(tmp_path / str(lr), config(lr=lr), [lr]) for lr in rates])
    with pytest.raises(ConfigError, match="is 3 settings, say which: ") as refused:
        paired(frame, "fedavg")
    listed = str(refused.value).partition("say which: ")[2].split("; ")
    assert [paired(frame, one)["algorithm.lr"].iloc[0] for one in listed] == list(rates)


def test_names_that_are_numbers_alike_are_names_apart(tmp_path: Path) -> None:
    """To YAML `1_0` is 10, `1e3` is 1000 and `true` no text; a name is what stands there."""
    names = ("01", "1", "1_0", "10", "1.1", "1.10", "1e3", "1000", "0x10", "16", "true", "True", "null", "nan", "[x]")
    folders = [folder(tmp_path / name, config(name=name), [place / 20]) for place, name in enumerate(names)]
    frame = compare(folders)
    with pytest.raises(ConfigError, match="is 15 settings, say which: ") as refused:
        paired(frame, "fedavg")
    listed = str(refused.value).partition("say which: ")[2].split("; ")
    assert [paired(frame, one)["name"].iloc[0] for one in listed] == list(names[:8])
    for path, name in zip(folders, names, strict=True):
        for reference in (str(path), f"name={name}"):
            assert paired(frame, reference)["name"].iloc[0] == name, reference
        assert paired(frame, {"name": name})["name"].iloc[0] == name
    assert paired(frame, "name=1e3,algorithm=fedavg")["name"].iloc[0] == "1e3"
    with pytest.raises(ConfigError, match="is none of the settings"):
        paired(frame, {"name": "010"})  # a text is no number that is equal


def test_a_list_of_mappings_is_a_reference(tmp_path: Path) -> None:
    fractions = (0.1, 0.2)
    chains = [[{"name": "topk", "feedback": True, "fraction": fraction}] for fraction in fractions]
    frame = compare([folder(tmp_path / str(chain[0]["fraction"]), config(uplink=chain), [0.5]) for chain in chains])
    for reference in (
        "algorithm=fedavg,uplink=[{name: topk, feedback: true, fraction: 0.2}]",
        "uplink=[{fraction: 2e-1, name: topk, feedback: true}]",
        {"uplink": chains[1]},
        {"uplink": tuple(chains[1])},
    ):
        assert "0.2" in paired(frame, reference)["uplink"].iloc[0], reference
    with pytest.raises(ConfigError, match="is none of the settings: ") as refused:
        paired(frame, "uplink=[{name: topk, fraction: 0.2}]")
    listed = str(refused.value).partition("settings: ")[2].split("; ")
    assert [paired(frame, one)["uplink"].iloc[0] for one in listed] == [
        f"[{{name: topk, feedback: true, fraction: {fraction}}}]" for fraction in fractions
    ]


def test_a_reference_is_read_as_an_override_is(tmp_path: Path) -> None:
    """`#` begins no comment, and a date is text."""
    names = ("run #3", "run #4", "2024-01-02")
    frame = compare([folder(tmp_path / name, config() | {"name": name}, [0.5]) for name in names])
    compared = [paired(frame, f"name={name}") for name in names]
    assert [table["name"].iloc[0] for table in compared] == list(names)  # the reference comes first


def test_shown_in_the_metrics_unit(tmp_path: Path) -> None:
    frame = compare(by_seed(tmp_path, fedavg=[0.5, 0.6, 0.4], fedsol=[0.52, 0.64, 0.49]))
    table = paired(frame, "fedavg")
    head, _, first, second = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in to_markdown(table.round(6)).splitlines()[:4]
    )
    assert head == ["algorithm", "n", "test acc %", "95 % from", "to", "diff.", "95 % from", "to", "boot. from", "to",
                    "effect g_z", "p (t)", "p (W)"]  # fmt: skip
    assert first[:3] == ["FedAvg", "3", "50.00"] and first[5:] == ["-"] * 8
    # of the 27 resamples one in 27 is three times the smallest, and one three times the largest: 3.7 % > 2.5 %
    rest = ["+5.00", "-3.96", "+13.96", "+2.00", "+9.00", "0.78", "0.14", "0.25"]
    assert second[2] == "55.00" and second[5:] == rest
    note = "95 % t-interval of the mean, cut off at 0 and 100 % (of a difference: at -100 and 100)"
    assert to_markdown(table).endswith(f"|\n\n{note}\n")
    bytes_sent = paired(frame, "fedavg", "comm/bytes")  # 250 bytes a round in every run
    assert "| 250 B |" in to_markdown(bytes_sent) and "sent" in to_markdown(bytes_sent)
    assert render(bytes_sent).row_count == 2


def test_compare_against(tmp_path: Path) -> None:
    folders = by_seed(tmp_path, fedavg=[0.5, 0.6, 0.4], fedsol=[0.52, 0.64, 0.49])
    words = ["compare", *map(str, folders), "--stats"]
    shown = invoke(*words, "--against", "fedavg", "--format", "markdown")
    assert shown.exit_code == 0, shown.output
    assert "Against FedAvg, on the same seeds" in shown.output and "+5.00" in shown.output
    above = invoke("compare", tmp_path, "--stats", "--against", "fedavg", "--format", "markdown")
    assert above.output == shown.output  # a folder that holds the runs is as good
    on_terminal = invoke(*words, "--against", "fedavg", "--metric", "comm/bytes")
    assert "Against FedAvg, on the same seeds" in on_terminal.output and "sent" in on_terminal.output
    as_csv = invoke(*words, "--against", folders[0], "--format", "csv")
    (row,) = [line.split(",") for line in as_csv.stdout.splitlines() if line.startswith("hand,fedsol")]
    assert float(row[as_csv.stdout.splitlines()[0].split(",").index("p_wilcoxon")]) == 0.25
    wrong = invoke(*words, "--against", "fedav")
    assert isinstance(wrong.exception, ConfigError)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("algorithm.rho", 0.5, "rho=0.5"),
        ("aggregation.name", "median", "median"),
        ("data.source", "digits", "digits"),
        ("seed", 3, "seed=3"),
        ("name", "mine", "name=mine"),
    ],
)
def test_a_key_as_text_is_a_word_that_tells_what_it_sets(key, value, text):
    assert as_text(key, value) == text


def test_a_run_that_has_no_config_yaml_is_a_row_without_an_algorithm(tmp_path: Path) -> None:
    """A grid over algorithm and lr, of which one run failed before it wrote its configuration and one lost it."""
    for name, lr in itertools.product(("fedavg", "fedprox"), (0.1, 0.2)):
        folder(tmp_path / f"{name}-{lr}", config(name, lr=lr), [lr])
    (tmp_path / "fedavg-0.2" / "config.yaml").unlink()
    folder(tmp_path / "fedsol", None, [], "failed: no data")
    runs = [Run(path) for path in sorted(tmp_path.iterdir())]
    frame = compare(runs)
    names = list(map(labels(frame), frame.to_dict("records")))
    assert [name.partition(", ")[0] for name in names] == ["FedAvg", "-", "FedProx", "FedProx", "-"]
    table = paired(frame, {"algorithm": "fedprox", "lr": 0.1})
    assert table["n"].sum() == 3 and table.loc[table["algorithm"].isna(), "n"].eq(0).all()
    assert ablation(frame, "lr").axes
    for words in ((), ("--stats",), ("--format", "latex"), ("--at", "rounds=1")):
        assert invoke("compare", tmp_path, *words).exit_code == 0
