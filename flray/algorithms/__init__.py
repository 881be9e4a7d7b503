"""Federated algorithms, one file each. Adding one: its file, one line here, one row in `tests/contracts/table.py`."""

from flray.registry import Registry

ALGORITHMS = Registry(
    "algorithm",
    {
        "fedavg": "flray.algorithms.fedavg:FedAvg",
        "feddf": "flray.algorithms.feddf:FedDF",
        "fedproj": "flray.algorithms.fedproj:FedProj",
    },
)
