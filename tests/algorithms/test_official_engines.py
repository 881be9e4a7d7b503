"""`preset=official`: the switches of the authors' engines, whose steps the tests of the algorithms transcribe.

Lee-Gihun/FedSOL (ebc3f64): SAM of davda54, whose second pass does not update batch norm; FedDyn with the mean by n_k.
MMorafah/FedZoo-Bench (0598152): FedProx whose term compares the parameters with themselves, and is 0; SCAFFOLD whose c
lacks the factor |S| / N.
"""

from pathlib import Path

import pytest

from flray.config.loader import load_config

CONFIGS = Path(__file__).parents[2] / "configs"
SAM = {"rho": 0.5, "eps": 1e-12, "bn_passes": "first", "weighting": "examples"}
# by file, of each algorithm: for FedSOL those of `configs/*.json` of the code
SHIPPED = {
    "fedsol/cifar10_lda01.yaml": {
        "fedsol": {"rho": 1.0, "perturb": "all", "adaptive": "columnwise"},
        "fedprox": {"mu": 1.0},
        "fednova": {"ccvr": "fedsol_snapshot"},
        "moon": {"mu": 0.1, "tau": 1.0},
        "fedntd": {"beta": 1.0, "tau": 1.0},
        "scaffold": {"divisor": "momentum", "weighting": "examples", "c_over": "population"},
        "feddyn": {"alpha": 0.1, "weighting": "examples"},
        "fedsam": SAM,
        "fedasam": {**SAM, "eta": 0.0, "scaled": "all"},
    },
    "fedproj/cifar10_dir03.yaml": {
        "fedprox": {"mu": 0.0, "optimizer": "sgd", "momentum": 0.9, "lr": 0.01},
        "scaffold": {"c_over": "cohort"},
    },
}
FEDSOL = {"lr": 0.01, "lr_decay": 0.99, "momentum": 0.9, "weight_decay": 1e-5, "local_epochs": 5, "batch_size": 50}


@pytest.mark.parametrize(("file", "name"), [(file, name) for file, of_file in SHIPPED.items() for name in of_file])
def test_an_engine_ships_these_hyper_parameters(file, name):
    """The options of an algorithm under the preset, as a run of that file would have them."""
    found = load_config(CONFIGS / file, ["preset=official", f"algorithm={name}"])[0].dump()["algorithm"]
    expected = {**(FEDSOL if file.startswith("fedsol/") else {}), **SHIPPED[file][name]}
    assert {key: found[key] for key in expected} == expected
