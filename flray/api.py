"""flray from Python: run an experiment, resume a run, load the results of one.

result = flray.run("configs/quickstart.yaml", "algorithm=fedavg", rounds=10)
result = flray.resume(result.folder, rounds=20)
flray.load("runs/quickstart/fedavg-seed0").rounds  # a DataFrame, one row a round
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flray.core.errors import ConfigError
from flray.experiment import RESUMABLE, Experiment
from flray.loader import load_config
from flray.overrides import pairs
from flray.rundir.folder import default_folder
from flray.rundir.reader import Run, load
from flray.rundir.uri import is_uri, split
from flray.whereabouts import started_in

__all__ = ["Run", "load", "resume", "run"]


def run(
    config: str | Path | Mapping[str, Any] | Experiment,
    *overrides: str,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: bool = True,
    imports: Sequence[str] = (),
    **values: Any,
) -> Run:
    """Run one experiment and return its results; what goes on is shown on stderr (`progress=False`: nothing).

    `config` is a YAML file, a mapping or an `Experiment`; overrides as on the command line (`"algorithm.lr=0.1"`) or by keyword
    (`rounds=5`). `out` is the run folder (default `runs/NAME/...`). Raises `FlrayError` in one line.
    """
    cells = load_config(config, pairs(overrides, values), imports)
    if len(cells) != 1:
        raise ConfigError(f"flray.run takes one experiment, these overrides make {len(cells)}; loop over load_config(...)")
    from flray.engine.simulation import simulate

    folder = Path(out) if out is not None else default_folder(cells[0])
    simulate(cells[0], folder, overwrite=overwrite, progress=progress)
    return load(folder)


def resume(
    folder: str | Path,
    *overrides: str,
    out: str | Path | None = None,
    accept: Sequence[str] = (),
    progress: bool = True,
    **values: Any,
) -> Run:
    """Continue a run from its last good checkpoint; only `rounds`, `resources`, `address`, `checkpoint`, `storage` may change.

    What else changed since the run began (an edited config.yaml, data, starting weights, the source of your own modules) is an
    error, unless `accept` names it; `environment.json` then says so for ever.
    The URI of a run in a storage is downloaded to `out/NAME` first (default `runs/NAME`). Raises `FlrayError` in one line.
    """
    from flray.engine.simulation import simulate
    from flray.rundir.download import download

    changes = pairs(overrides, values)
    if is_uri(folder):
        changes.setdefault("storage", json.dumps(split(str(folder))[0]))  # quoted: its commas make no grid
        folder = download(str(folder), out or "runs")
    elif out is not None:
        raise ConfigError(f"resume: out is where a run from a storage goes; {folder} is continued where it is")
    folder, shown = Path(folder).absolute(), folder
    if not (folder / "config.yaml").exists():
        raise ConfigError(f"{shown} is not a run folder: it has no config.yaml; start one with flray run CONFIG --out {shown}")
    wrong = [k for k in changes if k.split(".")[0] not in RESUMABLE or k == "resources.store"]
    if wrong:
        raise ConfigError(f"resume: {wrong[0]} would make it another experiment; only {', '.join(RESUMABLE)} may change")
    with started_in(folder):  # relative paths in its configuration are those of that folder
        cells = load_config(folder / "config.yaml", changes)
        if len(cells) != 1:
            raise ConfigError("resume continues one run: give one value for each key")
        simulate(cells[0], folder, resume=True, accept=accept, progress=progress)
    return load(shown)
