"""A run that is left after a round and gone on with, and the bytes of a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flray
from flray.config.experiment import Experiment
from flray.running import play


def continued(
    experiment: Experiment, folder: Path, done: int, changes: Sequence[str] = (), **options: Any
) -> flray.Run:
    """The run that is left after so many rounds, over all tasks, and resumed with `changes`; `options` of `play`."""
    rows = play(experiment, folder, **options)
    while next(rows)["done"] < done:
        pass
    rows.close()
    assert flray.load(folder).status.startswith(f"paused after round {done}; continue with: flray resume")
    return flray.resume(folder, *changes, progress=False)


def model(of: flray.Run | Path) -> bytes:
    """The file of the final model."""
    return ((of if isinstance(of, Path) else of.folder) / "model.safetensors").read_bytes()
