"""Duplicates, ranking, quotas: SuperGen's rules on made-up texts."""

import numpy as np
import pytest

from flray.core.schema.errors import DataError
from flray.synthesis.selection import select
from flray.synthesis.templates import TEMPLATES
from flray.synthesis.texts import Text


def texts(prefix: str, scores, dropped: str = "", later: str = "") -> list[Text]:
    return [
        Text(n, f"first {prefix} {n}", f"{prefix} {n}", f"{later} {n}", float(s), 3, dropped)
        for n, s in enumerate(scores)
    ]


SCORES = np.random.default_rng(0).permutation(20) * -0.1


def best(scores: np.ndarray, count: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda n: -scores[n])[:count]


def test_the_likeliest_of_each_label_in_turn():
    streams = {"negative": texts("n", SCORES) + texts("bad", [0.0], "no end"), "positive": texts("p", SCORES[::-1])}
    chosen, accounts = select("sst2", TEMPLATES.get("sst2")(), streams, 8, 0)
    assert [s.label for s in chosen] == [0, 1] * 4
    assert [s.texts[0] for s in chosen if s.label == 0] == [f"n {n}" for n in best(SCORES, 4)]
    a = accounts[0]
    assert (a.generated, dict(a.dropped), a.duplicates, a.usable, a.chosen) == (21, {"no end": 1}, 0, 20, 4)
    assert a.score_usable == pytest.approx(SCORES.mean()) and a.score_chosen == pytest.approx(-0.15)


def test_duplicates_count_once():
    streams = {"negative": texts("n", SCORES) * 2, "positive": texts("p", SCORES)}
    chosen, accounts = select("sst2", TEMPLATES.get("sst2")(), streams, 40, 0)
    assert len(chosen) == len({s.texts for s in chosen}) == 40
    assert [a.duplicates for a in accounts] == [20, 0]


def test_the_label_with_fewest_texts_decides():
    streams = {"negative": texts("n", SCORES), "positive": texts("p", SCORES[:3])}
    chosen, _ = select("sst2", TEMPLATES.get("sst2")(), streams, 40, 0)
    assert [s.label for s in chosen] == [0, 1] * 3


def test_neutral_pairs_are_drawn():
    streams = {label: texts(label, SCORES) for label in ("entailment", "neutral", "contradiction")}
    chosen, _ = select("mnli", TEMPLATES.get("mnli")(), streams, 18, 0)
    own = [[int(s.texts[1].split()[1]) for s in chosen if s.label == label] for label in range(3)]
    assert own[0] == own[2] == best(SCORES, 6) and own[1] != own[0]
    assert chosen[0].texts == (f"first entailment {own[0][0]}", f"entailment {own[0][0]}")
    again, _ = select("mnli", TEMPLATES.get("mnli")(), streams, 18, 0)
    other, _ = select("mnli", TEMPLATES.get("mnli")(), streams, 18, 1)
    assert again == chosen != other


def test_colas_likely_half_is_acceptable():
    scores = SCORES[:11]
    chosen, accounts = select("cola", TEMPLATES.get("cola")(), {"both": texts("c", scores)}, 6, 0)
    order = best(scores, 11)
    assert [s.texts[0] for s in chosen if s.label == 1] == [f"c {n}" for n in order[:3]]
    assert [s.texts[0] for s in chosen if s.label == 0] == [f"c {n}" for n in order[::-1][:3]]
    whole, accounts = select("cola", TEMPLATES.get("cola")(), {"both": texts("c", scores)}, 100, 0)
    assert len({s.texts for s in whole}) == 10 and [(a.duplicates, a.usable) for a in accounts] == [(0, 5)] * 2


def test_a_later_sentence_is_no_answer():
    streams = {"entailment": texts("next", SCORES, later="later")}
    chosen, _ = select("qnli", TEMPLATES.get("qnli")(), streams, 4, 0)
    n = best(SCORES, 2)
    assert [(s.texts[1], s.label) for s in chosen] == [
        (f"next {n[0]}", 0), (f"later {n[0]}", 1), (f"next {n[1]}", 0), (f"later {n[1]}", 1),
    ]  # fmt: skip


def test_a_label_without_texts_is_an_error_that_says_why():
    streams = {"negative": texts("n", SCORES), "positive": texts("p", SCORES, "no end")}
    with pytest.raises(DataError, match=r"sst2: none of 20 generated texts is usable for positive \(no end: 20\)"):
        select("sst2", TEMPLATES.get("sst2")(), streams, 40, 0)
    with pytest.raises(DataError, match="quota: 1 samples of sst2"):
        select("sst2", TEMPLATES.get("sst2")(), {**streams, "positive": texts("p", SCORES)}, 1, 0)
