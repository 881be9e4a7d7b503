"""FOT (Bakman et al. 2024): the server projects the aggregated update off the subspaces of older tasks.

Round, after the first task, for the weight of every layer of the body: Delta = W_old - mean_k W_k,
W <- W_old - (Delta - (Delta Phi) Phi^T). All other tensors are the plain mean.
Task end: client k sends Z_k = (A_k - Phi Phi^T A_k) Omega_k, with its own Gaussian Omega_k, and rho_k, the residual's
share of A_k. Server: Z = mean_k Z_k, rho = sum b_k rho_k / sum b_k. The first left singular vectors of Z that hold
(rho - (1 - eps_t)) / rho of its energy are appended to Phi. As the baseline in FedProTIP's code (`server_fot.py`,
`client_fot.py`).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from flray.algorithms.fedavg import OwnStatistics
from flray.algorithms.protected import Protected, ProtectedDown, ProtectedState
from flray.core.messages import Cohort, Metrics, Record, Update, nbytes
from flray.core.messages.fields import mean, sum
from flray.core.messages.host import to_host
from flray.core.protocol.context import Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from flray.ops.subspace import extract_sketch, project, residual, sketch_threshold

COLUMNS = 4096  # sketched at once: 150 MB for a layer with 4608 inputs


class Sketches(Record):
    """By layer the sketch Z_k, `z [d, s]`, and b_k rho_k, `ratios`; b_k, the number of samples read, `images`."""

    z: dict[str, Tensor] = mean()
    ratios: dict[str, Tensor] = sum()
    images: Tensor = sum()


class SketchSum:
    """A sum over batches: a layer's sketch `z [d, s]`; and the energies of the batches, which stay on the device,
    because a GPU waits at each number that is read."""

    def __init__(self, d: int, basis: Tensor, size: int, rng: np.random.Generator) -> None:
        self.basis, self._rng = basis, rng
        self.z = basis.new_zeros((d, size))
        self._energies = [basis.new_zeros(2)]

    def add(self, a: Tensor) -> None:
        """Add the columns `a [d, m]` of a batch."""
        rest = residual(a, self.basis)
        omega = torch.from_numpy(self._rng.standard_normal((a.shape[1], self.z.shape[1]))).to(a)
        self.z += rest @ omega
        self._energies.append(torch.stack([a.square().sum(), rest.square().sum()]))

    @property
    def energies(self) -> Tensor:
        """`[n, 2]`: of each batch the energy of its inputs and that of their residual."""
        return torch.stack(self._energies)


class FOT(Protected, frozen=True):
    server_reason: ClassVar[str] = "it projects the mean update off the bases of earlier tasks"
    keeps: ClassVar[str] = "bases of the layers' inputs, on the server"

    weighting: Literal["examples", "uniform"] = hp("uniform", doc="mean_k: equal (official), or by samples")
    eps: float = hp(0.87, choice=(0.8, 0.87, 0.9), ge=0, le=1, doc="share of the activations' energy to protect")
    delta_eps: float = hp(0.001, ge=0, doc="added to eps with each task (paper: 0.01)")
    ratio: Literal["norm", "squared"] = hp("squared", doc="rho of norms (official), or of energies, as eps is")
    sketch: int | None = hp(
        None, ge=1, doc="columns of a layer's sketch (s; Table 14 counts 512); none: 5 d (paper, official)"
    )
    count_rule: Literal["inclusive", "strict"] = hp("inclusive", doc="strict (official): one direction fewer")

    # rounds ---------------------------------------------------------------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> ProtectedState:
        return ProtectedState(w, b, ())

    def broadcast(self, ctx: Context, state: ProtectedState) -> ProtectedDown:
        return ProtectedDown(state.w, state.b, state.blocks)

    def aggregate(
        self, ctx: Context, state: ProtectedState, updates: Update, cohort: Cohort
    ) -> tuple[ProtectedState, Metrics]:
        averaged, metrics = super().aggregate(ctx, state, updates, cohort)
        w = averaged.w.clone()
        for layer, basis in self.layers_with_bases(ctx, state.blocks):
            if basis.shape[-1]:
                rows, old = layer.stored(w), layer.stored(state.w)
                rows.copy_(old - project(old - rows, basis))
        return averaged.replace(w=w), metrics

    # the end of a task ----------------------------------------------------------------------------
    def next_exchange(self, ctx: Context, state: ProtectedState) -> Exchange | None:
        if ctx.clock.phase != "task_end" or ctx.classes is None:
            return super().next_exchange(ctx, state)
        sketching = Exchange("sketch", self.broadcast, self.append_directions, self.sketch_layers, who="task")
        return sketching if ctx.clock.exchange == 0 else None

    def sketch_layers(
        self, ctx: Context, broadcast: ProtectedDown, client: OwnStatistics, data: ClientData
    ) -> tuple[Sketches, OwnStatistics, Metrics]:
        """A client's sketches of all inputs of its layers."""
        layers, images = self.layers(ctx), 0
        sketches: dict[str, SketchSum] = {}
        for batch, inputs in self.activations(ctx, broadcast, data):
            images += len(batch.y)
            for name, entered in inputs.items():
                for places in torch.split(torch.arange(len(entered), device=batch.x.device), COLUMNS):
                    columns = entered.columns(places).to(self.dtype)
                    for key, a in zip(layers[name].keys, columns, strict=True):
                        if key not in sketches:
                            size, basis = self.sketch or 5 * len(a), self.basis(broadcast.blocks, key, a)
                            sketches[key] = SketchSum(len(a), basis, size, ctx.rng("sketch", key))
                        sketches[key].add(a)
        count = torch.tensor([float(images)], device=broadcast.w.device)
        z = {key: sketch.z.float() for key, sketch in sketches.items()}
        energies = zip(sketches, to_host(sketch.energies for sketch in sketches.values()), strict=True)
        ratios = {key: count.new_tensor([images * self.residual_ratio(e)]) for key, e in energies}
        return Sketches(z, ratios, count), client, {}

    def residual_ratio(self, energies: Tensor) -> float:
        """rho_k of one layer: the residual's share of the inputs, by `SketchSum.energies`."""
        energy = residual_energy = 0.0
        for one, other in energies.tolist():
            energy += one
            residual_energy += other
        share = residual_energy / energy if energy else 0.0
        return share if self.ratio == "squared" else share**0.5

    def append_directions(
        self, ctx: Context, state: ProtectedState, updates: Sketches, cohort: Cohort
    ) -> tuple[ProtectedState, Metrics]:
        """Append to each layer's basis the directions of the mean sketch that reach eps_t."""
        eps = min(self.eps + ctx.clock.task * self.delta_eps, 1.0)
        new = {}
        for key, z in updates.z.items():
            threshold = sketch_threshold(float(updates.ratios[key] / updates.images), eps)
            new[key] = extract_sketch(z.to(self.dtype), threshold, self.count_rule)
        blocks = self.merged(ctx, state.blocks, {0: new})
        sent = len(cohort.client_ids) * nbytes(updates.z)
        metrics = {"comm/sketches_up_bytes": sent, "comm/block_bytes": nbytes(blocks[-1])}
        return state.replace(blocks=blocks), {**metrics, **self.occupied_shares(ctx, blocks)}
