"""What a model reads of a sample and the words it answers with: prompts, and the first token of each class's word."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

from flray.core.schema.errors import ConfigError, DataError, nearest, shown
from flray.data.data_config import DataConfig
from flray.data.published import ONE_TOKEN, TEXT_TO_TEXT, plain_name
from flray.data.splits import Vocabulary

MARKS = ("<extra_id_{}>", "[unused{}]")  # tokens that stand for nothing: T5's sentinels, BERT's spare tokens


def known_name(config: DataConfig) -> str:
    """The name under which prompt and words of a data set may be known: `sst2` also of `hf:nyu-mll/glue` with
    `options: {config: sst2}`."""
    part = config.options.get("config")
    return part if isinstance(part, str) and part in TEXT_TO_TEXT else plain_name(config.source)


def prompt_of(config: DataConfig, vocabulary: Vocabulary | None) -> str | None:
    """The prompt of a data set: its own, else, where words are asked for or the given vocabulary has some, the known
    one; None: no prompt.

    Raises `ConfigError` where words are asked for and no prompt is known.
    """
    if config.prompt is not None or not (config.words or (vocabulary is not None and vocabulary.labels)):
        return config.prompt
    name = known_name(config)
    if name not in TEXT_TO_TEXT:
        raise ConfigError(
            f"data.prompt: none is known for {name!r} (known: {', '.join(TEXT_TO_TEXT)}); write one with the columns "
            'in braces, such as prompt: "review: {text}"'
        )
    return TEXT_TO_TEXT[name][0]


def fields(config: DataConfig, prompt: str, columns: Sequence[str], where: str) -> tuple[str, ...]:
    """The columns that a prompt names, in its order, among the text `columns` of a table.

    Raises `DataError` for another column, or for braces that name none, `ConfigError` where `data.text` names columns.
    """
    if config.text is not None:
        raise ConfigError(
            f"data.text: {where} is read by the prompt {shown(prompt)}, which names its columns; leave data.text out, "
            "or write another data.prompt"
        )
    try:
        parts = list(string.Formatter().parse(prompt))
    except ValueError as error:
        raise DataError(f"{where}: data.prompt {shown(prompt)} is damaged ({error}); write {{COLUMN}}") from error
    names = tuple(name for _, name, _, _ in parts if name is not None)
    for _, name, style, change in parts:
        if name is not None and (style or change):
            raise DataError(f"{where}: data.prompt {shown(prompt)}: write {{{name}}} and nothing more in the braces")
        if name is not None and name not in columns:
            raise DataError(f"{where}: data.prompt: no text column {shown(name)}{nearest(name, columns)}")
    if not names:
        raise DataError(f"{where}: data.prompt {shown(prompt)} names no column; write {{{columns[0]}}} in it")
    return tuple(dict.fromkeys(names))


def literals(prompt: str | None) -> list[str]:
    """What a prompt says besides the columns."""
    return [] if prompt is None else [text for text, _, _, _ in string.Formatter().parse(prompt) if text.strip()]


def filled(prompt: str, columns: Mapping[str, Sequence[str]]) -> list[str]:
    """The prompt with the text of every row in it."""
    rows = zip(*columns.values(), strict=True)
    return [prompt.format(**dict(zip(columns, row, strict=True))) for row in rows]


def known_words(config: DataConfig) -> Mapping[str, str] | None:
    """The word of each class by name, as the configuration writes or names them; None: they are not known."""
    if isinstance(config.words, Mapping):
        return config.words
    if config.words == "one_token":
        return ONE_TOKEN.get(known_name(config))
    return TEXT_TO_TEXT.get(known_name(config), (None, None))[1]


def words_of(config: DataConfig, classes: Sequence[str], where: str) -> tuple[str, ...]:
    """The word of each class, in the order of the classes.

    Raises `ConfigError` where no words are known, or are not one for each class, or two classes have the same.
    """
    given = known_words(config)
    if given is None:
        raise ConfigError(
            f"data.words: none are known for {known_name(config)!r} (known: {', '.join(TEXT_TO_TEXT)}); write "
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
    """The vocabulary with the first token of each class's word, of one task.

    A model is asked for one token, so the first one has to tell the classes apart.
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
                f"the same first token, {encoding.tokens[0]!r}, by which they are scored; {remedy}"
            )
    return vocabulary._replace(labels=tuple(owner), task_of=(0,) * len(owner))


def task_marks(vocabulary: Vocabulary, count: int) -> tuple[int, ...]:
    """The tokens with which the texts of each of `count` tasks begin: T5's sentinels, else BERT's spare tokens.

    Raises `DataError` for a tokenizer that has not so many.
    """
    tokenizer, _ = _tokenizer(vocabulary)
    for mark in MARKS:
        tokens = [tokenizer.token_to_id(mark.format(task)) for task in range(count)]
        if None not in tokens:
            return tuple(tokens)
    names = " or ".join(f"{mark.format(0)} to {mark.format(count - 1)}" for mark in MARKS)
    raise DataError(
        f"data.words: texts of {count} tasks begin with a token of their own, and the tokenizer has neither {names}; "
        "choose T5's, BERT's, or tokenizer: train"
    )


def _tokenizer(vocabulary: Vocabulary) -> tuple[Any, int | None]:
    """The tokenizer of a vocabulary, and its token for what it does not know."""
    from tokenizers import Tokenizer

    if vocabulary.tokenizer is None:
        raise DataError("data.words: the data's source gives no tokenizer, so words have no tokens; leave it out")
    description = vocabulary.tokenizer.tobytes().decode()
    tokenizer, model = Tokenizer.from_str(description), json.loads(description)["model"]
    name = model.get("unk_token")
    return tokenizer, model.get("unk_id") if name is None else tokenizer.token_to_id(name)
