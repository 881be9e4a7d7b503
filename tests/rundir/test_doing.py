"""The line about what a server does just now."""

from __future__ import annotations

from flray.core.protocol.clock import Clock
from flray.rundir.doing import Doing, clear, doing


def test_it_is_written_once_a_second_and_gone_with_the_work(tmp_path):
    now, folder = [0.0], tmp_path / "run"
    folder.mkdir()
    tell, moment = Doing(lambda: folder, lambda: now[0]), Clock(2, phase="task_begin")
    seen = []
    for step in range(40):
        tell(moment, "TARGET makes inputs", step, 40)
        seen.append(doing(folder))
        now[0] += 0.25
    assert seen[:4] == ["", "", "", ""]  # what takes less than a second is not told
    assert seen[4:8] == ["task 2, task begin: TARGET makes inputs 4/40"] * 4
    assert len(set(seen)) == 10
    tell.over()
    assert doing(folder) == "" and list(folder.iterdir()) == []


def test_work_of_many_short_parts_is_one_work_and_another_moment_another(tmp_path):
    now = [0.0]
    tell = Doing(lambda: tmp_path, lambda: now[0])
    for part in range(3):
        tell(Clock(done=part), "GAN", 1, 9)
        now[0] += 0.9
    assert doing(tmp_path) == ""
    for _ in range(3):
        tell(Clock(done=2), "GAN", 1, 9)
        now[0] += 0.9
    assert doing(tmp_path) == "task 0, round 1: GAN 1/9"
    clear(tmp_path)
    assert doing(tmp_path) == ""


def test_where_it_cannot_be_written_the_work_goes_on(tmp_path):
    now = [0.0]
    tell = Doing(lambda: tmp_path / "nowhere", lambda: now[0])
    tell(Clock(), "GAN", 1, 9)
    now[0] = 5.0
    tell(Clock(), "GAN", 2, 9)
    tell.over()
    assert doing(tmp_path / "nowhere") == ""
