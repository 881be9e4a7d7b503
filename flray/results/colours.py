"""The colours of methods, far apart in each figure for every eye; line styles and markers for print without colours.

Vision without red or green cones: Machado, Oliveira and Fernandes, "A physiologically-based model for simulation of
color vision deficiency" (IEEE TVCG 2009), severity 1, on linear RGB. Distance: CIE 1976, in CIELAB (D65).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

# Okabe and Ito, "Color universal design" (2008): distinct with every common colour vision deficiency
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#000000")
STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")

# Okabe and Ito without their yellow, invisible as a line on white, and Paul Tol's "muted" (2021)
_BLUE, _ORANGE, _GREEN, _PINK, _VERMILLION, _SKY, _BLACK = (c for c in COLOURS if c != "#F0E442")
_INDIGO, _WINE, _OLIVE, _TEAL, _PURPLE, _BROWN, _GREY = (
    "#332288", "#882255", "#999933", "#44AA99", "#AA4499", "#8C5A2B", "#777777",
)  # fmt: skip
_MAGENTA, _DARK_GREEN = "#EE3377", "#117733"  # Paul Tol's "vibrant" and "muted"
# A method's own colour. There are more methods than colours that can be told apart, so in a figure where two are too
# near others take their place (`assigned`).
METHODS = {
    "fedavg": _BLUE, "centralized": _BLACK,
    # FedSOL's and FedProj's tables
    "fedprox": _ORANGE, "scaffold": _PINK, "fednova": _SKY, "feddyn": _OLIVE, "moon": _WINE, "fedntd": _INDIGO,
    "fedsam": _PURPLE, "fedasam": _BROWN, "fedsol": _VERMILLION, "feddf": _TEAL, "fedet": _GREY, "fedrcl": _PURPLE,
    "fedproj": _GREEN,
    # FedSOL's personalised table
    "perfedavg": _PINK, "fedbabu": _GREEN, "knnper": _OLIVE, "ditto": _WINE, "local": _GREY,
    # optimisers at the server
    "fedavgm": _SKY, "fedadam": _VERMILLION, "fedyogi": _GREEN, "fedadagrad": _PINK,
    # FedProTIP's and FedMemo's tables
    "fot": _GREEN, "target": _SKY, "lander": _PINK, "mfcl": _OLIVE, "glfc": _TEAL, "lga": _BROWN, "fedpec": _PURPLE,
    "fedscr": _GREY, "fedprotip": _VERMILLION, "fedmemo": _INDIGO,
    # replay and penalties that every reader knows, beside them
    "er": _MAGENTA, "der": _DARK_GREEN, "ewc": _INDIGO, "fedcurv": _WINE,
    # inference modes of one method beside each other
    "global": _BLUE, "task_aware": _BLACK, "tip_sample": _SKY, "tip_batch": _VERMILLION, "tip_window": _GREEN,
    "mean_sample": _PINK, "mean_batch": _WINE, "mean_window": _PURPLE, "energy_sample": _OLIVE, "energy_batch": _TEAL,
    "energy_window": _BROWN,
}  # fmt: skip
# for names outside the table (a user's own algorithm); no common baseline has one of these
OTHERS = (_PURPLE, _TEAL, _WINE, _OLIVE, _INDIGO, _BROWN)
APART = 20.0  # smallest CIELAB distance at which two methods of a figure keep their own colours
_page: ContextVar[Mapping[str, str] | None] = ContextVar("page", default=None)


def colour_of(name: str) -> str:
    """The colour of a method by its name, in upper-case hex; for an unknown name it is computed from its letters."""
    return METHODS.get(name) or OTHERS[crc32(name.encode()) % len(OTHERS)]


def assigned(names: Iterable[str]) -> dict[str, str]:
    """A colour for each method of a figure, in the order of `METHODS`: its own if that is at least `APART` from those
    before it (in `distance`), else the colour of the table that is the farthest from them.

    The same methods get the same colours in every figure. Inside `same_colours` a method has the colour that it has
    there.
    """
    places = {name: place for place, name in enumerate(METHODS)}
    methods = sorted(dict.fromkeys(names), key=lambda name: (places.get(name, len(places)), name))
    page = _page.get()
    if page and all(name in page for name in methods):
        return {name: page[name] for name in methods}
    colours: dict[str, str] = {}

    def apart(colour: str) -> float:
        return min((distance(colour, other) for other in colours.values()), default=math.inf)

    for name in methods:
        own = colour_of(name)
        colours[name] = own if apart(own) >= APART else max(dict.fromkeys(METHODS.values()), key=apart)
    return colours


@contextmanager
def same_colours(names: Iterable[str]) -> Iterator[None]:
    """In this block each of these methods has one colour, whichever of them a figure shows: for a report."""
    token = _page.set(assigned(names))
    try:
        yield
    finally:
        _page.reset(token)


def colours_of(labels: Iterable[str]) -> list[str]:
    """A colour for each line of a figure, by its label (`names_of`: the algorithm comes first), as `assigned` says.

    Several lines of one method, or of two methods that share a colour, are shades of it: three or more from dark to
    light; of two, the first has the colour itself.
    """
    names = [label.partition(",")[0] for label in labels]
    colour = assigned(names)
    own = [colour[name] for name in names]
    shades = {one: iter(_shades(one, own.count(one))) for one in own}
    return [next(shades[one]) for one in own]


def _shades(colour: str, count: int) -> list[str]:
    from matplotlib.colors import to_hex, to_rgb

    rgb = np.array(to_rgb(colour))
    # towards black below 0, towards white above
    steps = np.linspace(-0.5, 0.6, count) if count > 2 else np.linspace(0, 0.5, count)
    return [to_hex(rgb * (1 + s) if s < 0 else rgb + s * (1 - rgb)).upper() if s else colour for s in steps]


def styles_of(labels: Iterable[str]) -> list[str]:
    """A line style for each line of a figure, in their order."""
    return [cycle(STYLES, number) for number, _ in enumerate(labels)]


def markers_of(labels: Iterable[str]) -> list[str]:
    """A marker for each line of a figure, in their order: they distinguish lines in print without colours."""
    return [cycle(MARKERS, number) for number, _ in enumerate(labels)]


def palette(count: int) -> list[str]:
    """Colours of things that are not methods (the classes of a data set): Okabe and Ito's, or steps of viridis."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if count <= len(COLOURS):
        return list(COLOURS[:count])
    return [to_hex(colormaps["viridis"](c / (count - 1))) for c in range(count)]


def cycle(values: Sequence[str], number: int) -> str:
    return values[number % len(values)]


# how far two colours are apart ---------------------------------------------------------------------
Array = NDArray[np.float64]

VISIONS: dict[str, Array] = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
_WHITE = _XYZ @ np.ones(3)


@functools.cache
def lab(colour: str, vision: str = "normal") -> tuple[float, float, float]:
    """CIELAB (L in 0..100, a, b) of `#RRGGBB` as it is seen with a vision of `VISIONS`."""
    srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    ratio = _XYZ @ np.clip(VISIONS[vision] @ linear, 0, 1) / _WHITE
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return float(116 * f[1] - 16), float(500 * (f[0] - f[1])), float(200 * (f[1] - f[2]))


@functools.cache
def distance(one: str, other: str) -> float:
    """The smallest CIELAB distance of two colours over the visions of `VISIONS`."""
    return min(float(np.hypot.reduce(np.subtract(lab(one, v), lab(other, v)))) for v in VISIONS)


def lightness(colour: str) -> float:
    """L of CIELAB, 0 to 100: what is left of a colour in grey."""
    return lab(colour)[0]
