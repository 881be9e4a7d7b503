"""Embeddings of class names, from a file or of a language model in a local folder: the generator's input in LANDER."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flray.core.schema.errors import ConfigError, DataError

WAYS = "a .safetensors or .npy file with a row for each class, the folder of a text model, or random"
RANDOM_STD = 0.45  # CLIP's text embeddings of 512 entries have a length of about 10


def label_embeddings(source: str | None, classes: Sequence[str], width: int, draws: np.random.Generator) -> Tensor:
    """`[C, width]` float32, a row for each class.

    `source`: a `.npy` file `[C, width]`; a `.safetensors` file with the tensor `embeddings [C, width]`, or one tensor
    `[width]` under the name of each class; the folder of a model for `transformers`, which reads "a photo of a
    CLASS" (CLIP: its text embeddings; others: the mean of the last hidden states); or `random`: normal numbers.
    Raises `ConfigError` and `DataError`.
    """
    if source is None:
        raise ConfigError(f"algorithm.lte: lander needs label embeddings; set it to {WAYS}")
    if source == "random":
        return RANDOM_STD * torch.from_numpy(draws.standard_normal((len(classes), width), dtype=np.float32))
    path = Path(os.path.expanduser(source))
    if path.is_dir():
        embeddings = _of_model(path, [f"a photo of a {name.replace('_', ' ')}" for name in classes])
    elif path.suffix in (".npy", ".safetensors") and path.is_file():
        embeddings = _of_file(path, classes)
    else:
        problem = "has another suffix" if path.is_file() else "does not exist"
        raise ConfigError(f"algorithm.lte: {source} {problem}; set it to {WAYS}")
    if embeddings.shape != (len(classes), width):
        raise DataError(
            f"algorithm.lte: {source} gives embeddings of shape {list(embeddings.shape)}; the data and "
            f"algorithm.lte_dim need {[len(classes), width]}; set lte_dim, or give another file"
        )
    return embeddings


def _of_file(path: Path, classes: Sequence[str]) -> Tensor:
    try:
        if path.suffix == ".npy":
            return torch.from_numpy(np.load(path, allow_pickle=False)).float()
        from safetensors.torch import load_file

        named = load_file(path)
    except Exception as error:
        raise DataError(f"algorithm.lte: {path} cannot be read: {error}") from error
    if "embeddings" in named:
        return named["embeddings"].float()
    missing = [name for name in classes if name not in named]
    if missing:
        raise DataError(f"algorithm.lte: {path} has neither a tensor 'embeddings' nor one named {missing[0]!r}")
    return torch.stack([named[name].flatten() for name in classes]).float()


def _of_model(folder: Path, texts: list[str]) -> Tensor:
    from transformers import AutoConfig, AutoModel, AutoTokenizer, CLIPTextModelWithProjection

    try:
        local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        kind = AutoConfig.from_pretrained(folder, **local).model_type
        tokenizer = AutoTokenizer.from_pretrained(folder, **local)
        reader = CLIPTextModelWithProjection if kind in ("clip", "clip_text_model") else AutoModel
        model = reader.from_pretrained(folder, **local).eval()
    except Exception as error:
        raise DataError(f"algorithm.lte: {folder} holds no text model that transformers can load: {error}") from error
    read = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        said = model(**read)
    if hasattr(said, "text_embeds"):
        return said.text_embeds.float()  # type: ignore[no-any-return]
    mask = read["attention_mask"][..., None].float()
    return (said.last_hidden_state * mask).sum(1) / mask.sum(1)  # type: ignore[no-any-return]
