"""What `flray run --dry-run` shows first: the keys that differ from the file, and from the defaults."""

from __future__ import annotations

from pathlib import Path

from flray.config.differences import from_defaults, from_file
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


def test_a_file_that_alone_is_no_configuration_has_nothing_to_differ_from(tmp_path):
    grid = tmp_path / "grid.yaml"
    grid.write_text(f"extends: {FILE.absolute()}\nalgorithm:\n  unknown_key: 1\n")
    (cell,) = load_config(FILE, [])
    assert from_file(cell, grid, []) == []
