"""Runs whose sums are combined before they reach the server, also where that saves nothing."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from flray.engine.ray import calls, combiners


@contextmanager
def sums_combined(always: bool = False) -> Iterator[list[int]]:
    """The number of messages that each call of a combiner merges; `always`: for any two chunks of a parallel exchange,
    else where it is worth it."""
    merged, original = [], calls._merge

    def noted(pool: Any, groups: Sequence[Any], options: Any) -> Any:
        merged.extend(len(group) for group in groups if len(group) > 1)
        return original(pool, groups, options)

    rule = (lambda chunks, size: len(chunks) > 1) if always else combiners.worth_it
    with patch.object(calls, "_merge", noted), patch.object(combiners, "worth_it", rule):
        yield merged
