"""Prompts of samples, words of classes, and the first token of each word."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

from flray.core.schema.errors import ConfigError, DataError, nearest, shown
from flray.data.data_config import DataConfig
from flray.data.published import ONE_TOKEN, TEXT_TO_TEXT, plain_name
from flray.data.splits import Vocabulary

MARKS = ("<extra_id_{}>", "[unused{}]")  # tokens without a meaning: T5's sentinels, BERT's unused tokens


def known_name(config: DataConfig) -> str:
    """The name of a data set in `TEXT_TO_TEXT`: `sst2` also for `hf:nyu-mll/glue` with `options: {config: sst2}`."""
    part = config.options.get("config")
    return part if isinstance(part, str) and part in TEXT_TO_TEXT else plain_name(config.source)


def prompt_of(config: DataConfig, vocabulary: Vocabulary | None) -> str | None:
    """The prompt of a data set: `data.prompt`, else with words the known prompt; None: no prompt.

    Words are those of `data.words` or of the given vocabulary. Raises `ConfigError` if there are words and no prompt is
    known.
    """
    if config.prompt is not None or not (config.words or (vocabulary is not None and vocabulary.labels)):
        return config.prompt
    name = known_name(config)
    if name not in TEXT_TO_TEXT:
        raise ConfigError(
            f"data.prompt: {name!r} has no known prompt (known: {', '.join(TEXT_TO_TEXT)}); write one with the columns "
            'in braces, such as prompt: "review: {text}"'
        )
    return TEXT_TO_TEXT[name][0]


def fields(config: DataConfig, prompt: str, columns: Sequence[str], where: str) -> tuple[str, ...]:
    """The columns in a prompt, in its order; they must be text `columns` of the table.

    Raises `DataError` for another column and for empty braces, `ConfigError` if `data.text` names columns too.
    """
    if config.text is not None:
        raise ConfigError(
            f"data.text: the prompt {shown(prompt)} of {where} already names the columns; leave data.text out, or "
            "write another data.prompt"
        )
    try:
        parts = list(string.Formatter().parse(prompt))
    except ValueError as error:
        raise DataError(f"{where}: data.prompt {shown(prompt)} is damaged ({error}); write {{COLUMN}}") from error
    names = tuple(name for _, name, _, _ in parts if name is not None)
    for _, name, style, change in parts:
        if name is not None and (style or change):
            raise DataError(f"{where}: data.prompt {shown(prompt)}: write {{{name}}}, the name alone in braces")
        if name is not None and name not in columns:
            raise DataError(f"{where}: data.prompt: no text column {shown(name)}{nearest(name, columns)}")
    if not names:
        raise DataError(f"{where}: data.prompt {shown(prompt)} names no column; write {{{columns[0]}}} in it")
    return tuple(dict.fromkeys(names))


def literals(prompt: str | None) -> list[str]:
    """The text of a prompt between its columns."""
    return [] if prompt is None else [text for text, _, _, _ in string.Formatter().parse(prompt) if text.strip()]


def filled(prompt: str, columns: Mapping[str, Sequence[str]]) -> list[str]:
    """The prompt filled in with each row."""
    rows = zip(*columns.values(), strict=True)
    return [prompt.format(**dict(zip(columns, row, strict=True))) for row in rows]


def known_words(config: DataConfig) -> Mapping[str, str] | None:
    """The word of each class by name, from the configuration or `TEXT_TO_TEXT`; None: unknown."""
    if isinstance(config.words, Mapping):
        return config.words
    if config.words == "one_token":
        return ONE_TOKEN.get(known_name(config))
    return TEXT_TO_TEXT.get(known_name(config), (None, None))[1]


def words_of(config: DataConfig, classes: Sequence[str], where: str) -> tuple[str, ...]:
    """The word of each class, in the order of the classes.

    Raises `ConfigError` if no words are known, a class has none, or two classes have the same.
    """
    given = known_words(config)
    if given is None:
        raise ConfigError(
            f"data.words: {known_name(config)!r} has no known words (known: {', '.join(TEXT_TO_TEXT)}); write "
            f"{{class: word}} for {', '.join(classes)}"
        )
    missing = [label for label in classes if label not in given]
    if missing or len(given) != len(classes):
        other = [label for label in given if label not in classes]
        what = f"{missing[0]!r} has none" if missing else f"there is no class {other[0]!r}"
        raise ConfigError(
            f"data.words: {len(given)} words for the {len(classes)} classes of {where} ({', '.join(classes)}), and "
            f"{what}; write one for each"
        )
    words = tuple(given[label] for label in classes)
    twice = [label for place, label in enumerate(classes) if words[place] in words[:place]]
    if twice:
        raise ConfigError(
            f"data.words: {where}: {twice[0]!r} has the word {given[twice[0]]!r} of another class; write another"
        )
    return words


def with_words(vocabulary: Vocabulary, classes: Sequence[str], words: Sequence[str], where: str) -> Vocabulary:
    """The vocabulary with the first token of each class's word, for one task.

    A model scores one token, so the first tokens have to differ.
    Raises `DataError` for a word that the tokenizer does not know, and for two words with the same first token.
    """
    tokenizer, unknown = _tokenizer(vocabulary)
    owner: dict[int, int] = {}  # the class of each token
    for number, (label, word) in enumerate(zip(classes, words, strict=True)):
        encoding = tokenizer.encode(word, add_special_tokens=False)
        remedy = f"write other words with data.words: {{{label}: WORD, ...}}"
        if not encoding.ids or unknown in encoding.ids:
            raise DataError(f"{where}: the word {word!r} of class {label!r} is unknown to the tokenizer; {remedy}")
        other = owner.setdefault(encoding.ids[0], number)
        if other != number:
            raise DataError(
                f"{where}: the words {words[other]!r} of class {classes[other]!r} and {word!r} of class {label!r} have "
                f"the same first token, {encoding.tokens[0]!r}, which is scored; {remedy}"
            )
    return vocabulary._replace(labels=tuple(owner), task_of=(0,) * len(owner))


def task_marks(vocabulary: Vocabulary, count: int) -> tuple[int, ...]:
    """The first token of the texts of each of `count` tasks: T5's sentinels, else BERT's unused tokens.

    Raises `DataError` for a tokenizer with fewer of them.
    """
    tokenizer, _ = _tokenizer(vocabulary)
    for mark in MARKS:
        tokens = [tokenizer.token_to_id(mark.format(task)) for task in range(count)]
        if None not in tokens:
            return tuple(tokens)
    names = " or ".join(f"{mark.format(0)} to {mark.format(count - 1)}" for mark in MARKS)
    raise DataError(
        f"data.words: texts of {count} tasks begin with the task's token, and the tokenizer has neither {names}; set "
        "data.tokenizer to T5's, BERT's, or train"
    )


def _tokenizer(vocabulary: Vocabulary) -> tuple[Any, int | None]:
    """The tokenizer of a vocabulary, and its token for unknown text."""
    from tokenizers import Tokenizer

    if vocabulary.tokenizer is None:
        raise DataError("data.words: the source of the data has no tokenizer, so words have no tokens; leave it out")
    description = vocabulary.tokenizer.tobytes().decode()
    tokenizer, model = Tokenizer.from_str(description), json.loads(description)["model"]
    name = model.get("unk_token")
    return tokenizer, model.get("unk_id") if name is None else tokenizer.token_to_id(name)
