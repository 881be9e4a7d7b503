"""A disk that is full before the first round, or in the middle of a run: one line, a STATUS, and the same bits once
there is room."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import flray
from flray.api import play
from flray.core.errors import FlrayError
from tests.engine.test_faults import config, model

Disk = tuple[Path, Callable[[], None], Callable[[], None]]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """(a file system of 1 MB, fill it, make room again)."""
    home = tmp_path / "disk"
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", home]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small tmpfs: a full disk is not tried")

    def fill() -> None:
        with contextlib.suppress(OSError), (home / "fill").open("ab", buffering=0) as file:
            while True:
                file.write(b"0" * 4096)

    try:
        yield home, fill, (home / "fill").unlink
    finally:
        subprocess.run(["umount", "-l", home], check=True)


def test_full_before_the_first_round_leaves_nothing_of_a_run(ray_cluster, disk):
    home, fill, make_room = disk
    fill()
    with pytest.raises(FlrayError, match="No space left") as error:
        flray.run(config(rounds=1), out=home / "run", progress=False)
    assert "\n" not in str(error.value)
    make_room()
    assert flray.run(config(rounds=1), out=home / "run", progress=False).status == "finished"


def test_full_after_some_rounds_says_so_in_status_and_resumes_to_the_same_bits(ray_cluster, disk, tmp_path):
    home, fill, make_room = disk
    settings = config(rounds=6)
    rows = play(settings, home / "run")
    for _ in range(3):
        next(rows)
    fill()
    with pytest.raises(FlrayError, match=r"No space left|disk is full") as error:
        list(rows)
    assert "\n" not in str(error.value) and f"flray resume {home / 'run'}" in str(error.value)
    status = flray.load(home / "run").status
    assert status.startswith("failed: ") and ("No space left" in status or "disk is full" in status)
    assert not [path for path in (home / "run").iterdir() if path.name.startswith(".")], "nothing half-written stays"
    make_room()
    run = flray.resume(home / "run", progress=False)
    assert run.status == "finished" and run.rounds["round"].tolist() == [1, 2, 3, 4, 5, 6]
    assert model(run.folder) == model(flray.run(settings, out=tmp_path / "whole", progress=False).folder)
