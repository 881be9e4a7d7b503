"""FedMemo's second step: the training of a model on labelled proxy data (Prop. 3.2; its card); options of FedMemo."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import numpy as np
from torch import Tensor

from flray.core.network.parts import ModuleMode
from flray.core.protocol.batching import edges
from flray.core.protocol.context import Context
from flray.core.protocol.samples import Proxy, TensorProxy
from flray.core.schema.hp import hp
from flray.core.schema.section import Section
from flray.ops.acgan import wrong_labels
from flray.ops.proxy_step import full_gradient, train_on_proxy


class ProxyTraining(Section, frozen=True):
    label_noise: float = hp(0.0, linear=(0.0, 0.5), ge=0, le=1, doc="share of proxy labels changed to a wrong one")
    proxy_lr: float = hp(0.01, log=(1e-4, 0.1), gt=0, doc="learning rate of the training on proxy data (SGD)")
    proxy_batch_size: int = hp(64, choice=(32, 64, 128), ge=1, doc="its batch size")
    proxy_epochs: int = hp(1, choice=(1, 2, 5), ge=1, doc="epochs on the proxy data in step 2")
    one_step: bool = hp(False, doc="step 2 is one step along the full-batch gradient (the paper's text)")
    proxy_bn: Literal["freeze", "update"] = hp(
        "freeze", doc="batch norm in step 2: by its statistics, left alone; or batch statistics, which move them"
    )

    def trained(self, ctx: Context, w: Tensor, b: Tensor, proxy: Proxy) -> tuple[Tensor, Tensor]:
        """`(w_p [P], b_p [Q])`: what the proxy data make of the model `(w, b)`."""
        mode: ModuleMode = "eval" if self.proxy_bn == "freeze" else "train"
        how: dict[str, Any] = {"mode": mode, "classes": None if ctx.classes is None else ctx.classes.seen}
        if self.one_step:
            _, g = full_gradient(ctx.objective, w, b, proxy, np.arange(proxy.size), **how)
            return w - self.proxy_lr * g, b
        order = self.order(ctx, proxy.size, self.proxy_epochs, "proxy order", mode)
        return train_on_proxy(ctx.objective, w, b, proxy, order, lr=self.proxy_lr, **how)

    def order(self, ctx: Context, size: int, epochs: int, purpose: str, mode: ModuleMode) -> list[np.ndarray]:
        """The batches of so many epochs over `size` samples, as their numbers. In the mode `train` a last batch of one
        sample, on which batch norm cannot train, joins the one before."""
        joins = mode == "train" and size % self.proxy_batch_size == 1
        cuts = edges(size, self.proxy_batch_size, "merge" if joins else "keep")
        each = (ctx.rng(purpose, epoch).permutation(size) for epoch in range(epochs))
        return [numbers[start:stop] for numbers in each for start, stop in pairwise(cuts)]

    def told(self, ctx: Context, x: Tensor, y: Tensor) -> Proxy:
        """Samples with their labels after the label noise, of the classes seen so far."""
        if self.label_noise:
            y = wrong_labels(y, self.label_noise, len(ctx.inputs.classes), ctx.rng("label noise"))
        if ctx.classes is not None:
            known = ctx.classes.seen.has(y)
            x, y = x[known], y[known]
        return TensorProxy(x, y)
