"""The causal language model: loads it from a folder or the local hub cache, and generates continuations.

The next token is chosen by SuperGen's repetition rule (Meng et al. 2022, arXiv:2202.04538, section 3.2; for one value
Keskar et al. 2019, CTRL, arXiv:1909.05858), then greedily or among the `k` likeliest, with its score.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flray.core.schema.errors import ConfigError, first_line
from flray.synthesis.templates import Prompt


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """A block in which transformers draws no progress bar."""
    from transformers.utils import logging as their_logging

    logging: Any = their_logging  # parts of transformers have no types
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


class Written(NamedTuple):
    """Token ids of a continuation without the end token, their log-probabilities, and whether there was an end
    token."""

    ids: list[int]
    scores: list[float]
    ended: bool


class LanguageModel:
    """A causal language model and its tokenizer on one device; its parameters are not trained."""

    def __init__(self, place: str, dtype: str = "float32", device: str = "cpu") -> None:
        """`place`: a folder, or a name in the local hub cache; nothing is downloaded.

        Raises `ConfigError` for one that is not there, is no causal language model, or has no tokenizer that fits.
        """
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

        where = f"generator: {place!r}"
        folder = Path(os.path.expanduser(place))
        home = str(folder) if folder.is_dir() else place
        local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            _check_causal(home, where, local)
            self.tokenizer: Any = AutoTokenizer.from_pretrained(home, **local)
            with without_bars():
                model: Any = AutoModelForCausalLM.from_pretrained(home, dtype=getattr(torch, dtype), **local)
        except ConfigError:
            raise
        except Exception as error:  # the library raises many kinds; the user needs one line
            text = first_line(error)
            if isinstance(error, OSError) and not folder.is_dir():
                text = "there is no such folder, and the local hub cache does not have it"
            hint = "give a folder that holds model and tokenizer, or fetch it: hf download NAME"
            raise ConfigError(f"{where} cannot be loaded ({text}); {hint}") from error
        self.model = model
        self.vocabulary: int = model.config.vocab_size
        if len(self.tokenizer) > self.vocabulary:
            raise ConfigError(
                f"{where}: its tokenizer has {len(self.tokenizer)} tokens and the model knows {self.vocabulary}; give "
                "a folder in which both belong together"
            )
        self.positions: int | None = getattr(self.model.config, "max_position_embeddings", None)
        model.to(device).eval()
        self._end: int | None = self.tokenizer.eos_token_id
        pads = (self.tokenizer.pad_token_id, self._end, 0)
        self._pad: int = next(token for token in pads if token is not None)
        # what the model's own folder says of sampling would be mixed in
        self.model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=False, num_beams=1, pad_token_id=self._pad, eos_token_id=self._end
        )

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    @torch.no_grad()
    def write(
        self,
        beginnings: Sequence[list[int]],
        spans: Sequence[tuple[int, int]],
        prompt: Prompt,
        temperature: Sequence[float],
        noise: np.ndarray | None,
        new_tokens: int,
    ) -> list[Written]:
        """Continuations of `beginnings` (token ids, at least one each), at most `new_tokens` each.

        `spans`, `temperature [B]` and `noise [B, new_tokens, k]` are those of :class:`Decoding`.
        """
        from transformers import LogitsProcessorList

        longest, device = max(map(len, beginnings)), self.model.device
        ids = torch.full((len(beginnings), longest), self._pad, device=device)
        mask = torch.zeros_like(ids)
        for row, beginning in enumerate(beginnings):
            ids[row, longest - len(beginning) :] = torch.tensor(beginning, device=device)
            mask[row, longest - len(beginning) :] = 1
        decoding = Decoding(ids, mask, spans, self.vocabulary, prompt.reward, prompt.penalty, temperature, noise)
        generated = self.model.generate(
            ids, attention_mask=mask, max_new_tokens=new_tokens, logits_processor=LogitsProcessorList([decoding])
        )
        rows = generated[:, longest:].tolist()
        scores = torch.stack(decoding.log_probabilities, 1).tolist()
        counts = [row.index(self._end) if self._end in row else len(row) for row in rows]
        parts = zip(rows, scores, counts, strict=True)
        return [Written(row[:count], score[:count], count < len(row)) for row, score, count in parts]


def _check_causal(place: str, where: str, local: dict[str, Any]) -> None:
    """Raises `ConfigError` for another kind of model: the library would load it with a random head."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config = AutoConfig.from_pretrained(place, **local)
    causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    kinds = config.architectures or [causal]
    if causal is None or causal not in kinds:
        kind = kinds[0] or f"{config.model_type} network"
        raise ConfigError(f"{where} is a {kind}, no causal language model; choose one such as gpt2 or ctrl")


def repetition(scores: Tensor, rewarded: Tensor, penalised: Tensor, reward: Tensor, penalty: Tensor) -> Tensor:
    """Logits `[B, V]` after the repetition rule: `s a` if `s < 0`, else `s / a`, for every token that occurred before.

    `rewarded`, `penalised`: bool `[B, V]`, the tokens of the first text and all others so far. `reward`, `penalty`:
    their `a`, `[B, 1]`. A token in both is penalised: the first text may be repeated once (as in SuperGen's code).
    """
    a = torch.where(penalised, penalty, reward)
    return torch.where(penalised | rewarded, torch.where(scores < 0, scores * a, scores / a), scores)


def choose(scores: Tensor, temperature: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
    """The next token of each text, int64 `[B]`, and the log-probability by which texts are ranked, `[B]`.

    Without noise: the likeliest token, and its log-softmax among all. With Gumbel noise `[B, k]`: one of the `k`
    likeliest tokens, drawn with probability softmax(scores / temperature `[B, 1]`) among these (`argmax(z + noise)` is
    such a draw: Gumbel 1954), and its log-softmax among them at temperature 1, which makes texts of several
    temperatures comparable.
    """
    if noise is None:
        token = scores.argmax(1, keepdim=True)
        return token[:, 0], scores.log_softmax(1).gather(1, token)[:, 0]
    values, tokens = scores.topk(min(noise.shape[1], scores.shape[1]), 1)
    pick = (values / temperature + noise[:, : values.shape[1]]).argmax(1, keepdim=True)
    return tokens.gather(1, pick)[:, 0], values.log_softmax(1).gather(1, pick)[:, 0]


class Decoding:
    """A logits processor for Hugging Face's greedy `generate`: leaves only the token of :func:`choose`.

    Each text has its own draws, so the other texts of a batch do not change it. `log_probabilities` has `[B]` for each
    step.
    """

    def __init__(
        self,
        ids: Tensor,
        mask: Tensor,
        spans: Sequence[tuple[int, int]],
        vocabulary: int,
        reward: float | None,
        penalty: float,
        temperature: Sequence[float],
        noise: np.ndarray | None,
    ) -> None:
        """`ids [B, L]`, padded on the left where `mask` is 0; `spans`: where the first text lies in the unpadded ids,
        (0, 0) without one. `noise`: Gumbel `[B, steps, k]` of texts that are sampled, None: greedy."""
        B, L = ids.shape
        new: dict[str, Any] = {"dtype": torch.bool, "device": ids.device}
        place = torch.arange(L, device=ids.device)[None] - (L - mask.sum(1, keepdim=True))
        ends = torch.tensor(spans, device=ids.device).reshape(B, 2)
        first = (place >= ends[:, :1]) & (place < ends[:, 1:]) & (reward is not None)
        self.rewarded, self.penalised = torch.zeros(B, vocabulary, **new), torch.zeros(B, vocabulary, **new)
        _mark(self.rewarded, ids, first)
        _mark(self.penalised, ids, mask.bool() & ~first)
        self.reward = torch.full((B, 1), 1.0 if reward is None else reward, device=ids.device)
        self.penalty = torch.full((B, 1), penalty, device=ids.device)
        self.temperature = torch.tensor(temperature, dtype=torch.float32, device=ids.device).reshape(B, 1)
        self.noise = None if noise is None else torch.from_numpy(noise).to(ids.device, torch.float32)
        self.log_probabilities: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step = len(self.log_probabilities)
        if step:
            self.penalised.scatter_(1, input_ids[:, -1:], True)
        scores = repetition(scores.float(), self.rewarded, self.penalised, self.reward, self.penalty)
        token, score = choose(scores, self.temperature, None if self.noise is None else self.noise[:, step])
        self.log_probabilities.append(score)
        return torch.full_like(scores, -torch.inf).scatter_(1, token[:, None], 0.0)


def _mark(table: Tensor, ids: Tensor, where: Tensor) -> None:
    row, column = where.nonzero(as_tuple=True)
    table[row, ids[row, column]] = True
