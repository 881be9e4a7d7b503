"""Networks of other libraries: pretrained folders, batches without unneeded padding, and a feature/head split in which
the last linear layer is the head.
"""

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
from flray.models.base import Classifier

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


class Split(Classifier):
    """`body` (the network with the identity in place of its last linear layer), then `head`, that layer."""

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def features(self, x: Tensor) -> Tensor:
        """Representation `z [B, F]` of inputs `x [B, ...]`."""
        return logits(self.body(x))


class Headless(nn.Module):
    """A network whose last layer is not linear: it has no features, and no `head`."""

    head = None

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[B, C]` of inputs `x [B, ...]`."""
        return logits(self.body(x))


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


def logits(output: Any) -> Tensor:
    """The logits of a network's output: a tensor, or a record or a tuple with them."""
    if isinstance(output, Tensor):
        return output
    return output.logits if hasattr(output, "logits") else output[0]  # type: ignore[no-any-return]


def split(network: nn.Module, num_classes: int, sample: Tensor) -> nn.Module:
    """`network` with its head apart, if its last linear layer with `num_classes` outputs gives its logits.

    That is tried on `sample [B, ...]`, in eval mode: logits before and after must be equal but for rounding. (GPT-2
    applies its last layer to every token, and picks one afterwards.)
    """
    linear = [(name, m) for name, m in network.named_modules() if isinstance(m, nn.Linear)]
    named = [(name, m) for name, m in linear if m.out_features == num_classes and name]
    if not named:
        return Headless(network)
    place, head = named[-1]
    network.eval()
    with torch.no_grad():
        before = logits(network(sample))
        owner, _, leaf = place.rpartition(".")
        parent = network.get_submodule(owner)
        setattr(parent, leaf, nn.Identity())
        try:
            features = logits(network(sample))
            # but for the rounding of a layer; NaN, which says nothing, is not the same
            same = features.shape == (len(sample), head.in_features) and bool(
                (head(features) - before).norm() <= 1e-5 * before.norm()
            )
        except (RuntimeError, TypeError, ValueError, AttributeError):  # the network needs the layer itself
            same = False
    network.train()
    if same:
        return Split(network, head)
    setattr(parent, leaf, head)
    return Headless(network)


def with_channels(network: nn.Module, channels: int) -> None:
    """Replace the network's first convolution by one of `channels` input channels, newly initialised, if it has
    others."""
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Conv2d):
            if layer.in_channels != channels:
                owner, _, leaf = name.rpartition(".")
                size: Any = {name: getattr(layer, name) for name in ("kernel_size", "stride", "padding", "dilation")}
                new = nn.Conv2d(channels, layer.out_channels, bias=layer.bias is not None, **size)
                setattr(network.get_submodule(owner), leaf, new)
            return
