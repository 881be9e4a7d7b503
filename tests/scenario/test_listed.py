"""Cohorts and batch orders of another program: what a file lists, and what is refused, in one line."""

import json

import numpy as np
import pandas
import pytest

from flray.core.schema.errors import DataError
from flray.scenario.tables import BatchOrders, ListedCohorts

ROWS = [(1, 4), (1, 2), (2, 0), (2, 4), (3, 2)]


def written(tmp_path, kind, rows=ROWS, names=("round", "client")):
    """A file of one of the formats, by the libraries that people use."""
    frame, path = pandas.DataFrame(rows, columns=list(names)), tmp_path / f"listed.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        frame.to_parquet(path)
    elif kind == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        path.write_text(json.dumps(frame.to_dict(orient="records")))
    return str(path)


@pytest.mark.parametrize("kind", ["csv", "parquet", "json", "jsonl"])
def test_every_format_names_the_same_cohorts_in_the_order_of_the_rows(tmp_path, kind):
    cohorts = ListedCohorts(written(tmp_path, kind))
    assert [cohorts.of(done).tolist() for done in range(3)] == [[4, 2], [0, 4], [2]]
    assert cohorts.sizes == {0: 2, 1: 2, 2: 1}
    assert cohorts.hash == ListedCohorts(written(tmp_path, "csv")).hash
    # the rows of a round may be apart, and their order is that of the cohort
    other = [ROWS[2], ROWS[1], ROWS[4], ROWS[0], ROWS[3]]
    assert ListedCohorts(written(tmp_path, kind, other)).of(0).tolist() == [2, 4]


def test_rounds_that_begin_at_0_are_the_same_cohorts(tmp_path):
    from_one = ListedCohorts(written(tmp_path, "csv"))
    assert ListedCohorts(written(tmp_path, "json", [(r - 1, c) for r, c in ROWS])).hash == from_one.hash


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([(1, 0), (3, 0)], r"has no round 2 \(it has rounds 1 to 3\); add it, or lower rounds"),
        ([(1, 0), (2, 0), (2, 9)], "round 2 names client 9, which holds no sample"),
        ([(1, 0), (1, 0), (2, 0)], "round 1 names client 0 twice"),
        ([(1, -1), (2, 0)], "row 1 has client -1; numbers are 0 or more"),
        ([(1, 0.5), (2, 0)], "column client is double, not whole numbers"),
        ([(1, "a"), (2, "b")], "column client is string, not whole numbers"),
        ([(1, 0), (2, None)], "column client is double|row 2 has no client"),
        ([], "has no row"),
    ],
)
def test_cohorts_that_do_not_fit_are_refused_in_one_line(tmp_path, rows, match):
    with pytest.raises(DataError, match=match) as raised:
        ListedCohorts(written(tmp_path, "csv", rows)).check([range(5)], 2)
    assert "\n" not in str(raised.value) and "cohort.from" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "match"),
    [("a,b\n1,2\n", "no column round; write round,client"), ("round,round\n1,2\n", "a name of its own"), ("", "read")],
)
def test_files_of_other_columns_are_refused(tmp_path, text, match):
    (tmp_path / "own.csv").write_text(text)
    with pytest.raises(DataError, match=match):
        ListedCohorts(str(tmp_path / "own.csv"))
    with pytest.raises(DataError, match=r"gone\.csv cannot be read .*No such file"):
        ListedCohorts("gone.csv")
    (tmp_path / "own.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        ListedCohorts(str(tmp_path / "own.json"))


def test_rounds_of_each_task_are_refused(tmp_path):
    (tmp_path / "own.csv").write_text("task,round,client\n0,1,0\n0,1,1\n1,1,2\n1,1,3\n")
    with pytest.raises(DataError, match=r"has a column task; write round,client .rounds counted over all tasks"):
        ListedCohorts(str(tmp_path / "own.csv"))
    (tmp_path / "own.csv").write_text("round,client,sample\n1,0,5\n")
    with pytest.raises(DataError, match="needs one of the columns epoch and step"):
        BatchOrders(str(tmp_path / "own.csv"))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"round": {"5": 1, "6": 1}, "client": {"5": 2, "6": 0}}', r"round is no list; .*orient='records'"),
        ('{"round": "11", "client": "20"}', "round is no list"),
        ('[{"round": 1, "client": 2, "client": 0}]', "round, client, client has one of them twice"),
        ('[{"round": 1}, {"round": 1, "client": 0}]', "row 1 has no client"),
        ("[[1, 2]]", "cannot be read"),
    ],
)
def test_json_that_says_something_else_is_refused(tmp_path, text, match):
    (tmp_path / "own.json").write_text(text)
    with pytest.raises(DataError, match=match):
        ListedCohorts(str(tmp_path / "own.json"))


HELD = np.array([7, 3, 5])


def orders(tmp_path, part, rows, kind="csv"):
    return BatchOrders(written(tmp_path, kind, rows, ("round", "client", part, "sample")))


def test_epochs_and_steps_are_those_of_the_file(tmp_path):
    rows = [(1, 0, 1, 5), (1, 0, 1, 7), (1, 0, 1, 3), (1, 0, 2, 3), (1, 0, 2, 5), (1, 0, 2, 7)]
    listed = orders(tmp_path, "epoch", rows).of(0, 0, HELD, batches=4, an_epoch=2)
    assert [listed.epoch(e).tolist() for e in (0, 1)] == [[5, 7, 3], [3, 5, 7]] and not listed.by_step
    from_zero = orders(tmp_path, "epoch", [(r - 1, c, e - 1, s) for r, c, e, s in rows], "parquet")
    assert from_zero.hash == orders(tmp_path, "epoch", rows).hash
    # a step's rows are its batch; a sample may come again, and another may not come
    steps = orders(tmp_path, "step", [(1, 0, 0, 5), (1, 0, 0, 7), (1, 0, 1, 5)], "json")
    listed = steps.of(0, 0, HELD, batches=2, an_epoch=2)
    assert (listed.samples.tolist(), listed.edges, listed.by_step) == ([5, 7, 5], (0, 2, 3), True)


@pytest.mark.parametrize(
    ("part", "rows", "match"),
    [
        ("epoch", [(2, 0, 1, 5)], "round 1, client 0 is not there"),
        ("epoch", [(1, 0, 1, 5), (1, 0, 1, 7), (1, 0, 1, 4)], "lists sample 4, which the client does not hold"),
        ("epoch", [(1, 0, 1, 5), (1, 0, 1, 7)], "epoch 1 has 2 rows for the client's 3 samples"),
        ("epoch", [(1, 0, 1, 5), (1, 0, 1, 7), (1, 0, 1, 7)], "list each once"),
        ("epoch", [(1, 0, 1, 5), (1, 0, 3, 7)], "has no epoch 2 and has epoch 3"),
        ("step", [(1, 0, 1, 5), (1, 0, 2, 5)], "has 2 steps and the algorithm takes 1"),
        ("turn", [(1, 0, 1, 5)], "column 'turn' is not read .*write columns round,client,sample,epoch or step"),
    ],
)
def test_batches_that_do_not_fit_are_refused_in_one_line(tmp_path, part, rows, match):
    with pytest.raises(DataError, match=match) as raised:
        orders(tmp_path, part, rows).of(0, 0, HELD, batches=1, an_epoch=1)
    assert "\n" not in str(raised.value) and "data.batch_order" in str(raised.value)


def test_the_clients_of_a_run_are_the_cohorts_of_another(tmp_path):
    """flray's own record has more columns."""
    table = pandas.DataFrame({"done": [1, 1, 2, 2], "task": 0, "round": [1, 1, 2, 2], "client": [3, 0, 1, 2]})
    table.to_parquet(tmp_path / "clients.parquet")
    cohorts = ListedCohorts(str(tmp_path / "clients.parquet"))
    assert [cohorts.of(done).tolist() for done in (0, 1)] == [[3, 0], [1, 2]]
