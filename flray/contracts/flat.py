"""Everything in a message as named arrays, to be compared by its bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from flray.core.messages import leaves, to_numpy


def flatten(message: Any) -> dict[str, np.ndarray]:
    """Name -> array, numbers as 0-dim arrays; None is left out."""
    return {name: np.asarray(to_numpy(leaf)) for name, leaf in leaves(message) if leaf is not None}
