"""The only place that knows how the flat vectors `w`, `b` map to an `nn.Module`.

`objective.at(w, b)` is the model at a point: call it for logits. `objective.value_and_grad` gives a loss and
its gradient as one flat vector. Parameters that do not require a gradient stay inside the module, out of `w`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flray.core.network.layers import LAYERS, LayerInputs, inputs_of, record_inputs
from flray.core.network.layout import Layout
from flray.core.network.parts import Flags, ModuleModes, NetworkParts
from flray.core.network.tensor_cache import TensorCache
from flray.core.schema.errors import ConfigError

Precision = Literal["fp32", "bf16"]

CACHED_POINTS = 32  # views, no storage: a few for a local step, one a client while an ensemble is asked batch by batch


class Objective:
    """An `nn.Module` as a function of flat parameters `w [P]` and batch-norm statistics `b [Q]`.

    The module is a classifier, a wrapped one, a list of networks, or a generator. Besides the forward pass, the parts
    that it declares (`features`, `head`, `levels`, any part by its name) can be called. Integer buffers
    (`num_batches_tracked`) do not change a forward pass and are not in `b`. `layout` gives the place of each trained
    tensor in `w`, `buffer_layout` that of each statistic in `b`.
    """

    def __init__(
        self, module: nn.Module, device: torch.device | str = "cpu", precision: Precision = "fp32", trains: bool = True
    ) -> None:
        """`trains=False`: the module may have no trainable parameter (a frozen teacher), and `w` may be empty.

        Raises `ConfigError` for any other module without a trainable parameter, and for parameters other than float32.
        """
        self.device = torch.device(device)
        self.precision = precision
        self.module = module.to(self.device)
        trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
        if not trained and trains:
            raise ConfigError(f"model {type(module).__name__} has no trainable parameter: every requires_grad is False")
        for name, tensor in trained.items():
            if tensor.dtype != torch.float32:
                wrong = f"trainable parameter {name} is {tensor.dtype}, not float32"
                raise ConfigError(f"model {type(module).__name__}: {wrong}")
        buffers = {n: t for n, t in module.named_buffers() if t.is_floating_point() and _is_statistic(module, n)}
        self.layout = Layout({n: p.shape for n, p in trained.items()})
        self.buffer_layout = Layout({n: t.shape for n, t in buffers.items()})
        self._initial = (self.layout.flatten(trained, self.device), self.buffer_layout.flatten(buffers, self.device))
        names = {id(p): n for n, p in trained.items()}
        everywhere = module.named_parameters(remove_duplicate=False)
        self._aliases = {n: names[id(p)] for n, p in everywhere if id(p) in names and names[id(p)] != n}
        # Frozen parameters are never written, so they are the module's own. Counters (num_batches_tracked) are copied
        # once; they are not model state.
        untrained = {n for n, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad}
        elsewhere = {*trained, *buffers, *self._aliases}
        rest = {n: t.detach() for n, t in module.state_dict().items() if n not in elsewhere}
        self._rest = {n: t if n in untrained else t.clone() for n, t in rest.items()}
        self.frozen = tuple(n for n in rest if n in untrained)  # names of untrained tensors in `state_dict`
        # a tied parameter is once in `w` and several times in the module
        holders: dict[int, list[dict[str, Tensor | None]]] = {}
        for owner in module.modules():
            for parameter in owner._parameters.values():
                if parameter is not None:
                    holders.setdefault(id(parameter), []).append(owner._parameters)  # type: ignore[arg-type]
        self._sites = [(holders[id(p)], n.rpartition(".")[2]) for n, p in trained.items()]
        self._buffer_sites = [
            (module.get_submodule(n.rpartition(".")[0])._buffers, n.rpartition(".")[2]) for n in buffers
        ]
        self.parts = NetworkParts(module, trained, buffers)
        self.in_head = self.parts.in_head
        self._bound: BoundModel | None = None
        self._training: Flags | None = None
        self._points: TensorCache[BoundModel] = TensorCache(CACHED_POINTS)
        self._gradients: TensorCache[list[Tensor]] = TensorCache(CACHED_POINTS)
        self._scratch: dict[str, Tensor] = {}
        self._missed: frozenset[int] | None = None  # numbers of the tensors that no gradient reached, see `reached`
        self._reached: dict[frozenset[int], Tensor] = {}

    # parameters ------------------------------------------------------------------------------
    def initial(self) -> tuple[Tensor, Tensor]:
        """Copies of the module's own initial `(w [P], b [Q])`."""
        return self._initial[0].clone(), self._initial[1].clone()

    def resident(self) -> list[Tensor]:
        """The tensors that it has on its device before it is asked for anything, to read only."""
        return [*self.module.parameters(), *self.module.buffers(), *self._rest.values(), *self._initial]

    def views(self, w: Tensor) -> dict[str, Tensor]:
        """Per-layer views of `w`, logical shapes, for methods that work layer by layer."""
        return self.layout.views(w)

    def mask(self, part: str) -> Tensor:
        """Float `[P]`, 1 on the tensors of a part: `"head"`, `"body"` (all but the head), `"early"`, `"all"`, or a
        submodule.

        `"early"` are the layers that the network declares for freezing after the first task. Raises `ConfigError` if
        the part has no trained tensor, or is the head or body of a network without a head.
        """
        chosen = self.parts.tensors(part)
        return self.layout.mask(lambda name: name in chosen).to(self.device)

    def state_dict(self, w: Tensor, b: Tensor) -> dict[str, Tensor]:
        """Every name and logical shape of the module's own `state_dict`; a tied parameter under each of its names.

        They are contiguous copies, except the `frozen` parameters, which are the module's own: do not write to them.
        """
        named = {**self.views(w), **self.buffer_layout.views(b)}
        named |= {alias: named[n] for alias, n in self._aliases.items()}
        return {**self._rest, **{n: t.detach().contiguous().clone() for n, t in named.items()}}

    def from_state_dict(self, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """`(w [P], b [Q])` from the tensors of :meth:`state_dict`.

        Raises `ConfigError` for a missing tensor or a wrong shape.
        """
        for entry in (*self.layout.entries, *self.buffer_layout.entries):
            tensor = tensors.get(entry.name)
            if tensor is None or tuple(tensor.shape) != entry.shape:
                have = "absent" if tensor is None else f"of shape {tuple(tensor.shape)}"
                raise ConfigError(
                    f"weights for {type(self.module).__name__}: {entry.name} is {have}, expected {entry.shape}"
                )
        return self.layout.flatten(tensors, self.device), self.buffer_layout.flatten(tensors, self.device)

    def scratch(self, name: str, like: Tensor) -> Tensor:
        """A preallocated tensor with the shape of `like` and undefined contents, the same at every call with this name.

        For a `LocalState` only: the next client overwrites it.
        """
        buffer = self._scratch.get(name)
        if buffer is None or buffer.shape != like.shape:
            buffer = self._scratch[name] = torch.empty_like(like)
        return buffer

    # the function and its gradient ------------------------------------------------------------
    def at(
        self, w: Tensor, b: Tensor, mode: ModuleModes = "eval", grad: bool = False, fixed: str | None = None
    ) -> BoundModel:
        """The model at `(w, b)`; `grad`: it will be differentiated.

        `train` uses batch statistics and updates `b` in place; `train_frozen` uses them and does not change `b`; `eval`
        uses `b`. `{"all": "train", "body": "eval"}` sets modes by part (a name of :meth:`mask`; a later entry wins);
        other modules are in eval mode. `fixed`: a part whose tensors are constants without a gradient. Raises
        `ConfigError` for a part that the network does not have.
        """
        train: Flags
        frozen: Flags
        if isinstance(mode, str):
            train, frozen = mode != "eval", mode == "train_frozen" and b.numel() > 0
        else:
            train, frozen = self.parts.flags(mode)
        frozen_b = self.scratch("frozen statistics", b).copy_(b) if frozen else b
        key = (w.data_ptr(), b.data_ptr(), train, frozen, grad, fixed)
        model = self._points.get(key)
        if model is None:
            entries = self.buffer_layout.entries
            flags = frozen if isinstance(frozen, tuple) else (frozen,) * len(entries)
            places = (b.detach(), frozen_b.detach())
            buffers = [entry.view(places[flag]) for entry, flag in zip(entries, flags, strict=True)]
            constant = set() if fixed is None else self.parts.tensors(fixed)
            wanted = [grad and entry.name not in constant for entry in self.layout.entries]
            model = BoundModel(self, w, buffers, train, wanted)
            self._points.put(key, model, *(tensor for tensor in (w, b) if tensor.numel()))
        return model

    def _switch(self, train: Flags) -> None:
        """Put the module's parts into train or eval mode."""
        if isinstance(train, bool):
            if self._training is not train:
                self.module.train(train)
        elif self._training != train:
            for module, flag in zip(self.module.modules(), train, strict=True):
                module.training = flag
        self._training = train

    def value_and_grad(
        self,
        loss: Callable[[BoundModel], Tensor],
        w: Tensor,
        b: Tensor,
        mode: ModuleModes = "train",
        out: Tensor | None = None,
        fixed: str | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The scalar `loss(model at (w, b))`, detached, and its gradient `[P]` with respect to `w`.

        The gradient is written to `out [P]` where that is given. `mode` and `fixed` are those of :meth:`at`.
        """
        model = self.at(w, b, mode, True, fixed)
        value = loss(model)
        return value.detach(), self.gradient(value, model.leaves, out)

    def gradient(self, value: Tensor, leaves: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
        """Gradient `[P]` of the scalar `value` with respect to `leaves`, one for every tensor of `w`, in their order.

        The leaves belong to a model, or to two models if a part of the network ran at another point. The gradient is 0
        on tensors that it does not reach. It is written to `out [P]` if that is given.
        """
        # passing d value / d value is slower: torch checks its shape with SymPy
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        parts: tuple[Any, ...] = torch.autograd.grad(value, wanted, allow_unused=True)
        if len(wanted) < len(leaves):  # the others are fixed
            gradients = iter(parts)
            parts = tuple(next(gradients) if leaf.requires_grad else None for leaf in leaves)
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

    def hvp(
        self, loss: Callable[[BoundModel], Tensor], w: Tensor, b: Tensor, v: Tensor, mode: ModuleModes = "eval"
    ) -> Tensor:
        """H v `[P]`: the Hessian at `w` of the scalar `loss(model at (w, b))`, times `v [P]`.

        It is 0 on tensors that the loss does not reach. It takes three to four times as long as a gradient. Attention
        uses its plain formula, because the fused kernels have no second derivative. `reached` does not change.
        """
        from torch.nn.attention import SDPBackend, sdpa_kernel

        model, product = self.at(w, b, mode, grad=True), torch.zeros(self.layout.size, device=self.device)
        with sdpa_kernel(SDPBackend.MATH):
            pairs = zip(model.leaves, self.layout.entries, strict=True)
            leaves, entries = zip(*((leaf, entry) for leaf, entry in pairs if leaf.requires_grad), strict=True)
            first = torch.autograd.grad(loss(model), leaves, create_graph=True, allow_unused=True)
        along = [
            (g * e.view(v)).sum() for g, e in zip(first, entries, strict=True) if g is not None and g.requires_grad
        ]
        if along:
            second = torch.autograd.grad(torch.stack(along).sum(), leaves, allow_unused=True, materialize_grads=True)
            torch._foreach_copy_([entry.view(product) for entry in entries], second)
        return product

    def layer_inputs(self, w: Tensor, b: Tensor, x: Tensor, mode: ModuleModes = "eval") -> dict[str, LayerInputs]:
        """The inputs of every trained linear layer and convolution at `(w, b)`, in one forward pass of `x [B, ...]`.

        By the layer's name, in the order of the modules; the layer's weight is the view `NAME.weight` of `w`. A layer
        that did not run is not in it; `nn.MultiheadAttention` runs no layer for its first projection. Raises
        `ConfigError` for a convolution that ran on images of two sizes.
        """
        trained = {*(entry.name for entry in self.layout.entries), *self._aliases}
        modules = self.module.named_modules()
        layers = {name: m for name, m in modules if isinstance(m, LAYERS) and f"{name}.weight".lstrip(".") in trained}
        model = self.at(w, b, mode)
        with torch.no_grad(), record_inputs(layers) as seen:
            model(x)
        return {name: inputs_of(name, layers[name], calls) for name, calls in seen.items() if calls}

    def reached(self) -> Tensor | None:
        """Float `[P]`: 0 on tensors that no gradient reached since the last call; None: all were reached.

        An optimiser calls it at every step, because `torch.optim` skips a parameter without a gradient, also for weight
        decay.
        """
        missed, self._missed = self._missed, None
        if not missed:
            return None
        if missed not in self._reached:
            names = {self.layout.entries[i].name for i in missed}
            self._reached[missed] = self.layout.mask(lambda name: name not in names).to(self.device)
        return self._reached[missed]

    @contextmanager
    def preserve_scratch(self) -> Iterator[None]:
        """A context for probes, after which scratch tensors and :meth:`reached` are as before."""
        before = (self._scratch, self._gradients, self._missed)
        self._scratch, self._gradients, self._missed = {}, TensorCache(CACHED_POINTS), None
        try:
            yield
        finally:
            self._scratch, self._gradients, self._missed = before

    def _views_of(self, out: Tensor) -> list[Tensor]:
        views = self._gradients.get(out.data_ptr())
        if views is None:
            out.zero_()  # the gaps between tensors
            flat = out.detach()
            views = [entry.view(flat) for entry in self.layout.entries]
            self._gradients.put(out.data_ptr(), views, out)
        return views


def _is_statistic(module: nn.Module, name: str) -> bool:
    """Whether a buffer is persistent; others, such as position indices, are constants."""
    owner, _, leaf = name.rpartition(".")
    return leaf not in module.get_submodule(owner)._non_persistent_buffers_set


class BoundModel:
    """The network at a point `(w, b)`, called like the network. Its tensors are views of `w` and `b`.

    So it follows in-place changes of them. `leaves`: the views of `w`, one for every tensor, in the layout's order.
    """

    __slots__ = ("_buffers", "_objective", "_train", "leaves")

    def __init__(
        self,
        objective: Objective,
        w: Tensor,
        buffers: Sequence[Tensor],
        train: bool | tuple[bool, ...],
        wanted: Sequence[bool],
    ) -> None:
        """`buffers`: views of the statistics. `train`: whether all modules, or each of them, are in train mode.
        `wanted`: whether each tensor gets a gradient."""
        self._objective, self._train, self._buffers = objective, train, buffers
        flat = w.detach()
        self.leaves = [entry.view(flat) for entry in objective.layout.entries]
        for leaf, flag in zip(self.leaves, wanted, strict=True):
            leaf.requires_grad_(flag)

    def _bind(self) -> nn.Module:
        objective = self._objective
        if objective._bound is not self:
            for (holders, name), leaf in zip(objective._sites, self.leaves, strict=True):
                for holder in holders:
                    holder[name] = leaf
            for (holder, name), buffer in zip(objective._buffer_sites, self._buffers, strict=True):
                holder[name] = buffer
            objective._switch(self._train)
            objective._bound = self
        return objective.module

    def _give(self, called: Callable[..., Any], inputs: Sequence[Tensor]) -> Any:
        if self._objective.precision == "fp32":
            return called(*inputs)
        with torch.autocast(self._objective.device.type, dtype=torch.bfloat16):
            return _single(called(*inputs))

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The network's output, float32: logits `[B, C]` of a classifier for inputs `x [B, ...]`."""
        return self._give(self._bind(), inputs)  # type: ignore[no-any-return]

    def together(self, *batches: Tensor) -> tuple[Tensor, ...]:
        """Logits of every batch `x [B_i, ...]`, from one forward pass over all samples.

        For a loss on several sets: batch norm sees them as one batch.
        """
        return torch.split(self(torch.cat(batches)), [len(batch) for batch in batches])

    def run(self, part: str, *inputs: Any) -> Any:
        """The output, float32, of a part of the network: a submodule or a method by its name, such as `"students.2"`.

        Raises `ConfigError` if the network has no such part, and the part's own errors.
        """
        module = self._bind()
        try:
            method: Callable[..., Any] = reduce(getattr, part.split("."), module)
        except AttributeError:
            raise ConfigError(
                f"model {type(module).__name__} declares no {part}(x), which this algorithm reads"
            ) from None
        return self._give(method, inputs)

    def features(self, x: Tensor) -> Tensor:
        """Representation `z [B, F]`, the input of the head. Raises `ConfigError` if the network declares none."""
        return self.run("features", x)  # type: ignore[no-any-return]

    def head(self, z: Tensor) -> Tensor:
        """Logits `[B, C]` of representations `z [B, F]`. Raises `ConfigError` if the network declares no head."""
        return self.run("head", z)  # type: ignore[no-any-return]

    def levels(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """(representations `[B, F_l]` of the network's levels, shallow to deep, before their activation; logits).

        Raises `ConfigError` if the network declares no levels.
        """
        levels, logits = self.run("levels", x)
        return list(levels), logits


def _single(value: Any) -> Any:
    """A network's output in single precision: a tensor, or tensors in lists, tuples and dicts."""
    if isinstance(value, Tensor):
        return value.float() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {name: _single(value) for name, value in value.items()}
    return type(value)(map(_single, value)) if type(value) in (list, tuple) else value
