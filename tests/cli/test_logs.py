"""What the processes of a run have written, as `flray show DIR --logs` prints it."""

from pathlib import Path

from flray.cli.begin import LINES, process_logs
from flray.files import with_checksum
from flray.rundir.reader import Run


def test_each_process_has_its_place_and_the_ends_of_its_files_that_are_here(tmp_path: Path) -> None:
    log = tmp_path / "worker-1.out"
    log.write_text(":job_id:01000000\n:actor_name:ClientActor\n\n" + "".join(f"line {i}\n" for i in range(LINES + 3)))
    log.with_suffix(".err").write_text("a warning\n")
    processes = [
        {"actor": "client-0", "node": "10.0.0.1", "pid": 7, "log": str(log)},
        {"actor": "client-1", "node": "10.0.0.2", "pid": 8, "log": "/nowhere/worker-2.out"},
        {"actor": "server", "node": "10.0.0.1", "pid": 9, "log": None},
    ]
    (tmp_path / "environment.json").write_text(with_checksum({"actors": {"processes": processes}}))
    text = process_logs(Run(tmp_path))
    assert text[0] == f"client-0  node 10.0.0.1  pid 7  {log}"
    assert text[1:] == [
        *(f"    line {i}" for i in range(3, LINES + 3)),
        "    a warning",
        "client-1  node 10.0.0.2  pid 8  /nowhere/worker-2.out",
        "server  node 10.0.0.1  pid 9  no file",
    ]


def test_a_run_in_one_process_has_none(tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text(with_checksum({"actors": {"client_actors": 0}}))
    (line,) = process_logs(Run(tmp_path))
    assert str(tmp_path) in line and "resources.executor=local" in line
