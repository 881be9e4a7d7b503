"""The rows of the table over tasks and with drift."""

from typing import Any

from flray.contracts.played import bits
from tests.contracts.table import TABLE, experiment

DATA = {"source": "synthetic", "options": {"shape": 4, "num_classes": 4, "num_train": 120, "num_test": 40}}

LOCAL = {"executor": "local", "server": {"threads": 1}, "client": {"num_cpus": 1}}

SCENARIOS: dict[str, dict[str, Any]] = {
    "tasks": {"rounds": 2, "tasks": {"num_tasks": 2, "class_order": [2, 0, 3, 1]}},
    # classes 0 and 1 are gone from round 2 on, everything in round 4, and all is back in round 5
    "drift": {
        "rounds": 5,
        "drift": {"name": "table", "rows": [[2, None, 0, 0, 5], [2, None, 1, 0, 5], [4, None, None, 0, 5]]},
    },
}


def config(name, **sections):
    model = {key: value for key, value in TABLE[name].sections.items() if key == "model"}
    return experiment(name, **{"data": DATA, **model, **sections})


def same_clients(found, expected):
    assert found.keys() == expected.keys()
    assert all(bits(found[k]) == bits(expected[k]) for k in expected)
