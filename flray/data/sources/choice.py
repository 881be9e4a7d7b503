"""The choice of a table's columns: the label, and the inputs that the configuration names or that leave no doubt."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from flray.core.schema.errors import DataError, nearest, shown
from flray.data.data_config import DataConfig
from flray.data.published import LABELS, TEXT_TO_TEXT, plain_name
from flray.data.sources.columns import Columns, FeatureTable, class_names, inexact, is_text, values_of
from flray.data.sources.text import fields, prompt_of, text_columns
from flray.data.splits import Vocabulary, listed

LABEL_NAMES = ("label", "fine_label")  # a label column of these names needs no word; the first one counts
LIKE_A_LABEL = {"label", "labels", "target", "targets", "class", "fine_label", "coarse_label"}
PANDAS_INDEX = re.compile(r"__index_level_\d+__")
NO_HEADER = re.compile(r"(Unnamed: \d+(\.\d+)*)?")  # a column of a CSV file, as pandas calls it
FIRST = re.compile(r"(Unnamed: 0(\.\d+)*)?")  # the first one, where `DataFrame.to_csv` writes the index
LIKE_AN_ID = re.compile(r"(?i:(?:.*[_\s.-])?(?:id|ids|idx|index|uuid|guid))|.*[a-z](?:Id|ID|Idx|Index)", re.DOTALL)
TOKENS = re.compile(r"(decoder_)?(input_ids|attention_mask)|token_type_ids|special_tokens_mask")  # of transformers
MOMENT = re.compile(r"\d{4}-\d\d|\d{1,2}[/.]\d{1,2}[/.]\d{2}|\d{1,2}:\d\d")  # a date or a time as text
CHANCE = math.log(1e-6)  # what is less likely in any column of a table is no accident
ROWS = 50  # from so many rows on, distinct integers in a narrow range number the rows
WORDS = 3  # a text has at least so many words; a name or a date has fewer


def choose_columns(config: DataConfig, table: FeatureTable, where: str, vocabulary: Vocabulary | None) -> Columns:
    """The columns that `config` names or the table leaves no doubt about. Raises `DataError`, which lists the columns.

    With a `vocabulary` or a tokenizer in the configuration the input is text.
    """
    _check_names(config, table, where)
    columns = [name for name in table.data.schema.names if name not in config.drop]
    left = dict.fromkeys(config.drop, "data.drop")
    left |= {name: "pandas' index" for name in columns if _is_index(config, table, name)}
    columns = [name for name in columns if name not in left]
    tokenised = vocabulary is not None or config.tokenizer is not None
    label, values = _label(config, table, columns, tokenised, where)
    names = class_names(table.features, label, where)
    rest = [name for name in columns if name not in (label, config.group, config.domain)]
    prompt = None
    if tokenised:
        chosen, prompt = _texts(config, table, rest, vocabulary, where)
        kind: Literal["image", "text", "number"] = "text"
    else:
        kind, chosen = _images_or_numbers(config, table, rest, label, where)
    left |= {name: "ClassLabel" if _is_class(table, name) else "" for name in rest if name not in chosen}
    known = values if names is None else None
    truth = tuple(name for name in chosen if str(table.data.schema.field(name).type) == "bool")
    return Columns(label, chosen, kind, config.group, names, known, config.domain, prompt, left, truth)


def _check_names(config: DataConfig, table: FeatureTable, where: str) -> None:
    columns = list(table.data.schema.names)
    inputs = config.input or ()
    for option in ("label", "input", "group", "domain", "drop"):
        own = getattr(config, option)
        for name in (own,) if isinstance(own, str) else own or ():
            if name not in columns:
                near = nearest(name, columns)
                raise DataError(f"{where}: no column {name!r} for data.{option}{near}; columns: {listed(columns)}")
            if option == "drop" and name in (config.label, config.group, config.domain, *inputs, *(config.text or ())):
                raise DataError(f"{where}: data.drop leaves {name!r} out, which another key names; remove one of them")
            if option == "input" and inputs.count(name) > 1:
                raise DataError(f"{where}: data.input names {name!r} twice; name each column once")
            if option == "input" and name == config.label:
                raise DataError(f"{where}: data.input and data.label both name {name!r}; a label is no input")


def _is_index(config: DataConfig, table: FeatureTable, name: str) -> bool:
    """Whether pandas wrote the column as the index of its rows, and no key names it."""
    named = (config.label, config.group, config.domain, *(config.input or ()), *(config.text or ()), *LABEL_NAMES)
    if name in named:
        return False
    if name in table.index_columns or PANDAS_INDEX.fullmatch(name):
        return True
    if not FIRST.fullmatch(name):
        return False
    values = values_of(table, name)
    return not values.null_count and len(values.unique()) == len(values)


def _label(
    config: DataConfig, table: FeatureTable, columns: Sequence[str], tokenised: bool, where: str
) -> tuple[str, Mapping[int, str] | None]:
    """The label column, and the meaning of its numbers in a published set. Raises `DataError` if several fit."""
    bare, values = LABELS.get(plain_name(config.source), (None, None)) if tokenised else (None, None)
    if config.label:
        return config.label, values if config.label == bare else None
    others = [name for name in columns if name not in (config.group, config.domain, *(config.input or ()))]
    named = labels_by_name(others)
    if len(named) > 1:
        raise DataError(
            f"{where}: several columns could be the label, {', '.join(named)}; set data.label, and leave the others "
            f"out, for example with data.drop: [{', '.join(named[1:])}]"
        )
    if named:
        return named[0], values if named[0] == bare else None
    if bare in others:
        return str(bare), values
    classes = [name for name in others if _is_class(table, name)]
    if len(classes) == 1:
        return classes[0], None
    if all((table.features.get(name) or {}).get("_type") == "Image" for name in columns):
        raise DataError(
            f"{where}: there are pictures and no label; of a folder write train/CLASS/picture.png, every class at the "
            "same depth, or give metadata.csv a column label"
        )
    raise DataError(f"{where}: the label column is not clear; set data.label to one of {listed(columns)}")


def labels_by_name(names: Sequence[str]) -> list[str]:
    """The columns that could be the label if one of them has its name: one of `LABEL_NAMES` first; else none."""
    named = [name for name in LABEL_NAMES if name in names]
    like = [name for name in names if name.casefold() in LIKE_A_LABEL and name not in (*named, "coarse_label")]
    return [*named, *like] if named else []


def _texts(
    config: DataConfig, table: FeatureTable, rest: Sequence[str], vocabulary: Vocabulary | None, where: str
) -> tuple[tuple[str, ...], str | None]:
    """The text column, or the two of a pair, or those of the prompt, which is the second part of the result."""
    text = [name for name in rest if is_text(table, name)]
    prompt = prompt_of(config, vocabulary)
    if prompt is not None:
        return fields(config, prompt, text, where), prompt
    chosen = text_columns(config, text, where)
    second = [
        name for name in text if name not in chosen and _most(table, name, lambda value: len(value.split()) >= WORDS)
    ]
    known = plain_name(config.source) in {**LABELS, **TEXT_TO_TEXT}
    if second and config.text is None and len(chosen) == 1 and not known:
        raise DataError(
            f"{where}: several columns are text, {', '.join([*chosen, *second])}; set data.text to one of them, or to "
            f"two for pairs, or leave columns out, as in data.drop: [{', '.join(second)}]"
        )
    return chosen, None


def _images_or_numbers(
    config: DataConfig, table: FeatureTable, rest: Sequence[str], label: str, where: str
) -> tuple[Literal["image", "number"], tuple[str, ...]]:
    """The one image column, or the columns of numbers. Raises `DataError` if the choice is not clear."""
    kinds = {name: table.data.schema.field(name).type for name in rest}
    images = [name for name in rest if pa.types.is_struct(kinds[name]) or pa.types.is_binary(kinds[name])]
    text = [name for name in rest if is_text(table, name)]
    if config.input is not None:
        of_text = [name for name in config.input if name in text]
        if of_text:
            raise DataError(_needs_a_tokenizer(of_text, where))
        pictures = [name for name in config.input if name in images]
        if pictures and len(config.input) > 1:
            raise DataError(f"{where}: data.input names the image column {pictures[0]!r} and others; name it alone")
        return ("image" if pictures else "number"), config.input
    if config.text:
        raise DataError(_needs_a_tokenizer(config.text, where))
    described = [name for name in images if (table.features.get(name) or {}).get("_type") == "Image"]
    if len(described) == 1 or len(images) == 1:
        return "image", tuple(described if len(described) == 1 else images)
    if images:
        raise DataError(
            f"{where}: several columns could be the image, {', '.join(images)}; set data.input to one of them"
        )
    return "number", _features(table, rest, text, label, where)


def _features(table: FeatureTable, rest: Sequence[str], text: Sequence[str], label: str, where: str) -> tuple[str, ...]:
    """All columns, if each is a feature without doubt."""
    doubts = {name: why for name in rest if (why := doubt(table, name) or _repeats(table, name, label)) is not None}
    chosen = tuple(name for name in rest if name not in doubts)
    if not chosen and any(not _most(table, name, MOMENT.search) for name in text):
        raise DataError(_needs_a_tokenizer(text, where))
    if not rest:
        raise DataError(f"{where}: no input column beside {label!r}; columns: {listed(table.data.column_names)}")
    if doubts:
        reasons = "; ".join(f"{name!r} {why}" for name, why in list(doubts.items())[:3])
        names = listed(chosen or ["NAME", "NAME"])
        more = "; text needs data.tokenizer" if text else ""
        raise DataError(
            f"{where}: not every column is clearly a feature: {reasons}; write data.drop: [{listed(doubts)}], or "
            f"name the features, data.input: [{names}]{more}"
        )
    return chosen


def _needs_a_tokenizer(text: Sequence[str], where: str) -> str:
    return (
        f"{where}: text (columns {', '.join(text)}) needs a tokenizer; set data.tokenizer to `train`, or to the name "
        "or folder of a Hugging Face tokenizer (or name a numeric column with data.input)"
    )


def doubt(table: FeatureTable, name: str) -> str | None:
    """The reason why a column that no key names is not taken as a feature; None: it is one."""
    kind = table.data.schema.field(name).type
    if pa.types.is_temporal(kind):
        return "holds dates or times"
    if pa.types.is_decimal(kind):
        return "holds decimals"
    if pa.types.is_null(kind):
        return "is empty"
    if is_text(table, name):
        example = next((value for value in values_of(table, name).slice(0, 100).to_pylist() if value), "")
        return f"holds text, such as {shown(example)}"
    of_codes = pa.types.is_dictionary(kind) and not pa.types.is_floating(kind.value_type)
    if of_codes or name in table.categories or _is_class(table, name):
        return "holds categories"
    if name.casefold() in LIKE_A_LABEL:
        return "has the name of a label"
    if NO_HEADER.fullmatch(name):
        return "has no name"
    if TOKENS.fullmatch(name):
        return "holds the tokens of a text (give the text and data.tokenizer)"
    if pa.types.is_integer(kind) and LIKE_AN_ID.fullmatch(name):
        return "has the name of an id"
    if pa.types.is_integer(kind) and _numbers_the_rows(table, name):
        return "numbers the rows"
    return inexact(table, name)


def _repeats(table: FeatureTable, name: str, label: str) -> str | None:
    """The reason why a column is no feature: its values are those of the label, one for one.

    The label, shuffled over the rows, would be so with a probability of k!/(n!/(n_1! ... n_k!)), for n_i rows of class
    i of k. Where `CHANCE` allows it in one of the columns, as in a small table, the column stays a feature.
    """
    values, labels = values_of(table, name), values_of(table, label)
    if pa.types.is_nested(labels.type) or isinstance(labels.type, pa.BaseExtensionType):
        return None
    counts = labels.value_counts().field("counts").to_pylist()
    if pa.types.is_list(values.type) or pa.types.is_fixed_size_list(values.type):  # such as one-hot rows
        if len(set(map(str, values.slice(0, 1000).to_pylist()))) > len(counts):
            return None
        values = pa.chunked_array([pa.array(map(str, values.to_pylist()), pa.string())])
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string)
    if not any(test(values.type) for test in kinds) or len(values.unique()) != len(counts):
        return None
    logarithm = (
        math.log(table.data.num_columns)
        + math.lgamma(len(counts) + 1)
        + sum(math.lgamma(n + 1) for n in counts)
        - math.lgamma(len(labels) + 1)
    )
    pairs = pa.table({"value": values, "label": labels}).group_by(["value", "label"]).aggregate([]).num_rows
    return f"has one value for each class of {label!r}" if pairs == len(counts) and logarithm < CHANCE else None


def _numbers_the_rows(table: FeatureTable, name: str) -> bool:
    """Whether the integers are distinct, and at least every fourth of their range: of `ROWS` rows no feature has that
    by chance."""
    values = values_of(table, name)
    if len(values) < ROWS or values.null_count:
        return False
    numbers = values.to_numpy()
    return int(numbers.max()) - int(numbers.min()) < 4 * len(numbers) and len(np.unique(numbers)) == len(numbers)


def _most(table: FeatureTable, name: str, test: Callable[[str], object]) -> bool:
    """Whether most of the first texts of a column pass a test."""
    texts = [text for text in values_of(table, name).slice(0, 1000).to_pylist() if text]
    return 2 * sum(bool(test(text)) for text in texts) > len(texts)


def _is_class(table: FeatureTable, name: str) -> bool:
    feature: Any = table.features.get(name)
    return isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
