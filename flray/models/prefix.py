"""Prefix tuning: trained keys and values before those of a frozen T5's self-attention.

Li & Liang 2021 (ACL), "Prefix-Tuning: Optimizing Continuous Prompts for Generation", without their reparametrisation.
peft has it only for all decoder layers of a T5 at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

START = 0.02  # standard deviation of the initial keys and values; a T5's own are of size 1


class PrefixedAttention(nn.Module):
    """Self-attention of a T5 with `length` more trained keys `[length, heads d_kv]` and values.

    A prefix position has no place in the text, so its scores have no position bias and are not masked: softmax over
    [q k_prefix, q k + bias] of T5's unscaled products. Replaces transformers' `T5Attention` in a layer, and returns the
    text's bias, which the next layer shares.
    """

    def __init__(self, attention: Any, length: int) -> None:
        super().__init__()
        self.attention = attention
        self.keys = nn.Parameter(torch.empty(length, attention.inner_dim))
        self.values = nn.Parameter(torch.empty(length, attention.inner_dim))
        nn.init.normal_(self.keys, std=START)
        nn.init.normal_(self.values, std=START)

    def forward(
        self, hidden_states: Tensor, mask: Tensor | None = None, position_bias: Tensor | None = None, **more: Any
    ) -> tuple[Tensor, Tensor, None]:
        """(`[B, L, d]`, the text's bias `[1 or B, heads, L, L]`, None) of states `[B, L, d]`.

        `mask`: bool (true: attended to) or float (added), `[B, 1, L, L]`. A decoder without a mask must have one token.
        `more`: other options of the caller, which are ignored.
        """
        of = self.attention
        count, length, _ = hidden_states.shape
        if position_bias is None:
            if of.has_relative_attention_bias:
                position_bias = of.compute_bias(length, length, device=hidden_states.device)
            else:
                position_bias = hidden_states.new_zeros(1, of.n_heads, length, length)
        bias = position_bias
        if mask is not None and mask.dtype == torch.bool:
            bias = torch.where(mask, bias, torch.finfo(bias.dtype).min)
        elif mask is not None:
            bias = bias + mask
        query, keys, values = (self._heads(layer(hidden_states)) for layer in (of.q, of.k, of.v))
        keys, values = (
            torch.cat([self._heads(prefix).expand(count, -1, -1, -1), own], dim=2)
            for prefix, own in ((self.keys.to(keys.dtype), keys), (self.values.to(values.dtype), values))
        )
        dropout = of.dropout if self.training else 0.0
        bias = F.pad(bias, (len(self.keys), 0)).to(query.dtype)
        attended = F.scaled_dot_product_attention(query, keys, values, bias, dropout_p=dropout, scale=1.0)
        return of.o(attended.transpose(1, 2).reshape(count, length, -1)), position_bias, None

    def _heads(self, x: Tensor) -> Tensor:
        """`[..., n, heads d_kv]` as `[..., heads, n, d_kv]`."""
        return x.view(*x.shape[:-1], self.attention.n_heads, -1).transpose(-2, -3)


def add_prefixes(stack: Any, length: int, every: bool) -> None:
    """Add a prefix to the last layer of a T5's encoder or decoder, or to `every` layer."""
    for block in stack.block if every else stack.block[-1:]:
        layer = block.layer[0]
        layer.SelfAttention = PrefixedAttention(layer.SelfAttention, length)
