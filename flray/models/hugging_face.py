"""Networks of transformers: pretrained folders, their tokens, and batches without unneeded padding."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flray.core.schema.errors import ConfigError, first_line

OWN_TOKENIZER = "set data.tokenizer to the network's own (a longer table needs its files beside the weights)"
_PADDED = ContextVar("padded", default=False)


def load_pretrained(model: str, kind: str, network: Any, name: str, fit: Callable[[Any], None]) -> Any:
    """The pretrained `network` (a class of transformers) of a folder or a name in the local hub cache, float32.

    Nothing is downloaded. `model` is its name in flray, `kind` the required type in its configuration. `fit` may change
    that configuration, and raises `ConfigError` if it does not suit the data. Raises `ConfigError` for a folder that
    cannot be read and for a network of another kind.
    """
    from transformers import AutoConfig

    folder = Path(os.path.expanduser(name))
    place = str(folder) if folder.is_dir() else name
    try:
        config = AutoConfig.from_pretrained(place, local_files_only=True, trust_remote_code=False)
        if config.model_type != kind:
            raise ConfigError(
                f"model {model!r}: pretrained {name!r} is a {config.model_type} network; choose a {kind.upper()}"
            )
        fit(config)
        return network.from_pretrained(place, config=config, local_files_only=True, dtype=torch.float32).train()
    except (OSError, ValueError) as error:
        hint = f"give a folder that holds it, or fetch it: hf download {name}"
        what = f"model {model!r}: pretrained {name!r} cannot be loaded ({first_line(error)})"
        raise ConfigError(f"{what}; {hint}") from error


def reads_tokens(config: Any, num_tokens: int) -> bool:
    """Whether a checkpoint's table of tokens is for the `num_tokens` of the data's tokenizer.

    The table has as many rows, or more (DeBERTa and ModernBERT fill it up to a round number), and the tokenizer beside
    the checkpoint has `num_tokens`. `config` is that of the checkpoint, as transformers read it.
    """
    if config.vocab_size <= num_tokens:
        return bool(config.vocab_size == num_tokens)
    from transformers import AutoTokenizer

    try:
        own = AutoTokenizer.from_pretrained(config.name_or_path, local_files_only=True, trust_remote_code=False)
    except Exception:  # the library raises many kinds where there is none
        return False
    return max(own.get_vocab().values()) + 1 == num_tokens


def check_shape(model: str, shape: Mapping[str, int], kind: type, pretrained: str | None) -> None:
    """Raises `ConfigError` for an option of a random network's shape beside `pretrained`, and for a width that the
    heads do not divide. The signature of the class `kind` has the defaults."""
    defaults = inspect.signature(kind).parameters
    for option, value in shape.items():
        if pretrained is not None and value != defaults[option].default:
            raise ConfigError(
                f"model {model!r}: {option} is the pretrained network's own; leave it out, or set pretrained to null"
            )
    if shape["hidden"] % shape["heads"]:
        raise ConfigError(f"model {model!r}: hidden {shape['hidden']} is not a multiple of heads {shape['heads']}")


@contextlib.contextmanager
def padded() -> Iterator[None]:
    """In its block texts keep their padding on a CPU too: for what is counted here of a run on a GPU."""
    before = _PADDED.set(True)
    try:
        yield
    finally:
        _PADDED.reset(before)


def unpadded(x: Tensor, pad: int) -> tuple[Tensor, Tensor]:
    """(token ids `[B, l]` of `x [B, L]`, padded on the right; bool `[B, l]`, false for padding).

    On a CPU l is the length of the longest text, which saves work; on a GPU l is L, because the length needs a
    synchronisation.
    """
    real = x != pad
    if x.device.type == "cpu" and not _PADDED.get():
        longest = int(real.any(0).nonzero()[-1]) + 1
        x, real = x[:, :longest], real[:, :longest]
    return x, real


class Tokens(nn.Module):
    """A network of transformers that reads token ids `x [B, L]`, with the mask of its padding and, if it has types of
    tokens (BERT), type 1 for a second text."""

    def __init__(self, network: nn.Module, pad: int, separator: int) -> None:
        super().__init__()
        self.network, self._pad, self._separator = network, pad, separator
        self._types = getattr(getattr(network, "config", None), "type_vocab_size", 1) > 1

    def forward(self, x: Tensor) -> Any:
        """The network's own output."""
        real = x != self._pad
        given = {"token_type_ids": second_text(x, self._separator, real)} if self._types else {}
        return self.network(input_ids=x, attention_mask=real.long(), **given)


def second_text(x: Tensor, separator: int, real: Tensor) -> Tensor:
    """1 for the tokens `[B, L]` after the first separator, which is the end of the first of two texts; else 0."""
    ends = x == separator
    return ((ends.cumsum(1) - ends.long() > 0) & real).long()
