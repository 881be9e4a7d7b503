"""A text before and after generation: its beginning, its end, and whether it is usable.

The first texts of pairs are sentences or questions from a text column of a data set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from flray.core.protocol.seeding import rng
from flray.core.schema.errors import DataError, nearest
from flray.data.data_config import DataConfig
from flray.data.sources.options import data_root
from flray.data.sources.readers import parquet_table
from flray.data.sources.table_sources import parquet_files, parquet_folder
from flray.synthesis.settings import CorpusConfig, Synthesis
from flray.synthesis.templates import Template

USABLE = ""


class Start(NamedTuple):
    """The beginning of a text. `prompt` is all of it; `before` and `first` are the parts that end where the first
    text of a pair begins and ends; `opening` is part of the text itself."""

    before: str
    first: str
    prompt: str
    opening: str
    temperature: float


class Text(NamedTuple):
    """A generated text: number `number` of its stream. `first` is the first text of a pair; `later` a later sentence
    (QNLI).

    `score` is the mean log-probability of its `tokens`. `dropped` is the reason why it is not used; empty for a usable
    one.
    """

    number: int
    first: str
    text: str
    later: str
    score: float
    tokens: int
    dropped: str


def draws(seed: int, task: str, stream: str, number: int, purpose: str) -> np.random.Generator:
    """The generator of one text and purpose, by address: the same for any batch, actor or attempt."""
    return rng(seed, "synthesize", task, stream, number, purpose)


def start(seed: int, task: str, template: Template, stream: str, number: int, sentence: str | None) -> Start:
    """The beginning of a text; after a `before` prompt a sentence continues in lower case (as in SuperGen)."""
    prompt, drawn = template.prompts[stream], draws(seed, task, stream, number, "start")
    temperature = template.temperature[int(drawn.integers(len(template.temperature)))]
    opening = template.openings[int(drawn.integers(len(template.openings)))] if template.openings else ""
    if sentence is not None and prompt.before:
        sentence = sentence[:1].lower() + sentence[1:]
    before = " ".join(part for part in (template.control, prompt.before) if part)
    first = " ".join(part for part in (before, sentence) if part)
    full = " ".join(part for part in (first, prompt.after if sentence is not None else "", opening) if part)
    return Start(before, first, full, opening, temperature)


def gumbel(seed: int, task: str, stream: str, number: int, steps: int, k: int) -> np.ndarray:
    """The Gumbel noise of one sampled text, float64 `[steps, k]`."""
    return draws(seed, task, stream, number, "sample").gumbel(size=(steps, k))


def end(text: str, template: Template, ended: bool) -> int:
    """The position after the last letter of a generated text; -1 if no sentence ends in it.

    `". "` ends a sentence only before a capital or a line break. `ended`: the language model wrote its end token.
    """
    ends = [place for stop in template.stops if (place := _first(text, stop)) >= 0]
    if ended and text.rstrip().endswith(tuple(stop.strip() for stop in template.stops if stop.strip())):
        ends.append(len(text.rstrip()))
    return (max(ends) if template.longest else min(ends)) if ends else -1


def _first(text: str, stop: str) -> int:
    """The end of the first sentence that `stop` ends, without the last letter of `stop`; -1 if there is none."""
    place = text.find(stop)
    while place >= 0:
        behind = text[place + len(stop) : place + len(stop) + 1]
        if stop != ". " or behind.isupper() or behind == "\n":
            return place + len(stop) - 1
        place = text.find(stop, place + len(stop))
    return -1


def sentences(text: str) -> list[str]:
    """The sentences of a text: cut after `.`, `!` and `?` before a space and a capital or a quote."""
    return [part for part in (piece.strip() for piece in _BETWEEN.split(text)) if part]


_BETWEEN = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?]["')]))\s+(?=[A-Z"'(])""")


def finished(
    number: int,
    template: Template,
    begin: Start,
    sentence: str | None,
    generated: str,
    ended: bool,
    scores: Sequence[float],
    prefix: Callable[[int], str],
    drawn: np.random.Generator,
) -> Text:
    """The text made of `generated` after its beginning, usable or dropped with the reason.

    `scores` are the log-probabilities of its tokens; `prefix(n)` is the text of the first `n` tokens, which tells how
    many belong to the usable part. `drawn` chooses one of the later sentences, except the last, which may be
    incomplete.
    """

    def text_of(dropped: str, text: str = "", later: str = "", tokens: int = 0) -> Text:
        score = float(np.mean(scores[:tokens])) if tokens else float("nan")
        return Text(number, sentence or "", text, later, score, tokens, dropped)

    body = generated.lstrip()
    lead = generated[: len(generated) - len(body)]
    if "\n" in lead and not template.new_line:
        return text_of("begins with a line break")
    stop = end(body, template, ended)
    if stop < 0:
        return text_of("no end")
    text, rest = body[:stop].strip(), body[stop:]
    if not text:
        return text_of("empty")
    later = ""
    if template.later is not None:
        more = sentences(rest)
        if len(more) < 2:
            return text_of("no later sentence")
        later = more[int(drawn.integers(len(more) - 1))]
    if any(bad in part for bad in template.bad for part in (text, later)):
        return text_of("holds what it must not")
    tokens = _count(len(lead) + len(text), len(scores), prefix)
    full = f"{begin.opening} {text}" if begin.opening else text[:1].upper() + text[1:]
    return text_of(USABLE, full, later, tokens)


def _count(letters: int, most: int, prefix: Callable[[int], str]) -> int:
    """The fewest tokens whose text has at least `letters` letters, by bisection."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if len(prefix(middle)) >= letters:
            high = middle
        else:
            low = middle + 1
    return low


def read_corpus(config: CorpusConfig, what: str) -> list[str]:
    """The texts of the column `config.column`.

    `what` is the section's name, for errors. Raises `DataError` for a missing data set, split or column.
    """
    data = DataConfig(source=config.source, root=config.root)
    folder = parquet_folder(data)
    if folder is None:
        root = data_root(data)
        raise DataError(
            f"{what}.source: no Parquet files in "
            + (f"{root / config.source}" if root else f"{config.source}: neither {what}.root nor FLRAY_DATA is set")
            + "; name a folder of Parquet files with texts"
        )
    table = parquet_table(parquet_files(folder, config.split)[0]["train"]).data
    if config.column not in table.column_names:
        raise DataError(
            f"{what}.column: {folder} has no column {config.column!r}{nearest(config.column, table.column_names)}"
        )
    texts = table.column(config.column).to_pylist()
    if not all(isinstance(text, str | None) for text in texts):
        raise DataError(
            f"{what}.column: {config.column!r} of {folder} holds {table.schema.field(config.column).type}, not text"
        )
    return [text for text in texts if text]


def usable(texts: Sequence[str], kind: str, words: tuple[int, int]) -> list[str]:
    """The distinct sentences in `texts` with `words` (fewest, most) words, in order: questions, or sentences that
    end with a full stop."""
    ending = "?" if kind == "questions" else "."
    candidates = (sentence for text in texts for sentence in sentences(" ".join(text.split())))
    return [s for s in dict.fromkeys(candidates) if s.endswith(ending) and words[0] <= len(s.split()) <= words[1]]


def start_sentences(config: Synthesis, corpora: dict[str, list[str]]) -> dict[tuple[str, str], list[str]]:
    """The first texts by number, for every task and stream that needs them: drawn by address, none twice.

    `corpora` are the texts of `sentences` and `questions`. Raises `DataError` if a corpus has too few: greedy texts
    with the same beginning would be equal.
    """
    beginnings = {}
    for task, template in config.templates().items():
        if template.sentences is None:
            continue
        own = usable(corpora[template.sentences], template.sentences, template.words)
        if len(own) < template.per_label:
            raise DataError(
                f"{template.sentences}: the corpus has {len(own)} different {template.sentences} of {template.words[0]}"
                f" to {template.words[1]} words, and {task} asks for {template.per_label}; name a larger corpus, or "
                "set per_label lower"
            )
        for stream in template.streams:
            order = rng(config.seed, "synthesize", task, stream, "sentences").permutation(len(own))
            beginnings[task, stream] = [own[place] for place in order[: template.per_label]]
    return beginnings
