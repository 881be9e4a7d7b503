"""What is already in the folder of a grid's cell."""

from pathlib import Path

import pytest
import yaml

from flray.config.grid import cell_status, labels
from flray.config.loader import load_config
from flray.core.schema.errors import CheckpointError, ConfigError
from tests.support.messages import facts

QUICK = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


def test_a_run_of_a_flray_that_did_not_know_all_keys_is_gone_on_with(tmp_path):
    """What the older one did not write has today's default; another value of it is another experiment."""
    (cell,) = load_config(QUICK)
    older = yaml.safe_load(cell.yaml())
    del older["on_nonfinite"], older["evaluate"]["every"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(older))
    (tmp_path / "STATUS").write_text("finished")
    assert cell_status(cell, tmp_path) == "finished"
    with pytest.raises(CheckpointError, match=facts("evaluate.every", 1, 7)):
        cell_status(load_config(QUICK, ["evaluate.every=7"])[0], tmp_path)


def test_what_a_resume_may_change_makes_no_other_experiment(tmp_path):
    """A grid can be gone on with by a tracker, other checkpoints or other actors; more rounds are another grid."""
    (tmp_path / "config.yaml").write_text(load_config(QUICK)[0].yaml())
    (tmp_path / "STATUS").write_text("interrupted after round 3")
    (cell,) = load_config(QUICK, ["track=[mlflow]", "checkpoint.every=3", "resources.executor=local"])
    assert cell_status(cell, tmp_path) == "resumed"
    with pytest.raises(CheckpointError, match=facts("rounds", 30, 40, f"flray resume {tmp_path} rounds=40, give ano")):
        cell_status(load_config(QUICK, ["rounds=40"])[0], tmp_path)
    with pytest.raises(CheckpointError, match=facts("rounds", 30, 20, "; give rounds=30, give another --out")):
        cell_status(load_config(QUICK, ["rounds=20"])[0], tmp_path)
    with pytest.raises(CheckpointError, match=facts("rounds", 30, 40, "40 here; give another --out")):
        cell_status(load_config(QUICK, ["rounds=40", "algorithm.lr=0.7"])[0], tmp_path)
    (tmp_path / "STATUS").write_text("diverged in round 3")
    with pytest.raises(CheckpointError, match=facts("rounds", 30, 40, "40 here; give another --out")):
        cell_status(load_config(QUICK, ["rounds=40"])[0], tmp_path)


@pytest.mark.parametrize(
    "fixed", ["tasks.num_tasks=2", "uplink=[{name: clip, norm: 1.0}, {name: gaussian, epsilon: 8, delta: 1e-3}]"]
)
def test_a_run_that_no_more_rounds_continue_is_not_to_be_continued(tmp_path, fixed):
    (tmp_path / "config.yaml").write_text(load_config(QUICK, [fixed])[0].yaml())
    (tmp_path / "STATUS").write_text("finished")
    with pytest.raises(CheckpointError, match="rounds is 30 there, 40 here; give another --out"):
        cell_status(load_config(QUICK, ["rounds=40", fixed])[0], tmp_path)


@pytest.mark.parametrize(
    "override",
    [
        "drift={name: remove_classes, classes: [0], from_round: 2}",
        "evaluate.validation=0.1",
        "aggregation=median",
        "tasks={num_tasks: 2}",
        "devices={speed: equal}",
        "uplink=[{name: topk, fraction: 0.5}]",
    ],
)
def test_a_section_that_only_one_of_two_experiments_has_makes_them_two(tmp_path, override):
    """In a folder with it, and in one without it."""
    key, plain, other = override.partition("=")[0], load_config(QUICK)[0], load_config(QUICK, [override])[0]
    for there, wanted in ((other, plain), (plain, other)):
        (tmp_path / "config.yaml").write_text(there.yaml())
        (tmp_path / "STATUS").write_text("finished")
        with pytest.raises(CheckpointError, match=facts("holds another experiment", key)):
            cell_status(wanted, tmp_path)
        assert cell_status(there, tmp_path) == "finished"


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("algorithm=fedavg,fedavg", "fedavg"),
        ("seed=0,0", "0"),
        ("seed=0..3,2", "2"),
        ("algorithm.lr=0.1,0.2,0.1", "0.1"),
        ("preset=small/small", "small"),
    ],
)
def test_a_value_that_is_there_twice_is_one_line(override, value):
    """Two cells would race for one folder."""
    with pytest.raises(ConfigError, match=facts(f"override {override.partition('=')[0]}=", value, "twice")):
        load_config(QUICK, [override])


def test_values_that_come_to_the_same_are_one_line():
    with pytest.raises(ConfigError, match=facts("folder fedavg", "give each value once", "--out")):
        labels(load_config(QUICK, ["algorithm.lr=1,1.0"]))


def test_a_section_that_only_some_cells_have_names_their_folders():
    drift = '{"name":"remove_classes","classes":[0],"from_round":2}'
    cells = [load_config(QUICK, [f"drift={text}"])[0] for text in ("none", drift)]
    assert [name.rpartition("-")[2] for name in labels(cells)] == ["driftnone", "driftremove_classes"]
