"""A text before and after it is generated: what it begins with, where it ends, and whether it is kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from flray.core.protocol.seeding import rng
from flray.synthesis.templates import Template

USABLE = ""


class Start(NamedTuple):
    """What a text begins with: `prompt` is all of it, of which `before` and `first` are the beginnings that end where
    the first text of a pair begins and ends; `opening` is part of the text itself."""

    before: str
    first: str
    prompt: str
    opening: str
    temperature: float


class Text(NamedTuple):
    """What was generated: number `number` of its stream. `first` of a pair; `later`: a later sentence (QNLI).

    `score`: mean log-probability of the `tokens` that it has. `dropped` says why it is not used, and is empty for one
    that is.
    """

    number: int
    first: str
    text: str
    later: str
    score: float
    tokens: int
    dropped: str


def draws(seed: int, task: str, stream: str, number: int, purpose: str) -> np.random.Generator:
    """The generator of one text and purpose: its address, whatever batch, actor or attempt asks for it."""
    return rng(seed, "synthesize", task, stream, number, purpose)


def start(seed: int, task: str, template: Template, stream: str, number: int, sentence: str | None) -> Start:
    """The beginning of a text; after a `before` prompt a sentence goes on in lower case (as in SuperGen)."""
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
    """Where a generated text ends, behind its last letter; -1 where no sentence ends in it.

    `". "` ends one only before a capital or a line break. `ended`: the language model itself said that it is over.
    """
    ends = [place for stop in template.stops if (place := _first(text, stop)) >= 0]
    if ended and text.rstrip().endswith(tuple(stop.strip() for stop in template.stops if stop.strip())):
        ends.append(len(text.rstrip()))
    return (max(ends) if template.longest else min(ends)) if ends else -1


def _first(text: str, stop: str) -> int:
    """Where the first sentence that `stop` ends is over, without the stop's last letter; -1: nowhere."""
    place = text.find(stop)
    while place >= 0:
        behind = text[place + len(stop) : place + len(stop) + 1]
        if stop != ". " or behind.isupper() or behind == "\n":
            return place + len(stop) - 1
        place = text.find(stop, place + len(stop))
    return -1


def sentences(text: str) -> list[str]:
    """The sentences of a text: cut behind `.`, `!` and `?` that stand before a space and a capital or a quote."""
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
    """The text that is made of what was `generated` behind its beginning, kept or dropped with the reason.

    `scores`: log-probabilities of its tokens; `prefix(n)`: the first `n` of them as text, which tells how many belong
    to the part that is kept. `drawn` takes one of the later sentences, the last left out, which may not be whole.
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
    """The fewest tokens whose text has so many `letters`, by bisection."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if len(prefix(middle)) >= letters:
            high = middle
        else:
            low = middle + 1
    return low
