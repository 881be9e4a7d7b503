"""A run folder as an object, and the package as a newcomer meets it."""

import shutil
import warnings

import pandas
import pyarrow
import pytest

import flray
from flray.core.protocol.clock import Position
from flray.core.schema.errors import CheckpointError
from flray.files import with_checksum
from flray.results import compare
from flray.rundir.parts import RowsMissingWarning, write_part
from flray.rundir.reader import Run
from flray.rundir.recorder import Recorder
from flray.rundir.swap import swap
from tests.support.messages import facts


def test_the_package_shows_what_it_has():
    """`run` and its like are imported when first used; completion in a notebook asks `dir`."""
    assert {"run", "resume", "load", "Run", "Algorithm"} <= set(dir(flray))
    assert all(getattr(flray, name) is not None for name in dir(flray))


def test_a_run_shows_where_it_stands_also_while_it_goes_on(tmp_path):
    folder = tmp_path / "r"
    (folder / "rounds").mkdir(parents=True)
    (folder / "STATUS").write_text("running\n")
    run = Run(folder)
    assert repr(run) == f"Run('{folder}', running, 0 rounds)"
    rows = pandas.DataFrame({"done": [1, 2, 3], "test/acc": [0.5, 0.76321, None]})
    rows.to_parquet(folder / "rounds" / "part-0000.parquet")
    (folder / "STATUS").write_text("finished\n")
    assert repr(run) == f"Run('{folder}', finished, 3 rounds, test/acc 0.7632)"
    (folder / "rounds" / "part-0000.parquet").write_bytes(b"")
    assert repr(run) == f"Run('{folder}', finished, damaged)"


def made(folder, rounds=6, saved=6, status="finished", **environment):
    """A run folder as `rounds` rounds leave it, three rounds a file, two clients a round."""
    for name, copies in (("rounds", 1), ("clients", 2)):
        for first in range(1, rounds + 1, 3):
            done = [d for d in range(first, min(first + 3, rounds + 1)) for _ in range(copies)]
            write_part(
                folder / name / f"part-{first // 3:04d}.parquet",
                pyarrow.table({"done": done, "test/acc": [0.5] * len(done)}),
            )
    write_part(
        folder / "tasks" / "part-0000.parquet", pyarrow.table({"done": [rounds], "task": [0], "phase": ["task_end"]})
    )
    (folder / "checkpoints" / f"round-{saved:06d}").mkdir(parents=True)
    (folder / "STATUS").write_text(status + "\n")
    (folder / "config.yaml").write_text("name: x\nseed: 1\nalgorithm: {name: fedavg}\n")
    rows = {"rounds": rounds, "clients": 2 * rounds, "tasks": 1, "personal": 0}
    (folder / "environment.json").write_text(with_checksum({"rows": rows, "missing_rows": {}, **environment}))
    return folder


@pytest.mark.parametrize(
    "status", ["starting", "running", "finished", "diverged in round 3: x", "failed: a\nb", "paused after round 1"]
)
def test_status_is_what_the_run_wrote(tmp_path, status):
    assert Run(made(tmp_path / "r", status=status)).status == status


@pytest.mark.parametrize("content", [b"", b"finishe", b"finisied\n", b"\xff\xfe", b"finished*", b"0"])
def test_a_damaged_status_is_unknown(tmp_path, content):
    (made(tmp_path / "r") / "STATUS").write_bytes(content)
    assert Run(tmp_path / "r").status.startswith("unknown: STATUS ")
    assert compare([tmp_path / "r"])["status"].tolist() == [Run(tmp_path / "r").status]


@pytest.mark.parametrize("content", [None, b"", b"{}", b"[]", b'{"a": 1}', b"\xff"])
def test_a_damaged_environment_is_one_line(tmp_path, content):
    path = made(tmp_path / "r") / "environment.json"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(CheckpointError, match=facts(path, "--accept environment")):
        Run(tmp_path / "r").environment  # noqa: B018
    assert len(Run(tmp_path / "r").rounds) == 6, "the tables are good"


def test_a_reader_may_change_a_table(tmp_path):
    """What a notebook does to its table stays there: comparisons and later reads have the folder's values."""
    run = Run(made(tmp_path / "r"))
    before = {name: getattr(run, name).copy() for name in ("rounds", "clients", "tests", "tasks")}
    shown = compare([run])
    for name in before:
        table = getattr(run, name)
        for column in table.select_dtypes("number"):
            table[column] *= 100
    run.environment["fingerprints"] = {}
    assert run.environment != {**run.environment, "fingerprints": {}}
    assert before["rounds"]["done"].max() == 6
    assert all(getattr(run, name).equals(table) for name, table in before.items())
    assert compare([run]).equals(shown)


def test_a_whole_run_has_lost_nothing(tmp_path):
    run = Run(made(tmp_path / "r"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [len(run.rounds), len(run.clients), len(run.tasks), len(run.personal)] == [6, 12, 1, 0]
    assert compare([run])["status"].tolist() == ["finished"]


@pytest.mark.parametrize(
    ("gone", "table", "told"),
    [
        ("rounds/part-0000.parquet", "rounds", "rounds 1-3"),
        ("rounds/part-0001.parquet", "rounds", "rounds 4-6"),  # the checkpoint after round 6 says that they were there
        ("clients/part-0000.parquet", "clients", "rounds 1-3"),
        ("clients/part-0001.parquet", "clients", "6 of 12"),
        ("tasks/part-0000.parquet", "tasks", "1 of 1"),
    ],
)
def test_rows_that_are_gone_are_told_of(tmp_path, gone, table, told):
    (made(tmp_path / "r") / gone).unlink()
    run = Run(tmp_path / "r")
    with pytest.warns(RowsMissingWarning, match=facts(tmp_path / "r" / table, told)):
        getattr(run, table)
    assert run.missing(table) == told
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        status = compare([tmp_path / "r"])["status"].tolist()[0]
    assert status == (f"incomplete: {told} lost" if table in ("rounds", "tasks") else "finished")


def test_a_round_in_which_nobody_trained_has_lost_no_clients(tmp_path):
    """`cohort.dropout`: everybody may be away."""
    folder = made(tmp_path / "r")
    rounds = pyarrow.table({"done": [1, 2, 3], "client_steps": [4, 0, 4], "test/acc": [0.5] * 3})
    write_part(folder / "rounds" / "part-0000.parquet", rounds)
    write_part(folder / "clients" / "part-0000.parquet", pyarrow.table({"done": [1, 1, 3, 3], "test/acc": [0.5] * 4}))
    (folder / "environment.json").unlink()
    assert Run(folder).missing("clients") == ""
    record = Recorder(folder)
    end = Position(0, 6, 6, "task_end")
    record.truncate(end)
    assert record.missing(end, ["rounds", "clients", "tasks"]) == {}


def test_what_a_resume_went_on_without_is_told_of_for_ever(tmp_path):
    run = Run(made(tmp_path / "r", missing_rows={"tasks": "0 (task 0 is the first)", "clients": "2-3"}))
    assert (run.missing("tasks"), run.missing("clients"), run.missing("rounds")) == (
        "tasks 0 (task 0 is the first)",
        "rounds 2-3",
        "",
    )


CONFIG = """rounds: {}
algorithm: {{name: fedavg}}
model: {{name: mlp}}
data: {{source: digits}}
partition: {{name: iid, clients: 2}}
"""


@pytest.mark.parametrize("first", ["rounds", "clients", "tasks", "experiment"])
def test_all_parts_of_a_run_are_of_one_state_also_after_it_went_on(tmp_path, first):
    """A resume from 3 to 6 rounds, between two uses of a run. A table in the caller's hands stays, and so does what was
    read of a folder that is removed."""
    folder, longer = made(tmp_path / "r", rounds=3, saved=3), made(tmp_path / "longer")
    (folder / "config.yaml").write_text(CONFIG.format(3))
    run = Run(folder)
    rows = run.rounds
    assert getattr(run, first) is not None
    stamps, before = run._values[first]
    assert getattr(run, first) is not None and run._values[first][1] is before, "it is read once"
    (folder / "config.yaml").write_text(CONFIG.format(6))
    for name in ("environment.json", "rounds", "clients", "tasks", "checkpoints"):
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
        (longer / name).rename(folder / name)
    assert getattr(run, first) is not None and run._values[first][0] != stamps
    assert (len(run.rounds), len(run.clients), run.tasks["done"].tolist(), run.experiment.rounds) == (6, 12, [6], 6)
    assert len(rows) == 3
    rows = run.rounds
    shutil.rmtree(folder)
    assert run.rounds.equals(rows)


def test_a_run_that_is_held_shows_each_table_as_it_is_also_within_a_flush_and_without_a_new_round(tmp_path):
    """A flush writes one table after another, and that at the end of a task writes no round."""
    folder, rows = made(tmp_path / "r", rounds=3, saved=3), {"rounds": 3, "clients": 6, "tasks": 1, "personal": 0}
    run = Run(folder)
    assert {name: len(getattr(run, name)) for name in rows} == rows and run.diagnostics == {}
    for changed in rows:
        values = {"done": 4, "task": 0, "phase": "task_end", "finetune_epochs": 1, "test/acc": 0.5}
        write_part(folder / changed / "part-0009.parquet", pyarrow.Table.from_pylist([values] * 2))
        rows[changed] += 2
        assert {name: len(getattr(run, name)) for name in rows} == rows, changed
    for count in (2, 3):
        write_part(folder / "diagnostics" / "probe" / "part-0000.parquet", pyarrow.table({"done": range(count)}))
        assert [len(table) for table in run.diagnostics.values()] == [count]


def test_a_round_that_a_run_went_on_does_not_read_its_configuration_again(tmp_path):
    run = Run(made(tmp_path / "r", rounds=3, saved=3))
    (run.folder / "config.yaml").write_text(CONFIG.format(3))
    assert run.experiment.rounds == run.environment["rows"]["rounds"] == 3
    before = [run._values[name][1] for name in ("experiment", "environment")]
    write_part(run.folder / "rounds" / "part-0009.parquet", pyarrow.table({"done": [4], "test/acc": [0.5]}))
    assert run.rounds["done"].tolist() == [1, 2, 3, 4]
    assert run.experiment is before[0] and run.environment == before[1]
    assert run._values["environment"][1] is before[1], "it is not read again"
    (run.folder / "environment.json").write_text(with_checksum({"rows": {}}))
    assert run.environment["rows"] == {}, "a resume without a round to run writes it, and no STATUS"


def test_a_run_that_another_one_replaced_says_so_and_is_that_one(tmp_path):
    run, new = Run(made(tmp_path / "r")), made(tmp_path / "new", rounds=3, saved=3)
    assert len(run.rounds) == 6
    swap(tmp_path / "r", new)
    with pytest.warns(UserWarning, match=facts(tmp_path / "r", "another run has taken the place")):
        assert len(run.clients) == 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(run.rounds) == 3
