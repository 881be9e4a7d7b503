"""The page "Compare with other code": its script is FedAvg in plain PyTorch, whose weights flray's are equal to."""

import os
import runpy
from pathlib import Path

import pytest

from tests.support.pages import blocks

PAGE = Path(__file__).parents[1] / "docs" / "pages" / "how-to" / "compare_code.md"


@pytest.mark.parametrize(("dtype", "most"), [pytest.param("float32", 1e-6, marks=pytest.mark.slow), ("float64", 1e-12)])
def test_ten_rounds_of_the_script_are_equal(tmp_path, monkeypatch, dtype, most):
    """Every weight after every round; and the first round has moved far more than that."""
    (script,) = blocks(PAGE.read_text(encoding="utf-8"), "python")
    assert script.count('DTYPE = "float32"') == 1
    monkeypatch.chdir(tmp_path)
    Path("compare.py").write_text(script.replace('DTYPE = "float32"', f'DTYPE = "{dtype}"'), encoding="utf-8")
    ran = runpy.run_path("compare.py")
    assert len(ran["differences"]) == ran["ROUNDS"] == 10
    assert max(ran["differences"]) < most
    start, last = ran["run"].weights(0), ran["run"].weights()
    assert all(str(tensor.dtype) == f"torch.{dtype}" for tensor in last.values())
    assert max(float((last[name] - start[name]).abs().max()) for name in last) > 0.1
    # each file is read: with another schedule the weights are others
    record = ran["run"].environment["fingerprints"]
    assert record["cohorts"] and record["batch_order"] and os.path.exists("partition.csv")
