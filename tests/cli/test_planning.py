"""`flray plan` as a command: JSON, files of measurements, sweeps, and errors in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flray.cli import app
from flray.core.schema.errors import ConfigError

ROOT = Path(__file__).parents[2]
QUICK = str(ROOT / "configs" / "quickstart.yaml")
SMALL = ("--together", "1", "--seconds", "0.01")


def planned(*words: object) -> dict:
    done = CliRunner().invoke(app, ["plan", *map(str, words), "--format", "json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_plan_from_a_file_is_the_plan_that_was_measured(tmp_path):
    file = tmp_path / "m.json"
    first = planned(QUICK, *SMALL, "--nodes", "1,3", "--cpus-per-node", 4, "--measure", file)
    assert [row["nodes"] for row in first["plans"]] == [1, 3] and first["assumptions"]
    again = planned(QUICK, *SMALL, "--nodes", "1,3", "--cpus-per-node", 4, "--measured", file)
    assert again == first and first["measured"]["timed"]
    gpus = planned(
        QUICK, *SMALL, "--measured", file, "resources.client.num_gpus=1", "--gpu", "h100", "--gpus-per-node", 8
    )
    assert gpus["plans"][0]["gpus"] == 8 and gpus["plans"][0]["round_s"] != first["plans"][0]["round_s"]
    with pytest.raises(ConfigError, match=r"measured with algorithm.batch_size: \d+, the configuration has 7"):
        CliRunner().invoke(
            app, ["plan", QUICK, *SMALL, "--measured", str(file), "algorithm.batch_size=7"], catch_exceptions=False
        )


def test_tables_name_every_part_and_assumption():
    done = CliRunner().invoke(app, ["plan", QUICK, *SMALL])
    for what in ("actors", "memory: server", "a round", "the run", "cost", "bottleneck", "change", "* measured on "):
        assert what in done.stdout, done.output


def test_a_sweep_is_so_many_trials_at_a_time():
    sweep = ROOT / "configs" / "sweeps" / "fedsol_rho.yaml"
    found = planned(sweep, "trials=10", "scheduler=none", "concurrency=auto", *SMALL, "--cpus-per-node", 4)
    (row,) = found["plans"]
    assert (row["trials"], row["at_once"]) == (10, 4)
    # one start; 10 trials in 3 turns, 1 x 3 final runs in one
    assert row["sweep_s"] == pytest.approx(6.6 + 4 * row["trial_s"])


def test_trials_share_gpus_as_their_actors_do():
    """Half a GPU each: 4 trials on 2 nodes of one GPU; the CPUs would hold 16."""
    sweep = ROOT / "configs" / "sweeps" / "fedsol_rho.yaml"
    half = ("experiment.resources.client.num_gpus=0.5", "experiment.resources.client.num_cpus=1")
    gpus = ("--gpu", "t4", "--gpus-per-node", 1, "--cpus-per-node", 8, "--nodes", 2)
    (row,) = planned(sweep, "trials=10", "concurrency=auto", *half, *gpus)["plans"]
    assert row["at_once"] == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nodes", "0"], "--nodes 0: give numbers from 1, with commas, e.g. 1,8,100"),
        (["--gpu", "h1000", "--gpus-per-node", "8"], "unknown --gpu 'h1000' (did you mean 'h100'?)"),
        (["--gpu", "h100"], "--gpu h100: also say how many a node has, for example --gpus-per-node 8"),
        (["--utilisation", "0.5"], "--utilisation is the share of a stated peak: it needs --gpu NAME"),
        (["--measured", "a", "--measure", "b"], "--measured reads a file and --measure writes one: give one of them"),
        (["--network", "fast"], "--network fast: write a number above 0 and a unit"),
        (["--measured", "/nowhere/m.json"], "--measured /nowhere/m.json: No such file or directory; write it with"),
        (["algorithm=centralized"], "algorithm centralized has no clients"),
        (["seed=0..2"], "flray plan takes one experiment, these overrides make 3"),
    ],
)
def test_errors_are_one_line(words, message):
    with pytest.raises(ConfigError) as error:
        CliRunner().invoke(app, ["plan", QUICK, *words], catch_exceptions=False)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_a_file_that_is_no_measurement(tmp_path):
    file = tmp_path / "m.json"
    file.write_text('{"a": 1}')
    with pytest.raises(ConfigError, match=r"is no file of flray plan --measure.*--measure .*/m.measured.json"):
        CliRunner().invoke(app, ["plan", QUICK, "--measured", str(file)], catch_exceptions=False)
    with pytest.raises(ConfigError, match="would overwrite a file that is no measurement"):
        CliRunner().invoke(app, ["plan", QUICK, *SMALL, "--measure", str(file)], catch_exceptions=False)
    assert file.read_text() == '{"a": 1}'
