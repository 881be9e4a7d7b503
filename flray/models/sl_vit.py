"""SL-ViT: a small vision transformer with shifted patches and locality self-attention, as the FedSOL code builds it."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from flray.core.schema.errors import ConfigError
from flray.models.base import Classifier, enlarge, image_shape

WIDTH, DEPTH, HEADS, HEAD_WIDTH, MLP_WIDTH = 192, 9, 12, 64, 192
SIDE = 32


class SLViT(Classifier):
    """Small vision transformer: shifted patches, class token, learned positions, nine pre-norm blocks.

    The blocks have width 192 and 12 heads of 64.

    `x [B, K, H, H]` -> `z [B, 192]`, the class token after the last block -> logits `[B, C]`. Patches have sides of
    `min(H // 4, 16)`; the head is LayerNorm and a linear layer; no dropout. Token and positions start at N(0, 1), the
    rest at PyTorch's default. Parameters at 3x32x32, C=10: 6,176,275.
    Lee et al. 2021, "Vision Transformer for Small-Size Datasets" (arXiv:2112.13492), in the variant of vit-pytorch
    (shifts of one pixel, one temperature for all heads); Lee et al. 2024 (FedSOL), CVPR, Table 3: the paper resizes
    28x28 to 32x32, the code does not and has patches of 7x7.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        upsample: Annotated[bool, Field(description="enlarge sides below 32 to 32 (nearest); false: do not")] = True,
    ) -> None:
        super().__init__()
        channels, height, width = image_shape("sl_vit", input_shape, smallest=1 if upsample else 4)
        self._smallest = SIDE if upsample else 1
        side = max(height, self._smallest)
        patch = min(side // 4, 16)
        if height != width or side % patch:
            raise ConfigError(
                f"model 'sl_vit' needs square images with sides of a multiple of {patch} pixels, the data have "
                f"{height}x{width}; set data.resize"
            )
        self.positions = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, WIDTH))
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.patches = ShiftedPatches(channels, patch)
        self.blocks = nn.ModuleList(LocalityBlock() for _ in range(DEPTH))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, num_classes))

    def features(self, x: Tensor) -> Tensor:
        """Class token after the last block, `z [B, 192]`, of `x [B, K, H, H]`."""
        x = self._embed(x)
        for block in self.blocks:
            x = block(x)
        return x[:, 0]

    def levels(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The class token after each of the nine blocks, `[B, 192]`, without an activation; and logits `[B, C]`."""
        x, levels = self._embed(x), []
        for block in self.blocks:
            x = block(x)
            levels.append(x[:, 0])
        return levels, self.head(levels[-1])

    def _embed(self, x: Tensor) -> Tensor:
        patches = self.patches(enlarge(x, self._smallest))
        return torch.cat([self.token.expand(len(x), -1, -1), patches], dim=1) + self.positions


class ShiftedPatches(nn.Module):
    """Shifted patch tokenisation: the image and its shifts by a pixel right, left, down and up, cut into patches."""

    def __init__(self, channels: int, patch: int) -> None:
        super().__init__()
        self._patch = patch
        self.norm = nn.LayerNorm(5 * channels * patch**2)
        self.linear = nn.Linear(5 * channels * patch**2, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, K, H, W]` -> `[B, patches, 192]`; a patch is read row by row, its 5 K channels innermost."""
        p = self._patch
        shifts = ((1, -1, 0, 0), (-1, 1, 0, 0), (0, 0, 1, -1), (0, 0, -1, 1))
        x = torch.cat([x, *(F.pad(x, shift) for shift in shifts)], dim=1)
        b, k, h, w = x.shape
        patches = x.reshape(b, k, h // p, p, w // p, p).permute(0, 2, 4, 3, 5, 1)  # [B, rows, columns, p, p, 5K]
        return self.linear(self.norm(patches.reshape(b, -1, p * p * k)))  # type: ignore[no-any-return]


class LocalityAttention(nn.Module):
    """Locality self-attention: a learned temperature, and no token attends to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(HEAD_WIDTH**-0.5).log())
        self.qkv = nn.Linear(WIDTH, 3 * HEADS * HEAD_WIDTH, bias=False)
        self.out = nn.Linear(HEADS * HEAD_WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, n, 192]` -> `[B, n, 192]`."""
        q, k, v = self.qkv(x).unflatten(2, (3, HEADS, HEAD_WIDTH)).permute(2, 0, 3, 1, 4)  # [B, heads, n, 64] each
        logits = q @ k.transpose(2, 3) * self.temperature.exp()
        itself = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        shares = logits.masked_fill(itself, -torch.inf).softmax(dim=3)
        return self.out((shares @ v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class LocalityBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = LocalityAttention()
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, MLP_WIDTH), nn.GELU(), nn.Linear(MLP_WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """`[B, n, 192]` -> `[B, n, 192]`."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))  # type: ignore[no-any-return]
