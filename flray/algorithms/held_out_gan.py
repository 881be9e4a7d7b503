"""FedMemo's proxy data in the mode `server`: made by a GAN of a small held-out set, or those samples themselves
(appendix E); options of FedMemo."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from flray.algorithms.proxy_training import ProxyTraining
from flray.core.messages import Record
from flray.core.protocol.clock import Clock
from flray.core.protocol.context import Context
from flray.core.protocol.inputs import Inputs
from flray.core.protocol.samples import Proxy
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.models.gan import ProxyDiscriminator, ProxyGenerator
from flray.ops.acgan import balanced, fit_gan, make
from flray.ops.distill import blocks
from flray.ops.proxy_step import train_on_proxy


class Maker(Record):
    """Generators `w [G, P]`, `b [G, Q]` (G = 0 before they are trained; C where each class has its own), and the
    classifier `labeller_w [P]`, `labeller_b [Q]` that names what they make, empty where labels are asked for."""

    w: Tensor
    b: Tensor
    labeller_w: Tensor
    labeller_b: Tensor


class HeldOutGAN(ProxyTraining, frozen=True):
    proxy_data: Literal["gan", "real"] = hp(
        "gan", doc="server: made by a GAN of the section proxy, or that section's own samples (a bound)"
    )
    proxy_labels: Literal["acgan", "per_class", "teacher"] = hp(
        "acgan",
        doc="server: one conditional GAN, a GAN for each class, or one GAN and a classifier of the held-out data",
    )
    proxy_size: int = hp(5000, log=(500, 10000), ge=1, doc="server: proxy samples a round (N_p); real: at most")
    proxy_refresh: bool = hp(False, doc="server: new proxy samples every round, made or drawn")
    gan_epochs: int = hp(100, choice=(50, 70, 100), ge=1, doc="server: epochs of the GAN on the held-out data")
    gan_batch_size: int = hp(64, choice=(32, 64, 128), ge=2, doc="server: batch size of the GAN")
    gan_lr: float = hp(2e-4, log=(1e-5, 1e-2), gt=0, doc="server: learning rate of the GAN (Adam)")
    labeller_epochs: int = hp(20, choice=(10, 20, 50), ge=1, doc="teacher: epochs of the classifier (SGD, as proxy_*)")

    def gan(self, inputs: Inputs) -> dict[str, nn.Module]:
        """The networks of the GAN. Raises `ConfigError` where the inputs or so many classes are nothing for it."""
        inputs.require_numbers("FedMemo's GAN")
        generator, classes = ProxyGenerator(inputs.shape), len(inputs.classes)
        if self.proxy_labels == "acgan" and classes >= generator.noise:
            raise ConfigError(
                f"algorithm.proxy_labels: acgan keeps one of {generator.noise} noise entries for each class, the data "
                f"have {classes}; set per_class or teacher"
            )
        return {"generator": generator, "discriminator": ProxyDiscriminator(inputs.shape, classes)}

    def no_maker(self, ctx: Context) -> Maker:
        """Before anything is trained."""
        empty = torch.zeros(0, device=ctx.device)
        return Maker(empty[None][:0], empty[None][:0], empty, empty)

    def fitted(self, ctx: Context) -> Maker:
        """The server's GANs, from the held-out data alone: its draws have the address of the experiment's beginning, so
        that it is the same whenever it is first asked for."""
        ctx = replace(ctx, clock=Clock())
        proxy, none = ctx.require_proxy(), self.no_maker(ctx)
        everything = np.arange(proxy.size)
        x, y = pixels(ctx, proxy.inputs(everything)), proxy.labels(everything)
        C = len(ctx.inputs.classes)
        how: dict[str, Any] = {"epochs": self.gan_epochs, "batch_size": self.gan_batch_size, "lr": self.gan_lr}
        how["tell"] = ctx.progress("FedMemo trains its GAN")
        nets = ctx.net["generator"], ctx.net["discriminator"]
        if self.proxy_labels == "per_class":
            made = [
                fit_gan(*nets, x[y == c], None, C, ctx.rng("gan", c), **how)[:2] for c in range(C) if (y == c).sum() > 1
            ]
            if len(made) < C:
                raise ConfigError(
                    f"algorithm.proxy_labels: per_class needs two held-out samples of each of {C} classes and has them "
                    f"of {len(made)}; raise proxy.size"
                )
            return none.replace(w=torch.stack([w for w, _ in made]), b=torch.stack([b for _, b in made]))
        labels = y if self.proxy_labels == "acgan" else None
        w, b, _ = fit_gan(*nets, x, labels, C, ctx.rng("gan"), **how)
        if self.proxy_labels == "acgan":
            return none.replace(w=w[None], b=b[None])
        order = self.order(ctx, proxy.size, self.labeller_epochs, "labeller", "train")
        judge = train_on_proxy(ctx.objective, *ctx.objective.initial(), proxy, order, lr=self.proxy_lr, mode="train")
        return Maker(w[None], b[None], *judge)

    def drawn(self, ctx: Context, maker: Maker) -> Proxy:
        """The server's proxy data of this round, of the classes seen so far."""
        C = len(ctx.inputs.classes)
        at = ctx if self.proxy_refresh else replace(ctx, clock=Clock())
        if self.proxy_data == "real":
            known = ctx.require_proxy()
            index = at.rng("proxy").permutation(known.size)[: self.proxy_size]
            x, y = known.inputs(index), known.labels(index)
        else:
            y = balanced(self.proxy_size, C).to(ctx.device)
            made = torch.zeros(self.proxy_size, *ctx.inputs.shape, device=ctx.device)
            for g, (w, b) in enumerate(zip(maker.w, maker.b, strict=True)):
                chosen = y == g if len(maker.w) > 1 else torch.ones_like(y, dtype=torch.bool)
                asked = y if self.proxy_labels == "acgan" else None
                made[chosen] = make(ctx.net["generator"], w, b, int(chosen.sum()), asked, C, at.rng("proxy", g))
            x = scaled(ctx, made)
            if len(maker.labeller_w):
                y = labelled(ctx, maker, x)
        return self.told(at, x, y)


def pixels(ctx: Context, x: Tensor) -> Tensor:
    """Images as the GAN sees them, in -1..1, out of normalised ones; features as they are."""
    return 2 * ctx.inputs.pixels(x) - 1 if ctx.inputs.is_image else x


def scaled(ctx: Context, made: Tensor) -> Tensor:
    """The other way round."""
    return ctx.inputs.normalised((made + 1) / 2) if ctx.inputs.is_image else made


def labelled(ctx: Context, maker: Maker, x: Tensor) -> Tensor:
    """Labels `[n]` of samples: the labeller's likeliest class of those seen so far."""
    model, parts = ctx.objective.at(maker.labeller_w, maker.labeller_b), []
    with torch.no_grad():
        for index in blocks(np.arange(len(x)), 500):
            logits = model(x[torch.from_numpy(index).to(x.device)])
            known = ctx.seen(logits).argmax(1)
            parts.append(known if ctx.classes is None else ctx.classes.seen.index[known])
    return torch.cat(parts)
