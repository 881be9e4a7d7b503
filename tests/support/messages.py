"""What a message must say: its facts (key, path, value, remedy), in any order and any words."""

import re
from typing import Any

import yaml


def facts(*expected: object) -> str:
    """A pattern for the `match=` of `pytest.raises` and `pytest.warns`: each fact is in the message.

    A number stands alone: 11 is not in "110 clients", nor 2 in "0.25".
    """
    assert expected
    return r"(?s)\A" + "".join(f"(?=.*{_pattern(fact)})" for fact in expected)


def _pattern(fact: object) -> str:
    if isinstance(fact, int | float) and not isinstance(fact, bool):
        return rf"(?<![\d.])(?:{re.escape(str(fact))}|{re.escape(f'{fact:,}')})(?!\d|\.\d)"
    if isinstance(fact, re.Pattern):
        return fact.pattern
    return re.escape(str(fact))


def assert_says(message: object, *expected: object) -> None:
    """`message` is one line and has all facts."""
    text = str(message)
    missing = [fact for fact in expected if not re.search(facts(fact), text)]
    assert not missing, f"{missing} not in {text!r}"
    assert "\n" not in text, text


def mistakes(text: str) -> list[tuple[str, list[str]]]:
    """The rows of a table of mistakes, for `parametrize`: `INPUT | FACT | FACT`.

    A line that begins with `|` has more facts of the row above it.
    """
    rows: list[tuple[str, list[str]]] = []
    for line in text.strip().splitlines():
        given, *expected = (part.strip() for part in f" {line} ".split(" | "))
        if given:
            rows.append((given, expected))
        else:
            rows[-1][1].extend(expected)
    return rows


def with_options(given: str) -> tuple[str, dict[str, Any]]:
    """The input of a row as a name and YAML: `films {text: idx}` is `films` and {"text": "idx"}."""
    name, _, written = given.partition(" ")
    return name, yaml.safe_load(written or "{}")
