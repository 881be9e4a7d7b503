"""Where FedMemo's proxy data come from: a GAN of a small held-out set or those data themselves, in the mode `server`;
in the mode `client` a generator that was trained without data (appendix E; its card); options of FedMemo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from flray.algorithms.held_out_gan import HeldOutGAN, Maker, labelled
from flray.core.protocol.context import Context
from flray.core.protocol.inputs import Inputs
from flray.core.protocol.samples import Proxy
from flray.core.schema.errors import ConfigError, DataError
from flray.core.schema.hp import hp
from flray.models.generators import MFCLGenerator
from flray.ops.acgan import make
from flray.ops.generate import balanced_by_rejection
from flray.ops.synthesis import Teacher, fit_mfcl_generator


class ProxySource(HeldOutGAN, frozen=True):
    """Which proxy data, how many, how good; `mode` says whether the server makes them or the clients."""

    mode: Literal["server", "client"] = hp(
        "server", choice=("server", "client"), doc="who trains on proxy data: the server, or the cohort's clients"
    )
    generator_steps: int = hp(100, log=(20, 1000), ge=1, doc="client: steps of the data-free generator (MFCL's)")
    generator_lr: float = hp(1e-3, log=(1e-4, 1e-2), gt=0, doc="client: its learning rate (Adam)")

    def networks(self, model: nn.Module, inputs: Inputs) -> Mapping[str, nn.Module]:
        if self.mode == "client":
            inputs.require_numbers("FedMemo's generator")
            return {"generator": MFCLGenerator(inputs.shape)}
        return {} if self.proxy_data == "real" else self.gan(inputs)

    def check_labels(self, ctx: Context) -> None:
        """Raises `ConfigError` where the section `proxy` has no labels, which the mode `server` reads."""
        if self.mode == "server":
            try:
                ctx.require_proxy().labels(np.arange(1))
            except DataError:
                raise ConfigError(
                    "proxy: fedmemo reads labels of the held-out data; set proxy.labelled: true"
                ) from None

    def fitted_without_data(self, ctx: Context, w: Tensor, b: Tensor) -> Maker:
        """The clients' generator, from the model `(w, b)` alone, which names what it makes."""
        classes = None if ctx.classes is None else ctx.classes.seen
        objective, draws = ctx.net["generator"], ctx.rng("generator")
        how: dict[str, Any] = {"steps": self.generator_steps, "lr": self.generator_lr}
        how["tell"] = ctx.progress("FedMemo trains its generator")
        teacher = Teacher(ctx.objective, w, b, classes)
        g, s, _ = fit_mfcl_generator(objective, *objective.initial(), teacher, draws, **how)
        return Maker(g[None], s[None], w, b)

    def drawn_without_data(self, ctx: Context, maker: Maker, size: int, tries: int = 10) -> Proxy:
        """A client's `size` proxy samples, labelled by the model at the trigger, balanced by rejection.

        At most `tries` batches of `size` are made (of 32 where it is less); then what was rejected fills the rest.
        """
        C = len(ctx.inputs.classes)

        def batch(attempt: int) -> tuple[Tensor, Tensor]:
            z = ctx.rng("made", attempt)
            x = make(ctx.net["generator"], maker.w[0], maker.b[0], max(size, 32), None, C, z)
            return x, labelled(ctx, maker, x)

        asked = C if ctx.classes is None else len(ctx.classes.seen)
        return self.told(ctx, *balanced_by_rejection(map(batch, range(tries)), size, asked, C))
