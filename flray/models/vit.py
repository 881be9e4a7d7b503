"""The vision transformer (ViT-B/16 by default) of timm's patches and blocks, as its `vit_base_patch16_224`."""

from __future__ import annotations

import functools
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from flray.core.schema.errors import ConfigError
from flray.models.base import Classifier, image_shape
from flray.models.libraries import library
from flray.models.weights import adopt, foreign_weights

EPS = 1e-6  # of the norms
STD = 0.02  # of the initial weights


class ViT(Classifier):
    """Patches, class token, learned positions, pre-norm blocks, norm, linear head on the class token.

    `x [B, K, H, W]` -> `z [B, width]` -> logits `[B, C]`; sides are multiples of `patch`, no dropout. Linear weights,
    positions and head start truncated normal (0.02), biases 0, the class token N(0, 1e-6). Parameters at 3x224x224:
    85,798,656 without the head. The parameters have timm's names (`cls_token`, `pos_embed`, `patch_embed.proj`,
    `blocks.0.norm1`, `.attn.qkv`, `.attn.proj`, `.norm2`, `.mlp.fc1`, `.mlp.fc2`, `norm`, `head`), and all linear maps
    are layers, which subspace methods can observe. `early`: token, positions, patches and the first half of the
    blocks (blocks 1 to 6 in FedProTIP's code, `server/server_fedprotip.py`).
    Dosovitskiy et al. 2021, ICLR; the variant of timm (Wightman 2019), whose blocks need `pip install 'flray[timm]'`.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        patch: Annotated[int, Field(ge=1, description="side of a patch in pixels")] = 16,
        width: Annotated[int, Field(ge=1, description="width of a token")] = 768,
        depth: Annotated[int, Field(ge=1, description="number of blocks")] = 12,
        heads: Annotated[int, Field(ge=1, description="attention heads of a block")] = 12,
        mlp_ratio: Annotated[
            float, Field(gt=0, description="hidden width of a block's MLP, in widths of a token")
        ] = 4.0,
        pretrained: Annotated[
            str | None,
            Field(description="file to start from (.safetensors, .pth) with timm's names; none: random"),
        ] = None,
    ) -> None:
        super().__init__()
        channels, height, side = image_shape("vit", input_shape, smallest=patch)
        if height % patch or side % patch:
            raise ConfigError(
                f"model 'vit' needs sides of a multiple of {patch} pixels, the data have {height}x{side}; set "
                "data.resize, or model.patch"
            )
        if width % heads:
            raise ConfigError(f"model 'vit': width {width} is not a multiple of heads {heads}")
        library("timm", "model 'vit'")
        from timm.layers.patch_embed import PatchEmbed
        from timm.models.vision_transformer import Block

        norm: Any = functools.partial(nn.LayerNorm, eps=EPS)
        self._grid = (height // patch, side // patch)
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + self._grid[0] * self._grid[1], width))
        self.patch_embed = PatchEmbed((height, side), patch, channels, width)
        blocks = (Block(width, heads, mlp_ratio, qkv_bias=True, norm_layer=norm) for _ in range(depth))
        self.blocks = nn.Sequential(*blocks)
        self.norm = norm(width)
        self.head = nn.Linear(width, num_classes)
        self.early = ("cls_token", "pos_embed", "patch_embed", *(f"blocks.{i}" for i in range(depth // 2)))
        nn.init.normal_(self.cls_token, std=1e-6)
        nn.init.trunc_normal_(self.pos_embed, std=STD)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=STD)
                nn.init.zeros_(module.bias)
        if pretrained is not None:
            self._start_from(pretrained)

    def features(self, x: Tensor) -> Tensor:
        """The class token after all blocks and the norm, `z [B, width]`, of `x [B, K, H, W]`."""
        return self.norm(self.blocks(self._embed(x))[:, 0])  # type: ignore[no-any-return]

    def levels(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The class token after each of `depth` blocks, `[B, width]`, without an activation; logits `[B, C]`."""
        x, levels = self._embed(x), []
        for block in self.blocks:
            x = block(x)
            levels.append(x[:, 0])
        return levels, self.head(self.norm(levels[-1]))

    def _embed(self, x: Tensor) -> Tensor:
        return torch.cat([self.cls_token.expand(len(x), -1, -1), self.patch_embed(x)], dim=1) + self.pos_embed

    def _start_from(self, source: str) -> None:
        """Loads a file; positions of another image size are interpolated. Raises `ConfigError` if it does not fit."""
        from timm.layers.pos_embed import resample_abs_pos_embed

        weights = foreign_weights(source)
        positions, said = weights.get("pos_embed"), ""
        if positions is not None and positions.dim() == 3 and positions.shape[2] == self.pos_embed.shape[2]:
            side = round((positions.shape[1] - 1) ** 0.5)
            if positions.shape != self.pos_embed.shape and side**2 == positions.shape[1] - 1:
                weights["pos_embed"] = resample_abs_pos_embed(positions, self._grid, (side, side))
                said = f"; positions of {side}x{side} patches interpolated to {self._grid[0]}x{self._grid[1]}"
        self.starts_from = adopt(self, source, weights, ("head",)) + said
