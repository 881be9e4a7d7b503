"""Runs at the same cost, and what they take to a target, from tables written by hand."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import flray
from flray.cli.output import records
from flray.core.schema.errors import ConfigError, FlrayError
from flray.files import with_checksum
from flray.results import compare, compare_at, compare_to, curves, summary
from flray.results.comparable import caveats
from flray.results.comparison import comparison
from flray.results.rendering import caption_of, cells, spelled_numbers
from flray.results.targets import parsed, reached, where_all_reach
from flray.rundir.reader import Run
from tests.support import tables
from tests.support.commands import invoke
from tests.support.tables import changed, config


def folder(
    path: Path, accuracies: list[float | None], seconds: float = 10.0, status: str = "finished", **values: Any
) -> Run:
    """A run whose rounds take so many virtual seconds, 7 local steps, 100 bytes up and 150 down."""
    rounds = len(accuracies)
    losses = 1 - pd.Series(accuracies, dtype=float)
    clock = [seconds * (number + 1) for number in range(rounds)]
    columns = {"client_steps": 7, "test/loss": losses, "time/virtual_s": clock}
    return Run(tables.folder(path, config(**{"rounds": rounds, **values}), accuracies, status, **columns))


def test_at_a_cost_the_last_round_that_ends_by_then_counts(tmp_path: Path) -> None:
    runs = [
        folder(tmp_path / "slow", [0.1, 0.5, 0.9], seconds=10),
        folder(tmp_path / "fast", [0.2, 0.3, None, 0.4, 0.8], seconds=5, algorithm="fedsol"),
    ]
    at = compare_at(runs, "virtual", 20.0).set_index("algorithm")
    assert at["test/acc"].to_dict() == {"fedavg": 0.5, "fedsol": 0.4} and at["done"].to_dict() == {
        "fedavg": 2,
        "fedsol": 4,
    }
    assert at["comm/bytes"].to_dict() == {"fedavg": 500, "fedsol": 1000} and at["test/acc_best"].max() == 0.5
    by_bytes = compare_at(runs, "comm/bytes", 749.0).set_index("algorithm")
    assert by_bytes["test/acc"].to_dict() == {"fedavg": 0.5, "fedsol": 0.3}
    by_rounds = compare_at(runs, "rounds", 1)
    assert by_rounds["test/acc"].tolist() == [0.1, 0.2] and by_rounds["status"].eq("finished").all()


def test_a_validation_split_that_was_not_read_by_then_has_no_value(tmp_path: Path) -> None:
    """`val/acc` as `test/acc`: validated after rounds 2 and 4."""
    values = {"val/acc": pd.Series([None, 0.25, None, 0.75], dtype=float)}
    runs = [Run(tables.folder(tmp_path / "r", config(rounds=4), [None, 0.5, None, 0.9], "finished", **values))]
    for rounds, (tested, validated) in {1: (None, None), 2: (0.5, 0.25), 3: (0.5, 0.25), 4: (0.9, 0.75)}.items():
        row = compare_at(runs, "rounds", rounds).iloc[0]
        shown = [None if math.isnan(row[name]) else row[name] for name in ("test/acc", "val/acc")]
        assert shown == [tested, validated], rounds


def test_a_cost_below_that_of_the_first_test_says_where_that_is(tmp_path: Path) -> None:
    """Rounds of 250 bytes, the first test after the second and the third one: nothing has not finished."""
    for name, accuracies in (("fedavg", [None, None, 0.5]), ("fedsol", [None, 0.4, 0.5])):
        folder(tmp_path / name, accuracies, algorithm=name)
    said = flray.compare(tmp_path, at="bytes=499").sentences
    assert said[:2] == [
        "No finished run has a test/acc.",
        "At bytes=499 there is no test/acc yet: the first one is at bytes=500.",
    ]
    folder(tmp_path / "lost", [0.1], status="diverged in round 2: loss is nan", seed=1)
    assert flray.compare(tmp_path, at="bytes=499").sentences[0] == "No finished run has a test/acc; 1 of 3 diverged."
    for at in ("bytes=500", "bytes=750"):
        assert not any("the first one" in sentence for sentence in flray.compare(tmp_path, at=at).sentences)


def test_a_run_that_was_to_go_on_is_of_the_setting_of_those_that_end_there(tmp_path: Path) -> None:
    """A seed that a resume made longer: up to round 3 its rows are those of a run of 3 rounds."""
    runs = [
        folder(tmp_path / "a", [0.1, 0.2, 0.3, 0.4, 0.9], seed=0, until={"virtual_s": 90}),
        folder(tmp_path / "b", [0.1, 0.2, 0.4], seed=1),
        folder(tmp_path / "c", [0.1, 0.2, 0.5], seed=2),
    ]
    over = summary(compare_at(runs, "rounds", 3))
    assert over[["n", "mean"]].to_numpy().tolist() == [[3, pytest.approx(0.4)]]
    assert caveats(runs, compare_at(runs, "rounds", 3)) == []
    assert len(summary(compare_at(runs, "rounds", 5))) == 1 and len(summary(compare(runs))) == 2


@pytest.mark.parametrize(
    ("more", "settings"),
    [
        ({"tasks": {"name": "class_incremental", "num_tasks": 2}}, 2),
        ({"uplink": [{"name": "gaussian", "epsilon": 8.0}]}, 2), ({"uplink": [{"name": "gaussian", "noise": 1.0}]}, 1),
        ({"uplink": [{"name": "mine"}]}, 2), ({"uplink": [{"name": "topk", "ratio": 0.1}]}, 1),
        ({"evaluate": {"every": 2}}, 2), ({"evaluate": {"every": 0}}, 2), ({"evaluate": {"every": 3}}, 1),
    ],
)  # fmt: skip
def test_a_length_that_tells_up_to_there_makes_a_setting(tmp_path: Path, more: Any, settings: int) -> None:
    """Tasks of 3 or 5 rounds; noise for 3 or 5 rounds; every second round is tested and the last one: 3 of 3, 2 of
    5."""
    every = more.get("evaluate", {}).get("every", 1)
    runs = [
        folder(
            tmp_path / str(length),
            [0.5 if done == length or (every and done % every == 0) else None for done in range(1, length + 1)],
            seed=length, **more,
        )
        for length in (3, 5)
    ]  # fmt: skip
    assert len(summary(compare_at(runs, "rounds", 3))) == settings


def over_tasks(path: Path) -> Run:
    """Two tasks of two rounds of 250 bytes and 0.5 s. The second one begins with 60 bytes down; each ends with 1,000 up
    and 500 down in 2 s."""
    run = folder(path, [0.3, 0.5, 0.6, 0.8])
    ends = {"comm/up_bytes": [1000, 0, 1000], "comm/down_bytes": [500, 60, 500], "client_steps": [0, 3, 0]}
    tables.put(run.folder, "tasks", {
        "done": [2, 2, 4], "task": [0, 1, 1], "phase": ["task_end", "task_begin", "task_end"], **ends,
        "time/task_end_s": [2.0, None, 2.0], "time/task_begin_s": [None, 0.25, None],
    })  # fmt: skip
    return Run(run.folder)


def test_a_task_costs_its_last_round_what_its_end_costs_and_its_first_what_its_beginning_costs(tmp_path: Path) -> None:
    """Rounds end at 250, 250 + 1,750, 2,000 + 310 and 2,310 + 1,750 bytes; at 0.5, 3, 3.75 and 6.25 s."""
    run = over_tasks(tmp_path / "a")
    assert compare([run])[["comm/bytes", "time/s"]].iloc[0].tolist() == [4060, 6.25]
    points = {x: curves([run], x=x).axes[0].lines[0].get_xdata().tolist() for x in ("bytes", "seconds", "steps", "up")}
    assert points["bytes"] == [0.25, 2.0, 2.31, 4.06] and points["seconds"] == [0.5, 3, 3.75, 6.25]
    assert points["steps"] == [7, 14, 24, 31] and points["up"] == [0.1, 1.2, 1.3, 2.4]
    for bytes, rounds in ((1999, 1), (2000, 2), (2309, 2), (2310, 3), (4060, 4)):
        at = compare_at([run], "bytes", bytes).iloc[0]
        assert (at["done"], at["status"]) == (rounds, "finished")
    assert compare_at([run], "bytes", 4061)["status"].tolist() == ["ends at bytes=4060"]
    assert compare_at([run], "rounds", 2)["comm/bytes"].tolist() == [2000]  # the second task has not begun
    assert compare_to([run], "test/acc", 0.6)["to/bytes"].tolist() == [2310]


def test_a_run_that_lost_the_ends_of_tasks_is_incomplete(tmp_path: Path) -> None:
    """Its bytes would be too few."""
    run = over_tasks(tmp_path / "a")
    (run.folder / "environment.json").write_text(with_checksum({"rows": {"tasks": 4}}))
    assert compare([Run(run.folder)])["status"].tolist() == ["incomplete: 1 of 4 lost"]


def test_a_run_that_ended_before_does_not_count_unless_it_was_to_end_there(tmp_path: Path) -> None:
    runs = [
        folder(tmp_path / "short", [0.1, 0.5, 0.9]),
        folder(tmp_path / "in time", [0.1, 0.5, 0.9], rounds=100, until={"virtual_s": 40}),
        folder(tmp_path / "goes on", [0.1, 0.5, 0.9], status="running"),
        folder(tmp_path / "later failed", [0.1, 0.5, 0.9, 0.7], status="failed: disk is full"),
    ]
    status = compare_at(runs, "virtual", 35)["status"].tolist()
    assert status[:2] == ["ends at virtual=30", "finished"] and status[2].startswith("stopped")
    assert status[3] == "finished"
    assert compare_at(runs, "virtual", 45)["status"].tolist()[1] == "ends at virtual=40"


def collapsed(
    path: Path, accuracies: list[float], losses: list[float], status: str = "chance level", **values: Any
) -> Run:
    """A run with a test of 20 samples of two classes a round, whose STATUS tells no round."""
    run = folder(path, accuracies, status=f"diverged: {status}", **values)
    rounds = range(1, len(accuracies) + 1)
    tables.put(run.folder, "tests", {
        "done": rounds, "round": rounds, "task": 0, "phase": "round", "set": "test", "mode": "global",
        "total": 20, "right": 10, "covered": 20, "loss_sum": 9.0,
        "class_right": [[0, 10]] * len(rounds), "class_total": [[10, 10]] * len(rounds),
    })  # fmt: skip
    changed(run.folder, **{"round": rounds, "test/loss": losses})
    return Run(run.folder)


def test_a_run_that_diverged_there_has_diverged(tmp_path: Path) -> None:
    """Chance is 0.5, ln 2 is 0.69. Two tests of 0.9 are sound, and so are all whose last ten have a mean above 0.525:
    up to round 11 (0.9 + 9 * 0.5, 0.54 a test), not up to round 12. A loss of 7 is above 10 ln 2 from the first test
    on."""
    late = collapsed(tmp_path / "late", [0.9] * 2 + [0.5] * 11, [0.1] * 2 + [0.6] * 11)
    at = {value: compare_at([late], "rounds", value)["status"][0] for value in (1, 2, 11, 12, 13)}
    assert at == {1: "finished", 2: "finished", 11: "finished", 12: "diverged", 13: "diverged"}
    wild = collapsed(tmp_path / "wild", [0.5] * 3, [7.0] * 3)
    lost = collapsed(tmp_path / "lost", [0.5] * 3, [0.1] * 3)
    (lost.folder / "tests" / "part-0000.parquet").write_bytes(b"no table")
    none = folder(tmp_path / "no tests", [0.5] * 3, status="diverged: chance level")
    tasks = collapsed(tmp_path / "tasks", [0.5] * 3, [0.1] * 3, tasks={"name": "class_incremental", "num_tasks": 3})
    skipped = collapsed(tmp_path / "skipped", [0.5] * 3, [0.7] * 3, "all clients were left out in all 3 rounds")
    changed(skipped.folder, cohort_size=2, clients_skipped=2)
    for run in (wild, lost, none, tasks, Run(skipped.folder)):
        assert [compare_at([run], "rounds", value)["status"][0] for value in (1, 2, 3)] == ["diverged"] * 3


def test_a_run_over_tasks_that_collapsed_in_a_later_task_had_not_before(tmp_path: Path) -> None:
    """Two rounds a task of two classes of ten samples: 19 of 20 right, then 10 with a loss of 8, above 10 ln 2. In the
    last task no client took a step in its first round. Without tests of single tasks the place is not known."""
    run = folder(tmp_path / "run", [0.9] * 6, status="diverged: chance", tasks={"num_tasks": 3})
    totals = [[10, 10, 0, 0, 0, 0], [0, 0, 10, 10, 0, 0], [0, 0, 0, 0, 10, 10]]
    rows = [
        {
            "done": done, "round": done, "task": (done - 1) // 2, "phase": "round", "set": name, "mode": "task_aware",
            "total": sum(total), "right": sum(total) // 2 if done > 2 else 19, "covered": 20,
            "loss_sum": (8.0 if done > 2 else 0.1) * sum(total), "class_total": total, "class_right": [0] * 6,
        }
        for done in range(1, 7)
        for name, total in [("test", [10] * 6), *((f"task-{number}", own) for number, own in enumerate(totals))]
    ]  # fmt: skip
    tables.put(run.folder, "tests", rows)
    changed(run.folder, round=range(1, 7), task=[0, 0, 1, 1, 2, 2], client_steps=[7, 7, 7, 7, 0, 7])
    at = [compare_at([Run(run.folder)], "rounds", value)["status"][0] for value in range(1, 7)]
    assert at == ["finished", "finished", "diverged", "diverged", "finished", "diverged"]
    tables.put(run.folder, "tests", [row for row in rows if row["set"] == "test"])
    assert compare_at([Run(run.folder)], "rounds", 1)["status"].tolist() == ["diverged"]


def test_a_run_that_diverged_or_is_damaged_leaves_the_others_their_costs(tmp_path: Path) -> None:
    """The round in which a client diverged has no costs: up to 500 bytes it is sound, beyond it has diverged."""
    whole, cut, broken = (folder(tmp_path / name, [0.3, 0.6, 0.9], seed=seed) for seed, name in enumerate("abc"))
    costs = {"comm/up_bytes": [100, 100], "comm/down_bytes": [150, 150], "client_steps": [7, 7],
             "time/round_s": [0.5, 0.5], "time/virtual_s": [10.0, 20.0]}  # fmt: skip
    changed(
        cut.folder,
        **{name: [numbers[0], numbers[1], None] for name, numbers in costs.items()},
        **{"test/acc": [0.3, 0.6, None], "test/loss": [0.7, 0.4, None], "diverged": [False, False, True]},
    )
    (cut.folder / "STATUS").write_text("diverged in round 3: client 1")
    (broken.folder / "rounds" / "part-0000.parquet").write_bytes(b"no table")
    at_once = tables.folder(tmp_path / "d", config(seed=3), [])
    tables.put(at_once, "rounds", {"done": [1], "diverged": [True]})
    (at_once / "STATUS").write_text("diverged in round 1: client 1")
    runs = [Run(run.folder) for run in (whole, cut, broken)] + [Run(at_once)]
    for value, done, status in ((500, 2, "finished"), (750, 3, "diverged in round 3")):
        at = compare_at(runs, "bytes", value)
        assert at["done"][0] == done and at["status"].tolist()[:2] == ["finished", status]
        assert at["status"][2].startswith("damaged") and at["status"][3] == "diverged in round 1"
        assert at["comm/bytes"].tolist()[:2] == [250 * done, 500]
    assert compare_at(runs, "rounds", 2)["status"].tolist()[:2] == ["finished"] * 2
    assert compare_at(runs, "rounds", 3)["status"].tolist()[1] == "diverged in round 3"
    to = compare_to(runs, "test/acc", 0.6)
    assert to["to/bytes"].tolist()[:2] == [500, 500] and to["to/virtual"].tolist()[:2] == [20, 20]
    assert math.isnan(to["to/rounds"][2])
    changed(whole.folder, client_steps=[7, None, 7])  # the third round's costs are not known either
    with pytest.raises(ConfigError, match="has no client_steps in round 2; take the axis rounds"):
        compare_at([Run(whole.folder)], "steps", 7)


def test_an_interval_in_another_unit_than_the_mean_has_it(tmp_path: Path) -> None:
    """1.5 and 1.6 MB: t(0.975, 1) = 12.706 times 0.05 MB is 635 kB; 2 and 4 MB: 12.7 MB, the mean's unit."""
    rows = pd.DataFrame({"to/bytes": [1.55e6, 3e6], "to/bytes_low": [1.0, 1.0], "to/bytes_high": [2.0, 2.0],
                         "to/bytes_half": [6.35e5, 1.27e7]})  # fmt: skip
    texts = spelled_numbers(rows, ["to/bytes"]).iloc[:, -1].tolist()
    assert texts == ["1.55 MB ± 635 kB", "3 MB ± 12.7"]
    times = pd.DataFrame({"to/virtual": [1500.0], "to/virtual_low": [1.0], "to/virtual_high": [2.0],
                          "to/virtual_half": [90.0]})  # fmt: skip
    assert spelled_numbers(times, ["to/virtual"]).iloc[0, -1] == "25.0 min ± 90 s"


def test_a_mean_and_its_interval_have_the_same_decimals() -> None:
    """11.6 rounds ± 4.174 are told with one decimal both; a small interval keeps its digits."""
    rows = pd.DataFrame({"n": [3, 2], "to/rounds": [11.6, 11.5], "to/rounds_low": 1.0, "to/rounds_high": 2.0,
                         "to/rounds_half": [4.174, 50.0]})  # fmt: skip
    assert spelled_numbers(rows, ["to/rounds"])["rounds"].tolist() == ["11.6 ± 4.2", "11.5"]
    rows = pd.DataFrame({"to/virtual": [12.3, 100.0], "to/virtual_low": 1.0, "to/virtual_high": 2.0,
                         "to/virtual_half": [1.234, 0.04]})  # fmt: skip
    assert spelled_numbers(rows, ["to/virtual"])["virtual time"].tolist() == ["12.3 s ± 1.2", "100 s ± 0.04"]
    of_means = pd.DataFrame({"algorithm": ["fedavg"], "n": [3], "mean": [12.0], "low": [7.472], "high": [16.528]})
    of_means.attrs["metric"] = "to/rounds"
    assert cells(of_means)[1] == [["FedAvg", "3", "12.0", "7.5", "16.5"]]


def test_two_seeds_have_no_interval_in_a_table(tmp_path: Path) -> None:
    """The bounds of two seeds are in the data, not in a table."""
    two = [folder(tmp_path / f"a{seed}", [0.5 + seed / 10, 0.9], seed=seed) for seed in range(2)]
    table = summary(compare(two))
    assert table["low"].notna().all() and "95 %" not in (caption_of(table) or "")
    assert cells(table)[1][0][-2:] == ["-", "-"]
    (shown, *_) = comparison(two, to="test/acc=0.55").tables.values()
    assert shown["rounds"].tolist() == ["1.5"] and shown.attrs["caption"] == "-: not every seed reaches it"


def test_a_metric_beside_to_is_a_cost(tmp_path: Path) -> None:
    run = folder(tmp_path / "a", [0.5, 0.9])
    for metric in ("nonsense", "to/byte", "time/s"):
        with pytest.raises(ConfigError, match=r"in a comparison by --to .*to/"):
            comparison([run], metric, to="test/acc=0.8")
    assert comparison([run], to="test/acc=0.8").metric == "to/virtual"
    with pytest.raises(ConfigError, match="NAME=NUMBER"):
        comparison([run], at=3)  # type: ignore[arg-type]


def test_no_two_columns_have_one_heading(tmp_path: Path) -> None:
    """What a whole run took, and what it took to the target."""
    runs = [folder(tmp_path / str(seed), [0.5, 0.9], seed=seed) for seed in (0, 1)]
    heads = cells(compare_to(runs, "test/acc", 0.8))[0]
    assert len(set(heads)) == len(heads) and {"sent", "sent to target", "rounds"} <= set(heads)


def test_a_cost_takes_no_setting_s_place(tmp_path: Path) -> None:
    """Runs of 2 and 3 rounds, which reach the target in the second one and in the third: settings of `rounds`."""
    ends = {2: [0.5, 0.9], 3: [0.5, 0.6, 0.9]}
    compared = comparison([folder(tmp_path / str(n), found) for n, found in ends.items()], to="test/acc=0.8")
    (table,) = compared.lead.values()
    assert table["rounds"].tolist() == [2, 3]
    assert [float(text) for text in table["rounds to target"]] == [2, 3]
    assert {"local steps", "sent"} <= set(table), "no other column has this heading"
    for table in compared.tables.values():
        heads = cells(table)[0]
        assert len(set(heads)) == len(heads)


def test_json_tells_never_from_no_value(tmp_path: Path) -> None:
    """JSON has no infinity: a run that never reaches the target is no missing number."""
    runs = [folder(tmp_path / "a", [0.5, 0.9]), folder(tmp_path / "b", [0.5, 0.6], seed=1)]
    runs.append(folder(tmp_path / "c", [0.5], seed=2, status="running", rounds=2))
    rows = records(compare_to(runs, "test/acc", 0.8))
    assert [row["to/rounds"] for row in rows] == [2, "never", None]


def test_clients_and_classes_are_of_the_end_alone(tmp_path: Path) -> None:
    runs = [folder(tmp_path / f"a{seed}", [0.5, 0.9], seed=seed) for seed in range(2)]
    for run in runs:
        accuracies = run.rounds["test/acc"]
        changed(run.folder, **{"client/acc_mean": accuracies, "client/acc_worst": accuracies})
    again = [Run(run.folder) for run in runs]
    assert "Over clients and classes" not in comparison(again, at="rounds=1").statistics[0]


def test_to_a_target_the_costs_are_those_of_the_first_test_that_reaches_it(tmp_path: Path) -> None:
    runs = [folder(tmp_path / f"a{seed}", [0.1, accuracy, 0.9], seed=seed) for seed, accuracy in ((0, 0.5), (1, 0.8))]
    runs.append(folder(tmp_path / "never", [0.1, 0.79, None], seed=0, algorithm="fedsol"))
    runs.append(folder(tmp_path / "unfinished", [0.1], seed=1, algorithm="fedsol", status="running", rounds=3))
    table = compare_to(runs, "test/acc", 0.8)
    assert table["to/rounds"].tolist()[:3] == [3, 2, math.inf] and math.isnan(table["to/rounds"][3])
    assert table["to/virtual"].tolist()[:2] == [30, 20] and table["to/steps"].tolist()[:2] == [21, 14]
    assert table["to/bytes"].tolist()[:2] == [750, 500]
    found = reached(table).set_index("algorithm")
    assert found["reached"].to_dict() == {"fedavg": "2 of 2", "fedsol": "0 of 1"}
    assert found.loc["fedavg", "to/rounds"] == 2.5 and math.isnan(found.loc["fedsol", "to/rounds"])
    # t(0.975, 1) = 12.706, the standard deviation of 3 and 2 is 0.7071
    assert found.loc["fedavg", "to/rounds_half"] == pytest.approx(12.7062 * 0.5, rel=1e-5)
    kept, said = where_all_reach(table, "to/rounds")
    assert kept["algorithm"].tolist() == ["fedavg", "fedavg"]
    assert len(said) == 1 and "FedSOL" in said[0] and said[0].endswith("1 of 1 seeds.")
    loss = compare_to(runs[:1], "test/loss", 0.5)
    assert loss["to/rounds"].tolist() == [2]


def test_the_command_line_prints_both_and_refuses_in_one_line(tmp_path: Path) -> None:
    def flray(*words: str) -> Any:
        return invoke("compare", tmp_path, *words)

    for seed in range(3):
        folder(tmp_path / f"fast{seed}", [0.3, 0.8 + seed / 100, 0.9], seed=seed, algorithm="fedsol")
        folder(tmp_path / f"slow{seed}", [0.1, 0.3 + seed / 50, 0.9], seed=seed)
    said = flray("--to", "test/acc=0.8", "--against", "fedavg", "--metric", "to/bytes")
    assert said.exit_code == 0 and all(text in said.stdout for text in ("To test/acc=0.8", "3 of 3", "to/bytes"))
    said = flray("--at", "time/virtual_s=20", "--format", "markdown")
    assert said.exit_code == 0
    assert all(text in said.stdout for text in ("At time/virtual_s=20", "81.00", "FedSOL has the highest"))
    for words, problem in (
        (["--at", "virtual"], "--at 'virtual': write NAME=NUMBER, such as virtual=3600"),
        (["--to", "test/acc=high"], "--to 'test/acc=high': write NAME=NUMBER, such as test/acc=0.8"),
        (["--to", "test/ac=0.5"], "test/acc"),
        (["--at", "virtul=3"], "virtual"),
        (["--at", "virtual=0"], "nothing is measured there"),
        (["--to", "test/acc=0.99", "--against", "fedavg"], "--against fedavg: 3 of 3 seeds never reach the target"),
        (["--at", "rounds=1", "--to", "test/acc=0.5"], "--at and --to are two questions"),
        (["--at", "rounds=1", "--format", "latex"], "in a table for a paper"),
    ):
        refused = flray(*words).exception
        assert isinstance(refused, FlrayError) and problem in str(refused)


def test_an_axis_is_named_by_its_column_too(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", [0.1, 0.5, 0.9])
    lines = [curves([run], x=x).axes[0].lines[0].get_xdata().tolist() for x in ("virtual", "time/virtual_s")]
    assert lines[0] == lines[1] == [10, 20, 30]
    with pytest.raises(ConfigError, match="virtual"):
        curves([run], x="virtul")
    assert parsed("--to", "test/acc=0.8") == ("test/acc", 0.8)
