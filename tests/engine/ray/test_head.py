"""A head of this machine alone: on loopback, with a token, and gone with the process that started it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flray.engine.ray.head import LocalHead
from flray.engine.ray.versions import knows_tokens
from tests.support.heads import BIN, listening, processes_of

tokens = pytest.mark.skipif(not knows_tokens(), reason="this Ray knows no token")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), tokens]


def submit(head: LocalHead, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / "ray", "job", "submit", "--address", head.jobs, "--", "echo", "RAN"],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )


def wait_until_gone(folder: Path) -> None:
    until = time.monotonic() + 60
    while processes_of(folder):
        assert time.monotonic() < until, f"left running: {processes_of(folder)}"
        time.sleep(0.2)


def test_it_takes_jobs_of_who_has_its_token_and_listens_on_loopback_alone() -> None:
    with LocalHead(cpus=1) as head:
        assert "RAN" in submit(head, **head.environment).stdout
        refused = submit(head, **head.environment | {"RAY_AUTH_TOKEN": "0" * 64})
        assert refused.returncode != 0 and "AuthenticationError" in refused.stdout
        processes = processes_of(head.folder)
        assert processes and set(listening(processes)) <= {"127.0.0.1", "::ffff:7f00:1", "::1"}
    wait_until_gone(head.folder)
    assert not head.folder.exists()
    head.stop()  # again: nothing to do


def test_it_ends_with_a_process_that_fails() -> None:
    code = (
        "from flray.engine.ray.head import LocalHead; print(LocalHead(cpus=1).folder, flush=True); raise SystemExit(3)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=240)
    assert done.returncode == 3
    folder = Path(done.stdout.strip())
    wait_until_gone(folder)
    assert not folder.exists()
