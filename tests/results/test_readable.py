"""Folders that are broken, half finished, of another version or no runs at all: a line each, the good runs shown."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
from click.testing import Result

from flray.core.schema.errors import CheckpointError, FlrayError
from flray.files import with_checksum
from flray.results import readable
from flray.rundir.reader import Run
from tests.support.commands import invoke
from tests.support.kinds import by_default
from tests.support.tables import config, folder, put

RUN, GONE = "the good run", "gone"


Maker = Callable[[Path], object]


def holding(name: str, content: bytes, run: bool = True) -> Maker:
    """A run, or a folder that is none, with this file."""

    def make(path: Path) -> None:
        if run:
            folder(path, config("fedsol"), [0.5])
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)

    return make


def listing(table: str, **rows: list[Any]) -> Maker:
    """A run with these rows in a table."""
    return lambda path: put(folder(path, config("fedsol"), [0.5]), table, rows)


sweep = holding("sweep.yaml", b"name: s\nobjective: val/acc\n", run=False)


def truncated(path: Path) -> None:
    part = folder(path, config("fedsol"), [0.5]) / "rounds" / "part-0000.parquet"
    part.write_bytes(part.read_bytes()[:50])


def newer(path: Path) -> None:
    folder(path, config("fedsol", hologram={"name": "a", "depth": [1, {"b": 2}]}), [0.5, 0.6])
    pandas.DataFrame({"done": [3], "test/acc": [0.9], "hologram/x": [1]}).to_parquet(path / "rounds/part-0001.parquet")
    (path / "environment.json").write_text(with_checksum({"packages": {"flray": "99.0"}, "format": 12}))


# what is made, and how its line on stderr goes on; None: it is shown
DAMAGE: dict[str, tuple[Maker, str | None]] = {
    GONE: (lambda path: None, "is not a run folder: there is none"),
    "file": (lambda path: path.write_text("x"), "is not a run folder: it is a file"),
    "empty": (lambda path: path.mkdir(), "is not a run folder: it is empty"),
    "another program": (holding("results.csv", b"epoch\n1\n", run=False), "it has neither config.yaml nor STATUS"),
    "another configuration": (
        holding("config.yaml", b"db: mysql\n", run=False),
        "is not a run's of flray: it names no algorithm",
    ),
    "no yaml": (holding("config.yaml", b"\x00\xff{"), "is not valid YAML"),
    "no configuration": (lambda path: folder(path, None, [0.5, 0.6]), "incomplete: config.yaml is missing"),
    "truncated": (truncated, "is damaged"),
    "other columns": (listing("rounds", round=[1], accuracy=[0.5]), "has no column done"),
    "text for numbers": (listing("rounds", **{"done": [1], "test/acc": ["50 %"]}), "has text in the column test/acc"),
    "sweep without runs": (sweep, "is a sweep without runs"),
    "newer version": (newer, None),
    "no round": (lambda path: folder(path, config("fedsol"), [], "failed: out of memory"), None),
    "starting": (lambda path: folder(path, None, [], "starting"), None),
    "going on": (lambda path: folder(path, config("fedsol"), [0.5], "running"), None),
}
COMMANDS = {
    "show": [],
    "compare": [],
    "report": ["--out", "page.json"],
    "figure curves": ["--out", "curves.png"],
}


def invoked(command: str, *paths: Path) -> Result:
    return invoke(*command.split(), *paths, *COMMANDS[command])


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("good") / "good", config("fedavg"), [0.5, 0.75])


@pytest.mark.parametrize("command", by_default(("show",), COMMANDS))
def test_every_kind_of_damage_is_a_line_and_the_good_run_is_shown(
    command: str, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, (make, _) in DAMAGE.items():
        make(tmp_path / name)
    for name, (_, says) in DAMAGE.items():
        done = invoked(command, good, tmp_path / name)
        assert done.exit_code == 0, (name, done.output, done.exception)
        lines = [line for line in done.stderr.splitlines() if str(tmp_path / name) in line]
        if says is None or (command == "show" and says.startswith(("is damaged", "incomplete", "has "))):
            assert not [line for line in lines if line.startswith("left out")], (name, done.stderr)
        else:
            assert len(lines) == 1 and says in lines[0], (name, done.stderr)
        assert "Traceback" not in done.output
        if command == "report":
            page = json.loads(Path("page.json").read_text())
            assert "fedavg" in [row["algorithm"] for row in page["runs"]]
            assert [says in broken["why"] for broken in page["broken"]] == [True] * (says is not None), name
        elif command.startswith("figure"):
            assert Path("curves.png").stat().st_size > 5000
        else:
            assert "75.00" in done.stdout, name


def test_a_report_leaves_a_run_with_torn_diagnostics_out_and_needs_neither_partition_nor_counts(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    makers = {
        "a": holding("diagnostics/conflict/part-0000.parquet", b"x"),
        "b": holding("partition/table.csv", b"x\n"),
        "c": listing("tests", done=[1], set=["test"], acc=[0.5]),
    }
    for name, make in makers.items():
        make(tmp_path / name)
    done = invoked("report", good, tmp_path)
    assert done.exit_code == 0, done.output
    assert done.stderr.count("left out: ") == 1 and "a/diagnostics/conflict/part-0000.parquet is damaged" in done.stderr
    assert len(json.loads(Path("page.json").read_text())["runs"]) == 3
    for command in ("show", "compare"):
        assert invoked(command, tmp_path).exit_code == 0
    with pytest.raises(CheckpointError, match="tests has no column mode: another program wrote it"):
        _ = Run(tmp_path / "c").tests


@pytest.mark.parametrize("command", COMMANDS)
def test_where_nothing_is_left_the_command_fails_with_the_reason(command: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = invoked(command, tmp_path / "empty", tmp_path / GONE)
    assert isinstance(done.exception, FlrayError)  # `main` makes exit code 2 of it
    assert "is not a run folder: it is empty" in str(done.exception)


@pytest.mark.parametrize("left", ["STATUS", "beginning.json", "study.journal"])
def test_a_sweeps_final_runs_are_read_and_not_its_trials(tmp_path: Path, left: str) -> None:
    """Also where all but one of the files that a sweep writes at first are lost."""
    sweep(tmp_path / "sweep")
    (tmp_path / "sweep" / left).touch()
    folder(tmp_path / "sweep" / "trials" / "0000", config("fedavg"), [0.1])
    done = invoked("compare", tmp_path / "sweep")
    assert done.stderr.startswith("note: ")
    assert "1 runs of trials/ are read (held-out data; there are no final runs yet)" in done.stderr
    shutil.copytree(tmp_path / "sweep" / "trials" / "0000", tmp_path / "sweep" / "final" / "a")
    done = invoked("compare", tmp_path / "sweep")
    assert "1 runs of final/ are read (fresh seeds, test set)" in done.stderr and done.stdout.count("FedAvg") == 1


def test_sweeps_below_a_folder_are_read_as_if_they_were_named(tmp_path: Path) -> None:
    """Beside them a run; `old` has no final runs yet, `none` no runs at all."""
    alone = folder(tmp_path / "alone", config("fedavg"), [0.5])
    for name in ("deep/new", "none", "old"):
        holding("STATUS", b"finished\n", run=False)(tmp_path / name)
        sweep(tmp_path / name)
    trials = [folder(tmp_path / name / "trials" / "0000", config("fedavg"), [0.1]) for name in ("deep/new", "old")]
    final = [folder(tmp_path / "deep/new/final" / name, config("fedavg"), [0.6]) for name in ("a", "b")]
    found = readable.readable_runs([tmp_path])
    assert [run.folder for run in found.runs] == [alone, *final, trials[1]] and not found.broken
    assert found.notes == [
        f"{tmp_path}/deep/new is a sweep: 2 runs of final/ are read (fresh seeds, test set)",
        f"{tmp_path}/old is a sweep: 1 runs of trials/ are read (held-out data; there are no final runs yet)",
    ]
    listed = invoke("runs", tmp_path, "--format", "json")
    assert {row["run"] for row in json.loads(listed.stdout)} == {str(alone), *map(str, final), str(trials[1])}
    assert listed.stderr.splitlines() == [f"note: {note}" for note in found.notes]
    # who names trials gets them
    found = readable.readable_runs([tmp_path / "deep/new/trials", tmp_path / "deep/new/trials/0000"])
    assert [run.folder for run in found.runs] == [trials[0]] and not found.notes


@pytest.mark.parametrize("names", [["runs/a"], ["baseline/b", "final/a"], ["other", "trials/0000"]])
def test_the_file_of_a_sweep_above_runs_hides_none(tmp_path: Path, names: list[str]) -> None:
    """A user's project: what `flray sweep` starts from, and runs, also in folders with the names of a sweep's parts."""
    runs = [folder(tmp_path / "exp" / name, config("fedavg"), [0.5]) for name in names]
    sweep(tmp_path / "exp")
    for place in (tmp_path, tmp_path / "exp"):
        found = readable.readable_runs([place])
        assert [run.folder for run in found.runs] == runs and not found.notes


def test_a_run_that_is_named_twice_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(2):
        folder(tmp_path / "grid" / str(seed), config("fedsol", seed=seed), [0.5, 0.6])
    monkeypatch.chdir(tmp_path)
    found = readable.readable_runs(["grid", "grid/1", tmp_path / "grid" / "0"])
    assert [run.folder.name for run in found.runs] == ["0", "1"]
    again = readable.readable_runs([found.runs[0], Run("grid/0")])  # as before and after an overwrite
    assert again.runs == found.runs[:1] and again.notes == ["grid/0 is given twice and counts once"]


def test_a_link_to_a_run_or_to_a_folder_of_runs_is_no_other_run(tmp_path: Path) -> None:
    """The run has the name that came first."""
    for seed in range(2):
        folder(tmp_path / "grid" / str(seed), config("fedsol", seed=seed), [0.5, 0.6])
    (tmp_path / "grid" / "latest").symlink_to("1")
    (tmp_path / "link").symlink_to("grid")
    both, linked = [tmp_path / "grid"], [tmp_path / "link", tmp_path / "grid"]
    assert [str(run.folder) for run in readable.readable_runs(both).runs] == [f"{tmp_path}/grid/{n}" for n in (0, 1)]
    assert [str(run.folder) for run in readable.readable_runs(linked).runs] == [f"{tmp_path}/link/{n}" for n in (0, 1)]
