"""What methods share that protect the inputs of layers from task to task (FedProTIP, FOT): what is collected of a
layer's inputs when a task ends, and the bases that grow by it.

Layers that the next task will not move (`ctx.frozen`) are known before anything is collected: they get no basis.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import TypeVar

from flray.algorithms.fedavg import FedAvg, SGDState, Stored
from flray.core.messages import Batch, Broadcast, Metrics, ServerState, Update
from flray.core.messages.fields import shared
from flray.core.network.layers import LAYERS, Layer, LayerInputs
from flray.core.protocol.clock import task_name
from flray.core.protocol.context import Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from flray.ops.subspace import merge, project_

SPACE = "space"  # key of the final layer, whose inputs are the features
Blocks = tuple[dict[str, Tensor], ...]  # by task what it added, `[d, r]` by layer; of a grouped convolution by group


class ProtectedState(ServerState):
    """The global model and the bases, as one block a task: `blocks[t][layer] [d, r]`, orthonormal over all tasks."""

    blocks: Blocks


class ProtectedDown(Broadcast):
    """The global model and the bases, each block of which a client downloads once."""

    blocks: Blocks = shared(default=())


class ProtectedLocalState(SGDState):
    """A client in training. `protected`: of each layer its rows of `grad` and the basis that is projected off them."""

    protected: tuple[tuple[Tensor, Tensor], ...]


ProtectedStateT = TypeVar("ProtectedStateT", bound=ProtectedState, default=ProtectedState)
ProtectedDownT = TypeVar("ProtectedDownT", bound=ProtectedDown, default=ProtectedDown)
ProtectedLocalT = TypeVar("ProtectedLocalT", bound=ProtectedLocalState, default=ProtectedLocalState)


class Protected(FedAvg[ProtectedStateT, ProtectedDownT, Update, Stored, ProtectedLocalT], frozen=True):
    n_batches: int = hp(20, ge=1, doc="training batches of a client whose inputs of layers are collected (ViT: 10)")
    basis_dtype: Literal["float64", "float32"] = hp("float64", doc="arithmetic of bases; they are stored as float32")

    def local_state(self, ctx: Context, w: Tensor, b: Tensor) -> ProtectedLocalT:
        return ProtectedLocalState.of(super().local_state(ctx, w, b), protected=())  # type: ignore[return-value]

    def project_(self, local: ProtectedLocalState) -> None:
        """Take what lies in the old subspaces out of the gradient, in its place (FedProTIP, Eqs. 4 and 5)."""
        for rows, basis in local.protected:
            project_(rows, basis)

    # what enters the layers -----------------------------------------------------------------------
    def layers(self, ctx: Context) -> dict[str, Layer]:
        """The convolutions and linear layers of the body, by name, but for frozen ones."""
        objective, found = ctx.objective, {}
        out = objective.parts.tensors("head") | ctx.frozen
        entries = {entry.name: entry for entry in objective.layout.entries if entry.name not in out}
        for name, module in objective.module.named_modules():
            weight = f"{name}.weight".lstrip(".")
            if isinstance(module, LAYERS) and weight in entries:
                found[name] = Layer(name, entries[weight], getattr(module, "groups", 1))
        return found

    def layers_with_bases(self, ctx: Context, blocks: Blocks) -> list[tuple[Layer, Tensor]]:
        """The layers that have a basis, and it, as their weights are stored."""
        layers = self.layers(ctx).values() if blocks else ()
        return [(layer, layer.basis(blocks)) for layer in layers if any(layer.keys[0] in block for block in blocks)]

    def activations(
        self, ctx: Context, broadcast: Broadcast, data: ClientData
    ) -> Iterator[tuple[Batch, dict[str, LayerInputs]]]:
        """Up to `n_batches` of the client's training batches, and what entered each layer in eval mode (FedProTIP)."""
        layers = self.layers(ctx)
        for batch in islice(data.batches(self.batch_size, epochs=1), self.n_batches):
            given = ctx.objective.layer_inputs(broadcast.w, broadcast.b, batch.x)
            yield batch, {name: given[name] for name in layers if name in given}

    def basis(self, blocks: Sequence[Mapping[str, Tensor]], key: str, like: Tensor) -> Tensor:
        """All blocks of a layer side by side, `[d, q]`, in the arithmetic of bases; `like [d, ...]` where none is."""
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
                warnings.warn(f"{full}: {remedy}", stacklevel=3)
        return (*blocks[:task], block)

    def occupied_shares(self, ctx: Context, blocks: Blocks) -> Metrics:
        """q / d of every layer: 1 means that it cannot learn any more."""
        found: dict[str, float] = {}
        if not blocks:
            return found
        for name, layer in self.layers(ctx).items():
            ranks = [sum(block[key].shape[1] for block in blocks) for key in layer.keys if key in blocks[-1]]
            if ranks:
                found[f"protected/{name}"] = sum(ranks) / (len(ranks) * layer.width)
        return found
