"""BERT for text classification, on Hugging Face's `BertModel`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from torch import Tensor, nn

from flray.core.schema.errors import ConfigError
from flray.models.base import Classifier
from flray.models.hugging_face import OWN_TOKENIZER, check_shape, load_pretrained, reads_tokens, second_text, unpadded


class Bert(Classifier):
    """BERT encoder, pooled first token, dropout, linear head: `BertForSequenceClassification`, with its initialisation.

    Token ids `x [B, L]` (int64, padded on the right) -> `z [B, hidden]` -> logits `[B, C]`. Padding is masked; in a
    pair, the tokens after the first separator are the second segment. Parameters without the head, at 30,522 tokens:
    4,385,920 (bert-tiny, the default shape).
    Devlin et al. 2019, NAACL; the small ones (`prajjwal1/bert-tiny`, -mini, -small): Turc et al. 2019
    (arXiv:1908.08962).
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        num_tokens: int,
        pad_token: int,
        separator_token: int,
        *,
        pretrained: Annotated[
            str | None,
            Field(description="folder of a BERT, or its name in the local hub cache; none: random, of the shape below"),
        ] = None,
        layers: Annotated[int, Field(ge=1, description="blocks (pretrained: its own)")] = 2,
        hidden: Annotated[int, Field(ge=1, description="width (pretrained: its own)")] = 128,
        heads: Annotated[int, Field(ge=1, description="attention heads (pretrained: its own)")] = 2,
        intermediate: Annotated[int, Field(ge=1, description="width inside a block (pretrained: its own)")] = 512,
        dropout: Annotated[
            float, Field(ge=0, lt=1, description="of embeddings, attention, blocks and the pooled token")
        ] = 0.1,
    ) -> None:
        super().__init__()
        self._pad, self._separator = pad_token, separator_token
        shape = {"layers": layers, "hidden": hidden, "heads": heads, "intermediate": intermediate}
        check_shape("bert", shape, Bert, pretrained)
        if pretrained is None:
            from transformers import BertConfig, BertModel

            config = BertConfig(
                vocab_size=num_tokens,
                pad_token_id=pad_token,
                num_hidden_layers=layers,
                hidden_size=hidden,
                num_attention_heads=heads,
                intermediate_size=intermediate,
                hidden_dropout_prob=dropout,
                attention_probs_dropout_prob=dropout,
            )
            self.bert: Any = BertModel(config)
        else:
            self.bert = _load(pretrained, num_tokens, dropout)
        config = self.bert.config
        if input_shape[0] > config.max_position_embeddings:
            raise ConfigError(
                f"model 'bert' has {config.max_position_embeddings} positions, samples have {input_shape[0]} tokens; "
                "lower data.max_length"
            )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(config.hidden_size, num_classes)
        nn.init.normal_(self.head.weight, std=config.initializer_range)
        nn.init.zeros_(self.head.bias)

    def features(self, x: Tensor) -> Tensor:
        """The pooled first token after dropout, `z [B, hidden]`, of token ids `x [B, L]`."""
        return self.dropout(self._encode(x).pooler_output)  # type: ignore[no-any-return]

    def levels(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The first token after each block and the pooler before its tanh, all `[B, hidden]`; and logits `[B, C]`."""
        encoded = self._encode(x, output_hidden_states=True)
        levels = [states[:, 0] for states in encoded.hidden_states[1:]]
        return [*levels, self.bert.pooler.dense(levels[-1])], self.head(self.dropout(encoded.pooler_output))

    def _encode(self, x: Tensor, **options: Any) -> Any:
        x, real = unpadded(x, self._pad)
        types = second_text(x, self._separator, real)
        return self.bert(input_ids=x, attention_mask=real.long(), token_type_ids=types, **options)


def _load(name: str, num_tokens: int, dropout: float) -> Any:
    """The pretrained network; nothing is downloaded."""
    from transformers import BertModel

    def fit(config: Any) -> None:
        if not reads_tokens(config, num_tokens):
            raise ConfigError(
                f"model 'bert': pretrained {name!r} has {config.vocab_size} tokens and the data's tokenizer "
                f"{num_tokens}; {OWN_TOKENIZER}"
            )
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout

    return load_pretrained("bert", "bert", BertModel, name, fit)
