"""The cards of the algorithms: complete, printed, and the page made of them is the present one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flray.algorithms import ALGORITHMS, built_in
from flray.catalog import catalog, detail, page
from flray.core.hp import hyperparameters

PAGE = Path(sys.modules["flray.algorithms"].__file__).with_name("README.md")


@pytest.mark.parametrize("name", built_in())
def test_a_card_says_what_a_reader_needs(name):
    """Paper, fields of its own in the symbol table, traffic, state and cost."""
    text, options = detail("algorithms", name)
    first = text.split("\n")[0]
    assert ":" in first and len(first) > 40, "name, paper and one line of purpose"
    for word in ("| paper |", "Down:", "Up:", "State:", "Cost per step:"):
        assert word in text, f"the card of {name} has no {word!r}"
    own = [hp.name for hp in hyperparameters(ALGORITHMS.get(name)) if hp.name in vars(ALGORITHMS.get(name)).get("__annotations__", {})]
    assert [field for field in own if f"`{field}`" not in text] == []
    assert all(option["meaning"] for option in options)


def test_the_page_of_cards_is_the_present_one():
    assert PAGE.read_text() == page(), "run: flray list algorithms --format markdown > flray/algorithms/README.md"
    assert [line[3:] for line in page().split("\n") if line.startswith("## ")] == built_in()
    assert set(built_in()) <= {row["name"] for row in catalog("algorithms")}
