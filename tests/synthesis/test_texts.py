"""What texts begin with (SuperGen's templates), where they end, and which are dropped."""

import math

import numpy as np
import pytest

from flray.synthesis.templates import TEMPLATES
from flray.synthesis.texts import draws, end, finished, gumbel, sentences, start

SENTENCE = "Lamps give light."

# yumeng5/SuperGen: task, stream, beginning, (reward, penalty), temperatures
TABLE = (
    ("mnli", "entailment", f"Wikipedia {SENTENCE} In other words,", (0.8, 1.1), (0,)),
    ("mnli", "neutral", f"Wikipedia {SENTENCE} Furthermore,", (1.3, 1.3), (0,)),
    (
        "mnli",
        "contradiction",
        "Wikipedia There is a rumor that lamps give light. However, the truth is:",
        (1.1, 1.1),
        (0,),
    ),
    ("rte", "entailment", f"Wikipedia {SENTENCE} In other words,", (0.8, 1.1), (0,)),
    ("rte", "not_entailment", f"Wikipedia {SENTENCE} Furthermore,", (1.1, 1.1), (0,)),
    ("mrpc", "equivalent", f"Wikipedia {SENTENCE} In other words,", (0.8, 1.1), (0,)),
    ("mrpc", "not_equivalent", f"Wikipedia {SENTENCE} Furthermore,", (1.1, 1.1), (0,)),
    ("qqp", "not_duplicate", f"Links {SENTENCE} Furthermore,", (1.2, 1.2), (0,)),
    ("qqp", "duplicate", f"Links {SENTENCE} In other words,", (1.0, 1.2), (0,)),
    ("qnli", "entailment", f"Links {SENTENCE}", (0.9, 1.2), (0,)),
    ("sst2", "negative", "Reviews Rating: 1.0 OPENING", (None, 1.2), (0.2,)),
    ("sst2", "positive", "Reviews Rating: 5.0 OPENING", (None, 1.2), (0.2,)),
    ("cola", "both", "Links OPENING", (None, 1.2), (0.1, 10)),
)


def test_the_table_has_every_task_and_label():
    assert {(task, stream) for task, stream, *_ in TABLE} == {
        (task, stream) for task in TEMPLATES.names() for stream in TEMPLATES.get(task)().streams
    }


@pytest.mark.parametrize(("task", "stream", "prompt", "values", "temperatures"), TABLE)
def test_a_text_begins_as_supergens_do(task, stream, prompt, values, temperatures):
    template = TEMPLATES.get(task)()
    begin = start(0, task, template, stream, 3, SENTENCE if template.sentences else None)
    assert begin.prompt == prompt.replace("OPENING", begin.opening)
    assert begin.prompt.startswith(begin.first) and begin.first.startswith(begin.before)
    if template.sentences:
        assert begin.first[len(begin.before) :].strip().lower() == SENTENCE.lower()
    own = template.prompts[stream]
    assert ((own.reward, own.penalty), template.temperature, template.top_k) == (values, temperatures, 10)
    assert 40 <= template.max_new_tokens <= 100 and 20_000 <= template.per_label <= 30_000


def test_draws_belong_to_a_text_and_are_spread():
    template = TEMPLATES.get("cola")()
    begins = [start(0, "cola", template, "both", number, None) for number in range(400)]
    assert begins[7] == start(0, "cola", template, "both", 7, None)
    assert begins != [start(1, "cola", template, "both", number, None) for number in range(400)]
    hot = sum(begin.temperature == 10 for begin in begins)
    assert 150 < hot < 250 and len({begin.opening for begin in begins}) > 50
    assert np.array_equal(gumbel(0, "cola", "both", 7, 4, 10)[:2], gumbel(0, "cola", "both", 7, 2, 10))


@pytest.mark.parametrize(
    ("task", "text", "expected"),
    [
        ("mnli", "It is so. Then it was", "It is so."),
        ("mnli", "It costs 3. 50 or less. And more", "It costs 3. 50 or less."),
        ("mnli", "It is so.", None),  # nothing behind it says that it is over
        ("mnli", "no end at all", None),
        ("qqp", "Is it so? Then", "Is it so?"),
        ("sst2", "is good. It is long! and then\nmore", "is good. It is long! and then"),
        ("cola", "is good? It is long! and", "is good?"),
    ],
)
def test_a_text_ends_with_its_sentence(task, text, expected):
    place = end(text, TEMPLATES.get(task)(), ended=False)
    assert (text[:place] if place >= 0 else None) == expected


def test_a_text_that_the_model_ends_is_whole():
    template = TEMPLATES.get("mnli")()
    assert end("It is so.", template, ended=True) == 9 and end("It is so", template, ended=True) == -1


def test_sentences_are_cut_before_a_capital():
    assert sentences('One is 1. 5. Two? "Three!" Four') == ["One is 1. 5.", "Two?", '"Three!"', "Four"]


def made(task: str, generated: str, ended: bool = False, opening: str = ""):
    """Every word with its blank is a token of log-probability -1, -2, ..."""
    template = TEMPLATES.get(task)()
    words = [f" {word}" for word in generated.split(" ")]
    begin = start(0, task, template, template.streams[0], 0, SENTENCE if template.sentences else None)
    begin = begin._replace(opening=opening)
    scores = [-float(place + 1) for place in range(len(words))]
    return finished(
        5, template, begin, SENTENCE, " " + generated, ended, scores, lambda n: "".join(words[:n]),
        draws(0, task, "s", 5, "later"),
    )  # fmt: skip


def test_what_is_kept_is_scored_by_its_own_tokens():
    text = made("mnli", "it is so. Then it was")
    assert (text.number, text.first, text.text, text.dropped) == (5, SENTENCE, "It is so.", "")
    assert (text.tokens, text.score) == (3, -2.0)
    assert made("cola", "is good! And", opening="She").text == "She is good!"


@pytest.mark.parametrize(
    ("task", "generated", "why"),
    [
        ("mnli", "no end", "no end"),
        ("mnli", "\nIt is so. Then", "begins with a line break"),
        ("mnli", "it\nis so. Then", "holds what it must not"),
        ("sst2", 'is "good". But', "holds what it must not"),
        ("qnli", "It is. Only one more", "no later sentence"),
        ("qnli", "It is. Is it? It is. Yes", "holds what it must not"),
    ],
)
def test_what_is_malformed_is_dropped_with_the_reason(task, generated, why):
    text = made(task, generated)
    assert text.dropped == why and math.isnan(text.score)


def test_a_question_has_a_next_sentence_and_a_later_one():
    text = made("qnli", "\nIt is. It was. It will be. It could be. And")
    assert (text.text, text.dropped) == ("It is.", "") and text.later in ("It was.", "It will be.", "It could be.")
