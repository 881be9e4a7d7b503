"""A run folder as an object, and the package as a newcomer meets it."""

import pandas

import flray
from flray.results import Run


def test_the_package_shows_what_it_has():
    """`run` and its like are imported when first used; completion in a notebook asks `dir`."""
    assert {"run", "resume", "load", "Run", "Algorithm"} <= set(dir(flray))
    assert all(getattr(flray, name) is not None for name in dir(flray))


def test_a_run_shows_where_it_stands_also_while_it_goes_on(tmp_path):
    folder = tmp_path / "r"
    (folder / "rounds").mkdir(parents=True)
    (folder / "STATUS").write_text("running\n")
    run = Run(folder)
    assert repr(run) == f"Run('{folder}', running, 0 rounds)"
    rows = pandas.DataFrame({"round": [1, 2, 3], "test/acc": [0.5, 0.76321, None]})
    rows.to_parquet(folder / "rounds" / "part-0000.parquet")
    (folder / "STATUS").write_text("finished\n")
    assert repr(run) == f"Run('{folder}', finished, 3 rounds, test/acc 0.7632)"
    (folder / "rounds" / "part-0000.parquet").write_bytes(b"")
    assert repr(run) == f"Run('{folder}', finished, damaged)"
