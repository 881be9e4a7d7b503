"""A run folder from somebody else is data: looking at it runs no code that it names."""

import contextlib
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import flray
from flray.core.schema.errors import FlrayError
from flray.files import read_checksummed, with_checksum
from tests.support.commands import invoke, succeeded

MODULE = "foreign_module"
LOOKS = (
    "show {folder}", "runs {parent}", "compare {folder} {folder}", "figure curves {folder} --out {parent}/curves.png",
    "report {folder} --out {parent}/report", "watch {folder} --format json",
)  # fmt: skip


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that imported a module, whose text now writes the file `ran` beside the folder when it is imported."""
    home = tmp_path_factory.mktemp("foreign")
    module, folder = home / f"{MODULE}.py", home / "run"
    module.write_text("")
    settings = {
        "rounds": 2, "imports": [MODULE], "data": {"source": "iris"}, "partition": {"name": "iid", "clients": 3},
        "algorithm": "fedavg", "model": {"name": "mlp", "hidden": [4]}, "resources": {"executor": "local"},
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(home)
        flray.run(settings, out=folder, progress=False)
        module.write_text(f"open({str(home / 'ran')!r}, 'w').close()\n")
        yield folder


@pytest.fixture(autouse=True)
def _not_imported(foreign: Path) -> None:
    sys.modules.pop(MODULE, None)
    (foreign.parent / "ran").unlink(missing_ok=True)


@pytest.mark.parametrize("words", LOOKS, ids=lambda words: words.split()[0])
def test_a_command_that_looks_imports_nothing_that_the_folder_names(foreign: Path, words: str) -> None:
    command = words.format(folder=foreign, parent=foreign.parent).split()
    succeeded(*command)
    assert MODULE not in sys.modules and not (foreign.parent / "ran").exists()


def test_tables_are_read_without_it_and_the_experiment_is_not(foreign: Path) -> None:
    """`experiment` is a record of the algorithm's class, which the named module may define: it is imported."""
    run = flray.load(foreign)
    assert len(run.rounds) == 2 and len(run.clients) and len(run.tests) and run.status == "finished"
    assert not (foreign.parent / "ran").exists()
    assert run.experiment.imports == (MODULE,)
    assert (foreign.parent / "ran").exists()


def test_the_files_of_a_folder_are_of_kinds_that_contain_no_code(foreign: Path) -> None:
    files = [path for path in foreign.rglob("*") if path.is_file()]
    kinds = {path.suffix for path in files if not path.name.startswith("events.out.tfevents")}
    assert kinds <= {"", ".csv", ".json", ".npy", ".parquet", ".safetensors", ".yaml"}
    for path in foreign.rglob("*.npy"):
        np.load(path, allow_pickle=False)


# what a folder says, and what is in the place of its files ------------------------------------------
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\u2066\x08\x7f"  # title, erase, C1, right to left, isolate, back
NOT_SHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def copied(foreign: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(foreign, tmp_path / "runs" / "run"))


@pytest.mark.parametrize("words", LOOKS, ids=lambda words: words.split()[0])
def test_no_control_character_of_a_folder_reaches_a_terminal_or_a_page(copied: Path, words: str) -> None:
    """In STATUS, in the configuration's names, in a column's name, in a text of environment.json."""
    (copied / "STATUS").write_text(f"failed: {EVIL}\n", encoding="utf-8")
    config = yaml.safe_load((copied / "config.yaml").read_text())
    config["name"] = config["model"]["name"] = f"a{EVIL}b"
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    noted = read_checksummed(copied / "environment.json")
    noted["git"] = {"commit": EVIL, "changed": False}
    noted["packages"]["torch"] = EVIL
    (copied / "environment.json").write_text(with_checksum(noted))
    part = next((copied / "rounds").iterdir())
    table = pq.read_table(part).replace_schema_metadata({})
    pq.write_table(table.append_column(f"x/{EVIL}", pa.array([1.0] * len(table))), part)
    done = invoke(*words.format(folder=copied, parent=copied.parent).split())
    assert done.exception is None or isinstance(done.exception, FlrayError | SystemExit), done.output
    said = [done.stdout, done.stderr, str(done.exception)]
    said += [path.read_text() for path in copied.parent.glob("report*") if path.is_file()]
    assert not [NOT_SHOWN.search(text) for text in said if NOT_SHOWN.search(text)]


@pytest.mark.parametrize(
    "kind",
    ["pipe", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("folder", "device", "dangling", "socket"))],
)
def test_what_is_no_regular_file_is_one_line_and_nobody_waits(copied: Path, kind: str) -> None:
    """In the place of each file in turn: a named pipe is one that a reader waits for, /dev/zero never ends."""
    files = [
        "STATUS",
        "config.yaml",
        "environment.json",
        ".lock",
        "rounds/part-0000.parquet",
        "tests/part-0000.parquet",
    ]
    files += ["partition/partition.json", "partition/table.csv", "model.safetensors"]
    for name in files:
        path = copied / name
        before = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        if kind == "socket":
            server = socket.socket(socket.AF_UNIX)
            with contextlib.chdir(path.parent):  # a socket's path has 108 characters
                server.bind(path.name)
            server.close()
        else:
            {
                "pipe": os.mkfifo, "folder": Path.mkdir, "device": lambda path: path.symlink_to("/dev/zero"),
                "dangling": lambda path: path.symlink_to("/nowhere/at/all"),
            }[kind](path)  # fmt: skip
        for words in LOOKS[:3] if name != "model.safetensors" else ("run {folder}/config.yaml model.weights={folder}",):
            command = words.format(folder=copied, parent=copied.parent).split()
            done = invoke(*command)
            error = done.exception
            assert error is None or isinstance(error, FlrayError | SystemExit), (name, words, repr(error))
            assert "Traceback" not in done.output and "\n" not in str(error)
        path.rmdir() if kind == "folder" else path.unlink()
        if before is not None:
            path.write_bytes(before)
