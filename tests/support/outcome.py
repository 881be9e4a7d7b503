"""What a run leaves behind, as values that compare equal when their bits do."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.numpy import load_file

from flray.contracts.played import flatten
from flray.results.notebook import Run
from flray.rundir import checkpoint


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows without the clocks; None where there is no value, and lists spelled out (NaN in them), so that equal rows
    compare equal."""
    kept = table[[c for c in table.columns if not c.startswith("time/")]]
    kept = kept.map(lambda value: repr(value.tolist()) if isinstance(value, np.ndarray) else value)
    return kept.astype(object).where(kept.notna(), None).to_dict("records")


def weights(folder: Path) -> dict[str, bytes] | None:
    """The bytes of the final model by tensor; None where there is none."""
    path = folder / "model.safetensors"
    return {n: a.tobytes() for n, a in load_file(path).items()} if path.exists() else None


def contents(run: Run) -> dict[str, Any]:
    """Everything that must not depend on who computed it."""
    last = checkpoint.latest(run.folder)
    assert last is not None
    return {
        "model": weights(run.folder),
        "rounds": records(run.rounds),
        "clients": records(run.clients),
        "tests": records(run.tests),
        "tasks": records(run.tasks),
        "personal": records(run.personal),
        "server": {n: a.tobytes() for n, a in flatten(last.server.message()).items()},
    }
