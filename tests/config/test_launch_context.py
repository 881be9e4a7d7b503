"""Where a run was started, as its folder remembers it."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import flray
from flray.config.launch_context import find_modules, launch_context, started_in, working_directory
from flray.config.loader import load_config
from flray.core.schema.errors import ConfigError, ResourceError
from tests.support.processes import python


def test_modules_and_relative_paths_of_a_run_are_those_of_its_start(tmp_path, monkeypatch):
    start, run = tmp_path / "start", tmp_path / "run"
    start.mkdir(), run.mkdir()
    (start / "own_module_of_test_home.py").write_text("X = 1\n")
    with monkeypatch.context() as then:
        then.chdir(start)
        then.syspath_prepend(str(start))
        (run / "environment.json").write_text(json.dumps({"started": launch_context()}))
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = os.getcwd()
    with started_in(run):
        assert Path("own_module_of_test_home.py").exists()
    assert os.getcwd() == before
    find_modules(run)
    import own_module_of_test_home

    assert own_module_of_test_home.X == 1
    length = len(sys.path)
    find_modules(run)
    assert len(sys.path) == length


def test_only_what_is_not_the_installation_is_kept():
    assert not [
        entry for entry in launch_context()["path"] if "site-packages" in entry or entry.startswith(sys.base_prefix)
    ]


def test_a_folder_that_is_gone_or_a_damaged_record_is_passed_over(tmp_path):
    before = os.getcwd(), [*sys.path]
    for record in ('{"started": {"folder": "/nowhere", "path": ["/nowhere"]}}', "{", "[]", '{"started": 3}'):
        (tmp_path / "environment.json").write_text(record)
        find_modules(tmp_path)
        with started_in(tmp_path):
            assert (os.getcwd(), sys.path) == before


def in_thread(block):
    """Whether a `with` block can begin in another thread; raises its error."""

    def enter():
        with block:
            return os.getcwd()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(enter).result()


def test_the_working_directory_of_a_process_is_not_changed_under_a_run_of_another_thread(tmp_path):
    """A run that began elsewhere is refused, and so is a new one while such a run goes on; within a thread both
    nest."""
    start, run, before = tmp_path / "start", tmp_path / "run", os.getcwd()
    start.mkdir(), run.mkdir()
    (run / "environment.json").write_text(json.dumps({"started": {"folder": str(start), "path": []}}))
    with working_directory():
        with pytest.raises(ResourceError, match=f"{run} began in {start}, and another run of this process"):
            in_thread(started_in(run))
        with started_in(run):
            assert os.getcwd() == str(start)
    with started_in(run):
        with pytest.raises(ResourceError, match=f"this process is in {start} and not in {before}"):
            in_thread(working_directory())
        with working_directory(), started_in(run):
            assert os.getcwd() == str(start)
    assert in_thread(started_in(run)) == str(start) and os.getcwd() == before


@pytest.fixture
def gone(tmp_path, monkeypatch):
    """A working directory that is removed, and "" in `sys.path`, as in a console or a notebook."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.syspath_prepend("")
    yield
    os.chdir(tmp_path)  # pytest asks where it is


GONE = r"^this process's working directory is gone; change to one that exists \(os.chdir, in a shell cd\)$"


@pytest.mark.parametrize("config", ["iris.yaml", "/iris.yaml", {"data": "iris", "model": "mlp"}])
def test_a_run_where_the_working_directory_is_gone_is_one_line(gone, tmp_path, config):
    for begin in (flray.run, flray.ablate):
        with pytest.raises(ConfigError, match=GONE):
            begin(config, out=tmp_path / "run")
    for folder in (tmp_path, "run"):
        with pytest.raises(ConfigError, match=GONE):
            flray.resume(folder)
    iris = {"data": "iris", "model": "mlp", "partition": {"name": "iid", "clients": 3}, "rounds": 1}
    with pytest.raises(ConfigError, match=GONE):
        next(flray.api.play(load_config({**iris, "algorithm": "fedavg"})[0], tmp_path / "run"))


def test_modules_of_relative_folders_need_the_working_directory_and_others_do_not(gone, tmp_path, monkeypatch):
    for needs in (lambda: find_modules(tmp_path), launch_context, lambda: started_in(tmp_path).__enter__()):
        with pytest.raises(ConfigError, match=GONE):
            needs()
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if os.path.isabs(entry)])
    find_modules(tmp_path)


@pytest.mark.parametrize("command", [["run", "iris.yaml"], ["list", "models"], ["resume", "run"]])
def test_commands_say_it_in_the_same_line(gone, command):
    said = python("-m", "flray", *command, status=2).stderr
    assert said.startswith("error: this process's working directory is gone;") and said.count("\n") == 1
