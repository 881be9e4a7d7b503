"""The colours of methods, one for each in every figure; line styles and markers for print without colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from zlib import crc32

import numpy as np

# Okabe and Ito, "Color universal design" (2008): distinct with every common colour vision deficiency
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#000000")
STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")

# Sixteen colours, hues of Okabe and Ito and of Paul Tol's "muted" (2021), shifted until any two are at least 18 apart
# in CIELAB, without red or green cones as well. Where two are alike in grey, markers and line styles differ.
_BLUE, _ORANGE, _VERMILLION, _GREEN, _MAUVE, _SKY, _BLACK, _INDIGO = (
    "#0072B2", "#E69F00", "#D55000", "#28A870", "#B080B0", "#58B8F0", "#000000", "#382088",
)  # fmt: skip
_WINE, _OLIVE, _TEAL, _PURPLE, _GREY, _BROWN, _RED, _VIOLET = (
    "#801848", "#B8B858", "#58C0A8", "#902878", "#777777", "#784818", "#E03848", "#6868FF",
)  # fmt: skip
# A method's colour by its name in figures (`as_written`), the same in every figure. There are more methods than
# colours: two methods with one colour stand in no table of a paper together.
METHODS = {
    "FedAvg": _BLUE, "Centralized": _BLACK,
    # FedSOL's and FedProj's tables
    "FedProx": _ORANGE, "SCAFFOLD": _MAUVE, "FedNova": _SKY, "FedDyn": _OLIVE, "MOON": _WINE, "FedNTD": _INDIGO,
    "FedSAM": _PURPLE, "FedASAM": _BROWN, "FedSOL": _VERMILLION, "FedDF": _TEAL, "Fed-ET": _GREY, "FedRCL": _VIOLET,
    "FedProj": _GREEN,
    # FedSOL's personalised table
    "Per-FedAvg": _MAUVE, "FedBABU": _GREEN, "kNN-Per": _OLIVE, "Ditto": _WINE, "Local": _GREY,
    # optimisers at the server
    "FedAvgM": _SKY, "FedAdam": _RED, "FedYogi": _GREEN, "FedAdagrad": _MAUVE,
    # FedProTIP's and FedMemo's tables
    "FOT": _GREEN, "TARGET": _SKY, "LANDER": _MAUVE, "MFCL": _OLIVE, "GLFC": _TEAL, "LGA": _BROWN, "Fed+PEC": _PURPLE,
    "Fed+SCR": _GREY, "FedProTIP": _RED, "FedMemo": _PURPLE,
    # replay and penalties that every reader knows, beside them
    "ER": _VERMILLION, "DER": _VIOLET, "EWC": _INDIGO, "FedCurv": _WINE,
    # inference modes of one method beside each other
    "global": _BLUE, "task_aware": _BLACK, "tip_sample": _SKY, "tip_batch": _VERMILLION, "tip_window": _GREEN,
    "mean_sample": _MAUVE, "mean_batch": _WINE, "mean_window": _PURPLE, "energy_sample": _OLIVE, "energy_batch": _TEAL,
    "energy_window": _BROWN, "lda_sample": _ORANGE, "lda_batch": _RED, "lda_window": _INDIGO,
}  # fmt: skip
# for names outside the table (a user's own algorithm); no common baseline has one of these
OTHERS = (_PURPLE, _TEAL, _WINE, _OLIVE, _INDIGO, _BROWN)


def colour_of(name: str) -> str:
    """The colour of a method by its name in figures, in upper-case hex.

    That of an unknown name is computed from its letters.
    """
    return METHODS.get(name) or OTHERS[crc32(name.encode()) % len(OTHERS)]


def colours_of(labels: Iterable[str]) -> list[str]:
    """A colour for each line of a figure, by its label (`names_of`: the algorithm comes first).

    Several lines of one method, or of two methods that share a colour, are shades of it: three or more from dark to
    light; of two, the first has the colour itself.
    """
    own = [colour_of(label.partition(",")[0]) for label in labels]
    shades = {one: iter(_shades(one, own.count(one))) for one in own}
    return [next(shades[one]) for one in own]


def _shades(colour: str, count: int) -> list[str]:
    from matplotlib.colors import to_hex, to_rgb

    rgb = np.array(to_rgb(colour))
    # towards black below 0, towards white above
    steps = np.linspace(-0.5, 0.6, count) if count > 2 else np.linspace(0, 0.5, count)
    return [to_hex(rgb * (1 + s) if s < 0 else rgb + s * (1 - rgb)).upper() if s else colour for s in steps]


def styles_of(labels: Iterable[str]) -> list[str]:
    """A line style for each line of a figure, in their order; after a round of `MARKERS` they begin one further."""
    return [cycle(STYLES, number + number // len(MARKERS)) for number, _ in enumerate(labels)]


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
