"""The colours of methods, far apart in each figure; line styles and markers for print without colours."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from zlib import crc32

import numpy as np

from flray.results.vision import distance

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
    """A colour for each method of a figure: the methods' own colours if all are at least `APART` from each other, else
    those of the table that are farthest apart (in `vision.distance`), each method with the one nearest to its own.

    The same methods get the same colours in every figure. Inside `same_colours` a method has the colour that it has
    there.
    """
    methods = _in_order(names)
    page = _page.get()
    if page and all(name in page for name in methods):
        return {name: page[name] for name in methods}
    own = {name: colour_of(name) for name in methods}
    if all(distance(a, b) >= APART for a, b in itertools.combinations(own.values(), 2)):
        return own
    return _spread(own)


@contextmanager
def same_colours(names: Iterable[str]) -> Iterator[None]:
    """In this block each of these methods has one colour, whichever of them a figure shows: for a report."""
    token = _page.set(assigned(names))
    try:
        yield
    finally:
        _page.reset(token)


def _in_order(names: Iterable[str]) -> list[str]:
    """The names, each once, in the order of the table; others after them by letters."""
    places = {name: place for place, name in enumerate(METHODS)}
    return sorted(dict.fromkeys(names), key=lambda name: (places.get(name, len(places)), name))


def _spread(own: Mapping[str, str]) -> dict[str, str]:
    """Colours of the table for the methods of `own`, the farthest apart (farthest-point order from the first one's).

    Methods beyond the number of colours keep their own.
    """
    from scipy.optimize import linear_sum_assignment

    names = list(own)
    pool = list(dict.fromkeys([own[names[0]], *METHODS.values()]))
    chosen = [pool[0]]
    while len(chosen) < min(len(names), len(pool)):
        rest = [colour for colour in pool if colour not in chosen]
        chosen.append(max(rest, key=lambda colour: min(distance(colour, other) for other in chosen)))
    kept = names[1 : len(chosen)]  # the first one has its own colour
    costs = [[distance(own[name], colour) for colour in chosen[1:]] for name in kept]
    rows, columns = linear_sum_assignment(np.array(costs).reshape(len(kept), -1))
    found = {kept[row]: chosen[1 + column] for row, column in zip(rows, columns, strict=True)}
    return {**own, **found}


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
