"""A small sweep on iris for tests that train nothing, and the last result of a trial."""

from pathlib import Path
from typing import Any

from flray.tuning.config import Sweep
from flray.tuning.studies import Studies
from flray.tuning.sweep_file import load_sweep

EXPERIMENT = {
    "rounds": 6,
    "data": {"source": "iris", "standardize": True},
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "mlp", "hidden": [6]},
    "algorithm": {"name": "fedsol", "lr": 0.05, "local_epochs": 1, "batch_size": 8},
    "evaluate": {"validation": {"fraction": 0.25}, "clients": False},
    "resources": {"client_actors": 1, "server": {"threads": 1}},
}
SPACE = {"algorithm.rho": "auto", "algorithm.lr": {"log": [0.001, 0.5]}, "algorithm.perturb": ["head", "all"]}


def iris_sweep(**changes: Any) -> Sweep:
    """Three parameters of FedSOL, six rounds, one trial at a time."""
    return load_sweep({"name": "tiny", "experiment": EXPERIMENT, "space": SPACE, "concurrency": 1, **changes})


def studies_of(folder: Path, new: bool = False, **changes: Any) -> Studies:
    """The studies of such a sweep in its folder, before its first trial."""
    sweep = iris_sweep(**changes)
    folder.mkdir(exist_ok=True)
    (folder / "sweep.yaml").write_text(sweep.yaml())
    return Studies(sweep, folder, new=new)


def ended(value: float) -> dict[str, Any]:
    """What a trial reports after its sixth and last round."""
    return {
        "val/acc": value,
        "round": 6,
        "rounds": 6,
        "seeds": 1,
        "spent": 72,
        "seconds": 1.5,
        "done": True,
        "diverged": False,
        "status": "finished",
    }
