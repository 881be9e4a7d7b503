"""Clients of 8 samples each, so that on equal devices a round takes the same time for all."""

from typing import Any

from tests.support.timed import TIMED

EVEN: dict[str, Any] = {
    **{name: section for name, section in TIMED.items() if name != "devices"},
    "seed": 3,
    "rounds": 4,
    "partition": {"name": "iid", "clients": 10},
}
