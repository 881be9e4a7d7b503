"""A small sweep on iris, and what it suggested, saw and judged."""

import json
from pathlib import Path
from typing import Any

from flray.tuning.trials import trials_table
from tests.support.iris_sweep import EXPERIMENT, SPACE

SWEEP = {
    "name": "tiny",
    "experiment": {**EXPERIMENT, "checkpoint": {"every": 2}},
    "space": SPACE,
    "trials": 6,
    "scheduler": {"name": "asha", "grace": 2, "reduction": 2},
    "concurrency": 1,
    "final": {"top": 1, "seeds": 2},
}


def found(folder):
    """What a sweep suggested and saw, without times."""
    table = trials_table(folder)
    return table.drop(columns=["seconds"]).to_dict("records")


def rungs(folder):
    """What ASHA judged, without times."""
    saved = json.loads((folder / "rungs.json").read_text())
    for facts in saved["stopped"].values():
        del facts["seconds"]
    return saved


def suggested(folder: Path) -> tuple[list[dict[str, Any]], list[Any], int]:
    """What was suggested and seen, the rungs, and how many trials were stopped: without times, and without the trials'
    numbers, of which a driver that is killed while it asks for a trial uses one up."""
    table = trials_table(folder).drop(columns=["trial", "folder", "seconds"]).astype(object)
    rungs = json.loads((folder / "rungs.json").read_text())
    values = [[at, [value for _, value in sorted(recorded.items())]] for at, recorded in rungs["rungs"]]
    return table.where(table.notna(), None).to_dict("records"), values, len(rungs["stopped"])
