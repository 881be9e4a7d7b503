"""Standard output and error that nobody reads, that are full, or that are not there."""

import contextlib
import io
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flray.streams import PatientStream, is_terminal

ROOT = Path(__file__).parents[1]


def flray(*words: str, shell: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`flray WORDS` with its streams as a shell redirects them."""
    command = f"'{sys.executable}' -m flray {' '.join(words)} {shell}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=240
    )


@pytest.mark.parametrize(
    ("shell", "code", "says"),
    [
        pytest.param(">&-", 0, "", marks=pytest.mark.slow),
        pytest.param("2>&-", 0, "", marks=pytest.mark.slow),
        ("<&- >&- 2>&-", 0, ""),
        ("> /dev/full", 2, "error: cannot write to stdout: the disk is full"),
        pytest.param("2> /dev/full", 0, "", marks=pytest.mark.slow),
        pytest.param("| head -n 1", 0, "", marks=pytest.mark.slow),
        ("2>&1 | head -c 1", 0, ""),
    ],
)
def test_a_command_ends_as_it_should_whatever_its_streams_are(tmp_path, shell, code, says):
    done = flray("list", "config", shell=shell, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert done.stderr.strip().startswith(says) and "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert done.stderr.count("\n") <= bool(says)


def test_a_standard_output_that_lacks_characters_writes_them_as_escapes(tmp_path):
    """U+00B1, a sign in the tables' columns of intervals, in ASCII and in Latin 1."""
    code = "from flray import streams; streams.open_standard_streams(); print(chr(0xB1), chr(0x3BC))"
    for encoding, written in (("ascii", b"\\xb1 \\u03bc\n"), ("latin-1", b"\xb1 \\u03bc\n")):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding}
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True)
        assert done.stdout == written, done.stderr


def test_a_file_does_not_get_the_number_of_a_closed_standard_error(tmp_path):
    """What a library writes to the number 2 would stand in the middle of that file."""
    code = (
        "from flray.streams import open_standard_streams; import os; open_standard_streams()\n"
        "with open('f', 'w') as file: os.write(2, b'noise'); os.write(1, b'noise'); assert file.fileno() > 2"
    )
    done = subprocess.run(["bash", "-c", f"'{sys.executable}' -c \"{code}\" >&- 2>&-"], cwd=tmp_path, check=False)
    assert done.returncode == 0 and (tmp_path / "f").read_text() == ""


def test_a_reader_that_sleeps_is_not_waited_for_and_is_told_what_it_missed():
    """A pipe holds 64 kB. The writer gives up after its patience and never waits again while the pipe is full."""
    reading, writing = os.pipe()
    with open(writing, "w") as pipe:
        stream = PatientStream(pipe, wait_s=0.2)
        began = time.monotonic()
        for number in range(20_000):
            stream.write(f"line {number}\n")
        assert time.monotonic() - began < 10
        os.set_blocking(reading, False)
        read = b""
        for _ in range(100):
            try:
                read += os.read(reading, 65536)
            except BlockingIOError:
                break
        whole = read.decode().splitlines()
        assert whole[:100] == [f"line {number}" for number in range(100)] and len(whole) < 20_000
        stream.write("after\n")
        said = os.read(reading, 65536).decode().splitlines()
        assert "lines are left out here" in said[-2] and said[-1] == "after"
    os.close(reading)


def test_a_terminal_that_has_vanished_is_no_error():
    leader, follower = pty.openpty()
    with contextlib.suppress(OSError), open(follower, "w") as terminal:  # closing it fails
        stream = PatientStream(terminal)
        assert stream.isatty() and stream.write("here\n") == 5
        os.close(leader)
        assert stream.write("gone\n") == 5 and not is_terminal(None)


def test_a_closed_stream_and_none_are_no_terminals_and_take_nothing():
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        assert not is_terminal(stream) and PatientStream(stream).write("x") == 1
