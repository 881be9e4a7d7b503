"""FedMemo's proxy data and the training on them (appendix E, Prop. 3.2; its card): the section `proxy` of the method.

The server's samples come from a GAN of a small held-out set, or are that set. The clients' samples come from a
generator that the server trained without data."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from flray.core.messages import Record
from flray.core.network.parts import ModuleMode
from flray.core.protocol.batching import edges
from flray.core.protocol.clock import Clock
from flray.core.protocol.context import Context
from flray.core.protocol.inputs import Inputs
from flray.core.protocol.samples import Proxy, TensorProxy
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.core.schema.section import Section
from flray.models.generators import MFCLGenerator, ProxyDiscriminator, ProxyGenerator
from flray.ops.acgan import cyclic_labels, fit_gan, generate_samples, wrong_labels
from flray.ops.distill import index_batches
from flray.ops.generate import balanced_by_rejection
from flray.ops.proxy_step import full_gradient, train_on_proxy
from flray.ops.synthesis import Teacher, fit_mfcl_generator

# its networks; an algorithm may have a `generator` of its own
GENERATOR, DISCRIMINATOR = "proxy generator", "proxy discriminator"


class Generators(Record):
    """Generators `w [G, P]`, `b [G, Q]`: G = 0 before training, C for `per_class`, else 1. The classifier `labeller_w
    [P]`, `labeller_b [Q]` labels their samples; it is empty if the generators are conditional."""

    w: Tensor
    b: Tensor
    labeller_w: Tensor
    labeller_b: Tensor

    @classmethod
    def untrained(cls, device: torch.device) -> Generators:
        """No generator and no classifier."""
        empty = torch.zeros(0, device=device)
        return cls(empty[None][:0], empty[None][:0], empty, empty)


class ProxySource(Section, frozen=True):
    """The proxy samples: how they are made, labelled and trained on."""

    data: Literal["gan", "real"] = hp(
        "gan",
        doc="server: samples of a GAN of the experiment's section proxy, or that section's samples (an upper bound)",
    )
    labels: Literal["acgan", "per_class", "teacher"] = hp(
        "acgan",
        doc="server: one conditional GAN, a GAN for each class, or one GAN and a classifier of the held-out data",
    )
    size: int = hp(5000, log=(500, 10000), ge=1, doc="server: proxy samples a round (N_p); with data: real at most")
    refresh: bool = hp(False, doc="server: new proxy samples every round")
    gan_epochs: int = hp(100, choice=(50, 70, 100), ge=1, doc="server: epochs of the GAN on the held-out data")
    gan_batch_size: int = hp(64, choice=(32, 64, 128), ge=2, doc="server: batch size of the GAN")
    gan_lr: float = hp(2e-4, log=(1e-5, 1e-2), gt=0, doc="server: learning rate of the GAN (Adam)")
    labeller_epochs: int = hp(
        20, choice=(10, 20, 50), ge=1, doc="labels: teacher: epochs of the classifier (SGD; batch_size and lr as below)"
    )
    generator_steps: int = hp(100, log=(20, 1000), ge=1, doc="client: steps of the data-free generator (MFCL's)")
    generator_lr: float = hp(1e-3, log=(1e-4, 1e-2), gt=0, doc="client: learning rate of that generator (Adam)")
    label_noise: float = hp(0.0, linear=(0.0, 0.5), ge=0, le=1, doc="share of proxy labels changed to a wrong one")
    lr: float = hp(0.01, log=(1e-4, 0.1), gt=0, doc="learning rate of the training on proxy data (SGD)")
    batch_size: int = hp(64, choice=(32, 64, 128), ge=1, doc="batch size of the training on proxy data")
    epochs: int = hp(1, choice=(1, 2, 5), ge=1, doc="epochs on the proxy data in step 2")
    one_step: bool = hp(False, doc="step 2 is one step along the gradient of all proxy data (the paper's text)")
    bn: Literal["freeze", "update"] = hp(
        "freeze", doc="batch norm in step 2: fixed statistics, or batch statistics that update them"
    )

    # on the server: from held-out data ------------------------------------------------------------
    def gan(self, inputs: Inputs) -> dict[str, nn.Module]:
        """The networks of the GAN; none for real data. Raises `ConfigError` for texts, and if a conditional GAN has
        fewer noise entries than classes."""
        if self.data == "real":
            return {}
        inputs.require_numbers("FedMemo's GAN")
        generator, classes = ProxyGenerator(inputs.shape), len(inputs.classes)
        if self.labels == "acgan" and classes >= generator.noise:
            raise ConfigError(
                f"algorithm.proxy.labels: acgan keeps one of {generator.noise} noise entries for each class, the data "
                f"have {classes}; set per_class or teacher"
            )
        return {GENERATOR: generator, DISCRIMINATOR: ProxyDiscriminator(inputs.shape, classes)}

    def fit_gans(self, ctx: Context) -> Generators:
        """The server's GANs, trained on the held-out data. Their draws have the address of the run's beginning, so the
        result does not depend on the round in which it is first needed."""
        ctx = replace(ctx, clock=Clock())
        proxy, untrained = ctx.require_proxy(), Generators.untrained(ctx.device)
        everything = np.arange(proxy.size)
        x, y = to_gan_scale(ctx, proxy.inputs(everything)), proxy.labels(everything)
        C = len(ctx.inputs.classes)
        how: dict[str, Any] = {"epochs": self.gan_epochs, "batch_size": self.gan_batch_size, "lr": self.gan_lr}
        how["progress"] = ctx.progress("FedMemo trains its GAN")
        nets = ctx.net[GENERATOR], ctx.net[DISCRIMINATOR]
        if self.labels == "per_class":
            gans = [
                fit_gan(*nets, x[y == c], None, C, ctx.rng("gan", c), **how)[:2] for c in range(C) if (y == c).sum() > 1
            ]
            if len(gans) < C:
                raise ConfigError(
                    f"algorithm.proxy.labels: per_class needs two held-out samples of each of {C} classes and has them "
                    f"of {len(gans)}; raise proxy.size"
                )
            return untrained.replace(w=torch.stack([w for w, _ in gans]), b=torch.stack([b for _, b in gans]))
        w, b, _ = fit_gan(*nets, x, y if self.labels == "acgan" else None, C, ctx.rng("gan"), **how)
        if self.labels == "acgan":
            return untrained.replace(w=w[None], b=b[None])
        order = self.batch_order(ctx, proxy.size, self.labeller_epochs, "labeller", "train")
        labeller = train_on_proxy(ctx.objective, *ctx.objective.initial(), proxy, order, lr=self.lr, mode="train")
        return Generators(w[None], b[None], *labeller)

    def server_samples(self, ctx: Context, generators: Generators) -> Proxy:
        """The server's proxy data of this round, of the classes seen so far."""
        C = len(ctx.inputs.classes)
        at = ctx if self.refresh else replace(ctx, clock=Clock())
        if self.data == "real":
            known = ctx.require_proxy()
            index = at.rng("proxy").permutation(known.size)[: self.size]
            x, y = known.inputs(index), known.labels(index)
        else:
            y = cyclic_labels(self.size, C).to(ctx.device)
            images = torch.zeros(self.size, *ctx.inputs.shape, device=ctx.device)
            for g, (w, b) in enumerate(zip(generators.w, generators.b, strict=True)):
                chosen = y == g if len(generators.w) > 1 else torch.ones_like(y, dtype=torch.bool)
                asked = y if self.labels == "acgan" else None
                images[chosen] = generate_samples(
                    ctx.net[GENERATOR], w, b, int(chosen.sum()), asked, C, at.rng("proxy", g)
                )
            x = from_gan_scale(ctx, images)
            if len(generators.labeller_w):
                y = pseudo_labels(ctx, generators, x)
        return self.of_seen_classes(at, x, y)

    # at the clients: without data -----------------------------------------------------------------
    def data_free_generator(self, inputs: Inputs) -> dict[str, nn.Module]:
        """The network of the clients' generator. Raises `ConfigError` for texts."""
        inputs.require_numbers("FedMemo's generator")
        return {GENERATOR: MFCLGenerator(inputs.shape)}

    def fit_without_data(self, ctx: Context, w: Tensor, b: Tensor) -> Generators:
        """The clients' generator, trained on the model `(w, b)` alone; that model also labels its samples."""
        classes = None if ctx.classes is None else ctx.classes.seen
        objective, draws = ctx.net[GENERATOR], ctx.rng("generator")
        how: dict[str, Any] = {"steps": self.generator_steps, "lr": self.generator_lr}
        how["progress"] = ctx.progress("FedMemo trains its generator")
        teacher = Teacher(ctx.objective, w, b, classes)
        g, s, _ = fit_mfcl_generator(objective, *objective.initial(), teacher, draws, **how)
        return Generators(g[None], s[None], w, b)

    def client_samples(self, ctx: Context, generators: Generators, size: int, tries: int = 10) -> Proxy:
        """A client's `size` proxy samples, labelled by the model at the alarm, balanced by rejection.

        Draws at most `tries` batches of max(size, 32) samples; then rejected samples fill the rest.
        """
        C = len(ctx.inputs.classes)

        def batch(attempt: int) -> tuple[Tensor, Tensor]:
            z = ctx.rng("made", attempt)
            x = generate_samples(ctx.net[GENERATOR], generators.w[0], generators.b[0], max(size, 32), None, C, z)
            return x, pseudo_labels(ctx, generators, x)

        asked = C if ctx.classes is None else len(ctx.classes.seen)
        return self.of_seen_classes(ctx, *balanced_by_rejection(map(batch, range(tries)), size, asked, C))

    # training on proxy data -----------------------------------------------------------------------------
    def train(self, ctx: Context, w: Tensor, b: Tensor, proxy: Proxy) -> tuple[Tensor, Tensor]:
        """`(w_p [P], b_p [Q])`: the model `(w, b)` after training on the proxy data."""
        mode: ModuleMode = "eval" if self.bn == "freeze" else "train"
        how: dict[str, Any] = {"mode": mode, "classes": None if ctx.classes is None else ctx.classes.seen}
        if self.one_step:
            _, g = full_gradient(ctx.objective, w, b, proxy, np.arange(proxy.size), **how)
            return w - self.lr * g, b
        order = self.batch_order(ctx, proxy.size, self.epochs, "proxy order", mode)
        return train_on_proxy(ctx.objective, w, b, proxy, order, lr=self.lr, **how)

    def batch_order(self, ctx: Context, size: int, epochs: int, purpose: str, mode: ModuleMode) -> list[np.ndarray]:
        """The batches of `epochs` epochs over `size` samples, as sample numbers. In the mode `train` a last batch of
        one sample joins the batch before it, because batch norm cannot train on one."""
        joins = mode == "train" and size % self.batch_size == 1
        cuts = edges(size, self.batch_size, "merge" if joins else "keep")
        each = (ctx.rng(purpose, epoch).permutation(size) for epoch in range(epochs))
        return [numbers[start:stop] for numbers in each for start, stop in pairwise(cuts)]

    def of_seen_classes(self, ctx: Context, x: Tensor, y: Tensor) -> Proxy:
        """The samples with noisy labels, without those of classes not seen so far."""
        if self.label_noise:
            y = wrong_labels(y, self.label_noise, len(ctx.inputs.classes), ctx.rng("label noise"))
        if ctx.classes is not None:
            known = ctx.classes.seen.has(y)
            x, y = x[known], y[known]
        return TensorProxy(x, y)


def to_gan_scale(ctx: Context, x: Tensor) -> Tensor:
    """The GAN's scale, -1..1, of normalised images; features as they are."""
    return 2 * ctx.inputs.pixels(x) - 1 if ctx.inputs.is_image else x


def from_gan_scale(ctx: Context, images: Tensor) -> Tensor:
    """The model's scale of the GAN's images: the inverse of :func:`to_gan_scale`."""
    return ctx.inputs.normalised((images + 1) / 2) if ctx.inputs.is_image else images


def pseudo_labels(ctx: Context, generators: Generators, x: Tensor) -> Tensor:
    """Labels `[n]` of samples: the labeller's most likely class among those seen so far."""
    model, parts = ctx.objective.at(generators.labeller_w, generators.labeller_b), []
    with torch.no_grad():
        for index in index_batches(np.arange(len(x)), 500):
            logits = model(x[torch.from_numpy(index).to(x.device)])
            known = ctx.seen(logits).argmax(1)
            parts.append(known if ctx.classes is None else ctx.classes.seen.index[known])
    return torch.cat(parts)
