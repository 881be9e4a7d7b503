"""What a user sees of a run: stages before the first round, and what a server does that works for minutes."""

import logging
import threading
from types import SimpleNamespace

import pytest

from flray.contracts.played import Local
from flray.engine import progress
from tests.contracts.table import TABLE, experiment


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


def test_what_takes_long_is_told_once_each_time_that_it_changes(monkeypatch, capsys):
    monkeypatch.setattr(progress, "ASK_EVERY_S", 0.001)
    monkeypatch.setattr(progress, "LINE_EVERY_S", -1.0)
    texts, over = iter(["", "GAN 1/9", "GAN 1/9", "", "GAN 2/9"]), threading.Event()

    def long_work():
        text = next(texts, None)
        if text is None:
            over.set()
        return text or ""

    with progress.Progress("fedmemo on digits", 3, long_work=long_work):
        assert over.wait(60)
    assert capsys.readouterr().err == "fedmemo on digits  GAN 1/9\nfedmemo on digits  GAN 2/9\n"
    with progress.Progress("fedmemo on digits", 3, enabled=False, long_work=long_work) as show:
        assert show._follower is None


@pytest.mark.parametrize(
    ("terminal", "quiet", "shown"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_items_are_counted_on_a_terminal_that_is_not_quiet(monkeypatch, capsys, caplog, terminal, quiet, shown):
    """The label is a place's name and no markup."""
    monkeypatch.setattr(progress, "is_terminal", lambda _: terminal)
    caplog.set_level(logging.WARNING if quiet else logging.INFO, "flray")
    assert list(progress.tracked(["a", "b"], "loss around runs[/x]", "point")) == ["a", "b"]
    said = capsys.readouterr().err
    assert ("loss around runs[/x]" in said and "2/2" in said) if shown else said == ""


class Heard:
    """The server's progress, as a list."""

    def __init__(self):
        self.calls = []

    def __call__(self, *call):
        self.calls.append(call)

    def end(self):
        pass


@pytest.mark.parametrize(
    ("name", "options", "what"),
    [
        ("target", {}, "TARGET makes inputs"),
        ("lander", {}, "LANDER makes inputs"),
        ("mfcl", {}, "MFCL trains its generator"),
        pytest.param("glfc", {}, "GLFC reconstructs images", marks=pytest.mark.slow),
        ("fedmemo", {"trigger": "scheduled"}, "FedMemo trains its GAN"),
        ("fedmemo", {"trigger": "scheduled", "mode": "client"}, "FedMemo trains its generator"),
    ],
)
def test_every_server_that_may_work_for_minutes_says_how_far_it_is(tmp_path, name, options, what):
    run, heard = Local(experiment(name, options, **TABLE[name].sections), tmp_path), Heard()
    run.server.progress = heard
    run.play(3)
    steps = [(done, total) for _, about, done, total in heard.calls if about == what]
    assert steps and all(0 <= done <= total for done, total in steps)


@pytest.mark.parametrize("fails", ["_begin", "_show"])
def test_a_display_that_fails_is_one_warning_and_the_rounds_go_on(monkeypatch, capsys, fails):
    """As a notebook's whose kernel has lost its client."""

    def gone(*_):
        raise RuntimeError("no client")

    monkeypatch.setattr(progress.Progress, fails, gone)
    with pytest.warns(UserWarning, match="display failed .*no client.*; the run goes on without it") as said:
        with progress.Progress("fedavg", 3) as show:
            for _ in range(3):
                show({"test/acc": 0.5})
        monkeypatch.undo()
    assert show.done == 3 and len(said) == 1 and capsys.readouterr().err == ""


def test_a_bar_that_fails_is_stopped():
    stopped = []

    def gone(*_, **__):
        raise RuntimeError("no terminal")

    with pytest.warns(UserWarning, match="display failed .*no terminal"), progress.Progress("fedavg", 1) as show:
        show._bar = SimpleNamespace(update=gone, stop=lambda: stopped.append("bar"))
        show({"test/acc": 0.5})
    assert stopped == ["bar"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (999_400, "999 kB"), (999_600, "1 MB"), (1_000_000, "1 MB"), (999.6e9, "1 TB"),
     (1.5e12, "1.5 TB")],
)  # fmt: skip
def test_a_size_has_the_unit_of_its_three_digits(count, text):
    assert progress.size(count) == text and progress.size(count, "") == text[:-1].rstrip()
