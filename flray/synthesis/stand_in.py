"""A small causal language model that is trained here, to test the program without a real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flray.core.protocol.generators import preserve_globals, seed_globals
from flray.core.protocol.seeding import rng, torch_seed
from flray.core.schema.errors import DataError
from flray.files import atomic_folder
from flray.synthesis.language_model import without_bars
from flray.synthesis.settings import StandIn

POSITIONS = 256
WARM_UP = 20  # steps
END = "<|endoftext|>"


def make_stand_in(
    config: StandIn, corpora: Sequence[Sequence[str]], seed: int, folder: Path, tell: Callable[[str], None]
) -> None:
    """Writes a GPT-2 and its tokenizer (byte-level BPE), both trained on the `corpora`, into `folder`, atomically.

    Each corpus has the same weight, and each text ends with an end token. `tell` gets a line with the loss from time to
    time. Raises `DataError` for a corpus of less than one sequence.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = _tokenizer([text for texts in corpora for text in texts], config.tokens)
    end = tokenizer.convert_tokens_to_ids(END)
    streams = [torch.tensor([t for text in texts for t in (*tokenizer.encode(text), end)]) for texts in corpora]
    if min(map(len, streams)) <= config.length:
        raise DataError(
            f"generator.train: a corpus has {min(map(len, streams))} tokens, less than one sequence of {config.length}"
            "; name a larger one"
        )
    shape: dict[str, Any] = {
        "n_layer": config.layers,
        "n_embd": config.hidden,
        "n_head": config.heads,
        "n_positions": POSITIONS,
    }
    shape |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    gpt2 = GPT2Config(vocab_size=len(tokenizer), bos_token_id=end, eos_token_id=end, **shape)
    with preserve_globals():
        seed_globals(torch_seed(seed, "synthesize", "stand-in"))
        model = GPT2LMHeadModel(gpt2)
        _train(model, streams, config, rng(seed, "synthesize", "stand-in"), tell)
    with atomic_folder(folder) as temporary, without_bars():
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)


def _tokenizer(texts: Sequence[str], size: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, special_tokens=[END], initial_alphabet=letters, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token=END, pad_token=END
    )


def _train(
    model: Any,
    streams: Sequence[torch.Tensor],
    config: StandIn,
    draws: np.random.Generator,
    tell: Callable[[str], None],
) -> None:
    """AdamW with warm-up and linear decay to 0, on sequences cut out of the texts at random places."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(config.steps):
        rows = [streams[row % len(streams)] for row in range(config.batch_size)]
        at = draws.integers([len(row) - config.length for row in rows])
        batch = torch.stack([row[place : place + config.length] for row, place in zip(rows, at, strict=True)])
        shifts = torch.from_numpy(draws.integers(POSITIONS - config.length + 1, size=(config.batch_size, 1)))
        places = shifts + torch.arange(config.length - 1)  # all positions are learned, though sequences are short
        logits = model.train()(input_ids=batch[:, :-1], position_ids=places).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = config.lr * min((step + 1) / WARM_UP, 1) * (1 - step / config.steps)
        optimizer.step()
        if (step + 1) % 50 == 0:
            tell(f"stand-in: step {step + 1} of {config.steps}, loss {loss.item():.2f}")
