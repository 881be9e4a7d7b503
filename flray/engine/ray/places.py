"""Where data, caches and weights lie, as the environment of a run's driver says, for its processes on every node."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from flray.core.schema.errors import DataError
from flray.engine.ray.this_node import this_node

FOLDERS = (  # of flray, of Hugging Face's libraries, of torch
    "FLRAY_DATA", "FLRAY_CACHE", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_ASSETS_CACHE",
    "TRANSFORMERS_CACHE", "XDG_CACHE_HOME", "TORCH_HOME",
)  # fmt: skip
SWITCHES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_ENDPOINT")

_adopted: set[str] = set()  # variables of this process that a run's driver has set


class Places(NamedTuple):
    """The variables that are set in the driver, and Ray's id of its node."""

    node: str
    values: dict[str, str]

    @classmethod
    def here(cls) -> Places:
        return cls(this_node(), {name: os.environ[name] for name in (*FOLDERS, *SWITCHES) if os.environ.get(name)})

    def adopt(self) -> None:
        """Set the variables here as in the driver.

        A process outlives a run, so those that this driver does not set go. On another node what the node itself sets
        stays, and a folder that the node does not have is not set, but for FLRAY_DATA, which the error then names.
        """
        here = this_node() == self.node
        for name in (*FOLDERS, *SWITCHES):
            own = name in os.environ and name not in _adopted and not here
            value = self.values.get(name)
            known = here or name in ("FLRAY_DATA", *SWITCHES) or os.path.isdir(os.path.expanduser(value or ""))
            if own:
                continue
            os.environ.pop(name, None)
            _adopted.discard(name)
            if value is not None and known:
                os.environ[name] = value
                _adopted.add(name)

    @contextlib.contextmanager
    def named_in_errors(self, who: str) -> Iterator[None]:
        """A `DataError` of a process on another node than the driver's names both."""
        try:
            yield
        except DataError as error:
            if this_node() == self.node:
                raise
            import ray

            root = self.values.get("FLRAY_DATA")
            driver = f"the driver has FLRAY_DATA={root}" if root else "the driver does not set FLRAY_DATA either"
            raise DataError(
                f"{who} on node {ray.util.get_node_ip_address()}, which reads the data from its own disks: {error} "
                f"({driver})"
            ) from None
