"""A Ray of a process's own: what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from flray.engine.ray.private import start


def test_names_of_semaphores_go_with_their_raylet(tmp_path, monkeypatch):
    """Two a channel stay in /dev/shm when a compiled graph ends: those of a raylet of ours go at once, those of a dead
    one after an hour; what a living one has stays, and what is no channel's."""
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    gone, ours, old = int(dead.stdout), 2**22 + 1, time.time() - start.FORGOTTEN_S - 1
    names = {f"sem.hdr{ours}-1": None, f"sem.obj{gone}-2": old, f"sem.obj{gone}-3": None}
    names |= {f"sem.hdr{os.getpid()}-4": old, "sem.mine": old, f"psm_{gone}": old}
    for name, moment in names.items():
        (tmp_path / name).touch()
        if moment is not None:
            os.utime(tmp_path / name, (moment, moment))
    monkeypatch.setattr(start, "SHARED", tmp_path)
    start.drop_semaphores(ours)
    left = {f"sem.obj{gone}-3", f"sem.hdr{os.getpid()}-4", "sem.mine", f"psm_{gone}"}
    assert {path.name for path in tmp_path.iterdir()} == left
