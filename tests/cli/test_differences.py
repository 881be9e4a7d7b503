"""What `flray run --dry-run` shows first: the keys that differ from the file, and from the defaults."""

from pathlib import Path

from flray.cli.runs import from_defaults, from_file
from flray.config.loader import load_config

FILE = Path("configs/quickstart.yaml")


def test_only_what_the_command_line_changed_differs_from_the_file():
    (same,) = load_config(FILE, [])
    (other,) = load_config(FILE, ["algorithm=feddf", "rounds=2", "algorithm.distill_lr=0.001"])
    assert from_file(same, FILE, []) == []
    assert from_file(other, FILE, []) == [
        "rounds: 2 (file: 30)",
        "algorithm.name: feddf (file: fedavg)",
        "algorithm.distill_lr: 0.001 (file: no such key)",
    ]


def test_what_differs_from_the_defaults_is_what_the_file_says():
    (cell,) = load_config(FILE, ["algorithm.lr=0.01", "evaluate.every=5"])
    found = from_defaults(cell)
    assert "evaluate.every: 5 (default: 1)" in found and "cohort.size: 10 (default: null)" in found
    assert not any(line.startswith(("algorithm.lr", "seed", "precision", "algorithm.momentum")) for line in found)


def test_a_model_s_and_a_partition_s_own_defaults_are_no_differences():
    """alpha must be given; variant and max_retries are filled in for dirichlet, activation is the MLP's own."""
    (cell,) = load_config(FILE, ["model.activation=relu", "partition.min_size=15"])
    found = [line for line in from_defaults(cell) if line.startswith(("model.", "partition."))]
    assert [line.split(":")[0] for line in found] == [
        "partition.name", "partition.clients", "partition.alpha", "model.name", "model.hidden",
    ]  # fmt: skip
    assert "partition.alpha: 0.3" in found and "model.hidden: [64] (default: [200])" in found


def test_a_section_that_is_left_out_differs_from_the_file():
    (cell,) = load_config(FILE, ["proxy=null"])
    assert from_file(cell, FILE, []) == ["proxy: null (file: a section)"]


def test_options_of_a_source_are_no_defaults():
    """`data.options` of the text tasks of GLUE is a mapping."""
    file = Path("configs/fedmemo/glue_short.yaml")
    assert any(line.startswith("data.options.sets: ") for line in from_defaults(load_config(file, [])[0]))


def test_a_file_that_alone_is_no_configuration_has_nothing_to_differ_from(tmp_path):
    grid = tmp_path / "grid.yaml"
    grid.write_text(f"extends: {FILE.absolute()}\nalgorithm:\n  unknown_key: 1\n")
    (cell,) = load_config(FILE, [])
    assert from_file(cell, grid, []) == []
