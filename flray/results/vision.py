"""How far two colours are apart for the eye: with all cones, without red or green ones, and in grey.

Simulation: Machado, Oliveira and Fernandes, "A physiologically-based model for simulation of color vision deficiency"
(IEEE TVCG 2009), severity 1, on linear RGB. Distance: CIE 1976, in CIELAB (D65).
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

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
