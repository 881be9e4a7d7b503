"""What a user sees of a run: stages before the first round."""

import pytest

from flray.engine import progress


@pytest.mark.parametrize(("slow", "lines"), [(-1.0, 2), (1e9, 1)])
def test_a_stage_is_told_when_it_begins_and_its_time_when_it_was_slow(monkeypatch, capsys, slow, lines):
    monkeypatch.setattr(progress, "SLOW_S", slow)
    with progress.stage("reading data"):
        assert capsys.readouterr().err == "reading data\n"
    after = capsys.readouterr().err.splitlines()
    assert len(after) == lines - 1
    assert all(line.startswith("reading data: ") and line.endswith(" s") for line in after)


def test_a_silent_stage(capsys):
    with progress.stage("reading data", enabled=False):
        pass
    assert capsys.readouterr().err == ""
