"""Networks as people bring them: with buffers of every kind, state outside of tensors, and odd outputs."""

import copy
import os
import random

import numpy as np
import torch
import torch.utils.checkpoint
from torch import nn

from tests.models import helper

CALLS = [0]


class Schedule:
    step = 0


def halve(p):
    p.grad.mul_(0.5)


def tick():
    tick.n += 1
    return tick.n


tick.n = 0


class Base(nn.Module):
    """A small classifier of 8 numbers; `extra` registers what the middle reads."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.a = nn.Linear(8, 16)
        self.extra()
        self.head = nn.Linear(16, num_classes)

    def extra(self):
        pass

    def middle(self, h):
        return h

    def forward(self, x):
        return self.head(torch.relu(self.middle(self.a(x.flatten(1)))))


class Typed(Base):
    """What the middle reads has other types than float32: complex phases, a grid that float32 cannot hold, a frozen
    layer in bfloat16, and frozen parameters of integers, booleans and complex numbers that are conjugated when read."""

    def extra(self):
        self.register_buffer("phases", torch.polar(torch.ones(8), torch.arange(8.0)).conj())
        self.register_buffer("grid", torch.linspace(0, 1, 16, dtype=torch.float64) + 1e8)
        self.body = nn.Linear(16, 16, dtype=torch.bfloat16).requires_grad_(False)
        self.order = nn.Parameter(torch.arange(16).flip(0), requires_grad=False)
        self.used = nn.Parameter(torch.arange(16) % 3 > 0, requires_grad=False)
        self.turn = nn.Parameter(torch.polar(torch.ones(8), torch.linspace(0, 1, 8)).conj(), requires_grad=False)

    def middle(self, h):
        h = self.body(h.to(torch.bfloat16)).float() * (self.grid - 1e8).float() * self.used
        turned = torch.view_as_complex(h[:, self.order].view(-1, 8, 2)) * self.phases * self.turn
        return torch.view_as_real(turned).flatten(1)


class Constants(Base):
    """An infinite mask, NaN, an index, and other types than float32: none changes."""

    def extra(self):
        self.register_buffer("mask", torch.tensor([0.0] * 15 + [-torch.inf]))
        self.register_buffer("nan", torch.full((3,), torch.nan))
        self.register_buffer("index", torch.linspace(0, 1, 16) / 3)
        self.register_buffer("wide", torch.linspace(0, 1, 16, dtype=torch.float64) / 3)
        self.register_buffer("flags", torch.arange(16) % 2 == 0)

    def middle(self, h):
        return h + self.mask.softmax(0) + self.index + self.wide.float() + self.flags.float()


class Silent(Base):
    """Its `train`, which keeps a norm layer in eval mode, and others of its methods return nothing."""

    def extra(self):
        self.norm = nn.BatchNorm1d(16)

    def middle(self, h):
        return self.norm(h)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()

    def eval(self):
        super().eval()

    def to(self, *where, **options):
        super().to(*where, **options)

    def double(self):
        super().double()


class OwnNorm(Base):
    """A norm of the user's own: it assigns its running statistics anew."""

    def extra(self):
        self.register_buffer("running_mean", torch.zeros(16))
        self.register_buffer("running_var", torch.ones(16))

    def middle(self, h):
        mean, var = (h.mean(0), h.var(0)) if self.training else (self.running_mean, self.running_var)
        if self.training:
            self.running_mean = 0.9 * self.running_mean + 0.1 * mean
            self.running_var = 0.9 * self.running_var + 0.1 * var
        return (h - mean) / (var + 1e-5).sqrt()


class FixedNorm(OwnNorm):
    """Running statistics of a checkpoint, which never move."""

    def extra(self):
        super().extra()
        self.running_mean.normal_()

    def middle(self, h):
        return (h - self.running_mean) / (self.running_var + 1e-5).sqrt()


class TwoNames(Base):
    def extra(self):
        self.norm = nn.BatchNorm1d(16)
        self.again = nn.ModuleList([self.norm])

    def middle(self, h):
        return self.again[0](h)


class Spectral(Base):
    def extra(self):
        self.s = nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))

    def middle(self, h):
        return self.s(h)


class Average(Base):
    def extra(self):
        self.register_buffer("ema", torch.zeros(16))

    def middle(self, h):
        if self.training:
            with torch.no_grad():
                self.ema.lerp_(h.mean(0), 0.1)
        return h - self.ema


class Counter(Base):
    def extra(self):
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def middle(self, h):
        if self.training:
            self.steps += 1
        return h * torch.clamp((1 + self.steps) / 50, max=1.0)


class Attribute(Base):
    def extra(self):
        self.steps = 0

    def middle(self, h):
        self.steps += self.training
        return h * min(1.0, (1 + self.steps) / 50)


class Global(Base):
    def middle(self, h):
        CALLS[0] += 1
        return h * CALLS[0]


class Hook(Base):
    def extra(self):
        seen = {"calls": 0}

        def hook(module, inputs, output):
            seen["calls"] += 1
            return output * seen["calls"]

        self.a.register_forward_hook(hook)


class OwnGenerator(Base):
    def extra(self):
        self.draws = np.random.default_rng(0)

    def middle(self, h):
        return h + float(self.draws.normal())


class Cache(Base):
    """What it leaves is written anew by each forward pass, and read by none: no state."""

    def middle(self, h):
        self.last = h.detach()
        return h


class CachedNoise(Base):
    """Noise that the first forward pass of a process draws, for each batch size."""

    def extra(self):
        self.noise = {}

    def middle(self, h):
        if len(h) not in self.noise:
            self.noise[len(h)] = torch.randn(h.shape[1])
        return h + self.noise[len(h)]


class FirstBatch(Base):
    """A scale that the first batch of a process decides."""

    scale = None

    def middle(self, h):
        if self.scale is None:
            self.scale = h.detach().abs().mean()
        return h / self.scale


class Noise(Base):
    """NumPy's and Python's own generators in both modes, and a frozen parameter drawn by NumPy."""

    def extra(self):
        self.z = nn.Parameter(torch.from_numpy(np.random.normal(size=16).astype(np.float32)), requires_grad=False)

    def middle(self, h):
        return h + self.z + random.random() + torch.from_numpy(np.random.normal(size=h.shape).astype(np.float32))


class Teacher(Base):
    """A frozen copy that a forward pass moves."""

    def extra(self):
        self.t = nn.Linear(8, 16).requires_grad_(False)

    def middle(self, h):
        with torch.no_grad():
            self.t.weight.lerp_(self.a.weight, 0.1)
        return h


class DataTeacher(Base):
    """A momentum encoder that begins as a copy of its student, as MoCo writes it."""

    def extra(self):
        self.t = copy.deepcopy(self.a).requires_grad_(False)

    def follow(self):
        for k, q in zip(self.t.parameters(), self.a.parameters(), strict=True):
            k.data = k.data * 0.99 + q.data * 0.01

    def forward(self, x):
        if self.training:
            self.follow()
        return self.head(torch.relu(self.a(x.flatten(1)) + 0.5 * self.t(x.flatten(1))))


class TrainTeacher(DataTeacher):
    """Its `train()` moves the teacher, in place."""

    def follow(self):
        pass

    def train(self, mode=True):
        if mode:
            for k, q in zip(self.t.parameters(), self.a.parameters(), strict=True):
                k.data.mul_(0.99).add_(q.data, alpha=0.01)
        return super().train(mode)


class Merged(Base):
    """LoRA as in loralib: eval mode adds the product, which is 0 at first, to the frozen weight."""

    def extra(self):
        self.w = nn.Linear(16, 16).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 16)), nn.Parameter(torch.zeros(16, 2))
        self.merged = False

    def train(self, mode=True):
        if mode == self.merged:
            self.w.weight.data += (self.up @ self.down) * (-1 if mode else 1)
            self.merged = not mode
        return super().train(mode)

    def middle(self, h):
        return self.w(h) if self.merged else self.w(h) + h @ self.down.T @ self.up.T


class EvalCache(Base):
    """Eval mode computes a weight once, and a pass in train mode drops it."""

    def extra(self):
        self.scale, self.kept = nn.Parameter(torch.ones(16)), None

    def middle(self, h):
        self.kept = None if self.training else self.kept
        if self.training:
            return h * self.scale.exp()
        if self.fresh(self.kept):
            self.kept = (self.scale, self.scale.exp())
        return h * self.kept[1]

    def fresh(self, kept):
        return kept is None


class KeyedCache(EvalCache):
    """The cache knows whose weight it has."""

    def fresh(self, kept):
        return kept is None or kept[0] is not self.scale


class Particular(Base):
    """It is only at the parameters that it begins with."""

    def extra(self):
        self.gain = nn.Parameter(torch.ones(()))

    def middle(self, h):
        assert self.training or self.gain.item() == 1
        return h * self.gain


class Unseeded(Base):
    """Its noise in eval mode has no seed."""

    def middle(self, h):
        return h if self.training else h + float.fromhex(os.urandom(4).hex()) / 2**32


class Toggled(Base):
    def middle(self, h):
        self.a.weight.requires_grad_(False)
        return h


class Late(Base):
    def middle(self, h):
        if not hasattr(self, "gain"):
            self.gain = nn.Parameter(torch.ones(16))
        return h * self.gain


class Listed(Base):
    def extra(self):
        self.p = nn.Linear(16, 16)
        self.list = [self.p.weight]

    def middle(self, h):
        return h @ self.list[0]


class StoredData(Base):
    """A decoder of its encoder's weight, which is stored once and normalised in each pass."""

    def extra(self):
        self.p = nn.Linear(16, 16)
        self.stored = self.store(self.p.weight.data)

    def store(self, weight):
        return {"w": [weight.t()[:16]]}

    def middle(self, h):
        return self.p(h) @ nn.functional.normalize(self.stored["w"][0], dim=0)


class StoredArray(StoredData):
    def store(self, weight):
        return weight.numpy()

    def middle(self, h):
        return self.p(h) * float(abs(self.stored).mean())


class StoredInAClosure(StoredData):
    def store(self, weight):
        return lambda: weight

    def middle(self, h):
        return self.p(h) @ self.stored()


class StoredForTests(StoredData):
    def middle(self, h):
        return self.p(h) if self.training else super().middle(h)


class StoredMean(Base):
    def extra(self):
        self.n = nn.BatchNorm1d(16)
        self.means = list(self.n.buffers())[:1]

    def middle(self, h):
        return self.n(h) - 0.1 * self.means[0]


class StoredUnread(StoredData):
    """Stored, and in no forward pass."""

    def middle(self, h):
        return self.p(h)


class WantsParameter(Base):
    def middle(self, h):
        return h + self.get_parameter("a.weight").sum()


class AssertsParameter(Base):
    def middle(self, h):
        assert isinstance(self.a.weight, nn.Parameter), "no parameter"
        return h


class InnerGradient(Base):
    """A step on its own weight within each pass, as MAML takes one."""

    def middle(self, h):
        with torch.enable_grad():
            inner = (h @ self.head.weight.t()).pow(2).mean()
            (gradient,) = torch.autograd.grad(inner, self.head.weight, create_graph=True)
        return h - 0.1 * (h @ gradient.t() @ self.head.weight)


class MaxNorm(Base):
    def extra(self):
        self.e = nn.Embedding(4, 16, max_norm=0.5)


class SharedMemory(Base):
    def extra(self):
        self.p, self.q = nn.Linear(16, 16), nn.Linear(16, 16)
        self.q.weight.data = self.p.weight.data


class ExtraState(Base):
    def get_extra_state(self):
        return {"calls": 1}


class Pair(Base):
    def forward(self, x):
        y = super().forward(x)
        return (y, y) if self.training else y


class Wider(Base):
    def forward(self, x):
        y = super().forward(x)
        return torch.cat([y, y], 1) if self.training else y


class Nothing(Base):
    def forward(self, x):
        if not self.training:
            return super().forward(x)


def scripted(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(8, num_classes)))


def parallel(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.DataParallel(nn.Sequential(nn.Flatten(), nn.Linear(8, num_classes)))


def meta(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(8, num_classes, device="meta"))


class ClassCounter(Base):
    def middle(self, h):
        Schedule.step += self.training
        return h / (1 + 0.1 * Schedule.step)


class FunctionCounter(Base):
    def middle(self, h):
        return h / (1 + 0.1 * tick())


class ModuleCounter(Base):
    def middle(self, h):
        helper.calls += 1
        return h / (1 + 0.1 * helper.calls)


class OwnBatchNorm(nn.BatchNorm1d):
    def forward(self, x):
        self.momentum = 1.0 / (1.0 + float(self.num_batches_tracked))
        return super().forward(x)


class CountingNorm(Base):
    def extra(self):
        self.n = OwnBatchNorm(16)

    def middle(self, h):
        return self.n(h)


class ParameterHook(Base):
    """The idiom of sparse training."""

    def extra(self):
        self.a.weight.register_hook(lambda g: g * (torch.arange(8) % 2))


class AccumulatedHook(Base):
    def extra(self):
        self.a.weight.register_post_accumulate_grad_hook(halve)


class ParameterAttribute(Base):
    def extra(self):
        self.a.weight.scale = 3.0

    def middle(self, h):
        return h * getattr(self.a.weight, "scale", 1.0)


class OnlyParameters(Base):
    def middle(self, h):
        return h + sum(
            p.square().sum() for p in vars(self)["_modules"]["a"]._parameters.values() if type(p) is nn.Parameter
        )


class DataWrite(Base):
    def middle(self, h):
        self.a.weight.data = self.a.weight.data / self.a.weight.data.norm()
        return h


class Reentrant(Base):
    def forward(self, x):
        h = torch.utils.checkpoint.checkpoint(self.a, x.flatten(1).requires_grad_(), use_reentrant=True)
        return self.head(torch.relu(h))


class Resized(Base):
    """As an observer of quantisation, which learns its channels from the first batch."""

    def extra(self):
        self.register_buffer("least", torch.zeros(1))

    def middle(self, h):
        if self.training:
            self.least.resize_(h.shape[1]).copy_(h.detach().amin(0))
        return h


class Retyped(Base):
    def extra(self):
        self.register_buffer("least", torch.zeros(16))

    def middle(self, h):
        self.least.data = h.detach().amin(0).double()
        return h


class NotANumber(Base):
    def extra(self):
        self.gain = nn.Parameter(torch.full((2,), float("nan")))


class FrozenNaN(Base):
    """A frozen parameter that no output reads."""

    def extra(self):
        self.gain = nn.Parameter(torch.full((2,), float("nan")), requires_grad=False)


class CompiledPart(Base):
    """The compiled function changes when it is compiled, and its arithmetic does not."""

    def extra(self):
        self.twice = torch.compile(lambda h: 2 * h, backend="eager")

    def middle(self, h):
        return self.twice(h)


class Timed(Base):
    """A helper counts its calls, and no output reads the count."""

    def middle(self, h):
        tick()
        return h


class CopiedBatchNorm(nn.BatchNorm1d):
    """As PyTorch's own: the counter matters without a momentum."""

    def forward(self, x):
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        average = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        return nn.functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, average, self.eps
        )


class CopiedNorm(Base):
    def extra(self):
        self.n = CopiedBatchNorm(16)

    def middle(self, h):
        return self.n(h)


class ViewedKernel(Base):
    """A kernel as a matrix, by view."""

    def extra(self):
        self.k = nn.Parameter(torch.randn(16, 4, 2, 2))

    def middle(self, h):
        return h @ self.k.view(16, -1)


class ViewedMaps(Base):
    """What a convolution gives as a vector, by view."""

    def extra(self):
        self.c = nn.Conv2d(4, 4, 3, padding=1)

    def middle(self, h):
        return self.c(h.view(-1, 4, 2, 2)).view(h.size(0), -1)
