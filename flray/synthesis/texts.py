"""A text before and after generation: its beginning, its end, and whether it is usable."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from flray.core.protocol.seeding import rng
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
