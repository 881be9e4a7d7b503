"""Which kinds of figures there are, and the options of each; imports nothing, for the command line."""

from __future__ import annotations

from collections.abc import Iterable

from flray.core.schema.errors import ConfigError, unknown

DIAGNOSED = (
    "local_forgetting", "conflict", "memory", "divergence", "heterogeneity", "layers", "latent_forgetting",
    "propositions",
)  # fmt: skip
OPTIONS = {  # of each kind
    "curves": ("metric", "x"), "clients": (), "tasks": ("mode",), "predicted": ("mode",), "drift": ("mode",),
    "classes": (),
    "regions": ("rounds", "models"),
    "landscape": ("round", "directions", "points", "span"), "ablation": ("metric", "axis"), "ranks": ("metric",),
    "timeline": (), "conflict": ("metric", "axis"),
}  # fmt: skip
KINDS = tuple(dict.fromkeys((*OPTIONS, *DIAGNOSED)))


def check_kind(kind: str, options: Iterable[str] = ()) -> None:
    """Raises `ConfigError` for another kind of figure, and for an option that the kind does not read."""
    if kind not in KINDS:
        raise unknown_kind(kind, KINDS)
    allowed = OPTIONS.get(kind, ())
    for name in options:
        if name not in allowed:
            has = f"its options are {', '.join(allowed)}" if allowed else "it has no options"
            raise ConfigError(f"{name} changes nothing in the figure {kind}; {has}")


def unknown_kind(kind: str, known: Iterable[str]) -> ConfigError:
    """The error for a figure that does not exist, with the nearest one; two figures show forgetting, and a sweep has
    several of its own."""
    if kind == "sweep":
        return ConfigError(
            "figure sweep: a sweep has several: see FOLDER/figures; `flray figure sweep FOLDER` draws them again"
        )
    if kind == "forgetting":
        return ConfigError("unknown figure 'forgetting': take tasks (after each task) or local_forgetting (in a round)")
    return unknown("figure", kind, known)
