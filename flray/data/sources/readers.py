"""Splits from Parquet and hub tables: choice of files and columns. Runs once for a data set; the cache stores the
result."""

from __future__ import annotations

import csv
import functools
import glob
import itertools
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flray.core.schema.errors import DataError, first_line, nearest, shown
from flray.data.cache import Array, file_digest, listing_digest
from flray.data.data_config import DataConfig
from flray.data.sources.choice import PANDAS_INDEX, choose_columns
from flray.data.sources.columns import Columns, FeatureTable, class_names, codes, ids_of, labels_of, numbers, unlabelled
from flray.data.sources.pictures import KINDS, decode, encoded
from flray.data.sources.split_names import PICTURES, TABLES, check_links, choose_splits, has_configs, split_patterns
from flray.data.sources.text import labelled, literals, texts_of, token_ids, with_words, words_of
from flray.data.splits import Split, Splits, Vocabulary, class_list, in_line, listed

# builders of `datasets` that guess the types of a CSV file (of pictures: metadata.csv), and options to read it as it is
CSV: dict[str | None, dict[str, Any]] = {"csv": {"keep_default_na": False}, "imagefolder": {}}
PERIOD = "pandas.period"  # the name of an extension type
WHOLE_FILE = 10**9  # rows of CSV, bytes of JSON
WHERE = "check the id and the network, or name a folder or a file"
# builders of `datasets` of a single file, and their options
FILES: dict[str, tuple[str, dict[str, Any]]] = {
    ".csv": ("csv", {}), ".tsv": ("csv", {"sep": "\t"}), ".json": ("json", {}), ".jsonl": ("json", {}),
}  # fmt: skip


def parquet_table(paths: Sequence[Path]) -> FeatureTable:
    """The rows of the files of one split. Raises `DataError` for one that cannot be read."""
    parts, described = [], []
    for path in paths:
        try:
            parts.append(pq.ParquetFile(path, page_checksum_verification=True).read())
            parts[-1].validate(full=True)  # a flipped bit may leave invalid offsets
        except Exception as error:  # the library raises many kinds for damaged files
            raise DataError(f"{path} is not a readable Parquet file ({error}); copy it again") from error
        if periods := _periods({path: parts[-1].schema}):
            parts[-1] = _periods_as_text(parts[-1], periods)
        described.append(_described((parts[-1].schema.metadata or {}).get(b"huggingface", b"{}"), path))
    index, categories = set[str](), set[str]()
    for part in parts:
        own, others = of_pandas(part.schema)
        index, categories = index | own, categories | others
    data = _together(parts, paths, index)
    names = tuple((path.name, part.num_rows) for path, part in zip(paths, parts, strict=True))
    return FeatureTable(data, described[0], "", names, tuple(described), frozenset(index), frozenset(categories))


def of_pandas(schema: Any) -> tuple[set[str], set[str]]:
    """The columns that pandas wrote as the index of the rows, and those of categories, from its description."""
    try:
        note = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
        index = {name for name in note.get("index_columns", []) if isinstance(name, str)}
        kinds = {str(column["field_name"]): column["pandas_type"] for column in note.get("columns", [])}
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return set(), set()  # a damaged description; an index without a name has a name that tells it
    return index & set(schema.names), {name for name, kind in kinds.items() if kind == "categorical"}


def _together(parts: Sequence[Any], paths: Sequence[Path], index: Iterable[str]) -> Any:
    """The rows of several files: without an index that only some of them have, columns in the first one's order,
    categories of text as text. Raises `DataError` for other columns."""
    lone = [name for name in index if not all(name in part.schema.names for part in parts)]
    parts = [_plain_text(part.drop_columns([name for name in lone if name in part.schema.names])) for part in parts]
    first = parts[0].schema
    for path, part in zip(paths, parts, strict=True):
        for name in dict.fromkeys([*first.names, *part.schema.names]):
            own, other = (
                schema.field(name).type if schema.names.count(name) == 1 else None for schema in (first, part.schema)
            )
            if own != other and not (first.names.count(name) > 1 and part.schema.names == first.names):
                raise DataError(
                    f"{path}: column {name!r} is {other or 'missing'}, and in {paths[0].name} {own or 'missing'}; "
                    "write the files alike"
                )
    if len(set(first.names)) == len(first.names):
        parts = [part.select(first.names) for part in parts]
    try:
        return pa.concat_tables(parts)
    except pa.ArrowException as error:
        raise DataError(
            f"{paths[0].parent}: the files of {paths[0].name} to {paths[-1].name} have other columns ({error})"
        ) from error


def _plain_text(part: Any) -> Any:
    """The table with categories of text (pandas' category, Arrow's dictionary) and Arrow's text views as text."""
    for place, field in enumerate(part.schema):
        kind = field.type
        inner = kind.value_type if pa.types.is_dictionary(kind) else None
        of_text = inner is not None and (pa.types.is_string(inner) or pa.types.is_large_string(inner))
        if of_text or pa.types.is_string_view(kind):
            part = part.set_column(place, field.name, part.column(place).cast(pa.string()))
    return part


def _periods(schemas: Mapping[Path, Any]) -> dict[str, str]:
    """The frequency (M: months ...) of each column of pandas' periods in files with these schemas. There they are
    numbers of a type that Arrow knows only after pandas has registered it. Raises `DataError`."""
    found = dict[str, str]()
    for path, schema in schemas.items():
        for field in schema:
            name, note = getattr(field.type, "extension_name", ""), field.metadata or {}
            if PERIOD not in (name, note.get(b"ARROW:extension:name", b"").decode(errors="replace")):
                continue
            import pandas as pd  # takes seconds, and few files have periods

            try:
                described = field.type.__arrow_ext_serialize__() if name else note[b"ARROW:extension:metadata"]
                frequency = json.loads(described)["freq"]
                pd.PeriodDtype(frequency)
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"{path}: the description of the periods in column {shown(field.name)} is damaged; write them as "
                    "text"
                ) from error
            if found.setdefault(field.name, frequency) != frequency:
                raise DataError(
                    f"{path}: column {shown(field.name)} has periods of {frequency}, and of {found[field.name]} in "
                    "another file; write the files alike"
                )
    return found


def _periods_as_text(part: Any, periods: Mapping[str, str]) -> Any:
    """The table with the columns of `periods` (:func:`_periods`) as texts, of the type in which pandas writes them."""
    import pandas as pd

    index: Any = pd.PeriodIndex  # the stubs lack from_ordinals
    for name, frequency in periods.items():
        place = part.column_names.index(name)
        column = part.column(place).cast(pa.int64())
        texts = index.from_ordinals(pc.fill_null(column, 0).to_numpy(), freq=frequency).astype(str)
        text = pa.array(texts.to_numpy(), pa.large_string(), mask=column.is_null().to_numpy())
        part = part.set_column(place, name, text)
    return part


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


def hub_tables(config: DataConfig, options: Mapping[str, Any]) -> tuple[dict[str, FeatureTable], tuple[str, ...]]:
    """Train and test tables of a hub id, a folder or a file, through `datasets`, and the names of what is not read."""
    import datasets

    name = config.source.removeprefix("hf:")
    if (Path(os.path.expanduser(name)) / "state.json").is_file():
        raise DataError(
            f"hf:{name} is one split, written by save_to_disk; give it in Python: flray.run(CONFIG, "
            f"data=flray.data.from_hf(datasets.load_from_disk({name!r})))"
        )
    if Path(os.path.expanduser(name)).is_file():
        read, of_split, others, separator = _of_file(name, options)
    else:
        load = functools.partial(_load_dataset, name, name, options["config"], revision=options["revision"])
        read, of_split, others, separator = _of_folder(name, load, options)
    files = sorted(set(chain.from_iterable(of_split.values())))
    contents = _contents(files) if files else ""
    if contents:  # `datasets` would take another file of the same time for the one that it has converted
        read = functools.partial(read, cache_dir=os.path.join(datasets.config.HF_DATASETS_CACHE, f"flray-{contents}"))
    loaded = _alike(read, files, separator)
    if not isinstance(loaded, datasets.DatasetDict):
        raise DataError(f"hf:{name} is not a set of splits; choose another data set")
    chosen = choose_splits(map(str, loaded), options["train"], options["test"], f"hf:{name}")
    parts = {}
    for split, key in (("train", chosen.train), ("test", chosen.test)):
        if key is None:
            continue
        if key not in loaded:
            raise DataError(f"hf:{name} has no split {key!r}{nearest(str(key), map(str, loaded))}; set options.{split}")
        parts[split] = key
    tables = {split: _hub_table(loaded[key], str(key), contents) for split, key in parts.items()}
    tables = _with_own_names(tables, {split: of_split.get(str(key), []) for split, key in parts.items()})
    features, builder = loaded[parts["train"]].features, loaded[parts["train"]].info.builder_name
    if builder == "imagefolder":
        _check_pictures(files, sum(map(len, loaded.values())), name)
    if builder == "csv":
        check_headers(list(features), files, separator, f"hf:{name}", config.label)
    here = filter(os.path.exists, files)
    if builder == "parquet" and (periods := _periods({Path(file): pq.read_schema(file) for file in here})):
        tables = {split: t._replace(data=_periods_as_text(t.data, periods)) for split, t in tables.items()}
    values = [
        column
        for column, feature in features.items()
        if isinstance(feature, datasets.Value)
        and column not in (config.input or ())  # these are numbers if they can be
    ]
    if builder in CSV and values and all(set(values) <= set(t.data.column_names) for t in tables.values()):
        text = datasets.Features({**features, **dict.fromkeys(values, datasets.Value("string"))})
        again = _alike(read, files, separator, features=text, **CSV[builder])
        if any(len(again[key]) != len(loaded[key]) for key in parts.values()):
            raise DataError(f"hf:{name} changed while it was read; give data.options.revision")
        written = {split: again[key].with_format("arrow")[:] for split, key in parts.items()}
        tables = _as_written(tables, written, values, {config.group, config.domain})
    return tables, (*chosen.unread, *others)


def _alike(read: Callable[..., Any], files: Sequence[str], separator: str, **options: Any) -> Any:
    """The splits of `read(**options)`. Raises the `DataError` of :func:`check_columns`, :func:`check_fractions`,
    :func:`check_types` or :func:`check_wide` if that is why it fails, else that of `read`."""
    from datasets.exceptions import DatasetGenerationCastError
    from datasets.table import CastError

    try:
        return read(**options)
    except DataError as error:
        cause = (error.__cause__ and error.__cause__.__cause__) or error.__cause__  # `datasets` wraps the most
        if isinstance(cause, KeyError | CastError | DatasetGenerationCastError):
            check_columns(files, separator)
        of_csv = any(".csv" in Path(file).name or ".tsv" in Path(file).name for file in files)
        typed = FRACTION.match(str(cause)) or (of_csv and OTHER_TYPE.match(str(cause)))
        if typed and "chunksize" not in options:  # `datasets` types a column by the first 10,000 rows, or 10 MB of JSON
            try:
                return _alike(read, files, separator, chunksize=WHOLE_FILE, **options)
            except DataError as again:
                if "'chunksize' key" not in str(again):  # else of Parquet or Arrow files, which have types of their own
                    raise
        if lost := FRACTION.match(str(cause)):
            check_fractions(files, separator, lost[1])
        if lost := OTHER_TYPE.match(str(cause)):
            check_types(files, separator, next(filter(None, lost.groups())))
        if isinstance(cause, OverflowError):
            check_wide(files, separator)
        raise


def _hub_table(part: Any, key: str, contents: str) -> FeatureTable:
    """A split of `datasets`; `contents`: the digest of the files on this machine, or ""."""
    data = part.with_format("arrow")[:]
    index, categories = map(frozenset, of_pandas(data.schema))
    return FeatureTable(
        data,
        part.features.to_dict(),
        part._fingerprint + contents,
        ((key, len(part)),),
        index_columns=index,
        categories=categories,
    )


def _with_own_names(tables: dict[str, FeatureTable], of_split: Mapping[str, Sequence[str]]) -> dict[str, FeatureTable]:
    """The tables with the class names of each of their files where these differ: `datasets` gives all files the names
    of the first one. Raises `DataError` if the rows of the files are not those of the tables."""
    own = dict[str, list[tuple[str, int, dict[str, Any]]]]()
    for split, files in of_split.items():
        for file in (Path(file) for file in files if file.casefold().endswith((".parquet", ".arrow"))):
            schema, rows = _schema_of(file)
            described = _described((schema.metadata or {}).get(b"huggingface", b"{}"), file)
            named = {name: of for name, of in described.items() if class_names({name: of}, name, str(file))}
            own.setdefault(split, []).append(("/".join(file.parts[-2:]), rows, named))
    every = [named for parts in own.values() for _, _, named in parts]
    if all(named == every[0] for named in every):
        return tables
    out = dict(tables)
    for split, parts in own.items():
        if sum(rows for _, rows, _ in parts) != tables[split].data.num_rows:
            raise DataError(
                f"{parts[0][0]} and the files beside it have other class names and are read in part; write the same "
                "classes into all"
            )
        features, places = tables[split].features, tuple((name, rows) for name, rows, _ in parts)
        out[split] = tables[split]._replace(
            files=places, described=tuple({**features, **named} for _, _, named in parts)
        )
    return out


def _schema_of(file: Path) -> tuple[Any, int]:
    """The schema of a Parquet file, or of an Arrow file or stream, and the number of its rows."""
    if file.suffix.casefold() == ".parquet":
        return pq.read_schema(file), pq.read_metadata(file).num_rows
    with pa.memory_map(str(file)) as source:
        try:
            table = pa.ipc.open_stream(source).read_all()
        except pa.ArrowInvalid:
            table = pa.ipc.open_file(source).read_all()
        return table.schema, table.num_rows


def _of_file(name: str, options: Mapping[str, Any]) -> tuple[Callable[..., Any], dict[str, list[str]], list[str], str]:
    """As :func:`_of_folder`, of one file, which is the split `train`. Raises `DataError` for a file of another kind."""
    file = Path(os.path.expanduser(name))
    builder, how = FILES.get(file.suffix.casefold(), ("", {}))
    if not builder:
        kinds = ", ".join([*FILES, ".parquet"])
        raise DataError(f"hf:{name} is a file of another kind than {kinds}; read it in Python: flray.data.from_arrays")
    for option in ("config", "revision"):
        if options[option] is not None:
            raise DataError(f"options.{option}: the file {name} has none; leave it out")
    pattern = glob.escape(str(file))  # `datasets` would take a [1] in the name for a pattern
    load = functools.partial(_load_dataset, name, builder, data_files={"train": [pattern]}, **how)
    return load, {"train": [str(file)]}, [], how.get("sep", ",")


def _of_folder(
    name: str, load: Callable[..., Any], options: Mapping[str, Any]
) -> tuple[Callable[..., Any], dict[str, list[str]], list[str], str]:
    """`load` for the files of a folder as their names say the splits, the files of each, those that are not read, and
    the separator of CSV fields; of a hub id `load` and no files."""
    folder = Path(os.path.expanduser(name))
    if not folder.is_dir():
        return load, {}, [], ","
    try:
        known = load(function="load_dataset_builder").config
    except DataError:
        check_links(folder)
        raise
    files = {str(split): list(paths) for split, paths in (getattr(known, "data_files", None) or {}).items()}
    patterns, unread = None, list[str]()
    if files and not options["config"]:
        patterns, unread = split_patterns(folder, files, certain=options["train"] is not None)
    if patterns:
        load = functools.partial(load, data_files=patterns)
        files = load(function="load_dataset_builder").config.data_files
    named = options["config"] or has_configs(folder)
    if files and not named and all(map(_is_table, chain.from_iterable(files.values()))):
        chosen = choose_splits(files, options["train"], options["test"], f"hf:{name}")
        read = {split: files[split] for split in (chosen.train, chosen.test) if split in files}
        if chosen.unread and chosen.train in read and chosen.test in (None, *read):  # the unread may have other columns
            load = functools.partial(load, data_files={split: list(map(glob.escape, read[split])) for split in read})
            files, unread = read, [*chosen.unread, *unread]
    return load, {str(split): list(paths) for split, paths in files.items()}, unread, getattr(known, "sep", ",")


def _contents(files: Sequence[str]) -> str:
    """A hash of the files on this machine: of the contents of tables, which another mode or owner leaves as they are,
    and else of sizes and times. Raises `DataError` for a table that cannot be read."""
    here = [file for file in files if os.path.exists(file)]
    if not all(map(_is_table, files)):
        return listing_digest(here)
    try:
        return file_digest(list(map(Path, here)))
    except OSError as error:
        raise DataError(
            f"{error.filename or here[0]} cannot be read ({error.strerror or error}); check its permissions and the "
            "disk, or copy it again"
        ) from error


def _is_table(file: str) -> bool:
    return Path(file).suffix.casefold() in TABLES


def _check_pictures(files: Sequence[str], rows: int, name: str) -> None:
    """Raises `DataError` if there are fewer `rows` than pictures: `datasets` reads those that metadata.csv lists."""
    count = sum(Path(file).suffix.casefold() in PICTURES for file in files)
    if rows < count:
        raise DataError(
            f"hf:{name}: the metadata have {rows} rows for {count} pictures; list each picture, or move the others away"
        )


def _load_dataset(name: str, *args: Any, function: str = "load_dataset", **options: Any) -> Any:
    """`datasets.load_dataset`, or another `function`, without progress bars in a quiet command. Raises `DataError`."""
    import datasets

    hidden = not logging.getLogger("flray").isEnabledFor(logging.INFO) and not datasets.are_progress_bars_disabled()
    if hidden:
        datasets.disable_progress_bars()
    try:
        return getattr(datasets, function)(*args, **options)
    except Exception as error:  # the hub client raises many kinds; the user needs one line
        local = Path(os.path.expanduser(name)).exists()
        reason = (local and error.__cause__) or error  # of a file that cannot be read
        text = first_line(reason)
        pattern = local and any(mark in name for mark in "[]*?")  # which `datasets` reads as a pattern
        check = "name it without [ ] * ?" if pattern else "check the files" if local else WHERE
        if local:
            text, check = _of_other_files(error.__cause__ or error) or (text, check)
        raise DataError(f"hf:{name} cannot be loaded ({text}); {check}") from error
    finally:
        if hidden:
            datasets.enable_progress_bars()


def _of_other_files(error: BaseException) -> tuple[str, str] | None:
    """(how files differ, what to do) if that is why `datasets` fails, which names neither file nor column."""
    from datasets.table import CastError

    if isinstance(error, CastError):
        odd = set(error.table_column_names) ^ set(error.requested_column_names)
        if odd:
            return f"column {shown(min(odd))} is not in each file", "write the same columns into each"
    if lost := FRACTION.match(str(error)):
        return (
            f"a column has {float(lost[1]):g}, which is no whole number of 64 bits, and whole numbers in another file",
            "write a decimal point in both, such as 1.0",
        )
    return None


def _as_written(
    tables: Mapping[str, FeatureTable], texts: Mapping[str, Any], columns: Iterable[str], ids: Collection[str | None]
) -> dict[str, FeatureTable]:
    """Tables of CSV files whose `columns` are numbers and truth values only if no two of their texts become one (01 and
    1, TRUE and True; in the columns `ids` also 1.1 and 1.10), and no code loses a zero. 1.0 is 1 in each. `texts`: the
    same rows as the files have them."""
    out = dict(tables)
    for name in columns:
        read = {split: table.data.column(name) for split, table in tables.items()}
        written = {split: pc.utf8_trim_whitespace(texts[split].column(name)) for split in tables}
        kinds = [column.type for column in read.values()]
        of_text = any(pa.types.is_string(kind) or pa.types.is_large_string(kind) for kind in kinds)
        whole = all(pa.types.is_integer(kind) or pa.types.is_boolean(kind) for kind in kinds)
        numbers = whole or all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in kinds)
        zero = any(pc.any(pc.match_substring_regex(text, "^[+-]?0[0-9]")).as_py() for text in written.values())
        plain = written
        several = (whole or (numbers and name in ids)) and _distinct(written.values()) > _distinct(read.values())
        if several:  # of them 1.0 and the whole 1 are one
            plain = {split: pc.replace_substring_regex(text, r"\.0*$", "") for split, text in written.items()}
            several = _distinct(plain.values()) > _distinct(read.values())
        for split, table in out.items():
            lost = written[split].filter(pc.and_(pc.is_null(read[split]), pc.not_equal(written[split], "")))
            if len(lost):
                out[split] = table = table._replace(absent={**table.absent, name: lost[0].as_py()})
            if of_text or several or (numbers and zero):
                text = plain[split] if numbers else texts[split].column(name)
                text = pc.if_else(pc.is_null(read[split]), pa.scalar(None, text.type), text)
                place = table.data.schema.get_field_index(name)
                out[split] = table._replace(data=table.data.set_column(place, name, text))
    return out


def _distinct(columns: Iterable[Any]) -> int:
    """The number of distinct values of several columns."""
    return len({value for column in columns for value in column.unique().to_pylist()})


def hub_folders(config: DataConfig) -> tuple[Path, ...]:
    """The folder that `hf:FOLDER` names, those to which images of a hub id are downloaded, and of a snapshot in another
    cache of the hub the folder with its files, to which it has links."""
    import datasets
    from huggingface_hub.constants import HF_HUB_CACHE

    places = (config.source.removeprefix("hf:"), datasets.config.HF_DATASETS_CACHE, HF_HUB_CACHE)
    own, *others = (Path(os.path.expanduser(place)) for place in places)
    blobs = [above.parent / "blobs" for above in own.absolute().parents if above.name == "snapshots"]
    return (own, *others, *blobs)


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
    notes, pictures, cut = tuple[str, ...](), tuple[str, ...](), tuple[tuple[str, int, int], ...]()
    if columns.kind == "text":
        tables, notes = labelled(tables, columns, where)
    else:
        inputs, pictures, notes = _inputs(config, tables, columns, where, folders)
    what = f"{where}: label column {columns.label!r}"
    labels, classes = labels_of(tables.values(), columns.label, what)
    names = classes.classes
    if columns.values is not None:
        names = tuple(columns.values[int(value)] for value in names)
    elif columns.names is None:
        notes += unlabelled(tables, columns.label, names)
    if columns.kind == "text":
        vocabulary, inputs, cut = _texts(config, tables, columns, names, vocabulary, where)
    groups: list[Array | None] = [None] * len(inputs)
    domains, sources, owners, users = list(groups), tuple[str, ...](), tuple[str, ...](), list[str]()
    if columns.group:
        groups, users = _groups(tables, columns.group, where)
        owners = (f"group: column {columns.group!r}, {len(users)} clients of train: {in_line(users)}",)
    if columns.domain:
        what = f"{where}: domain column {columns.domain!r}"
        of_splits, united = labels_of(tables.values(), columns.domain, what, unite=True)
        domains, sources = list(of_splits), united.classes
        owners += (f"domain: column {columns.domain!r}, {len(sources)} domains: {in_line(sources)}",)
    splits = [Split(*parts) for parts in zip(inputs, labels, groups, domains, strict=True)]
    test = splits[1] if len(splits) > 1 else None
    label = f"label: column {columns.label!r}, {class_list(names)}"
    reading = (label, *classes.lines, columns.line, *owners, *pictures)
    features = columns.input if columns.kind == "number" else ()
    whole = groups[0] is None or users == list(map(str, np.unique(groups[0])))
    known = (sources, (), cut, reading, features, None if whole else np.array(users))
    return Splits(splits[0], test, names, "", vocabulary, notes, "", *known)


def _groups(tables: Mapping[str, FeatureTable], name: str, where: str) -> tuple[list[Array | None], list[str]]:
    """The numbers of the clients of each split (None: it has none), and the ids of those of train, in their order."""
    of = {}
    for split, table in tables.items():
        has = name in table.data.column_names and table.data.column(name).null_count < table.data.num_rows
        if split == "train" or has:
            of[split] = table
    numbers = codes(of.values(), name, f"{where}: group column {name!r}")
    by_split = dict(zip(of, numbers, strict=True))
    return [by_split.get(split) for split in tables], ids_of(tables["train"], name, numbers[0])


def table_texts(config: DataConfig, table: FeatureTable, where: str) -> list[list[str]]:
    """The texts of the labelled rows of a table, as columns."""
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
    answers = bool(config.words) and (vocabulary is None or not vocabulary.labels)  # public text has the private words
    words = words_of(config, classes, where) if answers else ()
    texts = [texts_of(table, columns, where) for table in tables.values()]
    vocabulary, encoded = token_ids(config, texts, vocabulary, [*words, *literals(columns.prompt)], where)
    if words:
        vocabulary = with_words(vocabulary, classes, words, where)
    cut = [(name, count, len(ids)) for name, (ids, count) in zip(("train", "test"), encoded, strict=False) if count]
    return vocabulary, [ids for ids, _ in encoded], tuple(cut)


def _inputs(
    config: DataConfig, tables: Mapping[str, FeatureTable], columns: Columns, where: str, folders: Sequence[Path]
) -> tuple[list[Array], tuple[str, ...], tuple[str, ...]]:
    """The numbers or pictures of each split, the lines of `Splits.reading` about pictures, and notes."""
    if columns.kind != "image":
        of = tables.values()
        return [np.concatenate([numbers(t, name, where) for name in columns.input], axis=1) for t in of], (), ()
    name = columns.input[0]
    what, feature = f"{where}: column {name!r}", tables["train"].features.get(name)
    mode = feature.get("mode") if isinstance(feature, dict) and feature.get("_type") == "Image" else None
    if mode is not None and mode not in KINDS:
        raise DataError(f"{what}: its description names the mode {shown(mode)}, which is none of {', '.join(KINDS)}")
    columns_of = [(table.data.column(name).combine_chunks(), table.place) for table in tables.values()]
    decoded = decode([encoded(column, what, place, folders) for column, place in columns_of], config.resize, mode)
    return decoded.arrays, (decoded.reading,), decoded.notes


# the first lines of CSV files --------------------------------------------------------------------
# pandas takes one of data as names, renames the second of two equal names, and takes fields beyond the names as an
# index: each is refused
NUMERIC = re.compile(r"[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?")
NO_TEXT = re.compile(rf"{NUMERIC.pattern}|(?i:true|false)")
WHOLE = re.compile(r"[+-]?\d+")
FRACTION = re.compile(r"Float value (\S+) was truncated")  # Arrow's words
OTHER_TYPE = re.compile(  # likewise
    r"Failed to parse string: '(.*)' as a scalar|Failed to parse value: (.*)|Integer value (\S+) not in range"
)
HEADER_ROWS = 10_000
SEVERAL = 3  # from so many columns on, 0, 1, 2, ... are the names that pandas gives, and no row of data by chance
LONGER = (
    "the rows have more fields than the first line has names; name each column, and write numbers with a decimal point"
)
SEPARATORS = (";", "\t", "|", ",")
PLAIN = (".csv", ".tsv")  # files that are read here; the others are archives


def check_headers(
    columns: Sequence[str], files: Iterable[str], separator: str, where: str, label: str | None = None
) -> None:
    """Raises `DataError` unless the first line of each file has the names of all fields.

    `columns`: the names as pandas reads them. `files`: the paths of those on this machine. `label`: the column that the
    user names, which no row of data has.
    """
    paths = [Path(file) for file in files if file.casefold().endswith(PLAIN)]
    for path in paths:
        names, row = _first_rows(path, separator)
        other = next((mark for mark in SEPARATORS if len(names) == 1 and mark in names[0]), None)
        if other is not None:
            what = "tabs" if other == "\t" else repr(other)
            raise DataError(f"{path}: its fields are separated by {what}; write commas, or tabs in a file .tsv")
        if label not in names or label in _field_values(path, separator, names.index(label)):
            _check_header(names, str(path))
        twice = [name for name, count in Counter(names).items() if count > 1 and name]
        if twice:
            raise DataError(f"{path} has several columns {shown(twice[0])}; rename them, or remove all but one")
        if len(row) > len(names):
            raise DataError(f"{path}: {LONGER}")
    if not paths:
        _check_header(columns, where)
        if any(PANDAS_INDEX.fullmatch(name) for name in columns):
            raise DataError(f"{where}: {LONGER}")


def check_columns(files: Iterable[str], separator: str) -> None:
    """Raises `DataError` for two CSV files of other columns: what `datasets` does not read, in words that name neither
    file nor column."""
    paths = [Path(file) for file in files if file.casefold().endswith(PLAIN)]
    for path in paths:
        names, others = (_first_rows(at, separator)[0] for at in (paths[0], path))
        odd = next((name for name in [*names, *others] if (name in names) != (name in others)), None)
        if odd is not None:
            has, lacks = (paths[0], path) if odd in names else (path, paths[0])
            raise DataError(
                f"{lacks} has no column {shown(odd)}, which {has.name} has; write the same columns into both, or read "
                "one file alone, data=hf:FILE"
            )


def check_fractions(files: Iterable[str], separator: str, lost: str) -> None:
    """Raises `DataError` for a column of whole numbers in one CSV file that has fractions in another, `lost` one of
    them, as `datasets` names it without file and column."""
    kinds = dict[tuple[str, bool], Path]()
    for path, name, values in _columns(files, separator):
        if values and all(map(NUMERIC.fullmatch, values)):
            whole = all(map(WHOLE.fullmatch, values))
            if whole or lost in {f"{float(value.replace(',', '.')):f}" for value in values}:
                kinds.setdefault((name, whole), path)
    for name, whole in kinds:
        if whole and (name, False) in kinds:
            raise DataError(
                f"{kinds[name, False]}: column {shown(name)} has fractions, and whole numbers in "
                f"{kinds[name, True].name}; write a decimal point in both, such as 1.0"
            )


def check_types(files: Sequence[str], separator: str, lost: str) -> None:
    """Raises `DataError` for a column that has other types in two CSV files; `lost`: a value that the one type lacks,
    as `datasets` names it without file and column."""
    typed = {name for _, name, values in _columns(files, separator) if values and all(map(NO_TEXT.fullmatch, values))}
    for path, name, values in _columns(files, separator):
        if name in typed and lost.strip() in values:
            raise DataError(
                f"{path}: column {shown(name)} has {shown(lost)}, and another file has values of another type there; "
                "write the files alike"
            )


def check_wide(files: Iterable[str], separator: str) -> None:
    """Raises `DataError` for a column of whole numbers in a CSV file that 64 bits do not have."""
    for path, name, values in _columns(files, separator):
        wide = [value for value in values if WHOLE.fullmatch(value) and not -(2**63) <= int(value) < 2**64]
        if wide and all(map(WHOLE.fullmatch, values)):
            raise DataError(
                f"{path}: column {shown(name)} has {min(wide)}, a whole number that 64 bits do not have; write such "
                f"ids as texts, such as id{min(wide)}"
            )


def _columns(files: Iterable[str], separator: str) -> Iterator[tuple[Path, str, set[str]]]:
    """Each CSV file, the name of each of its columns, and the values there (:func:`_field_values`)."""
    for path in (Path(file) for file in files if file.casefold().endswith(PLAIN)):
        for place, name in enumerate(_first_rows(path, separator)[0]):
            yield path, name, _field_values(path, separator, place) - {""}


def _check_header(names: Sequence[str], where: str) -> None:
    """Raises `DataError` for names that are numbers, as a row of data is, but for 0, 1, 2, ... or 1, 2, 3, ..."""
    numbers = [name for name in names if NUMERIC.fullmatch(name) or NUMERIC.fullmatch(re.sub(r"\.\d+$", "", name))]
    counted = any(numbers == [str(first + place) for place in range(len(numbers))] for first in (0, 1))
    if numbers and not (counted and len(numbers) >= SEVERAL):
        raise DataError(
            f"{where}: the names of columns are numbers, {listed(numbers[:5])}, as if the first line were a row of "
            "data; write a line of names above it, or name the label with data.label if it is one"
        )


def _field_values(path: Path, separator: str, place: int) -> set[str]:
    """The values of a field in the rows after the first line, at most `HEADER_ROWS` of them."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = itertools.islice((row for row in csv.reader(file, delimiter=separator) if row), 1, HEADER_ROWS)
        return {row[place].strip() for row in rows if len(row) > place}


def _first_rows(path: Path, separator: str) -> tuple[list[str], list[str]]:
    """The fields of the first line and of the second one, as they are written; [] for one that is not there."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = (row for row in csv.reader(file, delimiter=separator) if row)
        try:
            return [name.strip() for name in next(rows, [])], next(rows, [])
        except csv.Error:  # a field of more than 128 KB, which is no name
            return [], []
