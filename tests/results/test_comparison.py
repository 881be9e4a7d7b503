"""The comparison that is shown first: a row a setting, by NumPy; nothing about chance from two seeds; what was left
out."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t

import flray
from flray.core.schema.errors import ConfigError
from flray.results.comparison import comparison
from flray.results.notebook import Runs
from tests.support.commands import invoke
from tests.support.tables import by_seed, config, folder

ACCURACIES = {"fedavg": [0.5, 0.6, 0.4, 0.55], "fedsol": [0.52, 0.64, 0.49, 0.54], "fedprox": [0.3, 0.2, 0.25, 0.3]}


def grid(root: Path, accuracies: dict[str, list[float]]) -> Path:
    by_seed(root, **accuracies)
    return root


def half(values: list[float]) -> float:
    return float(t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))


@pytest.mark.parametrize("against", [None, "fedavg"])
def test_a_row_a_setting_by_numpy(tmp_path: Path, against: str | None) -> None:
    """The best first; differences to the best one, or to the setting that is named."""
    table = flray.compare(grid(tmp_path, ACCURACIES), against=against).table.set_index("algorithm")
    assert list(table.index) == ["fedsol", "fedavg", "fedprox"]
    reference = ACCURACIES[against or "fedsol"]
    for name, values in ACCURACIES.items():
        row = table.loc[name]
        assert (row["n"], row["comm/bytes"], row["time/s"]) == (4, 250, 0.5)
        assert [row["mean"], row["low"], row["high"]] == pytest.approx(
            [np.mean(values), np.mean(values) - half(values), np.mean(values) + half(values)]
        )
        apart = list(np.subtract(values, reference))
        if name == (against or "fedsol"):
            assert row[["diff", "diff_low", "diff_high"]].isna().all()
        else:
            assert [row["diff"], row["diff_low"], row["diff_high"]] == pytest.approx(
                [np.mean(apart), np.mean(apart) - half(apart), np.mean(apart) + half(apart)]
            )


def test_values_that_read_alike_are_settings_of_their_own(tmp_path: Path) -> None:
    """None, numbers, texts and lists of one key; the best of them is found among the others."""
    values = [None, 1, 2.5, "2.5", "auto", [1, 2], False]
    for place, value in enumerate(values):
        for seed in range(3):
            folder(tmp_path / f"{place}-{seed}", config(seed=seed, thing=value), [0.1 * place + seed / 100])
    for best in (values.index("2.5"), len(values) - 1):  # then without those after it
        table = flray.compare([tmp_path / f"{place}-{seed}" for place in range(best + 1) for seed in range(3)]).table
        assert len(table) == best + 1 and table["mean"].tolist() == pytest.approx(
            [0.1 * p + 0.01 for p in range(best, -1, -1)]
        )
        assert math.isnan(table["diff"].iloc[0]) and table["diff"].iloc[1] == pytest.approx(-0.1)


def test_a_cost_counts_a_seed_once(tmp_path: Path) -> None:
    """The last of two runs of one setting and seed, as for the metric."""
    for name, rounds in (("a", 3), ("b", 1)):
        folder(tmp_path / name, config("fedavg", 0), [0.5] * rounds)
    table = flray.compare([tmp_path / "a", tmp_path / "b"]).table
    assert (table["n"].item(), table["comm/bytes"].item(), table["time/s"].item()) == (1, 250, 0.5)


def test_of_a_cost_the_smallest_is_the_best(tmp_path: Path) -> None:
    for name, rounds in (("fedavg", 3), ("fedsol", 1)):
        for seed in range(3):
            folder(tmp_path / f"{name}{seed}", config(name, seed), [0.5] * rounds)
    table = flray.compare(tmp_path, metric="comm/bytes").table
    assert table["algorithm"].tolist() == ["fedsol", "fedavg"] and table["diff"].tolist()[1] == 500


@pytest.mark.parametrize("stats", [(), ("--stats",)])
def test_two_seeds_cannot_tell(tmp_path: Path, stats: tuple[str, ...]) -> None:
    root = str(grid(tmp_path, {name: values[:2] for name, values in ACCURACIES.items()}))
    said = invoke("compare", root, "--against", "fedavg", *stats)
    assert said.exit_code == 0 and "Two seeds cannot tell; the highest mean is that of FedSOL" in said.output
    assert "+3.00" in said.output and "corrected p" not in said.output and "significant" not in said.output
    compared = flray.compare(root, against="fedavg")
    assert compared.differences is not None
    tests = compared.differences.filter(regex="^(p_|holm_|boot_|effect|diff_)")
    assert tests.isna().to_numpy().all() and tests.shape[1] == 9
    assert not {"low", "high", "diff_low", "diff_high"} & {*compared.table}


def test_more_is_said_when_it_is_asked_for(tmp_path: Path) -> None:
    """By default one table, and of the verdict one sentence."""
    root = str(grid(tmp_path, ACCURACIES))
    brief, whole = (invoke("compare", root, *more).output for more in ((), ("--stats",)))
    assert brief.count("test acc %") == 1 and "Holm-corrected p" not in brief and "seed" not in brief.splitlines()[1]
    assert whole.count("test acc %") == 2 and "Holm-corrected p" in whole and "seed" in whole.splitlines()[1]
    assert brief.count("* ") == 1 and whole.count("* ") == 3


def test_runs_that_are_in_no_mean_are_named(tmp_path: Path) -> None:
    root = grid(tmp_path, ACCURACIES)
    folder(root / "left", config("fedavg", 7), [0.9], "interrupted in round 1")
    compared = flray.compare(root)
    (said,) = [line for line in compared.sentences if "in no mean" in line]
    assert str(root / "left") in said and "interrupted in round 1" in said
    assert compared.table.set_index("algorithm").loc["fedavg", ["n", "unfinished"]].tolist() == [4, 1]


def test_what_is_compared_is_given_in_any_nesting(tmp_path: Path) -> None:
    root = grid(tmp_path, ACCURACIES)
    runs = Runs(root)
    assert len(runs) == 12 and isinstance(runs[0], flray.Run) and len(runs[2:5]) == 3
    both = flray.compare([runs[:4], [str(root / "fedsol-0"), runs[5]], runs[0]])
    assert len(both.frame) == 6, "fedavg-0 is named twice and counts once"
    assert len(Runs([root / "fedavg-0", "nowhere"])) == 1, "with a warning"
    for nothing in ([], "nowhere"):
        with pytest.raises(flray.FlrayError):
            flray.compare(nothing)
    with pytest.raises(ConfigError, match="two questions"):
        comparison(runs, at="rounds=1", to="test/acc=0.5")


def test_it_is_a_table_in_a_notebook_and_as_text(tmp_path: Path) -> None:
    compared = flray.compare(grid(tmp_path, ACCURACIES | {"feddf": [0.1, 0.2, 0.1, 0.15]}))
    shown = compared._repr_html_()
    assert (
        shown.count("<table>") == 1 and "<td" in shown and "FedSOL" in shown and compared.sentences[0] in repr(compared)
    )
    assert "the sentence below uses tests corrected by Holm, so it may find no difference where one interval" in shown
    assert Runs(tmp_path)._repr_html_() == shown


def test_runs_that_were_tested_on_held_out_data_alone_say_which_metric_they_have(tmp_path: Path) -> None:
    """They have finished: "no run has finished yet" would be wrong."""
    for name in ("fedavg", "fedsol"):
        for seed in range(3):
            folder(tmp_path / name / str(seed), config(name, seed), [None], **{"val/acc": 0.5 + seed / 10})
    said = "These runs have val/acc and no test/acc; give --metric val/acc."
    for place in (tmp_path, tmp_path / "fedavg"):  # two settings and one
        assert said in (found := invoke("compare", place)).stdout and "No run has finished" not in found.output
        assert said in invoke("compare", place, "--format", "latex").stderr
    assert said not in invoke("compare", tmp_path, "--metric", "val/acc").output
    drawn = invoke("figure", "curves", tmp_path, "--out", tmp_path / "curves.png")
    assert str(drawn.exception) == "these runs have val/acc and no test/acc; give --metric val/acc"


def test_what_a_reader_does_to_a_table_changes_no_other_table_and_no_sentence(tmp_path: Path) -> None:
    """A notebook scales each table to per cent for a plot of its own, before the sentences are computed or after."""
    runs, names = grid(tmp_path, ACCURACIES), ("frame", "judged", "table", "differences")
    untouched, compared = (flray.compare(runs, against="fedavg") for _ in range(2))
    for _ in range(2):
        tables = [getattr(compared, name) for name in names]
        tables += [*compared.tables.values(), *compared.statistics[0].values()]
        for table in tables:
            for column in table.select_dtypes("number"):
                table[column] *= 100
        compared.tables.clear()
        compared.sentences.clear()
        assert repr(compared) == repr(untouched) and compared.sentences
        assert all(getattr(compared, name).equals(getattr(untouched, name)) for name in names)
    means = compared.table.set_index("algorithm")["mean"]
    assert {name: means[name] for name in ACCURACIES} == pytest.approx({k: np.mean(v) for k, v in ACCURACIES.items()})
