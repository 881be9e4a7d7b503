"""`flray papers evidence --detectors`: the scores of real runs in the table, and the page from that table alone."""

from pathlib import Path

import pytest
import yaml

from flray.core.schema.errors import CheckpointError
from flray.reference.evidence import DETECTORS as RUNS, SCORED, SCORES, collect, evidence, read_table
from flray.reference.evidence_page import markdown
from flray.results.detectors import DETECTORS, compare_detectors
from flray.tuning.sweep_file import load_sweep
from tests.support.commands import succeeded
from tests.support.latent import CONFIG

CONFIGS = Path(__file__).parents[2] / "configs"
DRIFT = {"name": "remove_classes", "classes": [0, 1, 2, 3, 4], "from_round": 36, "to_round": 40}


@pytest.mark.slow
def test_the_verb_runs_collects_and_writes_what_the_detectors_say(tmp_path):
    (tmp_path / "fedsol").mkdir()
    (tmp_path / "fedsol" / "_common.yaml").touch()  # what makes a folder the configurations
    presets = {"quiet": {"drift": None}}
    config = {**CONFIG, "name": "toy", "rounds": 42, "checkpoint": 0, "drift": DRIFT, "presets": presets}
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(config))
    setting = {"config": "toy.yaml", "about": "Digits", "runs": ["preset=quiet", "rounds=42"], "seeds": 2}
    (tmp_path / "runs.yaml").write_text(yaml.safe_dump({"settings": {"toy": setting}, "claims": []}))
    verb = ["papers", "evidence", "--detectors", "--claims", str(tmp_path / "runs.yaml"), "--configs", str(tmp_path)]
    succeeded(*verb, "--run", tmp_path / "runs")
    where = ["--table", str(tmp_path / "t.parquet"), "--page", str(tmp_path / "page.md")]
    result = succeeded(*verb, *where, "--collect", tmp_path / "runs")
    assert "4 runs" in result.output, result.output

    table = read_table(tmp_path / "t.parquet", SCORED)
    assert len(table) == 4 * len(DETECTORS) and set(table["seed"]) == {0, 1} and set(table["done"]) == {42}
    assert set(table.loc[table["run"] == "preset=quiet", "drift"]) == {False}
    folders = sorted((tmp_path / "runs" / "toy").glob("rounds-42/*seed*"))
    expected = compare_detectors(folders)
    page = (tmp_path / "page.md").read_text()
    for name in ("classes", "literal, rho 0.7"):
        row = next(line for line in page.splitlines() if line.startswith(f"| {name} ") and line.count("|") == 8)
        assert [float(cell) for cell in row.split("|")[2:4]] == pytest.approx(
            expected.loc[name, ["f1", "f1_adjusted"]].tolist(), abs=1e-3
        )
    content = evidence(tmp_path / "runs.yaml").model_copy(update={"detectors": True})
    assert "2 of 2 seeds" in page and markdown(table, content) == page
    with pytest.raises(CheckpointError, match="toy"):
        collect(tmp_path / "none", tmp_path, content)


def test_the_page_of_the_stored_table_has_every_setting():
    """Its numbers are those of the page that was committed: of cusum on digits 3 of 1,000 quiet rounds, and so on."""
    page = markdown(read_table(SCORES, SCORED), evidence(RUNS).model_copy(update={"detectors": True}))
    assert page.startswith("# Detectors of vanished classes") and page.count("not run") == 0
    assert page.count("of 20 seeds") == 7 and page.count("of 6 seeds") == 2


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["preset=small", "drift=null", "rounds=530", f"experiment.extends={CONFIGS}/fedmemo/cifar10_full_short.yaml"],
        ["drift=null", "algorithm.trigger=latched", f"experiment.extends={CONFIGS}/fedmemo/cifar10_full_short.yaml"],
    ],
    ids=["digits", "small", "full"],
)
def test_the_sweep_reads_no_drift_and_no_seed_that_is_judged(overrides):
    sweep = load_sweep(CONFIGS / "sweeps" / "fedmemo_detector.yaml", overrides)
    trial = sweep.experiment(sweep.search_space.example())
    assert trial.drift is None and trial.algorithm.trigger == "latched"
    assert trial.seed >= max(setting.seeds for setting in evidence(RUNS).settings.values())
    assert trial.rounds - trial.algorithm.detector.warmup >= 500


def test_every_setting_is_planned_with_and_without_a_drift():
    for setting in evidence(RUNS).settings.values():
        cells = [cell for run in setting.runs for cell in setting.cells(run, CONFIGS)]
        drifts = [cell.drift is not None for cell in cells]
        assert len(cells) == setting.seeds * len(setting.runs) and drifts.count(False) == setting.seeds
        assert all("latent_forgetting" in str(cell.diagnostics) for cell in cells)
