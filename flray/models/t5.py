"""T5 for text classification in words, on Hugging Face's `T5ForConditionalGeneration`: prefix tuning, LoRA or whole."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from flray.core.schema.errors import ConfigError, unknown
from flray.models.base import Classifier
from flray.models.hugging_face import check_shape, load_pretrained, unpadded

Tune = Literal["prefix", "lora", "full"]
PADDED = 128  # a T5's table of tokens is longer than its tokenizer's: 32,128 rows for 32,100 tokens
PREFIX_STD = 0.02  # of the initial keys and values; a T5's own are of size 1
ELSEWHERE = 1e4  # subtracted from the scores of other tasks' words; finite, so that a KL of two rows is finite


class Verbalizer(nn.Linear):
    """The scores of the classes' words: rows `weight [C, d]` of a language model's head.

    The input is states `[B, d]`, or `[B, d + T]`: the last T columns are 1 for the text's task (all 0: unknown). The
    scores of other tasks' words are then 10,000 lower, so that softmax, KL and argmax are over its own words.
    """

    def __init__(self, rows: Tensor, task_of: tuple[int, ...], tasks: int) -> None:
        super().__init__(rows.shape[1], len(rows), bias=False)
        self.weight = nn.Parameter(rows.detach().clone())
        self.in_features += tasks
        others = torch.arange(tasks)[:, None] != torch.tensor(task_of)  # [T, C]
        self.lowered: Tensor
        self.register_buffer("lowered", others * -ELSEWHERE, persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        """Logits `[B, C]`."""
        width = self.weight.shape[1]
        scores = F.linear(z[:, :width], self.weight)
        return scores + z[:, width:] @ self.lowered if len(self.lowered) else scores


class PrefixedAttention(nn.Module):
    """Self-attention of a T5 with `length` more trained keys `[length, heads d_kv]` and values (Li & Liang 2021, ACL,
    "Prefix-Tuning", without their reparametrisation; peft has it only for all decoder layers at once).

    A prefix position has no place in the text, so its scores have no position bias and are not masked: softmax over
    [q k_prefix, q k + bias] of T5's unscaled products. Replaces transformers' `T5Attention` in a layer, and returns the
    text's bias, which the next layer shares.
    """

    def __init__(self, attention: Any, length: int) -> None:
        super().__init__()
        self.attention = attention
        self.keys = nn.Parameter(torch.empty(length, attention.inner_dim))
        self.values = nn.Parameter(torch.empty(length, attention.inner_dim))
        nn.init.normal_(self.keys, std=PREFIX_STD)
        nn.init.normal_(self.values, std=PREFIX_STD)

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


class T5(Classifier):
    """T5 that answers in words: the score of each class's word at the first decoder position.

    Token ids `x [B, L]` (int64, padded on the right) enter the encoder, padding masked; the decoder takes one step from
    the start token; `z [B, d]` is its last state (times d^-0.5 where the published network scales it), and the head is
    the language model's, at the rows of the classes' words. With T > 1 tasks, which a
    text names by its first token, `z [B, d + T]` (see `Verbalizer`). Raffel et al. 2020, JMLR 21 (140).

    `tune` chooses the trained parameters; the rest is frozen. `prefix`: keys and values of the last encoder and the
    last decoder layer or of all, 2 x 20 x (heads d_kv) a layer, and an embedding for each task that replaces the first
    token's, from which it starts. `lora`: low-rank updates by peft (Hu et al. 2022, ICLR). `full`: all of it, with the
    head's rows as separate parameters, which start as the language model's. `early`: embeddings and encoder. Positions
    are relative, so texts may have any length. Parameters with tied embeddings: 737,668,096 (t5-large), 222,903,552
    (t5-base), 60,506,624 (t5-small), at 32,128 tokens.
    """

    def __init__(
        self,
        num_classes: int,
        num_tokens: int,
        pad_token: int,
        label_tokens: tuple[int, ...],
        task_of: tuple[int, ...],
        task_tokens: tuple[int, ...],
        *,
        pretrained: Annotated[
            str | None,
            Field(description="folder of a T5, or its name in the local hub cache; none: random, of the shape below"),
        ] = None,
        layers: Annotated[int, Field(ge=1, description="of encoder and decoder (pretrained: its own)")] = 2,
        hidden: Annotated[int, Field(ge=1, description="width (pretrained: its own)")] = 64,
        heads: Annotated[int, Field(ge=1, description="attention heads (pretrained: its own)")] = 4,
        intermediate: Annotated[int, Field(ge=1, description="width inside a layer (pretrained: its own)")] = 128,
        dropout: Annotated[float, Field(ge=0, lt=1, description="of embeddings, attention and layers")] = 0.1,
        tune: Annotated[
            Tune, Field(description="trained: keys and values before the text's, low-rank updates (peft), all")
        ] = "prefix",
        prefix_length: Annotated[int, Field(ge=1, description="tune: prefix; positions")] = 20,
        prefix_layers: Annotated[
            Literal["last", "all"], Field(description="tune: prefix; of encoder and decoder")
        ] = "last",
        task_token: Annotated[
            bool, Field(description="tune: prefix; where texts begin with a task's token, its embedding is trained")
        ] = True,
        lora_rank: Annotated[int, Field(ge=1, description="tune: lora")] = 8,
        lora_alpha: Annotated[float, Field(gt=0, description="tune: lora; scale, times 1 / rank")] = 16.0,
        lora_dropout: Annotated[float, Field(ge=0, lt=1, description="tune: lora; of what enters")] = 0.0,
        lora_targets: Annotated[
            tuple[str, ...], Field(min_length=1, description="tune: lora; linear layers of T5: q, k, v, o, wi, wo")
        ] = ("q", "v"),
    ) -> None:
        super().__init__()
        prefix = {"prefix_length": prefix_length, "prefix_layers": prefix_layers, "task_token": task_token}
        lora: dict[str, Any] = {"lora_rank": lora_rank, "lora_alpha": lora_alpha, "lora_dropout": lora_dropout}
        lora |= {"lora_targets": lora_targets}
        _reject_foreign(tune, {"prefix": prefix, "lora": lora})
        tasks = _tasks(num_classes, label_tokens, task_of, task_tokens)
        shape = {"layers": layers, "hidden": hidden, "heads": heads, "intermediate": intermediate}
        check_shape("t5", shape, T5, pretrained)
        if pretrained is None:
            network = _new(shape, num_tokens, pad_token, dropout)
        else:
            network = _load(pretrained, num_tokens, pad_token, dropout)
        self._adopt(network, pad_token, task_tokens)
        self._tune(tune, prefix, lora)
        self.head = Verbalizer(network.lm_head.weight[list(label_tokens)], task_of, tasks)
        self.head.requires_grad_(tune == "full")

    def _adopt(self, network: Any, pad_token: int, task_tokens: tuple[int, ...]) -> None:
        """Take over the embeddings, encoder and decoder of a `T5ForConditionalGeneration`."""
        config = network.config
        start = getattr(config, "decoder_start_token_id", None)
        self._pad, self._start = pad_token, pad_token if start is None else start
        self._scale = config.d_model**-0.5 if config.scale_decoder_outputs else 1.0
        self._tasks: Tensor
        self.register_buffer("_tasks", torch.tensor(task_tokens, dtype=torch.long), persistent=False)
        self.shared, self.encoder, self.decoder = network.shared, network.encoder, network.decoder
        self.encoder.embed_tokens = self.decoder.embed_tokens = None  # they get embeddings, so one table has one name

    def _tune(self, tune: Tune, prefix: dict[str, Any], lora: dict[str, Any]) -> None:
        """Freeze what `tune` does not train, and add the parameters that it trains instead."""
        self.requires_grad_(tune == "full")
        embedding = None
        if tune == "prefix":
            if prefix["task_token"] and len(self._tasks):
                embedding = nn.Parameter(self.shared.weight[self._tasks].detach().clone())
            for stack in (self.encoder, self.decoder):
                for block in stack.block if prefix["prefix_layers"] == "all" else stack.block[-1:]:
                    layer = block.layer[0]
                    layer.SelfAttention = PrefixedAttention(layer.SelfAttention, prefix["prefix_length"])
        elif tune == "lora":
            _add_low_rank(self, *lora.values())
        self.task_embedding: nn.Parameter | None
        self.register_parameter("task_embedding", embedding)  # [T, d]
        self.early = ("shared", *(["task_embedding"] if embedding is not None else []), "encoder")

    def features(self, x: Tensor) -> Tensor:
        """The decoder's state at its first position, of token ids `x [B, L]`: `z [B, d]`, or `[B, d + T]`."""
        x, real = unpadded(x, self._pad)
        inputs = self.shared(x)
        task = (x[:, :1] == self._tasks).to(inputs.dtype)  # [B, T], 1 at its own
        if self.task_embedding is not None:
            unknown = 1 - task.sum(1, keepdim=True)
            first = task @ self.task_embedding + unknown * inputs[:, 0]
            inputs = torch.cat([first[:, None], inputs[:, 1:]], dim=1)
        mask = real.long()
        states = self.encoder(inputs_embeds=inputs, attention_mask=mask).last_hidden_state
        start = self.shared(torch.full_like(x[:, :1], self._start))
        decoded = self.decoder(
            inputs_embeds=start, encoder_hidden_states=states, encoder_attention_mask=mask, use_cache=False
        )
        z = decoded.last_hidden_state[:, 0] * self._scale
        return torch.cat([z, task], dim=1) if len(self._tasks) > 1 else z


def _tasks(
    num_classes: int, label_tokens: tuple[int, ...], task_of: tuple[int, ...], task_tokens: tuple[int, ...]
) -> int:
    """The number of tasks if there are several, else 0. Raises `ConfigError`."""
    if len(label_tokens) != num_classes:
        raise ConfigError(
            f"model 't5' answers in words, and the data have {len(label_tokens)} words for {num_classes} outputs; "
            "give each class a word in data.words"
        )
    count = len(set(task_of))
    if count > 1 and len(task_tokens) < count:
        raise ConfigError(
            f"model 't5': the classes are of {count} tasks, and the texts do not begin with their task's token; use "
            "data.source: union"
        )
    return len(task_tokens) if count > 1 else 0


def _reject_foreign(tune: Tune, groups: dict[str, dict[str, Any]]) -> None:
    """Raises `ConfigError` for an option of another value of `tune`."""
    defaults = inspect.signature(T5).parameters
    for owner, given in groups.items():
        for option, value in given.items():
            if owner != tune and value != defaults[option].default:
                raise ConfigError(f"model 't5': {option} belongs to tune: {owner}, and this is {tune}; leave it out")


def _new(shape: dict[str, int], num_tokens: int, pad_token: int, dropout: float) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=num_tokens,
        pad_token_id=pad_token,
        num_layers=shape["layers"],
        d_model=shape["hidden"],
        num_heads=shape["heads"],
        d_kv=shape["hidden"] // shape["heads"],
        d_ff=shape["intermediate"],
        dropout_rate=dropout,
    )
    return T5ForConditionalGeneration(config)


def _load(name: str, num_tokens: int, pad_token: int, dropout: float) -> Any:
    """The pretrained network; nothing is downloaded."""
    from transformers import T5ForConditionalGeneration

    def fit(config: Any) -> None:
        if not 0 <= config.vocab_size - num_tokens < PADDED or config.pad_token_id != pad_token:
            raise ConfigError(
                f"model 't5': pretrained {name!r} knows {config.vocab_size} tokens, padding being "
                f"{config.pad_token_id}, and the data's tokenizer has {num_tokens} and {pad_token}; set data.tokenizer "
                "to the network's own"
            )
        config.dropout_rate = dropout

    return load_pretrained("t5", "t5", T5ForConditionalGeneration, name, fit)


def _add_low_rank(module: nn.Module, rank: int, alpha: float, dropout: float, targets: tuple[str, ...]) -> None:
    """Add peft's trained low-rank updates to the linear layers whose names end in `targets`."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError("model 't5', tune: lora needs peft; pip install 'flray[text]'") from error
    names = {name.rpartition(".")[2] for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    for target in targets:
        if target not in names:
            raise unknown("layer", target, sorted(names), "model 't5', option 'lora_targets'")
    chosen = LoraConfig(r=rank, lora_alpha=cast(int, alpha), lora_dropout=dropout, target_modules=list(targets))
    inject_adapter_in_model(chosen, module)
