"""What the processes of a run's actors have written: their nodes, the files, and the ends of those that are here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flray.rundir.reader import Run

LINES = 20  # of the end of each file
TAIL = 2**18  # bytes of the end in which these lines are looked for
MARKS = (":job_id:", ":actor_name:", ":task_name:")  # lines that Ray writes for itself


def process_logs(run: Run) -> list[str]:
    """Lines of text: each process of the run (actor, node, process id, file) and the last `LINES` lines of its output
    and its errors, where the file is on this machine.

    A run in one process has none.
    """
    processes: list[dict[str, Any]] = run.environment["actors"].get("processes", [])
    if not processes:
        return [f"{run.folder}: no actors; a run with resources.executor=local writes to its own terminal"]
    text = []
    for process in processes:
        text.append(f"{process['actor']}  node {process['node']}  pid {process['pid']}  {process['log'] or 'no file'}")
        for path in _files(process["log"]):
            text += [f"    {line}" for line in _end(path)]
    return text


def _files(log: str | None) -> list[Path]:
    """The file of the output and the file of the errors, as far as they are on this machine."""
    if log is None:
        return []
    return [path for path in (Path(log), Path(log).with_suffix(".err")) if path.is_file()]


def _end(path: Path) -> list[str]:
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - TAIL, 0))
        lines = file.read().decode(errors="replace").splitlines()
    return [line for line in lines if line.strip() and not line.startswith(MARKS)][-LINES:]
