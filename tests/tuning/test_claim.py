"""Sweeps that begin at the same moment on one storage: one of them has the study, the others one line each."""

import subprocess
import sys
from pathlib import Path

import optuna
import pytest

from flray.tuning.beginning import ATTRIBUTE
from flray.tuning.studies import open_storage

ROOT = Path(__file__).parents[2]


def together(url: str, root: Path, count: int, rounds: int) -> list[list[str]]:
    """What each of `count` processes printed for each of `rounds` sweeps, which all begin at once."""
    words = [sys.executable, "-m", "tests.tuning.starts", url, str(root)]
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [
        subprocess.Popen([*words, str(number), str(count), str(rounds)], cwd=ROOT, **pipe) for number in range(count)
    ]
    try:
        for process in started:
            assert process.stdout.readline() == "ready\n", process.stderr.read()
        for process in started:
            process.stdin.write("go\n")
            process.stdin.flush()
        said = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), said
    return [output.splitlines() for output, _ in said]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("database", ["one", "one each", "journal"])
def test_of_sweeps_that_begin_at_the_same_moment_one_has_the_study(tmp_path: Path, database: str) -> None:
    """Three processes with another seed each; eight times a new name in one SQLite file, which one of them makes, a new
    SQLite file, and a journal, that is, one folder. The study has the seed of the sweep that began."""
    count, rounds = 3, 8
    urls = {"one": f"sqlite:///{tmp_path}/all.db", "one each": f"sqlite:///{tmp_path}/{{}}.db", "journal": "journal"}
    said = together(urls[database], tmp_path, count, rounds)
    for each in range(rounds):
        lines = [output[each] for output in said]
        assert sorted(line == "won" for line in lines) == [False] * (count - 1) + [True], lines
        winner = lines.index("won")
        for number, line in enumerate(lines):
            if number != winner:
                known = f"seed is {winner} there, {number} here"
                named = f"already holds s{each}; give this sweep another name" in line and known in line
                # a folder has a lock, which may be held for some milliseconds; who comes after them finds a sweep there
                refusals = (f"holds another sweep: {known}", "is in use", "sweep by now", "already holds a sweep")
                folder = any(refusal in line for refusal in refusals)
                assert (folder if database == "journal" else named) and "SQL" not in line and "\\n" not in line, line
        url = None if database == "journal" else urls[database].format(each)
        storage = open_storage(url, tmp_path / f"shared-{each}")
        study = optuna.load_study(study_name=f"s{each}", storage=storage)
        assert study.user_attrs[ATTRIBUTE]["sweep"]["seed"] == winner
