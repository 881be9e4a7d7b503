"""Where FedMemo's proxy data come from: a GAN of a small held-out set, those data themselves, or a generator that was
trained without data (appendix E; spec 8.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flray.core.clock import Clock
from flray.core.context import Context
from flray.core.cut import edges
from flray.core.errors import ConfigError, DataError
from flray.core.hp import hp
from flray.core.inputs import Inputs
from flray.core.messages import Record
from flray.core.network_parts import ModuleMode
from flray.core.samples import Proxy, TensorProxy
from flray.core.section import Section
from flray.models.gan import ProxyDiscriminator, ProxyGenerator
from flray.models.generators import MFCLGenerator
from flray.ops.acgan import balanced, fit_gan, make, wrong_labels
from flray.ops.distill import blocks
from flray.ops.proxy_step import train_on_proxy
from flray.ops.synthesis import Teacher, fit_mfcl_generator


class Maker(Record):
    """Generators `w [G, P]`, `b [G, Q]` (G = 0 before they are trained; C where each class has its own), and the
    classifier `labeller_w [P]`, `labeller_b [Q]` that names what they make, empty where labels are asked for."""

    w: Tensor
    b: Tensor
    labeller_w: Tensor
    labeller_b: Tensor


class ProxySource(Section, frozen=True):
    """Which proxy data, how many, how good; `mode` says whether the server makes them or the clients."""

    mode: Literal["server", "client"] = hp(
        "server", choice=("server", "client"), doc="who trains on proxy data: the server, or the cohort's clients"
    )
    proxy_data: Literal["gan", "real"] = hp(
        "gan", doc="server: made by a GAN of the section proxy, or that section's own samples (a bound)"
    )
    proxy_labels: Literal["acgan", "per_class", "teacher"] = hp(
        "acgan",
        doc="server: one conditional GAN, a GAN for each class, or one GAN and a classifier of the held-out data",
    )
    proxy_size: int = hp(5000, log=(500, 10000), ge=1, doc="server: proxy samples a round (N_p); real: at most")
    proxy_refresh: bool = hp(False, doc="server: new proxy samples every round, made or drawn")
    label_noise: float = hp(0.0, linear=(0.0, 0.5), ge=0, le=1, doc="share of proxy labels changed to a wrong one")
    gan_epochs: int = hp(100, choice=(50, 70, 100), ge=1, doc="server: epochs of the GAN on the held-out data")
    gan_batch_size: int = hp(64, choice=(32, 64, 128), ge=2, doc="server: batch size of the GAN")
    gan_lr: float = hp(2e-4, log=(1e-5, 1e-2), gt=0, doc="server: learning rate of the GAN (Adam)")
    labeller_epochs: int = hp(20, choice=(10, 20, 50), ge=1, doc="teacher: epochs of the classifier (SGD, as proxy_*)")
    generator_steps: int = hp(100, log=(20, 1000), ge=1, doc="client: steps of the data-free generator (MFCL's)")
    generator_lr: float = hp(1e-3, log=(1e-4, 1e-2), gt=0, doc="client: its learning rate (Adam)")
    proxy_lr: float = hp(0.01, log=(1e-4, 0.1), gt=0, doc="learning rate of the training on proxy data (SGD)")
    proxy_batch_size: int = hp(64, choice=(32, 64, 128), ge=1, doc="its batch size")

    def networks(self, model: nn.Module, inputs: Inputs) -> Mapping[str, nn.Module]:
        if self.mode == "client":
            inputs.require_numbers("FedMemo's generator")
            return {"generator": MFCLGenerator(inputs.shape)}
        if self.proxy_data == "real":
            return {}
        inputs.require_numbers("FedMemo's GAN")
        generator, classes = ProxyGenerator(inputs.shape), len(inputs.classes)
        if self.proxy_labels == "acgan" and classes >= generator.noise:
            raise ConfigError(
                f"algorithm.proxy_labels: acgan keeps one of {generator.noise} noise entries for each class, the data "
                f"have {classes}; set per_class or teacher"
            )
        return {"generator": generator, "discriminator": ProxyDiscriminator(inputs.shape, classes)}

    def no_maker(self, ctx: Context) -> Maker:
        """Before anything is trained. Raises `ConfigError` where the section `proxy` has no labels."""
        if self.mode == "server":
            try:
                ctx.require_proxy().labels(np.arange(1))
            except DataError:
                raise ConfigError(
                    "proxy: fedmemo reads labels of the held-out data; set proxy.labelled: true"
                ) from None
        empty = torch.zeros(0, device=ctx.device)
        return Maker(empty[None][:0], empty[None][:0], empty, empty)

    # training -----------------------------------------------------------------------------------
    def fitted(self, ctx: Context) -> Maker:
        """The server's GANs, from the held-out data alone: its draws have the address of the experiment's beginning, so
        that it is the same whenever it is first asked for."""
        ctx = replace(ctx, clock=Clock())
        proxy, none = ctx.require_proxy(), self.no_maker(ctx)
        everything = np.arange(proxy.size)
        x, y = pixels(ctx, proxy.inputs(everything)), proxy.labels(everything)
        C = len(ctx.inputs.classes)
        how: dict[str, Any] = {"epochs": self.gan_epochs, "batch_size": self.gan_batch_size, "lr": self.gan_lr}
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

    def fitted_without_data(self, ctx: Context, w: Tensor, b: Tensor) -> Maker:
        """The clients' generator, from the model `(w, b)` alone, which names what it makes."""
        classes = None if ctx.classes is None else ctx.classes.seen
        objective, draws = ctx.net["generator"], ctx.rng("generator")
        how: dict[str, Any] = {"steps": self.generator_steps, "lr": self.generator_lr}
        teacher = Teacher(ctx.objective, w, b, classes)
        g, s, _ = fit_mfcl_generator(objective, *objective.initial(), teacher, draws, **how)
        return Maker(g[None], s[None], w, b)

    # samples ------------------------------------------------------------------------------------
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

    def drawn_without_data(self, ctx: Context, maker: Maker, size: int, tries: int = 10) -> Proxy:
        """A client's `size` proxy samples, labelled by the model at the trigger, balanced by rejection.

        At most `tries` batches of `size` are made (of 32 where it is less); then what was rejected fills the rest.
        """
        C = len(ctx.inputs.classes)
        seen = torch.arange(C) if ctx.classes is None else ctx.classes.seen.index
        quota, x_kept, y_kept = -(-size // len(seen)), [], []
        counts = torch.zeros(C, dtype=torch.int64)
        spare: list[tuple[Tensor, Tensor]] = []
        for attempt in range(tries):
            z = ctx.rng("made", attempt)
            x = make(ctx.net["generator"], maker.w[0], maker.b[0], max(size, 32), None, C, z)
            y = labelled(ctx, maker, x)
            # 1: the first of its class in this batch
            order = F.one_hot(y, C).cumsum(0).gather(1, y[:, None])[:, 0]
            fits = order + counts.to(y.device)[y] <= quota
            x_kept.append(x[fits])
            y_kept.append(y[fits])
            spare.append((x[~fits], y[~fits]))
            counts += torch.bincount(y[fits].cpu(), minlength=C)
            if counts.sum() >= size:
                break
        x = torch.cat([*x_kept, *(x for x, _ in spare)])[:size]
        y = torch.cat([*y_kept, *(y for _, y in spare)])[:size]
        return self.told(ctx, x, y)

    def told(self, ctx: Context, x: Tensor, y: Tensor) -> Proxy:
        """Samples with their labels after the label noise, of the classes seen so far."""
        if self.label_noise:
            y = wrong_labels(y, self.label_noise, len(ctx.inputs.classes), ctx.rng("label noise"))
        if ctx.classes is not None:
            known = ctx.classes.seen.has(y)
            x, y = x[known], y[known]
        return TensorProxy(x, y)

    def order(self, ctx: Context, size: int, epochs: int, purpose: str, mode: ModuleMode) -> list[np.ndarray]:
        """The batches of so many epochs over `size` samples, as their numbers. In the mode `train` a last batch of one
        sample, on which batch norm cannot train, joins the one before."""
        joins = mode == "train" and size % self.proxy_batch_size == 1
        cuts = edges(size, self.proxy_batch_size, "merge" if joins else "keep")
        each = (ctx.rng(purpose, epoch).permutation(size) for epoch in range(epochs))
        return [numbers[start:stop] for numbers in each for start, stop in pairwise(cuts)]


def pixels(ctx: Context, x: Tensor) -> Tensor:
    """Images as the GAN sees them, in -1..1, out of normalised ones; features as they are."""
    if not ctx.inputs.is_image:
        return x
    mean, std = (torch.tensor(part, device=x.device)[:, None, None] for part in (ctx.inputs.mean, ctx.inputs.std))
    return 2 * (x * std + mean) - 1


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
