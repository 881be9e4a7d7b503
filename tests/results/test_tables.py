"""Tables: hand-written run folders, intervals by closed form."""

import contextlib
import math
from pathlib import Path
from typing import Any

import pandas
import pytest
from rich.console import Console

from flray.core.schema.errors import ConfigError
from flray.files import with_checksum
from flray.results import compare, render, summary, tables, to_markdown
from flray.results.rendering import cells, spelled
from flray.results.tables import differing, interval, settings, side_by_side
from flray.rundir.reader import Run, load
from tests.support.tables import Config, config, folder, put


def test_interval_by_closed_form() -> None:
    """The t quantile has a closed form for 1 and 2 degrees of freedom: tan(pi (p - 1/2)) and (2p - 1) / sqrt(2 p (1 -
    p))."""
    t1, t2 = math.tan(math.pi * 0.475), 0.95 / math.sqrt(2 * 0.975 * 0.025)
    mean, std, low, high = interval([0.6, 0.8])
    assert (mean, std) == pytest.approx((0.7, 0.2 / math.sqrt(2)))
    assert (low, high) == pytest.approx((0.7 - t1 * 0.1, 0.7 + t1 * 0.1), rel=1e-9)  # std / sqrt(2) = 0.1
    mean, std, low, high = interval([0.8, 0.9, 0.7])
    assert (mean, std) == pytest.approx((0.8, 0.1))
    assert (low, high) == pytest.approx((0.8 - t2 * 0.1 / math.sqrt(3), 0.8 + t2 * 0.1 / math.sqrt(3)), rel=1e-9)
    assert interval([0.6, 0.8], share=True)[2:] == (0.0, 1.0)  # -0.57 and 1.97
    assert interval([0.8, 0.9, 0.7], share=True) == (*interval([0.8, 0.9, 0.7])[:3], 1.0)
    assert interval([-0.6, 0.8], share=True, lowest=-1.0)[2:] == (-1.0, 1.0)
    assert interval([0.5])[0] == 0.5
    assert all(math.isnan(v) for v in (*interval([0.5])[1:], *interval([])))


def test_compare_measures_and_keeps_only_what_differs(tmp_path: Path) -> None:
    runs = [
        folder(tmp_path / "a", config(seed=0), [0.2, None, 0.6, 0.5]),
        folder(tmp_path / "b", config(seed=1, lr=0.2), [0.4]),
        folder(tmp_path / "c", config("fedsol", seed=0), [0.7]),
    ]
    frame = compare([runs[0], str(runs[1]), Run(runs[2])])
    # rho is known to fedsol alone, hidden and rounds are the same everywhere, resources change no result
    assert list(frame.columns) == [
        *("name", "algorithm", "algorithm.lr", "seed"),
        *("done", "status", "test/acc", "test/acc_best", "test/acc_mean10", "comm/bytes", "time/s", "folder"),
    ]
    first = frame.iloc[0]
    assert (first["name"], first["algorithm"], first["seed"], first["done"], first["status"]) == (
        "hand",
        "fedavg",
        0,
        4,
        "finished",
    )
    assert first["test/acc"] == 0.5
    assert first["test/acc_best"] == 0.6
    assert first["test/acc_mean10"] == pytest.approx((0.2 + 0.6 + 0.5) / 3)
    assert (first["comm/bytes"], first["time/s"], first["folder"]) == (1000, 2.0, str(runs[0]))
    assert frame["algorithm.lr"].tolist() == [0.1, 0.2, 0.1]


def test_mean_of_the_last_ten(tmp_path: Path) -> None:
    frame = compare([folder(tmp_path / "a", config(), [1.0] * 5 + [0.1 * i for i in range(10)])])
    assert frame["test/acc_mean10"][0] == pytest.approx(0.45)


def test_sections_that_differ(tmp_path: Path) -> None:
    """Another model, a missing section and a list all show; a key that only the other kind of model has does not."""
    runs = [
        folder(tmp_path / "a", config(), [0.1]),
        folder(tmp_path / "b", config(model={"name": "cnn", "width": 4}, proxy=None), [0.1]),
        folder(
            tmp_path / "c",
            config(model={"name": "mlp", "hidden": [8, 8]}, proxy={"source": "holdout", "size": 3}),
            [0.1],
        ),
    ]
    frame = compare(runs)
    keys = list(frame.columns[2 : frame.columns.get_loc("seed")])
    assert keys == ["model.name", "model.hidden", "proxy.source"]
    assert frame["model.hidden"].tolist()[::2] == ["[8]", "[8, 8]"]


def test_a_key_of_which_another_algorithm_says_null_makes_no_setting() -> None:
    """FedProj's alpha is 0 where FedSOL's, of another method, is null; null and 0 of one algorithm are two settings."""

    def of(name: str, **options: Any) -> Config:
        return {"algorithm.name": name} | {f"algorithm.{key}": value for key, value in options.items()}

    assert differing([of("fedavg"), of("fedproj", alpha=0.0), of("fedsol", alpha=None)]) == []
    assert differing([of("fedproj", alpha=0.0), of("feddyn", alpha=0.1)]) == ["algorithm.alpha"]
    assert differing([of("fedsol", alpha=0.0), of("fedsol", alpha=None)]) == ["algorithm.alpha"]


def test_a_section_that_an_older_flray_did_not_know_makes_no_difference(tmp_path: Path) -> None:
    runs = [folder(tmp_path / "a", config(), [0.1]), folder(tmp_path / "b", config(drift=None), [0.1])]
    assert "drift" not in compare(runs)
    runs.append(folder(tmp_path / "c", config(drift={"name": "remove_classes"}), [0.1]))
    assert compare(runs)["drift.name"].isna().tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("older", "same", "other", "column"),
    [
        ({"cohort": {"size": 3}}, {"cohort": {"size": 3, "dropout": 0.0}}, {"cohort": {"size": 3, "dropout": 0.2}},
         "cohort.dropout"),
        ({}, {"precision": "fp32"}, {"precision": "bf16"}, "precision"),
        ({}, {"algorithm": {"name": "fedavg", "lr": 0.1, "weighting": "examples"}},
         {"algorithm": {"name": "fedavg", "lr": 0.1, "weighting": "uniform"}}, "algorithm.weighting"),
        ({"uplink": [{"name": "topk", "fraction": 0.5}]},
         {"uplink": [{"name": "topk", "fraction": 0.5, "feedback": True}]},
         {"uplink": [{"name": "topk", "fraction": 0.5, "feedback": False}]}, "uplink"),
    ],
)  # fmt: skip
def test_a_key_that_an_older_flray_did_not_write_has_its_default(tmp_path, older, same, other, column) -> None:
    """The defaults: 0, fp32, by examples, with error feedback."""
    runs = [folder(tmp_path / str(i), config(seed=i) | more, [0.5]) for i, more in enumerate((older, same, other))]
    assert summary(compare(runs[:2]))["n"].tolist() == [2]
    frame = compare([runs[0], runs[2]])
    assert column in frame and len(summary(frame)) == 2 and "None" not in map(str, frame[column])


def test_older_runs_are_completed_with_one_import_of_the_sections(tmp_path, monkeypatch) -> None:
    """Each entry of `declared_only` imports them anew, 0.25 s."""
    entered: list[bool] = []
    monkeypatch.setattr(tables, "declared_only", lambda: contextlib.nullcontext(entered.append(True)))
    older, now = config(cohort={"size": 3}), config(cohort={"size": 3, "dropout": 0.0})
    folders = [
        folder(tmp_path / str(i), each | {"seed": i}, [0.5]) for i, each in enumerate((older, older, older, now))
    ]
    found = side_by_side([Run(each) for each in folders])
    assert [each["cohort.dropout"] for each in found] == [0.0] * 4 and len(entered) == 1


def test_a_section_that_is_null_lacks_no_key(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tables, "completed", lambda values: pytest.fail("both configurations are complete"))
    configs = [config(tasks=None), config(tasks={"num_tasks": 2})]
    runs = [Run(folder(tmp_path / str(i), each, [0.5])) for i, each in enumerate(configs)]
    assert side_by_side(runs) == list(map(settings, runs))


def test_an_older_run_of_an_own_algorithm_keeps_its_section_and_imports_nothing(tmp_path) -> None:
    own = {"name": "nowhere:Mine", "lr": 0.1}
    configs = [config(), config(cohort={"size": 3}), config(cohort={"size": 3, "dropout": 0.0})]
    runs = [folder(tmp_path / str(i), each | {"algorithm": own}, [0.5]) for i, each in enumerate(configs)]
    frame = compare(runs[1:])
    assert frame["algorithm"].tolist() == ["nowhere:Mine"] * 2 and "cohort.dropout" not in frame


def test_a_part_with_a_new_column(tmp_path: Path) -> None:
    """Between the two writes of the recorder the newest file has a column that earlier ones lack."""
    run = folder(tmp_path / "a", config(), [0.1, 0.2])
    pandas.DataFrame({"done": [3], "test/acc": [0.3], "drift": [7.0]}).to_parquet(run / "rounds" / "part-0001.parquet")
    rounds = load(run).rounds
    assert rounds["done"].tolist() == [1, 2, 3]
    assert rounds["drift"].isna().tolist() == [True, True, False]


def test_summary_over_seeds(tmp_path: Path) -> None:
    values = {0: 0.8, 1: 0.9, 2: 0.7}
    runs = [folder(tmp_path / f"a{seed}", config(seed=seed), [value]) for seed, value in values.items()]
    runs.append(folder(tmp_path / "again", config(seed=2), [0.7]))  # the same experiment: not a fourth sample
    runs.append(folder(tmp_path / "going", config(seed=3), [0.1], "running"))
    runs.append(folder(tmp_path / "other", config("fedsol"), [0.6]))
    found = summary(compare(runs))
    assert found["algorithm"].tolist() == ["fedavg", "fedsol"]
    assert found["n"].tolist() == [3, 1]
    assert found["unfinished"].tolist() == [1, 0]
    half = 4.302652729911275 * 0.1 / math.sqrt(3)
    # 0.8 + half is 1.05
    assert found.loc[0, ["mean", "std", "low", "high"]].tolist() == pytest.approx([0.8, 0.1, 0.8 - half, 1.0])
    assert found.loc[1, "mean"] == 0.6
    assert found.loc[1, ["std", "low", "high"]].isna().all()
    with pytest.raises(ConfigError, match="no column 'test/auc'"):
        summary(compare(runs), "test/auc")


def test_of_two_runs_of_one_seed_the_last_counts(tmp_path: Path) -> None:
    runs = [folder(tmp_path / name, config(seed=3), [value]) for name, value in (("a", 0.2), ("b", 0.6))]
    assert summary(compare(runs))[["n", "mean"]].to_numpy().tolist() == [[1, 0.6]]


def test_markdown_and_terminal(tmp_path: Path) -> None:
    runs = [folder(tmp_path / f"a{seed}", config(seed=seed), [0.25 + 0.5 * seed]) for seed in (0, 1)]
    frame = compare(runs)
    assert to_markdown(frame) == (  # tested once: that is the best, and the mean of the last ten
        "| algorithm | seed | done | test acc % |  sent |  time |\n"
        "| --------- | ---: | ---: | ---------: | ----: | ----: |\n"
        "| FedAvg    |    0 |    1 |      25.00 | 250 B | 0.5 s |\n"
        "| FedAvg    |    1 |    1 |      75.00 | 250 B | 0.5 s |\n"
    )
    twice = compare([runs[0], folder(tmp_path / "b", config(seed=1), [0.75, 0.5])])
    assert to_markdown(twice) == (
        "| algorithm | seed | done | test acc % | best % | last 10 tests % |  sent |  time |\n"
        "| --------- | ---: | ---: | ---------: | -----: | --------------: | ----: | ----: |\n"
        "| FedAvg    |    0 |    1 |      25.00 |  25.00 |           25.00 | 250 B | 0.5 s |\n"
        "| FedAvg    |    1 |    2 |      50.00 |  75.00 |           62.50 | 500 B | 1.0 s |\n"
    )
    one = to_markdown(summary(compare(runs[:1])))
    assert one.splitlines()[2].split("|")[2:5] == ["   1 ", "      25.00 ", "   - "]
    console = Console(width=100, record=True, file=None, quiet=False)
    with console.capture() as shown:
        console.print(render(frame))
    assert "hand" in shown.get() and "75.00" in shown.get() and "0.5 s" in shown.get()
    failed = compare([folder(tmp_path / "bad", config(seed=7), [], "failed: a | b [red]"), *runs])
    assert "failed: a \\| b [red]" in to_markdown(failed)
    with console.capture() as shown:
        console.print(render(failed))
    assert "[red]" in shown.get()


def test_a_diverged_run_is_counted_and_not_averaged(tmp_path: Path) -> None:
    runs = [
        folder(tmp_path / "a", config(seed=0), [0.4, 0.6]),
        folder(tmp_path / "b", config(seed=1), [0.4, 0.8]),
        folder(
            tmp_path / "c",
            config(seed=2),
            [0.4],
            status="diverged in round 2: client 3 failed in task 0: update.w is not finite",
        ),
    ]
    frame = compare(runs)
    assert frame["status"].tolist() == ["finished", "finished", "diverged in round 2"]
    (row,) = summary(frame).to_dict("records")
    assert (row["n"], row["diverged"], row["unfinished"], row["mean"]) == (2, 1, 0, pytest.approx(0.7))
    assert "diverged" in to_markdown(summary(frame))


@pytest.mark.parametrize(
    ("name", "done", "counts"),
    [
        ("algorithm.lr", 2, False), ("seed", 1, False), ("algorithm.name", 2, False), ("partition.alpha", None, False),
        ("algorithm.lr", 0, True),  # before the first round: all rounds are of the new value
        ("name", 2, True), ("diagnostics.conflict.every", 2, True), ("resources.store", 2, True),
        ("partition", 2, True), ("arithmetic", None, True), ("modules.mine", 2, True), ("environment", None, True),
    ],
)  # fmt: skip
def test_a_run_that_a_resume_continued_with_another_configuration_is_in_no_mean(tmp_path, name, done, counts) -> None:
    """An older flray did not record the rounds `done`. Of a fingerprint `comparable` tells."""
    runs = [folder(tmp_path / str(seed), config(seed=seed), [0.2, 0.6 + seed / 10]) for seed in range(2)]
    entry = {"what": name, "was": "old", "is": "new"} | ({} if done is None else {"done": done})
    (runs[1] / "environment.json").write_text(with_checksum({"accepted": [entry]}))
    frame = compare(runs)
    assert frame["status"][1] == (
        "finished" if counts else f"edited: {name} was 'old' until a resume and is 'new' since"
    )
    assert summary(frame)["mean"].tolist() == pytest.approx([0.65 if counts else 0.6])


def test_personalised_accuracy_is_a_column_of_its_own(tmp_path: Path) -> None:
    run = folder(tmp_path / "a", config(), [0.5])
    values = {
        "done": [1],
        "task": [0],
        "phase": ["task_end"],
        "personal/ft5/acc_mean": [0.9],
        "personal/ft5/acc_std": [0.1],
        "personal/ft0/acc_mean": [0.7],
    }
    put(run, "tasks", values)
    frame = compare([run, folder(tmp_path / "b", config(seed=1), [0.5])])
    assert frame["personal/ft5/acc_mean"].tolist()[0] == 0.9 and math.isnan(frame["personal/ft5/acc_mean"][1])
    assert "90.00" in to_markdown(frame)
    assert summary(frame, "personal/ft0/acc_mean")["mean"][0] == pytest.approx(0.7)


def test_a_table_over_tasks_begins_with_its_results() -> None:
    """Options that an algorithm's name implies come last, and no best or last-ten accuracy of unlike rounds."""
    rows = [
        {"algorithm": name, "algorithm.eps": eps, "algorithm.lr": lr, "seed": 0, "done": 4, "status": "finished",
         "test/acc": 0.4, "test/acc_best": 1.0, "test/acc_mean10": 0.5, "ACC": 0.41, "FT": 0.5}
        for name, eps in (("fot", 0.9), ("fedprotip", 0.7)) for lr in (0.1, 0.2)
    ]  # fmt: skip
    heads, _ = cells(frame := pandas.DataFrame(rows))
    assert heads == ["algorithm", "lr", "seed", "done", "ACC %", "FT %", "test acc %", "eps"]
    assert cells(frame.drop(columns=["ACC", "FT"]))[0][-4:] == ["test acc %", "best %", "last 10 tests %", "eps"]


def test_the_modes_of_a_table_are_explained() -> None:
    rows = [{"algorithm": "fedprotip", "mode": mode, "n": 1, "ACC": 0.5} for mode in ("global", "tip_batch", "own")]
    caption = spelled(pandas.DataFrame(rows))["Over tasks"].attrs["caption"]
    assert caption.startswith("global: among the classes of all tasks so far; tip_batch: the task of a batch")
    assert "own" not in caption.replace("known", "")
