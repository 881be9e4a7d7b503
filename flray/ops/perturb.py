"""The point w + rho * scale (*) g / norm(g) at which a second gradient is taken: SAM, ASAM, FedSOL Eq. 5, 7 and 8."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from flray.core.network.layout import Entry
from flray.core.network.objective import BoundModel, Objective
from flray.core.schema.errors import ConfigError

Adaptive = Literal["columnwise", "tensor", "layer", "none"]
SubsetName = Literal["head", "body", "all"]

ALL = (slice(None),)


class ParameterSubset(NamedTuple):
    """Some tensors of a flat vector: their `numbers` in order, their `entries`, and the `spans` of the vector that they
    and the gaps after them fill."""

    numbers: tuple[int, ...]
    entries: tuple[Entry, ...]
    spans: tuple[slice, ...]


def parameter_subset(objective: Objective, name: SubsetName) -> ParameterSubset:
    """The tensors of the network's head, of its body, or all."""
    layout, spans = objective.layout, list[slice]()
    numbers = tuple(i for i, in_head in enumerate(objective.in_head) if name == "all" or in_head == (name == "head"))
    stops = [*(entry.offset for entry in layout.entries[1:]), layout.size]
    for i in numbers:
        start = layout.entries[i].offset
        if spans and spans[-1].stop == start:
            start = spans.pop().start
        spans.append(slice(start, stops[i]))
    return ParameterSubset(numbers, tuple(layout.entries[i] for i in numbers), tuple(spans))


def subset_gradient(value: Tensor, model: BoundModel, subset: ParameterSubset, out: Tensor) -> Tensor:
    """Gradient of the scalar `value` with respect to the subset's tensors of `model`, in the flat `out [P]`, whose
    other values do not change."""
    pairs = zip(subset.entries, (model.leaves[i] for i in subset.numbers), strict=True)
    wanted = [(entry, leaf) for entry, leaf in pairs if leaf.requires_grad]  # the others are frozen
    gradients = torch.autograd.grad(value, [leaf for _, leaf in wanted], materialize_grads=True)
    for span in subset.spans:
        out[span].zero_()  # the gaps between tensors
    for (entry, _), gradient in zip(wanted, gradients, strict=True):
        entry.view(out).copy_(gradient)
    return out


def check_head(objective: Objective) -> None:
    """Raises `ConfigError` unless the network has a trainable head that shares no parameter with the body."""
    module = objective.module
    head = getattr(module, "head", None)
    if not isinstance(head, nn.Module) or not any(objective.in_head):
        raise ConfigError(
            f"model {type(module).__name__} declares no trainable `head`: perturb: head or body needs one; use all"
        )
    inside = {id(m) for m in head.modules()}
    elsewhere = {id(p) for m in module.modules() if id(m) not in inside for p in m.parameters(recurse=False)}
    if any(id(p) in elsewhere for p in head.parameters()):
        raise ConfigError(f"model {type(module).__name__}: its head shares parameters with its body; use perturb: all")


def ascend(
    w: Tensor,
    g: Tensor,
    rho: float,
    spans: Sequence[slice] = ALL,
    scale: Tensor | None = None,
    eps: float = 1e-12,
    min_norm: float = 0.0,
    out: Tensor | None = None,
) -> Tensor:
    """w + rho * scale (*) g / (norm(g) + eps) on the `spans` of `w, g, scale [P]`, in `out` (which may be `scale`) or a
    copy of `w`.

    The norm is that of `g` on the spans; below `min_norm` the result is `w`. Outside the spans `out` does not change.
    """
    out = w.clone() if out is None else out
    norm = torch.stack([torch.dot(g[s], g[s]) for s in spans]).sum().sqrt()
    factor = rho / (norm + eps)
    if min_norm:
        factor = torch.where(norm < min_norm, 0.0, factor)
    for s in spans:
        step = g[s] if scale is None else torch.mul(scale[s], g[s], out=out[s])
        torch.addcmul(w[s], step, factor, out=out[s])
    return out


def scratch_parameters(objective: Objective, w: Tensor, name: SubsetName) -> Tensor:
    """Scratch `[P]` for parameters that differ from `w` in a subset: `w` outside it, undefined inside."""
    out = objective.scratch("perturbed", w)
    return out if name == "all" else out.copy_(w)


def adaptive_scale(w: Tensor, anchor: Tensor, subset: ParameterSubset, how: Adaptive, out: Tensor) -> Tensor:
    """Lambda `[P]` in `out`: |w - anchor| on a subset, divided by max(norm, 1e-12) over each column, tensor or layer.

    `columnwise` (FedSOL's code): along dimension 0 of each tensor. `tensor` (FedSOL Eq. 7). `layer`: one norm for the
    tensors of a module, such as weight and bias. Computed as the root of d^2 / sum d^2: a sum over rows is 15 times as
    fast as a norm over them.
    """
    for s in subset.spans:
        torch.sub(w[s], anchor[s], out=out[s]).square_()
    places = [slice(entry.offset, entry.offset + entry.numel) for entry in subset.entries]
    if how == "columnwise":
        for entry, place in zip(subset.entries, places, strict=True):
            # a kernel's memory is [out, kh, kw, in]
            columns = out[place].view(entry.shape[0] if entry.shape else 1, -1)
            columns.div_(columns.sum(0).clamp_min_(1e-24))
    else:
        for group in norm_groups(subset.entries, how):
            total = torch.stack([out[places[i]].sum() for i in group]).sum().clamp_min_(1e-24)
            for i in group:
                out[places[i]].div_(total)
    for s in subset.spans:
        out[s].sqrt_()
    return out


def norm_groups(entries: Iterable[Entry], how: Adaptive) -> list[list[int]]:
    """Numbers of the tensors that share a norm: each alone, or those of one module (`layer`)."""
    owners = [(how == "layer" and entry.name.rpartition(".")[0]) or entry.name for entry in entries]
    return [list(group) for _, group in groupby(range(len(owners)), key=owners.__getitem__)]


def magnitude(
    w: Tensor, entries: Iterable[Entry], eta: float, scaled: Literal["all", "weights"], out: Tensor
) -> Tensor:
    """ASAM's T_w `[P]` in `out`: |w| + eta; with `scaled="weights"` 1 on tensors whose name does not contain "weight"
    (official code)."""
    torch.abs(w, out=out).add_(eta)
    if scaled == "weights":
        for entry in entries:
            if "weight" not in entry.name:
                out[entry.offset : entry.offset + entry.numel] = 1.0
    return out


def scratch_copy(objective: Objective, b: Tensor) -> Tensor:
    """A scratch copy of the statistics `b [Q]`, for a pass in train mode that must not update them."""
    return objective.scratch("copied statistics", b).copy_(b)
