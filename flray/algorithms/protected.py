"""What FedProTIP and FOT share: the inputs of layers at the end of a task, and bases of the subspaces that they span.
Not an algorithm by itself.

Layers that the next task will not train (`ctx.frozen`) get no basis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import TypeVar

from flray.algorithms.fedavg import FedAvg, SGDState, Stored
from flray.core.messages import Batch, Broadcast, Metrics, ServerState, Update
from flray.core.messages.fields import shared
from flray.core.network.layers import LAYERS, Layer, LayerInputs
from flray.core.protocol.algorithm_section import of_tasks_alone
from flray.core.protocol.clock import task_name
from flray.core.protocol.context import Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.errors import warn
from flray.core.schema.hp import hp
from flray.ops.subspace import merge, project_

SPACE = "space"  # key of the final layer, whose inputs are the features
Blocks = tuple[dict[str, Tensor], ...]  # a task each: by layer, or group of a convolution, its directions `[d, r]`


class ProtectedState(ServerState):
    """The global model and the bases, one block a task: `blocks[t][layer] [d, r]`. A layer's blocks side by side are
    its orthonormal basis Phi."""

    blocks: Blocks


class ProtectedDown(Broadcast):
    """The global model and the bases. A client gets each block once."""

    blocks: Blocks = shared(default=())


class ProtectedLocalState(SGDState):
    """FedAvg's local state. `protected`: for each layer its rows of `grad` and the basis to project them off."""

    protected: tuple[tuple[Tensor, Tensor], ...]


ProtectedStateT = TypeVar("ProtectedStateT", bound=ProtectedState, default=ProtectedState)
ProtectedDownT = TypeVar("ProtectedDownT", bound=ProtectedDown, default=ProtectedDown)
ProtectedLocalT = TypeVar("ProtectedLocalT", bound=ProtectedLocalState, default=ProtectedLocalState)


class Protected(FedAvg[ProtectedStateT, ProtectedDownT, Update, Stored, ProtectedLocalT], frozen=True):
    cautions = (of_tasks_alone,)
    float32_only: ClassVar[str] = "its bases"
    n_batches: int = hp(
        20, ge=1, doc="batches of a client at a task's end from which inputs of layers are collected (ViT: 10)"
    )
    basis_dtype: Literal["float64", "float32"] = hp("float64", doc="arithmetic of bases; they are stored as float32")

    def local_state(self, ctx: Context, w: Tensor, b: Tensor) -> ProtectedLocalT:
        return ProtectedLocalState.of(super().local_state(ctx, w, b), protected=())  # type: ignore[return-value]

    def project_(self, local: ProtectedLocalState) -> None:
        """G <- G - (G Phi) Phi^T for every protected layer, in place (FedProTIP, Eqs. 4 and 5)."""
        for rows, basis in local.protected:
            project_(rows, basis)

    # what enters the layers -----------------------------------------------------------------------
    def layers(self, ctx: Context) -> dict[str, Layer]:
        """The convolutions and linear layers of the body by name, without frozen ones."""
        objective, layers = ctx.objective, {}
        left_out = objective.parts.tensors("head") | ctx.frozen
        entries = {entry.name: entry for entry in objective.layout.entries if entry.name not in left_out}
        for name, module in objective.module.named_modules():
            weight = f"{name}.weight".lstrip(".")
            if isinstance(module, LAYERS) and weight in entries:
                layers[name] = Layer(name, entries[weight], getattr(module, "groups", 1))
        return layers

    def layers_with_bases(self, ctx: Context, blocks: Blocks) -> list[tuple[Layer, Tensor]]:
        """(layer, basis in the order of its stored weights) of all layers with a basis."""
        layers = self.layers(ctx).values() if blocks else ()
        return [(layer, layer.basis(blocks)) for layer in layers if any(layer.keys[0] in block for block in blocks)]

    def activations(
        self, ctx: Context, broadcast: Broadcast, data: ClientData
    ) -> Iterator[tuple[Batch, dict[str, LayerInputs]]]:
        """Up to `n_batches` training batches, each with the inputs of every layer in eval mode (FedProTIP)."""
        layers = self.layers(ctx)
        for batch in islice(data.batches(self.batch_size, epochs=1), self.n_batches):
            inputs = ctx.objective.layer_inputs(broadcast.w, broadcast.b, batch.x)
            yield batch, {name: inputs[name] for name in layers if name in inputs}

    def basis(self, blocks: Sequence[Mapping[str, Tensor]], key: str, like: Tensor) -> Tensor:
        """A layer's blocks side by side, `[d, q]`, in the arithmetic of bases; `like [d, ...]` gives d where q is 0."""
        parts = [block[key] for block in blocks if key in block]
        return torch.cat(parts, dim=1).to(self.dtype) if parts else like.new_zeros((len(like), 0), dtype=self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """The arithmetic of bases."""
        return {"float64": torch.float64, "float32": torch.float32}[self.basis_dtype]

    def merged(
        self,
        ctx: Context,
        blocks: Blocks,
        increments: Mapping[int, Mapping[str, Tensor]],
        rank_tol: float = 1e-3,
        method: Literal["residual", "official"] = "residual",
    ) -> Blocks:
        """The blocks with the clients' directions `increments[client][layer] [d, r]` in the present task's block.

        A task at whose end no client had samples has an empty block. Warns when a basis becomes full: d columns.
        """
        task, layers = ctx.clock.task, {key: own for client in increments.values() for key, own in client.items()}
        empty = {key: directions[:, :0].float() for key, directions in layers.items()}
        blocks = (*blocks, *(empty,) * (task + 1 - len(blocks)))
        block = dict(blocks[task])
        for key, like in layers.items():
            basis, older = self.basis(blocks, key, like), self.basis(blocks[:task], key, like)
            new = {client: own[key].to(self.dtype) for client, own in increments.items() if key in own}
            after = merge(basis, new, rank_tol, method)
            block[key] = after[:, older.shape[1] :].float().contiguous()
            if basis.shape[1] < len(after) == after.shape[1]:
                remedy = "it learns nothing more; lower algorithm.eps"
                if key == SPACE:
                    remedy = "no later task gets a block of its own; lower algorithm.space_first, or take a wider model"
                full = f"{task_name(task)}: all {len(after)} directions of layer {key} are in its basis"
                warn(f"{full}: {remedy}")
        return (*blocks[:task], block)

    def occupied_shares(self, ctx: Context, blocks: Blocks) -> Metrics:
        """q / d of every layer; a layer with 1 cannot learn any more."""
        shares: dict[str, float] = {}
        if not blocks:
            return shares
        for name, layer in self.layers(ctx).items():
            ranks = [sum(block[key].shape[1] for block in blocks) for key in layer.keys if key in blocks[-1]]
            if ranks:
                shares[f"protected/{name}"] = sum(ranks) / (len(ranks) * layer.width)
        return shares
