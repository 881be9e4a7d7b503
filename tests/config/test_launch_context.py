"""Where a run was started, as its folder remembers it."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flray.config.launch_context import find_modules, launch_context, started_in, working_directory
from flray.core.schema.errors import ResourceError


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
