"""The only place that knows how the flat vectors `w`, `b` map to an `nn.Module`.

`objective.at(w, b)` is the model at a point: call it for logits. `objective.value_and_grad` gives a loss and
its gradient as one flat vector. Parameters that do not require a gradient stay inside the module, out of `w`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flray.core.network.buffers import Buffer, find_buffers, power_iterations, spectral_weight
from flray.core.network.convolutions import contiguous_kernels
from flray.core.network.layers import LAYERS, LayerInputs, inputs_of, record_inputs
from flray.core.network.layout import Layout
from flray.core.network.module_state import Local, ModuleState
from flray.core.network.parts import Flags, ModuleModes, NetworkParts
from flray.core.network.tensor_cache import TensorCache
from flray.core.schema.errors import AlgorithmError, ConfigError, kind_of, named, warn

Precision = Literal["fp32", "tf32", "bf16"]  # tf32 is a setting of the process, see `engine/devices.py`

CACHED_POINTS = 32  # views, no storage: a few for a local step, one a client while an ensemble is asked batch by batch

APART = "features_apart"  # an attribute of a network: what is wrong with head(features(x)) in eval and in train mode

REMEDIES = {  # what to write into a network that lacks a part
    "features": "add features(self, x) to it, with head(features(x)) == forward(x)",
    "head": "add its last layer as self.head, with head(features(x)) == forward(x)",
    "levels": "add levels(self, x) to it, which returns (representations, shallow to deep; logits)",
}


class Objective:
    """An `nn.Module` as a function of flat parameters `w [P]` and statistics `b [Q]`.

    The module is a classifier, a wrapped one, a list of networks, or a generator. Besides the forward pass, the parts
    that it declares (`features`, `head`, `levels`, any part by its name) can be called. `layout` gives the place of
    each trained tensor in `w`, `buffer_layout` that of each statistic in `b`. Which buffers are statistics says
    `buffers.py`; `state` has the others.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device | str = "cpu",
        precision: Precision = "fp32",
        trains: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`trains=False`: the module may have no trainable parameter (a frozen teacher), and `w` may be empty.

        `dtype`: of the trainable parameters and the flat vectors. Raises `ConfigError` for any other module without a
        trainable parameter, for parameters of another type, and for a buffer that cannot be what it is declared to be.
        """
        self.dtype = dtype
        self.device = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0", as on its tensors
        self.precision = precision
        self.buffers = find_buffers(module, dtype)  # before the move, which may part two names of one buffer
        module.to(self.device)  # in place; a method of the user's own may return nothing
        self.module = module
        trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
        if not trained and trains:
            raise ConfigError(f"model {type(module).__name__} has no trainable parameter: every requires_grad is False")
        for name, tensor in trained.items():
            if tensor.dtype != dtype:
                wrong = f"trainable parameter {name} is {tensor.dtype}, not {str(dtype).removeprefix('torch.')}"
                raise ConfigError(f"model {type(module).__name__}: {wrong}")
        statistics = [buffer for buffer in self.buffers if buffer.kind in ("average", "direction")]
        buffers = {buffer.name: buffer.tensor for buffer in statistics}
        contiguous = {id(p) for p in contiguous_kernels(module)}
        self.layout = Layout(
            {n: p.shape for n, p in trained.items()}, {n for n, p in trained.items() if id(p) in contiguous}
        )
        self.buffer_layout = Layout({n: t.shape for n, t in buffers.items()})
        self._initial = (self._flat(self.layout, trained), self._flat(self.buffer_layout, buffers))
        names = {id(p): n for n, p in trained.items()}
        everywhere = module.named_parameters(remove_duplicate=False)
        self._aliases = {n: names[id(p)] for n, p in everywhere if id(p) in names and names[id(p)] != n}
        self._aliases |= {alias: buffer.name for buffer in statistics for alias in buffer.names[1:]}
        # Frozen parameters are never written, so they are the module's own. Other buffers are copied once.
        untrained = {n for n, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad}
        elsewhere = {*trained, *buffers, *self._aliases}
        rest = {n: t.detach() for n, t in module.state_dict().items() if n not in elsewhere}
        self._rest = {n: t if n in untrained else t.clone() for n, t in rest.items()}
        self.frozen = tuple(n for n in rest if n in untrained)  # names of untrained tensors in `state_dict`
        self._sites = _sites(module, trained)
        self.state = ModuleState(module, self.buffers)
        self._averaged = statistics
        self._copied = [place for place, buffer in enumerate(statistics) if not buffer.direct]
        self.parts = NetworkParts(module, trained, buffers)
        self.in_head = self.parts.in_head
        self._bound: BoundModel | None = None
        self._training: Flags | None = None
        self._own_modes: list[tuple[nn.Module, bool]] = []  # after its own `train()`, while a mode by parts holds
        self._points: TensorCache[BoundModel] = TensorCache(CACHED_POINTS)
        self._gradients: TensorCache[list[Tensor]] = TensorCache(CACHED_POINTS)
        self._scratch: dict[str, Tensor] = {}
        self._tried: set[Any] = set()  # the code of losses of the user's own that read no constant
        self._missed: frozenset[int] | None = None  # numbers of the tensors that no gradient reached, see `reached`
        self._reached: dict[frozenset[int], Tensor] = {}

    # buffers -----------------------------------------------------------------------------------
    def normalized(self, w: Tensor, b: Tensor) -> Tensor:
        """Statistics `[Q]` of the server: `b`, or a copy in which the vectors of `spectral_norm`, that were averaged,
        are singular vectors of the weights in `w [P]`."""
        directions = [buffer for buffer in self._averaged if buffer.kind == "direction"]
        if not directions:
            return b
        b = b.clone()
        vectors, weights = self.buffer_layout.views(b), self.views(w)
        for left, right in zip(directions[::2], directions[1::2], strict=True):  # registered in this order
            name, dim = spectral_weight(left)
            weight = weights.get(name, self._rest.get(name))
            if weight is not None:
                power_iterations(weight.movedim(dim, 0).flatten(1), vectors[left.name], vectors[right.name])
        return b

    def restore_state(self, local: Local | None = None) -> None:
        """Put what lies in the module alone back to what a client's work, or a test, begins with; see `buffers.py`."""
        self.state.restore(local)

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
        return self.layout.mask(lambda name: name in chosen).to(self.device, self.dtype)

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
        return self._flat(self.layout, tensors), self._flat(self.buffer_layout, tensors)

    def _flat(self, layout: Layout, tensors: Mapping[str, Tensor]) -> Tensor:
        return layout.flatten(tensors, self.device, self.dtype)

    def scratch(self, name: str, like: Tensor) -> Tensor:
        """A preallocated tensor with the shape of `like` and undefined contents, the same at every call with this name.

        For a `LocalState` only: the next client overwrites it.
        """
        buffer = self._scratch.get(name)
        if buffer is None or buffer.shape != like.shape:
            buffer = self._scratch[name] = torch.empty_like(like)
        return buffer

    @property
    def scratch_tensors(self) -> Mapping[str, Tensor]:
        """The tensors of :meth:`scratch` that exist, by name."""
        return self._scratch

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
            model = BoundModel(self, w, buffers, train, frozen is not False, wanted)
            self._points.put(key, model, *(tensor for tensor in (w, b) if tensor.numel()))
        return model

    def _switch(self, train: Flags) -> None:
        """Put the module's parts into train or eval mode. A mode by parts switches parts off and none on: a layer that
        the network's own `train()` keeps in eval mode stays there."""
        if self._training == train:
            return
        for module, flag in self._own_modes:
            module.training = flag
        self.module.train(train is not False)
        self._own_modes = []
        if not isinstance(train, bool):
            self._own_modes = [(module, module.training) for module in self.module.modules()]
            for (module, own), flag in zip(self._own_modes, train, strict=True):
                module.training = own and flag
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
        written = _written(loss)
        code = getattr(written, "__code__", type(written))  # a callable object has none
        if code in self._tried or (getattr(written, "__module__", None) or "").startswith("flray."):
            value = loss(model)
        else:
            value = self._tried_loss(loss, model, w)
            self._tried.add(code)
        return value.detach(), self.gradient(value, model.leaves, out)

    def _tried_loss(self, loss: Callable[[BoundModel], Tensor], model: BoundModel, w: Tensor) -> Tensor:
        """The value of a loss of the user's own. Raises `AlgorithmError` if it reads `w` beside the model: the gradient
        is that of the model's own leaves, so such a term would have none. Warns where it reads an `nn.Parameter`."""
        if w.requires_grad or w.is_inference():
            return _number(loss, loss(model), model)
        w.requires_grad_(True)
        try:
            value = _number(loss, loss(model), model)
            reads = value.requires_grad
            (direct,) = torch.autograd.grad(value, w, retain_graph=True, allow_unused=True) if reads else (None,)
        finally:
            w.requires_grad_(False)
        if direct is not None:
            raise AlgorithmError(
                f"{_name(loss)}: the loss reads the parameters beside the model, as local.w, where they are constants; "
                "add the term's gradient to g, as FedProx does, or read local.w.detach()"
            )
        own = [leaf for leaf in _leaves_of(value) if isinstance(leaf, nn.Parameter)]
        if any(all(leaf is not known for known in model.leaves) for leaf in own):
            warn(
                f"{_name(loss)}: the loss reads an nn.Parameter that is not the network's and is not trained; put it "
                "into the network to train it, else call its requires_grad_(False)"
            )
        return value

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
        flat = torch.zeros(self.layout.size, dtype=self.dtype, device=self.device) if out is None else out
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
        uses its plain formula, because the fused kernels have no second derivative. `reached` does not change. Raises
        `AlgorithmError` for a loss that is not one number with a gradient.
        """
        from torch.nn.attention import SDPBackend, sdpa_kernel

        model, product = self.at(w, b, mode, grad=True), torch.zeros_like(w)
        with sdpa_kernel(SDPBackend.MATH):
            pairs = zip(model.leaves, self.layout.entries, strict=True)
            leaves, entries = zip(*((leaf, entry) for leaf, entry in pairs if leaf.requires_grad), strict=True)
            value = _number(loss, loss(model), model)
            first = torch.autograd.grad(value, leaves, create_graph=True, allow_unused=True)
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
        """A context for probes, after which scratch tensors, :meth:`reached` and the module's state are as before."""
        before = (self._scratch, self._gradients, self._missed)
        self._scratch, self._gradients, self._missed = {}, TensorCache(CACHED_POINTS), None
        try:
            with self.state.preserved():
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


class BoundModel:
    """The network at a point `(w, b)`, called like the network. Its tensors are views of `w` and `b`.

    So it follows in-place changes of them. `leaves`: the views of `w`, one for every tensor, in the layout's order.
    """

    __slots__ = ("_buffers", "_frozen", "_objective", "_train", "leaves")

    def __init__(
        self,
        objective: Objective,
        w: Tensor,
        buffers: Sequence[Tensor],
        train: bool | tuple[bool, ...],
        frozen: bool,
        wanted: Sequence[bool],
    ) -> None:
        """`buffers`: views of the statistics. `train`: whether all modules, or each of them, are in train mode.
        `frozen`: whether a forward pass leaves the module's own state as it was. `wanted`: whether each tensor gets a
        gradient."""
        self._objective, self._train, self._buffers = objective, train, buffers
        self._frozen = frozen and bool(objective.state.own_names)
        flat = w.detach()
        self.leaves = [entry.view(flat) for entry in objective.layout.entries]
        for leaf, flag in zip(self.leaves, wanted, strict=True):
            leaf.requires_grad_(flag)

    def _bind(self) -> nn.Module:
        objective = self._objective
        if objective._bound is not self:
            for sites, leaf in zip(objective._sites, self.leaves, strict=True):
                for holder, name in sites:
                    holder[name] = leaf
            for statistic, buffer in zip(objective._averaged, self._buffers, strict=True):
                for holder, name in statistic.sites:
                    holder[name] = buffer
            objective._switch(self._train)
            objective._bound = self
        return objective.module

    def _give(self, called: Callable[..., Any], inputs: Sequence[Tensor]) -> Any:
        if self._frozen:
            with self._objective.state.preserved():
                return self._result(called, inputs)
        return self._result(called, inputs)

    def _result(self, called: Callable[..., Any], inputs: Sequence[Tensor]) -> Any:
        objective = self._objective
        for place in objective._copied:
            value = self._buffers[place].clone()
            for holder, name in objective._averaged[place].sites:
                holder[name] = value
        if objective.precision != "bf16":
            result = called(*inputs)
        else:
            with torch.autocast(objective.device.type, dtype=torch.bfloat16):
                result = _single(called(*inputs))
        for place in objective._copied:
            _write_back(objective._averaged[place], self._buffers[place])
        return result

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The network's output, float32: logits `[B, C]` of a classifier for inputs `x [B, ...]`."""
        output: Tensor = self._give(self._bind(), inputs)
        return output

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
        method: Any = module
        for name in part.split("."):
            method = getattr(method, name, None)
        if not callable(method):  # an attribute of that name may be a number, such as a width
            add = f"; {REMEDIES[part]}" if part in REMEDIES else ""
            raise ConfigError(f"model {type(module).__name__} declares no {part}(x), which this algorithm reads{add}")
        return self._give(method, inputs)

    def features(self, x: Tensor) -> Tensor:
        """Representation `z [B, F]`, the input of the head.

        Raises `ConfigError` if the network declares none, or one whose head does not give its logits.
        """
        module = self._objective.module
        wrong = getattr(module, APART, {}).get(self._train is not False)
        if wrong:
            raise ConfigError(
                f"model {type(module).__name__}: {wrong}, and this algorithm reads features; return "
                "self.head(self.features(x)) from forward"
            )
        z: Tensor = self.run("features", x)
        return z

    def head(self, z: Tensor) -> Tensor:
        """Logits `[B, C]` of representations `z [B, F]`. Raises `ConfigError` if the network declares no head."""
        logits: Tensor = self.run("head", z)
        return logits

    def levels(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """(representations `[B, F_l]` of the network's levels, shallow to deep, before their activation; logits).

        Raises `ConfigError` if the network declares no levels.
        """
        levels, logits = self.run("levels", x)
        return list(levels), logits


def _sites(module: nn.Module, trained: Mapping[str, Tensor]) -> list[list[tuple[dict[str, Any], str]]]:
    """By trained parameter: the dictionaries of modules that hold it and its key there, several of a tied one."""
    sites: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            sites.setdefault(id(parameter), []).append((owner._parameters, name))
    return [sites[id(p)] for p in trained.values()]


def _write_back(statistic: Buffer, view: Tensor) -> None:
    """Write what a forward pass left of a statistic, in place or as another tensor, to its `view` in `b`, if its module
    is in train mode."""
    holder, name = statistic.sites[0]
    value: Tensor = holder[name]
    if statistic.owner.training:
        if value.shape != view.shape:
            raise ConfigError(
                f"buffer {statistic.name} has the shape {list(value.shape)} after a forward pass and had "
                f"{list(view.shape)}; register it with the shape that it keeps"
            )
        # views of one vector share a count of writes, and autograd may have kept another one of them for backward
        view.data.copy_(value.detach())
    for holder, name in statistic.sites:
        holder[name] = view


def _single(value: Any) -> Any:
    """A network's output in single precision: a tensor, or tensors in lists, tuples and dicts."""
    if isinstance(value, Tensor):
        return value.float() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {name: _single(value) for name, value in value.items()}
    return type(value)(map(_single, value)) if type(value) in (list, tuple) else value


def _written(loss: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a partial; another loss is itself."""
    return loss.func if isinstance(loss, partial) else loss


def _name(loss: Callable[..., Any]) -> str:
    return named(_written(loss))


def _number(loss: Callable[[BoundModel], Tensor], value: Any, model: BoundModel) -> Tensor:
    """The value of a user's loss. Raises `AlgorithmError` unless it is one number that has a gradient."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise AlgorithmError(f"{_name(loss)} returned {kind_of(value)}; a loss is one number, as of loss.mean()")
    if not value.requires_grad and any(leaf.requires_grad for leaf in model.leaves):
        raise AlgorithmError(
            f"{_name(loss)} returned a number without a gradient; compute it from model(x), without detach and no_grad"
        )
    return value


def _leaves_of(value: Tensor) -> Iterator[Tensor]:
    """The tensors at which the graph of `value` ends."""
    waiting, seen = [value.grad_fn], set[Any]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting += [after for after, _ in node.next_functions]
