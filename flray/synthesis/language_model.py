"""The causal language model: loads it from a folder or the local hub cache, and generates continuations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from flray.core.schema.errors import ConfigError
from flray.synthesis.decoding import Decoding
from flray.synthesis.templates import Prompt


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
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]

        where = f"generator: {place!r}"
        folder = Path(place).expanduser()
        home = str(folder) if folder.is_dir() else place
        local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            _check_causal(home, where, local)
            self.tokenizer: Any = AutoTokenizer.from_pretrained(home, **local)
            model: Any = AutoModelForCausalLM.from_pretrained(home, dtype=getattr(torch, dtype), **local)
        except ConfigError:
            raise
        except Exception as error:  # the library raises many kinds; the user needs one line
            text = (str(error).strip() or type(error).__name__).split("\n")[0]
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
        return [self._written(row, score) for row, score in zip(rows, scores, strict=True)]

    def _written(self, ids: list[int], scores: list[float]) -> Written:
        ended = self._end is not None and self._end in ids
        count = ids.index(self._end) if self._end is not None and ended else len(ids)
        return Written(ids[:count], scores[:count], ended)


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
