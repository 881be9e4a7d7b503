"""How generators, and students beside them, are trained without data: by what a frozen classifier says.

Every loop starts its optimiser anew and draws from the addressed generator that it is given, so that the same call
gives the same bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from flray.core.classes import ClassSet
from flray.core.objective import Objective
from flray.ops.generate import PUBLISHED, MFCLWeights, Statistics, batch_norms, mfcl_loss, noise
from flray.ops.optim import Moments, adam_direction_


class Teacher(NamedTuple):
    """A classifier at the point `(w [P], b [Q])`, asked in eval mode about the classes that it has learned; None: all
    of them."""

    objective: Objective
    w: Tensor
    b: Tensor
    classes: ClassSet | None = None

    def narrow(self, logits: Tensor) -> Tensor:
        return logits if self.classes is None else self.classes.narrow(logits)

    def logits(self, x: Tensor) -> Tensor:
        """Logits `[B, q]` of the learned classes."""
        return self.narrow(self.objective.at(self.w, self.b)(x))

    def watched(self, x: Tensor) -> tuple[Tensor, list[Statistics]]:
        """The same, and what entered the batch norms on the way."""
        with batch_norms(self.objective.module) as seen:
            return self.logits(x), seen


def fit_mfcl_generator(
    generator: Objective,
    w: Tensor,
    b: Tensor,
    teacher: Teacher,
    draws: np.random.Generator,
    *,
    steps: int = 100,
    batch_size: int = 128,
    lr: float = 1e-3,
    weights: MFCLWeights = PUBLISHED,
) -> tuple[Tensor, Tensor, Tensor]:
    """MFCL's generator after `steps` steps of Adam from `(w, b)`: (w, b, losses `[steps]`).

    Each step makes `batch_size` inputs from new noise, as wide as the generator's own `noise`, and follows
    :func:`flray.ops.generate.mfcl_loss` of what the teacher says. Inputs are not changed.
    """
    w, b = w.clone(), b.clone()
    moments = Moments(torch.zeros_like(w), torch.zeros_like(w), 0)
    gradient, losses = torch.zeros_like(w), []
    for step in range(steps):
        z = noise(draws, batch_size, generator.module.noise, device=w.device)  # type: ignore[arg-type]

        def value_of(made_by: object, z: Tensor = z) -> Tensor:
            x = made_by(z)  # type: ignore[operator]
            return mfcl_loss(x, *teacher.watched(x), weights)

        value, g = generator.value_and_grad(value_of, w, b, "train", gradient)
        w.add_(adam_direction_(w, g, moments.replace(steps=step), 0.0), alpha=-lr)
        losses.append(value)
    return w, b, torch.stack(losses) if losses else torch.zeros(0)
