"""Splits from Parquet and hub tables: choice of files and columns. Runs once for a data set; the cache stores the
result."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from flray.core.schema.errors import DataError, nearest, shown
from flray.data.cache import Array
from flray.data.data_config import DataConfig
from flray.data.published import LABELS, plain_name
from flray.data.sources.columns import FeatureTable, codes, named, numbers, unlabelled
from flray.data.splits import Split, Splits, Vocabulary

# in this order: the official test split, else validation (MNLI: of the train genres)
TEST_SPLITS = ("test", "validation", "validation_matched")


class Columns(NamedTuple):
    """The columns that are read, the kind of the inputs, the table's class names, the meaning of numeric labels, the
    column of domains, and the prompt of the texts."""

    label: str
    input: tuple[str, ...]
    kind: Literal["image", "text", "number"]
    group: str | None
    names: tuple[str, ...] | None
    values: Mapping[int, str] | None = None
    domain: str | None = None
    prompt: str | None = None

    @property
    def needed(self) -> list[str]:
        """All columns that each split must have."""
        return [self.label, *self.input, *(name for name in (self.group, self.domain) if name)]


def parquet_files(folder: Path, train: str = "train", test: str | None = None) -> dict[str, list[Path]]:
    """The files of the splits `train` and `test` (None: the official one): `train.parquet` or
    `train-00000-of-00003.parquet`. Raises `DataError` for missing shards and splits."""
    splits: dict[str, list[Path]] = {}
    counts: dict[str, tuple[str | None, Path]] = {}  # by split: its number of shards, from its first file
    for path in sorted(folder.glob("*.parquet")):
        match = re.fullmatch(r"(.+?)(?:-[0-9]+-of-([0-9]+))?", path.stem, re.DOTALL)
        assert match is not None
        if not path.is_file() or not os.access(path, os.R_OK):
            raise DataError(f"{path} is not a readable file; copy it again, or remove it")
        splits.setdefault(match[1], []).append(path)
        shards, first = counts.setdefault(match[1], (match[2], path))
        if shards != match[2]:
            raise DataError(
                f"{folder} has the split {match[1]} twice, in {first.name} and in {path.name}, and every sample would "
                "count twice; remove one of them"
            )
        if match[2] and len(list(folder.glob(f"{match[1]}-*-of-{match[2]}.parquet"))) != int(match[2]):
            raise DataError(f"{folder}: {match[1]} lacks some of its {int(match[2])} shards; copy the missing files")
    for option, name in (("train", train), ("test", test)):
        if name is not None and name not in splits:
            raise DataError(
                f"{folder} has no {name} split (it has {', '.join(sorted(splits))}); choose one with options: "
                f"{{{option}: NAME}}"
            )
    # test splits are not pooled with train
    test = test or next((name for name in TEST_SPLITS if name in splits and name != train), None)
    return {"train": splits[train]} | ({} if test is None else {test: splits[test]})


def parquet_splits(
    config: DataConfig, folder: Path, files: Mapping[str, list[Path]], vocabulary: Vocabulary | None
) -> Splits:
    """The splits in the files. Raises `DataError` for damaged files and unusable contents."""
    tables = {split: parquet_table(paths) for split, paths in files.items()}
    return table_splits(config, tables, str(folder), vocabulary, [folder])


def parquet_table(paths: Sequence[Path]) -> FeatureTable:
    """The rows of the files of one split. Raises DataError for one that cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = []
    for path in paths:
        try:
            parts.append(pq.ParquetFile(path).read())
            parts[-1].validate(full=True)  # a flipped bit may leave invalid offsets
        except Exception as error:  # the library raises many kinds for damaged files
            raise DataError(f"{path} is not a readable Parquet file ({error}); copy it again") from error
    try:
        data = pa.concat_tables(parts)
    except pa.ArrowException as error:
        raise DataError(
            f"{paths[0].parent}: the files of {paths[0].name} to {paths[-1].name} have other columns ({error})"
        ) from error
    names = tuple((path.name, part.num_rows) for path, part in zip(paths, parts, strict=True))
    return FeatureTable(data, _described((data.schema.metadata or {}).get(b"huggingface", b"{}"), paths[0]), "", names)


def _described(note: bytes, path: Path) -> Mapping[str, Any]:
    """The `datasets` library's description of the columns; empty in files of other programs."""
    try:
        features = json.loads(note).get("info", {}).get("features", {})
        if isinstance(features, dict):
            return features
    except (ValueError, AttributeError, RecursionError):
        pass
    raise DataError(
        f"{path}: the description of its columns (schema metadata `huggingface`) is damaged; write the file again"
    )


def hub_tables(config: DataConfig, options: Mapping[str, Any]) -> dict[str, FeatureTable]:
    """Train and test tables of a hub id or a folder, through `datasets`."""
    import datasets

    name = config.source.removeprefix("hf:")
    if (Path(name).expanduser() / "state.json").is_file():
        raise DataError(
            f"hf:{name} is one split, written by save_to_disk; give it in Python: flray.run(CONFIG, "
            f"data=flray.data.from_hf(datasets.load_from_disk({name!r})))"
        )
    try:
        loaded = datasets.load_dataset(name, options["config"], revision=options["revision"])
    except Exception as error:  # the hub client raises many kinds; the user needs one line
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"hf:{name} cannot be loaded ({text}); check the id and the network, or name a folder"
        ) from error
    if not isinstance(loaded, datasets.DatasetDict):
        raise DataError(f"hf:{name} is not a set of splits; choose another data set")
    test = options["test"] or next((s for s in TEST_SPLITS if s in loaded and s != options["train"]), None)
    tables = {}
    for split, key in (("train", options["train"] or "train"), ("test", test)):
        if key is None:
            continue
        if key not in loaded:
            raise DataError(f"hf:{name} has no split {key!r}{nearest(str(key), map(str, loaded))}; set options.{split}")
        part = loaded[key]
        tables[split] = FeatureTable(
            part.with_format("arrow")[:], part.features.to_dict(), part._fingerprint, ((str(key), len(part)),)
        )
    return tables


def hub_splits(config: DataConfig, tables: Mapping[str, FeatureTable], vocabulary: Vocabulary | None) -> Splits:
    import datasets
    from huggingface_hub.constants import HF_HUB_CACHE

    # the folders to which images of a hub id are downloaded
    caches = [Path(place) for place in (datasets.config.HF_DATASETS_CACHE, HF_HUB_CACHE)]
    named = Path(config.source.removeprefix("hf:")).expanduser()
    return table_splits(config, tables, config.source, vocabulary, [named, *caches])


def table_splits(
    config: DataConfig,
    tables: Mapping[str, FeatureTable],
    where: str,
    vocabulary: Vocabulary | None,
    folders: Sequence[Path],
) -> Splits:
    """The splits of the tables: `train`, and the other one if there is one. Text becomes ids of `vocabulary`, or of one
    trained on it.

    `folders`: folders of image files that a column may name. Raises `DataError`.
    """
    for split, table in tables.items():
        twice = [name for name, count in Counter(table.data.column_names).items() if count > 1]
        if twice:
            raise DataError(f"{where}: {split} has several columns {shown(twice[0])}; rename them")
    columns = choose_columns(config, tables["train"], where, vocabulary)
    for split, table in tables.items():
        missing = [name for name in columns.needed if name not in table.data.column_names]
        if missing:
            has = ", ".join(table.data.column_names)
            raise DataError(
                f"{where}: {split} has no column {missing[0]!r}, which train has (it has {has}); choose another split"
            )
        if not table.data.num_rows:
            raise DataError(f"{where}: {split} has no rows; choose another split with options, or copy its files again")
    notes, cut = tuple[str, ...](), tuple[tuple[str, int, int], ...]()
    if columns.kind == "text":
        from flray.data.sources.text import labelled

        tables, notes = labelled(tables, columns, where)
    else:
        inputs = [_inputs(config, t, columns, where, folders) for t in tables.values()]
    what = f"{where}: label column {columns.label!r}"
    if columns.names is not None:
        labels, names = named(tables.values(), columns.label, columns.names, what), columns.names
    else:
        labels, names = codes(tables.values(), columns.label, what)
        notes += unlabelled(tables, columns.label, names, what)
    if columns.values is not None:
        names = tuple(columns.values[int(value)] for value in names)
    if columns.kind == "text":
        vocabulary, inputs, cut = _texts(config, tables, columns, names, vocabulary, where)
    groups: list[Array | None] = [None] * len(inputs)
    domains, sources = list(groups), tuple[str, ...]()
    if columns.group:
        groups = list(
            codes(tables.values(), columns.group, f"{where}: group column {columns.group!r}", any_values=True)[0]
        )
    if columns.domain:
        of_splits, sources = _domains(tables, columns.domain, f"{where}: domain column {columns.domain!r}")
        domains = list(of_splits)
    splits = [Split(*parts) for parts in zip(inputs, labels, groups, domains, strict=True)]
    test = splits[1] if len(splits) > 1 else None
    return Splits(splits[0], test, names, vocabulary=vocabulary, notes=notes, sources=sources, cut=cut)


def table_texts(config: DataConfig, table: FeatureTable, where: str) -> list[list[str]]:
    """The texts of the labelled rows of a table, as columns."""
    from flray.data.sources.text import labelled, texts_of

    columns = choose_columns(config, table, where, None)
    return texts_of(labelled({"train": table}, columns, where)[0]["train"], columns, where)


def _texts(
    config: DataConfig,
    tables: Mapping[str, FeatureTable],
    columns: Columns,
    classes: tuple[str, ...],
    vocabulary: Vocabulary | None,
    where: str,
) -> tuple[Vocabulary, list[Array], tuple[tuple[str, int, int], ...]]:
    """The vocabulary (with `data.words`, with the words of the classes), the token ids of each split, `cut` of
    `Splits`."""
    from flray.data.sources.prompts import literals, with_words, words_of
    from flray.data.sources.text import texts_of, token_ids

    answers = bool(config.words) and (vocabulary is None or not vocabulary.labels)  # public text has the private words
    words = words_of(config, classes, where) if answers else ()
    texts = [texts_of(table, columns, where) for table in tables.values()]
    vocabulary, encoded = token_ids(config, texts, vocabulary, [*words, *literals(columns.prompt)], where)
    if words:
        vocabulary = with_words(vocabulary, classes, words, where)
    cut = [(name, count, len(ids)) for name, (ids, count) in zip(("train", "test"), encoded, strict=False) if count]
    return vocabulary, [ids for ids, _ in encoded], tuple(cut)


def _domains(tables: Mapping[str, FeatureTable], column: str, what: str) -> tuple[list[Array], tuple[str, ...]]:
    """The domains of each split as codes, and their names: the table's names, or else its values."""
    note = next(iter(tables.values())).features.get(column)
    names = note.get("names") if isinstance(note, dict) else None
    if isinstance(names, list):
        return named(tables.values(), column, tuple(map(str, names)), what), tuple(map(str, names))
    return codes(tables.values(), column, what, any_values=True)


def choose_columns(config: DataConfig, table: FeatureTable, where: str, vocabulary: Vocabulary | None) -> Columns:
    """The columns that `config` names or the table suggests. Raises `DataError`, which lists the columns.

    With a `vocabulary` or a tokenizer in the configuration the input is text.
    """
    import pyarrow as pa

    schema, features = table.data.schema, table.features
    columns = list(schema.names)
    for option in ("label", "input", "group", "domain"):
        name = getattr(config, option)
        if name is not None and name not in columns:
            raise DataError(
                f"{where}: no column {name!r} for data.{option}{nearest(name, columns)}; columns: {', '.join(columns)}"
            )
    kinds = {c: schema.field(c).type for c in columns}
    images = [c for c in columns if pa.types.is_struct(kinds[c]) or pa.types.is_binary(kinds[c])]
    labels = (config.label, config.group, config.domain, "label", "fine_label")
    text = [
        c for c in columns if (pa.types.is_string(kinds[c]) or pa.types.is_large_string(kinds[c])) and c not in labels
    ]
    tokenised = vocabulary is not None or config.tokenizer is not None
    if not tokenised and (config.text or (text and not images and config.input is None) or config.input in text):
        raise DataError(
            f"{where}: text (columns {', '.join(text)}) needs a tokenizer; set data.tokenizer to `train`, or to the "
            "name or folder of a Hugging Face tokenizer (or name a numeric column with data.input)"
        )
    classes = [c for c in columns if isinstance(features.get(c), dict) and features[c].get("_type") == "ClassLabel"]
    label = config.label or next((c for c in ("label", "fine_label") if c in columns), None)
    bare, values = LABELS.get(plain_name(config.source), (None, None)) if tokenised else (None, None)
    if label is None and bare in columns:
        label = bare
    if label is None and len(classes) == 1:
        label = classes[0]
    if label is None:
        raise DataError(f"{where}: the label column is not clear; set data.label to one of {', '.join(columns)}")
    rest = [c for c in columns if c not in (label, config.group, config.domain)]
    names = features[label].get("names") if label in classes else None
    if names is not None and not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
        raise DataError(
            f"{where}: the class names of {label!r} are {shown(names)}, not a list of words; write the file again"
        )
    if tokenised:
        from flray.data.sources.prompts import fields, prompt_of
        from flray.data.sources.text import text_columns

        prompt = prompt_of(config, vocabulary)
        chosen = text_columns(config, text, where) if prompt is None else fields(config, prompt, text, where)
        bare_values = values if label == bare and not names else None
        known = tuple(names) if names else None
        return Columns(label, chosen, "text", config.group, known, bare_values, config.domain, prompt)
    chosen = (config.input,) if config.input else tuple([c for c in images if c in rest][:1])
    if not chosen:
        chosen = tuple(c for c in rest if c not in classes)
    if not chosen:
        raise DataError(f"{where}: no input column beside {label!r}; columns: {', '.join(columns)}")
    kind: Literal["image", "number"] = "image" if chosen[0] in images else "number"
    return Columns(label, chosen, kind, config.group, tuple(names) if names else None, domain=config.domain)


def _inputs(config: DataConfig, table: FeatureTable, columns: Columns, where: str, folders: Sequence[Path]) -> Array:
    if columns.kind == "image":
        from flray.data.sources.decode import decode_images

        column = table.data.column(columns.input[0]).combine_chunks()
        return decode_images(column, config.resize, f"{where}: column {columns.input[0]!r}", table.place, folders)
    return np.concatenate([numbers(table, name, where) for name in columns.input], axis=1)
