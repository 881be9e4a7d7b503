"""What a run has besides the usual setting, as `flray show` says it."""

from pathlib import Path
from typing import Any

import pytest

import flray
from flray.cli.finished import report
from flray.results.essentials import conditions, essentials, privacy
from flray.results.tables import settings
from flray.rundir.reader import Run
from tests.support.tables import config, folder

QUICK = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


def _run(path: Path, columns: dict[str, list[Any]], **sections: Any) -> Run:
    """Three rounds with these columns besides the usual ones."""
    return Run(folder(path, config(**sections), [0.1, 0.2, 0.3], **columns))


def test_a_default_run_has_no_such_line(tmp_path):
    plain = _run(tmp_path / "a", {}, aggregation=None, uplink=[], coordination={"name": "synchronous"})
    assert conditions(plain, settings(plain)) == {} and privacy(plain) == ""


def test_each_condition_has_its_line(tmp_path):
    """2, 4 and 3 late clients are 3.0 a round; no client left."""
    clip = {"name": "clip", "norm": 1.0, "adaptive": None, "adaptive_lr": 0.2}
    run = _run(
        tmp_path / "a",
        {"clients_late": [2, 4, 3], "clients_lost": [0, 0, 0]},
        aggregation={"name": "trimmed_mean", "trim": 0.1},
        uplink=[{"name": "sign_flip", "clients": 0.2}, clip],
        coordination={"name": "deadline", "seconds": 2.5, "late": "drop", "share": None},
    )
    assert conditions(run, settings(run)) == {
        "aggregation": "trimmed_mean trim 0.1",
        "uplink": "sign_flip clients 0.2; clip norm 1",
        "coordination": "deadline seconds 2.5, late drop; 3.0 clients a round late",
    }
    assert list(essentials(run))[:5] == ["run", "status", "aggregation", "uplink", "coordination"]
    adaptive = _run(tmp_path / "b", {}, uplink=[{**clip, "adaptive": 0.5}])
    assert conditions(adaptive, settings(adaptive))["uplink"] == "clip norm 1, adaptive 0.5, adaptive_lr 0.2"


def test_a_private_run_says_the_epsilon_of_its_last_round(tmp_path):
    spent = {"dp/epsilon_if_poisson": [1.0, 2.0, 2.5], "dp/delta": [1e-5] * 3}
    noise = [{"name": "gaussian", "noise": 1.0, "epsilon": None}]
    assumed = _run(tmp_path / "a", spent, uplink=noise)
    assert conditions(assumed, settings(assumed)) == {
        "uplink": "gaussian noise 1",
        "privacy": "epsilon 2.50 at delta 1e-05, as if each client had been drawn independently",
    }
    drawn = _run(tmp_path / "b", {"dp/epsilon": [1.0, 2.0, 3.0], "dp/delta": [1e-6] * 3}, uplink=noise)
    assert privacy(drawn) == "epsilon 3.00 at delta 1e-06"


@pytest.mark.slow
def test_the_end_of_a_private_run_prints_its_epsilon(tmp_path, capsys, caplog):
    """The noise is solved for an epsilon of 8 after two rounds; a resume for four would be refused."""
    uplink = "uplink=[{name: clip}, {name: gaussian, epsilon: 8}]"
    words = ["rounds=2", "model.hidden=[8]", "resources.executor=local", "cohort.sampling=poisson", uplink]
    flray.run(QUICK, *words, out=tmp_path / "run", progress=False)
    with caplog.at_level("INFO"):
        report(tmp_path / "run")
    assert "privacy: epsilon 8.00 at delta 1e-05\n" in capsys.readouterr().out
    assert "flray figure curves" in "".join(caplog.messages) and "flray resume" not in "".join(caplog.messages)
