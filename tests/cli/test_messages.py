"""What a command says about wrong words: one line, before anything is read, trained or imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import invoke

QUICK = str(Path(__file__).parents[2] / "configs" / "quickstart.yaml")
# (the command, with QUICK for the quickstart; what it says)
MESSAGES = (
    ("compare /nowhere --format xml", "unknown --format 'xml' (valid: csv, json, latex, markdown, table)"),
    (
        "figure forgetting /nowhere",
        "unknown figure 'forgetting': take tasks (after each task) or local_forgetting (in a round)",
    ),
    ("figure curvse /nowhere", "unknown figure 'curvse' (did you mean 'curves'?)"),
    ("figure regions /nowhere --rounds abc", "--rounds abc: give numbers from 1, with commas, e.g. 1,5,20"),
    ("figure regions /nowhere --rounds 0,1", "--rounds 0,1: give numbers from 1, with commas, e.g. 1,5,20"),
    (
        "figure regions /nowhere --out film.gif --style paper",
        "--style writes a PDF, an SVG and a PNG, and film.gif is a film; leave --style out",
    ),
    (
        "figure landscape /nowhere --rounds 3",
        "--rounds changes nothing in flray figure landscape; leave it out (flray figure --help)",
    ),
    (
        "figure memory /nowhere --metric test/loss",
        "--metric changes nothing in flray figure memory; leave it out (flray figure --help)",
    ),
    ("report /nowhere --out page.pdf", "unknown report format 'pdf' (valid: html, json, md)"),
    ("bench --format xml", "unknown --format 'xml' (valid: json, markdown, table)"),
    ("bench --only W9", "unknown benchmark 'W9' (did you mean 'W2'?)"),
    ("run rounds=2 QUICK", "rounds=2 is in the place of the configuration file: write the file first, then key=value"),
    ("doctor QUICK --nodes 0", "--nodes 0: give numbers from 1, with commas, e.g. 1,8,100"),
    (
        "plan QUICK --nodes 1,3 --gpu h100 --measure m.json rounds=2",
        "flray plan is a table of flray doctor now: flray doctor CONFIG --nodes 1,100",
    ),
    ("ablate QUICK seed=0,1 --concurrency 0", "--concurrency 0: auto, or a number of at least 1"),
    ("reproduce fedsol --concurrency x", "--concurrency x: auto, or a number of at least 1"),
    (
        "pretrain QUICK algorithm=fedprox",
        "pretrain trains in one place, algorithm fedprox does not; leave algorithm out",
    ),
    (
        "pretrain QUICK seed=0,1",
        "pretrain trains one model, these overrides make 2; give one value for each key",
    ),
)


@pytest.mark.parametrize(("words", "message"), MESSAGES, ids=[words for words, _ in MESSAGES])
def test_a_wrong_command_says_in_one_line_what_to_write(words: str, message: str) -> None:
    error = invoke(*([QUICK if word == "QUICK" else word for word in words.split()])).exception
    assert str(error) == message
