"""Run folders written by hand, for tests that only read."""

from pathlib import Path
from typing import Any

import pandas
import yaml

Config = dict[str, Any]


def config(algorithm: str = "fedavg", seed: int = 0, lr: float = 0.1, **more: Any) -> Config:
    return {
        "name": "hand",
        "seed": seed,
        "rounds": 3,
        "model": {"name": "mlp", "hidden": [8]},
        "algorithm": {"name": algorithm, "lr": lr} | ({"rho": 1.5} if algorithm == "fedsol" else {}),
        "resources": {"client_actors": seed + 1},
        **more,
    }


def folder(
    path: Path, values: Config | None, accuracies: list[float | None], status: str | None = "finished", **columns: Any
) -> Path:
    """A run with these accuracies of its rounds; `columns` of `rounds` are more, or in the place of the usual."""
    path.mkdir(parents=True)
    if values is not None:
        (path / "config.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    if status is not None:
        (path / "STATUS").write_text(status + "\n")
    if accuracies:
        rows = pandas.DataFrame(
            {"done": range(1, len(accuracies) + 1), "test/acc": pandas.Series(accuracies, dtype=float)}
        )
        usual = {"comm/up_bytes": 100, "comm/down_bytes": 150, "time/round_s": 0.5}
        put(path, "rounds", rows.assign(**{**usual, **columns}))
    return path


def put(run: Path, name: str, rows: Any) -> Path:
    """The run with these rows in a table such as `rounds` or `diagnostics/conflict`."""
    (run / name).mkdir(parents=True, exist_ok=True)
    pandas.DataFrame(rows).to_parquet(run / name / "part-0000.parquet")
    return run


def changed(run: Path, **columns: Any) -> Path:
    """The run with other columns in `rounds`."""
    return put(run, "rounds", pandas.read_parquet(run / "rounds").assign(**columns))


def by_seed(root: Path, **accuracies: list[float]) -> list[Path]:
    """`fedavg=[...]`: a finished run of each seed with that accuracy."""
    return [
        folder(root / f"{name}-{seed}", config(name, seed), [accuracy])
        for name, values in accuracies.items()
        for seed, accuracy in enumerate(values)
    ]
