"""What is already in the folder of a grid's cell."""

from pathlib import Path

import pytest
import yaml

from flray.core.errors import CheckpointError
from flray.grid import cell_status
from flray.loader import load_config

QUICK = Path(__file__).parent.parent / "configs" / "quickstart.yaml"


def test_a_run_of_a_flray_that_did_not_know_all_keys_is_gone_on_with(tmp_path):
    """What the older one did not write has today's default; another value of it is another experiment."""
    (cell,) = load_config(QUICK)
    older = yaml.safe_load(cell.yaml())
    del older["on_nonfinite"], older["evaluate"]["every"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(older))
    (tmp_path / "STATUS").write_text("finished")
    assert cell_status(cell, tmp_path) == "finished"
    with pytest.raises(CheckpointError, match=r"evaluate\.every is 1 there, 7 here"):
        cell_status(load_config(QUICK, ["evaluate.every=7"])[0], tmp_path)
