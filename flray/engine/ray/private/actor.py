"""An actor's Ray id, which a handle has and does not give out."""

from __future__ import annotations

from typing import Any


def actor_id(actor: Any) -> str | None:
    """As the actor's own `get_runtime_context().get_actor_id()`; None where this Ray's handles have no such field."""
    found = getattr(actor, "_actor_id", None)
    return found.hex() if found is not None else None
