"""The work in chunks. A chunk is a sequence of texts of one task and stream, in one file. The file's name contains a
checksum of everything that determines the texts.

So an existing file is never generated again, and other settings make other files. Batches lie inside a chunk and begin
at multiples of the batch size: the same batches, and so the same bits, with any number of actors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from flray.core.network.threads import threads
from flray.core.schema.errors import ConfigError, ResourceError
from flray.data.cache import digest
from flray.files import atomic_write, regular, writing
from flray.synthesis.language_model import LanguageModel
from flray.synthesis.settings import Synthesis
from flray.synthesis.templates import Template
from flray.synthesis.texts import Start, Text, draws, finished, gumbel, start

BATCHES = 8  # a chunk


class TextChunk(NamedTuple):
    """Texts `first` to `first + size` of a stream; `sentences`: their first texts, empty if the task has none."""

    task: str
    stream: str
    first: int
    size: int
    sentences: tuple[str, ...]
    key: str

    @property
    def file(self) -> str:
        return f"{self.task}-{self.stream}-{self.first:06d}-{self.key[:12]}.parquet"


def plan(config: Synthesis, starts: dict[tuple[str, str], list[str]], generator: str) -> list[TextChunk]:
    """All chunks, task by task and stream by stream; `generator` is a digest of the language model."""
    size, chunks = config.batch_size * BATCHES, []
    for task, template in config.templates().items():
        for stream in template.streams:
            own = starts.get((task, stream), [])
            for first in range(0, template.per_label, size):
                count = min(size, template.per_label - first)
                part = tuple(own[first : first + count])
                what = (template.model_dump(exclude={"per_label"}), config.seed, config.batch_size, generator)
                key = digest("synthesis", task, stream, first, count, part, *what)
                chunks.append(TextChunk(task, stream, first, count, part, key))
    return chunks


class Writer:
    """Generates chunks with one language model in this process, on the device and with the threads of the settings."""

    def __init__(self, config: Synthesis, place: str) -> None:
        """`place`: the folder or name of the language model. Raises `ConfigError`, as `LanguageModel`."""
        device = "cuda" if config.resources.num_gpus else "cpu"
        if device == "cuda" and not torch.cuda.is_available():
            raise ResourceError("resources.num_gpus: there is no GPU here; set it to 0")
        self.config, self.templates = config, config.templates()
        self.model = LanguageModel(place, config.generator.dtype, device)
        for name, template in self.templates.items():
            longest = template.longest_start + template.max_new_tokens
            if self.model.positions is not None and longest > self.model.positions:
                raise ConfigError(
                    f"generator: {place!r} has {self.model.positions} positions and {name} needs {longest} (beginnings "
                    f"of at most {template.longest_start} tokens, {template.max_new_tokens} new ones); set "
                    "max_new_tokens lower"
                )

    def __call__(self, chunk: TextChunk) -> list[Text]:
        with threads(self.config.resources.threads):
            return [
                text
                for place in range(0, chunk.size, self.config.batch_size)
                for text in self._batch(chunk, range(place, min(place + self.config.batch_size, chunk.size)))
            ]

    def _batch(self, chunk: TextChunk, places: range) -> Iterator[Text]:
        template, seed = self.templates[chunk.task], self.config.seed
        address = partial(draws, seed, chunk.task, chunk.stream)
        begins: list[Start] = []
        sentence = [chunk.sentences[place] if chunk.sentences else None for place in places]
        for place, words in zip(places, sentence, strict=True):
            begins.append(start(seed, chunk.task, template, chunk.stream, chunk.first + place, words))
        ids = [self.model.encode(begin.prompt) for begin in begins]
        short = [row for row, tokens in enumerate(ids) if len(tokens) <= template.longest_start]
        written = dict(zip(short, self._written(chunk, template, places, begins, ids, short), strict=True))
        for row, (place, begin) in enumerate(zip(places, begins, strict=True)):
            number = chunk.first + place
            if row not in written:
                yield Text(number, sentence[row] or "", "", "", float("nan"), 0, "too long a beginning")
                continue
            tokens, scores, ended = written[row]
            yield finished(
                number, template, begin, sentence[row], self.model.decode(tokens), ended, scores,
                partial(self._prefix, tokens), address(number, "later"),
            )  # fmt: skip

    def _prefix(self, tokens: list[int], count: int) -> str:
        return self.model.decode(tokens[:count])

    def _written(
        self,
        chunk: TextChunk,
        template: Template,
        places: range,
        begins: Sequence[Start],
        ids: Sequence[list[int]],
        rows: Sequence[int],
    ) -> list[Any]:
        if not rows:
            return []
        spans = [(0, 0)] * len(rows)
        if template.sentences:
            encode = self.model.encode
            spans = [(len(encode(begins[row].before)), len(encode(begins[row].first))) for row in rows]
        steps, noise = template.max_new_tokens, None
        if any(template.temperature):
            noise = np.stack([
                gumbel(self.config.seed, chunk.task, chunk.stream, chunk.first + places[row], steps, template.top_k)
                for row in rows
            ])  # fmt: skip
        return self.model.write(
            [ids[row] for row in rows], spans, template.prompts[chunk.stream],
            [begins[row].temperature for row in rows], noise, steps,
        )  # fmt: skip


def save(folder: Path, chunk: TextChunk, texts: Iterable[Text]) -> None:
    """Writes a chunk's file atomically."""
    rows = [text._asdict() for text in texts]
    schema = pa.schema([
        ("number", pa.int64()), ("first", pa.string()), ("text", pa.string()), ("later", pa.string()),
        ("score", pa.float64()), ("tokens", pa.int64()), ("dropped", pa.string()),
    ])  # fmt: skip
    with storing(folder / chunk.file), atomic_write(folder / chunk.file, durable=True) as temporary:
        pq.write_table(pa.Table.from_pylist(rows, schema), temporary)


def saved(folder: Path, chunk: TextChunk) -> list[Text] | None:
    """The texts of a chunk's file; None if it is missing or damaged."""
    try:
        rows = pq.ParquetFile(regular(folder / chunk.file)).read().to_pylist()
        texts = [Text(**row) for row in rows]
    except (OSError, pa.ArrowException, TypeError):
        return None
    return texts if len(texts) == chunk.size else None


def storing(path: Path) -> contextlib.AbstractContextManager[None]:
    """:func:`writing` of what a call makes, also where safetensors raises its own error."""
    return writing(path, "; what is done stays, give the same command again", ResourceError)
