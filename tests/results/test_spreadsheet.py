"""CSV whose text no spreadsheet computes."""

import io

import pandas as pd

from flray.results.rendering import csv


def test_text_that_begins_like_a_formula_is_text_and_numbers_stay():
    cells = ["=1+1", "+cmd", "-2-3", "@sum", "fedavg", "a=b"]
    frame = pd.DataFrame({"run": cells, "=x": [-1.5, 0.25, -2.0, 3.0, float("nan"), 1.0]})
    read = pd.read_csv(io.StringIO(csv(frame)))
    assert read["run"].tolist() == ["'=1+1", "'+cmd", "'-2-3", "'@sum", "fedavg", "a=b"]
    assert read["'=x"].iloc[:4].tolist() == [-1.5, 0.25, -2.0, 3.0] and pd.isna(read["'=x"].iloc[4])
