"""The line that says how far a server's long work is."""

from flray.core.protocol.clock import Clock
from flray.rundir import progress_file
from flray.rundir.progress_file import ProgressFile


def test_it_is_written_once_a_second_and_gone_with_the_work(tmp_path):
    now, folder = [0.0], tmp_path / "run"
    folder.mkdir()
    report, moment = ProgressFile(lambda: folder, lambda: now[0]), Clock(2, phase="task_begin")
    seen = []
    for step in range(40):
        report(moment, "TARGET makes inputs", step, 40)
        seen.append(progress_file.read(folder))
        now[0] += 0.25
    assert seen[:4] == ["", "", "", ""]  # what takes less than a second is not shown
    assert seen[4:8] == ["task 2 (0 is the first), task begin: TARGET makes inputs 4/40"] * 4
    assert len(set(seen)) == 10
    report.end()
    assert progress_file.read(folder) == "" and list(folder.iterdir()) == []


def test_work_of_many_short_parts_is_one_work_and_another_moment_another(tmp_path):
    now = [0.0]
    report = ProgressFile(lambda: tmp_path, lambda: now[0])
    for part in range(3):
        report(Clock(done=part), "GAN", 1, 9)
        now[0] += 0.9
    assert progress_file.read(tmp_path) == ""
    for _ in range(3):
        report(Clock(done=2), "GAN", 1, 9)
        now[0] += 0.9
    assert progress_file.read(tmp_path) == "task 0, round 1: GAN 1/9"
    progress_file.remove(tmp_path)
    assert progress_file.read(tmp_path) == ""


def test_where_it_cannot_be_written_the_work_goes_on(tmp_path):
    now = [0.0]
    report = ProgressFile(lambda: tmp_path / "nowhere", lambda: now[0])
    report(Clock(), "GAN", 1, 9)
    now[0] = 5.0
    report(Clock(), "GAN", 2, 9)
    report.end()
    assert progress_file.read(tmp_path / "nowhere") == ""
