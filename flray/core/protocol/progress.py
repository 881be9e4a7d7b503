"""How work that takes minutes says how far it is, for whoever waits. No bit depends on it."""

from __future__ import annotations

from collections.abc import Callable

Tell = Callable[[int, int], None]  # so many steps of so many are done
Teller = Callable[[str, int, int], None]  # of what


def to_nobody(done: int, total: int) -> None:
    """A `Tell` that nobody hears."""


def nobody(what: str, done: int, total: int) -> None:
    """A `Teller` that nobody hears."""
