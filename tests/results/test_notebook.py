"""What a notebook shows of a run: its table in HTML, also of a damaged one, and its curves as a picture."""

from pathlib import Path

import pandas
import pytest

from flray.core.schema.errors import CheckpointError, ConfigError
from flray.results import compare, summary
from flray.results.notebook import Run, load
from flray.results.rendering import Table
from tests.support.tables import config, folder


def test_a_run_shows_itself_and_draws_its_curves(tmp_path: Path) -> None:
    run = load(folder(tmp_path / "<run>", config(seed=3), [0.5, None, 0.75]))
    shown = run._repr_html_()
    assert "<td>algorithm</td><td>FedAvg</td>" in shown and "<td>test/acc</td><td>75.00 %</td>" in shown
    assert "<td>rounds done</td><td>3</td>" in shown and "&lt;run&gt;" in shown and "<run>" not in shown
    figure = run.plot()
    assert figure.axes[0].lines[0].get_xydata().tolist() == [[1, 50], [3, 75]]
    assert figure._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="test/ac"):
        run.plot("test/ac")


def test_a_damaged_run_is_one_line_and_none_is_an_error(tmp_path: Path) -> None:
    path = folder(tmp_path / "run", config(), [0.5])
    (path / "rounds" / "part-0000.parquet").write_bytes(b"no table")
    assert "damaged" in Run(path)._repr_html_()
    with pytest.raises(CheckpointError, match=r"is damaged .*continue without its rows: flray resume"):
        load(path).rounds  # noqa: B018
    with pytest.raises(CheckpointError, match="is not a run folder"):
        load(tmp_path / "nothing")


def test_a_table_shows_itself_as_flray_compare_does(tmp_path: Path) -> None:
    runs = [folder(tmp_path / str(seed), config(seed=seed), [value]) for seed, value in enumerate([0.5, 0.75, 1.0])]
    table = Table(summary(compare(runs)))
    shown = table._repr_html_()
    assert '<td style="text-align: right"><b>test acc %</b></td>' in shown
    assert '<td style="text-align: left">FedAvg</td>' in shown and '<td style="text-align: right">75.00</td>' in shown
    assert "95 % t-interval" in shown and "test acc %" in repr(table)
    assert table.frame["mean"].tolist() == [0.75]
    table.frame.attrs["caption"] = "±: half < the interval\nglobal: of all tasks"
    assert "<small>±: half &lt; the interval<br>global: of all tasks</small>" in table._repr_html_()


def test_a_run_that_diverged_before_its_first_test_has_the_column(tmp_path: Path) -> None:
    path = folder(tmp_path / "run", config(), [0.5], "diverged in round 1: client 3: train/loss is nan")
    part = path / "rounds" / "part-0000.parquet"
    pandas.read_parquet(part).drop(columns="test/acc").to_parquet(part)
    assert load(path).rounds["test/acc"].isna().tolist() == [True]
    (path / "STATUS").write_text("finished\n")
    assert "test/acc" not in load(path).rounds
