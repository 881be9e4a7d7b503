"""Proximal terms of closed form: <l, w> + s/2 norm(w - w_g)^2 of parameters `w [P]`.

FedProx's is the quadratic part (Li et al. 2020, Eq. 2). SCAFFOLD's c - c_k and FedNova's dbar - d_k are linear parts,
FedDyn has both (Table 4 of FedSOL).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class ProximalTerm(NamedTuple):
    """`linear [P]` (l), `anchor [P]` (w_g) and `strength` (s); None: without that part."""

    linear: Tensor | None = None
    anchor: Tensor | None = None
    strength: float = 1.0

    def value(self, w: Tensor) -> Tensor:
        """The term (0-dim)."""
        value = torch.zeros((), device=w.device) if self.linear is None else torch.dot(self.linear, w)
        if self.anchor is None:
            return value
        distance = w - self.anchor
        return value + 0.5 * self.strength * torch.dot(distance, distance)

    def gradient(self, w: Tensor, out: Tensor) -> Tensor:
        """l + s (w - w_g) `[P]` in `out`; of a linear term l itself, which callers must not change.

        The difference is taken first: near w_g, s w - s w_g would be rounding errors.
        """
        if self.anchor is None:
            return out.zero_() if self.linear is None else self.linear
        g = torch.sub(w, self.anchor, out=out)
        if self.strength != 1.0:
            g.mul_(self.strength)
        return g if self.linear is None else g.add_(self.linear)
