"""Prefix tuning: trained keys and values before those of a frozen T5's self-attention.

Li & Liang 2021 (ACL), "Prefix-Tuning: Optimizing Continuous Prompts for Generation", without their reparametrisation.
peft has it for the decoder of a T5 only, and for all of its layers at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

START = 0.02  # deviation of the first keys and values: small beside a T5's own, which are of size 1


class PrefixedAttention(nn.Module):
    """Self-attention of a T5 that every query also pays to `length` trained keys `[length, heads d_kv]` and values.

    A prefix position has no place in the text, so its scores have no position bias (0 is added to them), and padding
    does not hide it: softmax over [q k_prefix, q k + bias] of T5's unscaled products. Takes the place of
    transformers' `T5Attention` where its layer calls it, and gives on what the next layer shares: the text's own bias.
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

        `mask`: bool (true: is attended to) or a float that is added, `[B, 1, L, L]`; where a decoder gives none it must
        have one token. `more` are the caller's other options, of caches and what is recorded.
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
    """Give the last layer of a T5's encoder or decoder a prefix, or `every` layer its own."""
    for block in stack.block if every else stack.block[-1:]:
        layer = block.layer[0]
        layer.SelfAttention = PrefixedAttention(layer.SelfAttention, length)
