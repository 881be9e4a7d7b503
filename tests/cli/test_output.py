"""What a command writes: JSON that parses, plain columns in a pipe, notes on stderr alone."""

import io
import json
import math
import re
import shlex
from pathlib import Path

import numpy as np
import pandas
import pytest
from rich.markup import escape
from rich.table import Table
from typer.main import get_command

import flray
from flray.cli import MORE, VERBS, app, output
from flray.cli.finished import report, report_grid
from flray.cli.output import console, flush, plain_text, print_rows, records, sheet_of, write, write_json
from flray.results import compare, render
from flray.results.axes import AXES
from flray.results.rendering import rich_table
from flray.rundir.reader import Run
from tests.support.commands import invoke, succeeded
from tests.support.tables import config, folder

ROOT = Path(__file__).parents[2]
QUICK = str(ROOT / "configs" / "quickstart.yaml")
SMALL = [
    "rounds=2",
    "partition.clients=2",
    "cohort.size=2",
    "resources.executor=local",
    "data.source=iris",
    "model=mlp",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("json") / "run"
    flray.run(QUICK, *SMALL, "proxy=null", out=folder, progress=False)
    return folder


def stdout(*words: object) -> str:
    return succeeded(*words).stdout


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (("list", "algorithms"), {"name", "about", "keeps"}),
        (("list", "config"), {"of", "key", "type", "default", "bounds", "meaning"}),
        (("runs", "FOLDER"), {"run", "status", "algorithm", "done", "rounds", "accuracy", "changed"}),
        (("show", "RUN"), {"run", "numbers", "lines", "modes"}),
        (("replay", "RUN", "--client", "1"), {"client", "round", "train/loss"}),
        (("papers", "reproduce", "fedsol"), {"table", "about", "cells", "can run here"}),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_verbs_that_read_print_a_list_of_records(run: Path, words: tuple[str, ...], keys: set[str]) -> None:
    places = {"RUN": run, "FOLDER": run.parent}
    records = json.loads(stdout(*(places.get(word, word) for word in words), "--format", "json"))
    assert records and all(keys <= record.keys() for record in records)


def test_the_numbers_in_json_are_not_rounded(run: Path) -> None:
    accuracy = flray.load(run).rounds["test/acc"].iloc[-1]
    (row,) = json.loads(stdout("runs", run.parent, "--format", "json"))
    assert (row["done"], row["rounds"], row["accuracy"]) == (2, 2, accuracy)
    (compared,) = json.loads(stdout("compare", run, "--format", "json"))
    assert compared["test/acc"] == accuracy


def test_numbers_of_a_table_have_all_their_digits_in_json(tmp_path: Path) -> None:
    """1e-11 is below the ten decimals of pandas."""
    folders = [folder(tmp_path / f"{lr}", config(lr=lr), [1 / 3]) for lr in (1e-11, 0.1)]
    rows = json.loads(stdout("compare", *folders, "--format", "json"))
    stdout("report", *folders, "--out", tmp_path / "page.json")
    page = json.loads((tmp_path / "page.json").read_text())
    for table in (rows, page["runs"]):
        assert [row["algorithm.lr"] for row in table] == [1e-11, 0.1]
    assert [row["test/acc"] for row in page["runs"]] == [1 / 3, 1 / 3]
    frame = pandas.DataFrame({"a": [1, 2], "b": [math.nan, math.inf], "to/rounds": [1.5, math.inf], "c": [[1.0], None]})
    assert records(frame) == [
        {"a": 1, "b": None, "to/rounds": 1.5, "c": [1.0]},
        {"a": 2, "b": None, "to/rounds": "never", "c": None},
    ]


def test_verbs_about_one_thing_print_a_record(run: Path) -> None:
    detail = json.loads(stdout("list", "algorithms", "fedprox", "--format", "json"))
    assert detail["name"] == "fedprox" and "mu" in {row["option"] for row in detail["options"]}
    checked = json.loads(stdout("doctor", run / "config.yaml", "--format", "json"))
    assert {"check": "storage", "result": "none"} in checked["checks"] and len(checked["partition"]) == 2
    plan = json.loads(
        stdout("papers", "reproduce", "fedsol/table2", "--cells", "MNIST, LDA", "--dry-run", "--format", "json")
    )
    assert plan.keys() == {"runs", "not_run", "commands"} and plan["runs"] + plan["not_run"]


def test_json_has_no_nan_and_no_numpy(capsys: pytest.CaptureFixture[str]) -> None:
    write_json({"a": math.nan, "b": np.float64(0.5), "c": [math.inf, np.int64(3)], 4: Path("x")})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": 0.5, "c": [None, 3], "4": "x"}


def test_a_stdout_that_lacks_a_character_loses_nothing_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no closed one: it takes what comes next."""
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stdout)
    with pytest.raises(UnicodeEncodeError):
        write("±")
    write("next")
    assert flush() and stdout.buffer.getvalue() == b"next\n"


def test_off_a_terminal_a_table_is_plain_columns_of_any_width() -> None:
    table = Table(title="a title that is longer than its table", caption=r"note \[b]")
    table.add_column("name")
    table.add_column("text")
    table.add_row("x", "word " * 60 + "end")
    assert plain_text(table).splitlines() == [
        "a title that is longer than its table",
        "name  text",
        "x     " + "word " * 60 + "end",
        "note [b]",
    ]


@pytest.mark.parametrize(
    "words", [("--help",), ("run", "--help"), ("list", "models"), ("list", "algorithms", "fedsol")]
)
def test_off_a_terminal_nothing_is_drawn(words: tuple[str, ...]) -> None:
    assert not set(stdout(*words)) & set("\x1b│─╭┃━")


def test_quiet_commands_print_their_results_alone(run: Path) -> None:
    def of(*words: str) -> tuple[str, str]:
        done = invoke(*words, "init", run.parent / "".join(words or ("default",)))
        return done.stdout.split()[0], done.stderr.split(" ")[0]

    assert of() == ("written:", "next:") and of("--quiet") == ("written:", "") and of("-v") == ("written:", "next:")
    after = invoke("init", run.parent / "after", "-q")
    assert after.stdout.startswith("written: ") and after.stderr == ""


@pytest.mark.parametrize("words", [("figure", "curves", "/nowhere"), ("bench", "--only", "nothing")])
def test_verbs_that_refuse_options_without_effect_take_quiet_and_verbose(words: tuple[str, ...]) -> None:
    plain, *others = (str(invoke(*words, *more).exception) for more in ([], ["-q"], ["-v"]))
    assert "changes nothing" not in plain and others == [plain, plain]


def test_version() -> None:
    assert stdout("--version") == f"flray {flray.__version__}\n"


def test_a_command_to_try_next_can_be_pasted(tmp_path, monkeypatch, caplog):
    """A folder with a space is one word of the printed command, as a shell reads it."""
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/first try")
    flray.run(QUICK, "rounds=1", "resources.executor=local", "proxy=null", out=folder, progress=False)
    with caplog.at_level("INFO"):
        report(folder)
    (line,) = [line.strip() for text in caplog.messages for line in text.splitlines() if "flray resume" in line]
    assert shlex.split(line.removeprefix("next:"))[:3] == ["flray", "resume", "runs/first try"]


@pytest.mark.parametrize(
    ("section", "proposed"),
    [
        ({}, True),
        ({"tasks": {"name": "class_incremental", "num_tasks": 5}}, False),
        ({"uplink": [{"name": "clip"}, {"name": "gaussian", "epsilon": 8.0, "where": "server"}]}, False),
        ({"uplink": [{"name": "clip"}, {"name": "gaussian", "noise": 1.0, "where": "server"}]}, True),
        ({"cohort": {"from": "cohorts.csv"}}, False),
    ],
)
def test_a_grid_proposes_more_rounds_only_where_resume_takes_them(tmp_path, caplog, section, proposed):
    """`rounds` over tasks are those of each, and an epsilon or a cohort file holds for the rounds that were planned."""
    for seed in (0, 1):
        folder(tmp_path / str(seed), config(seed=seed, **section), [0.5, 0.6, 0.7])
    with caplog.at_level("INFO"):
        report_grid(flray.compare([tmp_path]).frame, tmp_path)
    said = "".join(caplog.messages)
    assert ("flray resume" in said) is proposed and "flray figure curves" in said
    assert not proposed or f"flray resume {tmp_path / '0'} rounds=6" in said


def test_the_first_page_is_one_screen_and_names_every_verb():
    """24 lines of 80 columns; a verb of before is on no page."""
    page = stdout("--help")
    assert len(page.splitlines()) <= 24 and max(map(len, page.splitlines())) <= 80
    shown = {name for name, command in get_command(app).commands.items() if not command.hidden}
    assert {*VERBS} | {*MORE} == shown and all(re.search(rf"\b{name}\b", page) for name in shown)
    assert not {"watch", "reproduce", "evidence"} & shown


@pytest.mark.parametrize(
    ("words", "new"),
    [
        (["reproduce", "fedsol"], "flray papers reproduce"),
        (["watch", "nowhere/at/all"], "flray show RUN --follow"),
        (["watch", "nowhere", "--help"], "flray show RUN --follow"),
        (["evidence", "--dry-run"], "flray papers evidence"),
    ],
)
def test_a_verb_of_before_does_what_it_did_and_names_the_new_one(words, new):
    before, after = (invoke(*verb, *words[1:]) for verb in ([words[0]], new.replace("RUN ", "").split()[1:]))
    assert f"note: flray {words[0]} is now {new}" in before.stderr
    assert (before.stdout, before.exit_code, str(before.exception)) == (
        after.stdout,
        after.exit_code,
        str(after.exception),
    )


def test_the_keys_that_the_help_of_a_verb_names_are_those_that_it_takes():
    """`resume` takes another end of the time as well; `pretrain` refuses a grid."""
    help = " ".join(invoke("resume", "--help").stdout.split())
    assert "rounds, until, resources, address, checkpoint, storage, track, profile" in help
    assert "grid" not in invoke("pretrain", "--help").stdout


@pytest.mark.parametrize("words", ["-q watch nowhere/at/all", "watch -q nowhere/at/all", "-q reproduce none"])
def test_quiet_silences_the_note_of_a_verb_of_before(words):
    answer = invoke(*words.split())
    assert answer.exit_code and "note:" not in answer.stderr


def test_what_resembles_a_verb_of_before_names_the_new_one():
    for word, new in (("watc", "flray show RUN --follow"), ("reproduc", "flray papers reproduce"), ("shwo", "show")):
        assert f"No such command '{word}'. Did you mean '{new}'?" in invoke(word).stderr


def test_a_name_with_colons_or_brackets_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    name = "hf:notes: [red]x[/red] :smile:"
    table = Table(title=escape(name), caption=escape(name))
    table.add_column(escape(name))
    table.add_row(escape(name))
    console().print(table)
    assert capsys.readouterr().out.count(name) == 4
    assert plain_text(table) == f"{name}\n" * 4
    print_rows([{name: name}], name)
    assert capsys.readouterr().out == f"{name}\n" * 3


def test_the_help_of_curves_names_its_axes_and_no_other() -> None:
    (help,) = (option.help for option in get_command(app).commands["figure"].params if option.name == "x")
    assert re.findall(r"[a-z]+", re.sub(r"\(.*?\)", "", help)) == ["curves", *AXES]


@pytest.mark.parametrize("name", ["end\\", "[b]\\", "\\[b]", "[/b]"])
def test_a_name_that_ends_like_an_escape_is_printed_as_it_is(name, tmp_path, capsys):
    """In tables of runs, of records and in a run's page: as a title, a heading, a cell, a caption."""
    for right in (True, False):
        table = rich_table([name], [[name]], [right], name, name)
        console().print(table)
        assert capsys.readouterr().out.count(name) == 4
        assert [line.strip() for line in plain_text(table).splitlines()] == [name] * 4
    print_rows([{name: name}], name)
    assert capsys.readouterr().out == f"{name}\n" * 3
    run = folder(tmp_path / name.replace("/", ""), config(), [0.5])
    assert plain_text(sheet_of(Run(run))).startswith(f"{run}\n")


@pytest.mark.parametrize("columns", [30, 60, 200])
def test_the_numbers_of_a_table_are_whole_on_a_terminal_of_any_width(tmp_path, monkeypatch, capsys, columns) -> None:
    """Of 30 columns it is plain text, of 60 the headings have two lines, of 200 one."""
    frame = compare([folder(tmp_path / str(seed), config(seed=seed), [0.12345, 0.54321]) for seed in (10, 11)])
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("flray.cli.output.is_terminal", lambda stream: True)
    output.show(render(frame))
    shown = capsys.readouterr().out
    assert all(shown.count(number) == 2 for number in ("54.32", "33.33", "500 B", "1.0 s")), shown
    assert ("│" in shown) == (columns > 30) and ("last 10 tests %" in shown) == (columns != 60)
    assert "FedAvg" in shown and "…" not in shown
