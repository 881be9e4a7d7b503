"""The only place that knows how the flat vectors `w`, `b` map to an `nn.Module`.

`objective.at(w, b)` is the model at a point: call it for logits. `objective.value_and_grad` gives a loss and
its gradient as one flat vector. Parameters that do not require a gradient stay inside the module, out of `w`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn

from flray.core.errors import ConfigError
from flray.core.params import Layout
from flray.core.point import Model

Mode = Literal["train", "train_frozen", "eval"]
Precision = Literal["fp32", "bf16"]

CACHED_POINTS = 6  # models kept bound: local, perturbed, global, and one or two teachers


class Objective:
    """An `nn.Module` as a function of flat parameters `w [P]` and batch-norm statistics `b [Q]`.

    `module` declares `features`, `head`; integer buffers (`num_batches_tracked`) do not influence a forward pass and are left
    out of `b`.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu", precision: Precision = "fp32") -> None:
        self.device = torch.device(device)
        self.precision = precision
        self.module = module.to(self.device)
        trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
        if not trained:
            raise ConfigError(f"model {type(module).__name__} has no trainable parameter: every requires_grad is False")
        wrong = [n for n, p in trained.items() if p.dtype != torch.float32]
        if wrong:
            raise ConfigError(f"model {type(module).__name__}: trainable parameter {wrong[0]} is {trained[wrong[0]].dtype}, not float32")
        buffers = {n: t for n, t in module.named_buffers() if t.is_floating_point() and _is_statistic(module, n)}
        self.layout = Layout({n: p.shape for n, p in trained.items()})
        self.buffer_layout = Layout({n: t.shape for n, t in buffers.items()})
        self._initial = (self.layout.flatten(trained, self.device), self.buffer_layout.flatten(buffers, self.device))
        names = {id(p): n for n, p in trained.items()}
        everywhere = module.named_parameters(remove_duplicate=False)
        self._aliases = {n: names[id(p)] for n, p in everywhere if id(p) in names and names[id(p)] != n}
        # frozen parameters and counters, as they are now: a counter of this process (num_batches_tracked) is nobody's state
        elsewhere = {*trained, *buffers, *self._aliases}
        self._rest = {n: t.detach().clone() for n, t in module.state_dict().items() if n not in elsewhere}
        # a tied parameter has one place in `w` and several in the module
        holders: dict[int, list[dict[str, Tensor | None]]] = {}
        for owner in module.modules():
            for parameter in owner._parameters.values():
                if parameter is not None:
                    holders.setdefault(id(parameter), []).append(owner._parameters)  # type: ignore[arg-type]
        self._sites = [(holders[id(p)], n.rpartition(".")[2]) for n, p in trained.items()]
        self._buffer_sites = [(module.get_submodule(n.rpartition(".")[0])._buffers, n.rpartition(".")[2]) for n in buffers]
        head = getattr(module, "head", None)
        in_head = {id(p) for p in head.parameters()} if isinstance(head, nn.Module) else set()
        self._head_names = {n for n, p in trained.items() if id(p) in in_head}
        self.in_head = tuple(n in self._head_names for n in trained)  # of every tensor of `w`, in order
        self._one = torch.ones((), device=self.device)  # d value / d value, which autograd would make at every step
        self._bound: Model | None = None
        self._training: bool | None = None
        self._points: OrderedDict[tuple[int, int, bool, bool], Model] = OrderedDict()
        self._gradients: OrderedDict[int, tuple[Tensor, list[Tensor]]] = OrderedDict()
        self._scratch: dict[str, Tensor] = {}
        self._missed: frozenset[int] | None = None  # numbers of the tensors that no gradient reached since `reached` was asked
        self._reached: dict[frozenset[int], Tensor] = {}

    # parameters ------------------------------------------------------------------------------
    def initial(self) -> tuple[Tensor, Tensor]:
        """Copies of the module's own initial `(w [P], b [Q])`."""
        return self._initial[0].clone(), self._initial[1].clone()

    def views(self, w: Tensor) -> dict[str, Tensor]:
        """Per-layer views of `w`, logical shapes, for methods that work layer by layer."""
        return self.layout.views(w)

    def mask(self, part: str) -> Tensor:
        """Float `[P]`, 1 on `"head"`, `"body"` (all but the head), `"all"`, or on the tensors of one submodule's name."""
        if part in ("head", "body") and not self._head_names:
            raise ConfigError(f"model {type(self.module).__name__} declares no `head`: part {part!r} is undefined for it")

        def chosen(name: str) -> bool:
            if part in ("head", "body"):
                return (name in self._head_names) == (part == "head")
            return part == "all" or name == part or name.startswith(part + ".")

        if not any(chosen(entry.name) for entry in self.layout.entries):
            raise ConfigError(f"model {type(self.module).__name__} has no trainable part {part!r}")
        return self.layout.mask(chosen).to(self.device)

    def state_dict(self, w: Tensor, b: Tensor) -> dict[str, Tensor]:
        """Every name and logical shape of the module's own `state_dict`, contiguous copies; a tied parameter under each of its names."""
        named = {**self.views(w), **self.buffer_layout.views(b)}
        aliases = {alias: named[n] for alias, n in self._aliases.items()}
        return {n: t.detach().contiguous().clone() for n, t in {**self._rest, **named, **aliases}.items()}

    def from_state_dict(self, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The inverse of :meth:`state_dict` for the trained part; raises `ConfigError` for a missing or misshapen tensor."""
        for entry in (*self.layout.entries, *self.buffer_layout.entries):
            found = tensors.get(entry.name)
            if found is None or tuple(found.shape) != entry.shape:
                have = "absent" if found is None else f"of shape {tuple(found.shape)}"
                raise ConfigError(f"weights for {type(self.module).__name__}: {entry.name} is {have}, expected {entry.shape}")
        return self.layout.flatten(tensors, self.device), self.buffer_layout.flatten(tensors, self.device)

    def scratch(self, name: str, like: Tensor) -> Tensor:
        """A preallocated tensor shaped as `like`, contents undefined, the same one at every call with this name.

        For `Carry` only: what one client leaves in it the next one overwrites.
        """
        found = self._scratch.get(name)
        if found is None or found.shape != like.shape:
            found = self._scratch[name] = torch.empty_like(like)
        return found

    # the function and its gradient ------------------------------------------------------------
    def at(self, w: Tensor, b: Tensor, mode: Mode = "eval", grad: bool = False) -> Model:
        """The model at `(w, b)`.

        `train` uses batch statistics and updates `b` in place; `train_frozen` uses them and leaves `b` alone; `eval` uses `b`.
        """
        if mode == "train_frozen" and b.numel():
            b = self.scratch("frozen statistics", b).copy_(b)
        key = (w.data_ptr(), b.data_ptr(), mode != "eval", grad)
        model = self._points.get(key)
        if model is None:
            model = Model(self, w, b, mode != "eval", grad)
            self._points[key] = model  # holds the storage, so no other tensor can take its address
            if len(self._points) > CACHED_POINTS:
                self._points.popitem(last=False)
        return model

    def value_and_grad(
        self, loss: Callable[[Model], Tensor], w: Tensor, b: Tensor, mode: Mode = "train", out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Scalar `loss(model at (w, b))`, detached, and its gradient `[P]` with respect to `w`, written to `out` if given."""
        model = self.at(w, b, mode, grad=True)
        value = loss(model)
        return value.detach(), self.gradient(value, model.leaves, out)

    def gradient(self, value: Tensor, leaves: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
        """Gradient `[P]` of the scalar `value` with respect to `leaves`, one for every tensor of `w` (those of a model, or of two
        models where a part of the network ran at another point); tensors that it does not reach get 0.
        """
        parts = torch.autograd.grad(value, list(leaves), self._one, allow_unused=True)
        flat = torch.zeros(self.layout.size, device=self.device) if out is None else out
        if out is None:
            views = [entry.view(flat) for entry in self.layout.entries]
        else:
            views = self._views_of(out)
        missed = frozenset(i for i, part in enumerate(parts) if part is None)
        self._missed = missed if self._missed is None else self._missed & missed
        if missed:
            parts = tuple(torch.zeros_like(v) if p is None else p for p, v in zip(parts, views, strict=True))
        torch._foreach_copy_(views, parts)
        return flat

    def reached(self) -> Tensor | None:
        """Float `[P]`: 0 on the tensors that no gradient reached since this was asked last, 1 elsewhere; None: every tensor was reached.

        An optimiser asks at every step, for `torch.optim` passes over a parameter that has no gradient: weight decay does not shrink it.
        """
        missed, self._missed = self._missed, None
        if not missed:
            return None
        if missed not in self._reached:
            names = {self.layout.entries[i].name for i in missed}
            self._reached[missed] = self.layout.mask(lambda name: name not in names).to(self.device)
        return self._reached[missed]

    def _views_of(self, out: Tensor) -> list[Tensor]:
        known = self._gradients.get(out.data_ptr())
        if known is None:
            out.zero_()  # the gaps between tensors
            known = (out, [entry.view(out) for entry in self.layout.entries])
            self._gradients[out.data_ptr()] = known
            if len(self._gradients) > CACHED_POINTS:
                self._gradients.popitem(last=False)
        return known[1]

    def _autocast(self) -> AbstractContextManager[object]:
        if self.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()


def _is_statistic(module: nn.Module, name: str) -> bool:
    """Whether a buffer is persistent state; position indices and the like are constants of the module."""
    owner, _, leaf = name.rpartition(".")
    return leaf not in module.get_submodule(owner)._non_persistent_buffers_set
