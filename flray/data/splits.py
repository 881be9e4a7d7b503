"""`Splits`: the result of a source, and its form in the cache: memory-mapped arrays by the names of the splits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from flray.core.schema.errors import DataError
from flray.data.cache import Array, CacheEntry, digest, fetch
from flray.files import array_checksum

SHOWN = 12  # names in a line
NOTED = ("classes", "notes", "sources", "source_of", "cut", "reading", "features")  # fields of `Splits` in the cache


class Split(NamedTuple):
    """Samples of one split: `x` uint8 or float32 [n, H, W, C], float32 [n, d] or token ids int32 [n, L]; `y` int64 [n];
    `group` (natural client ids) and `source` (the sample's domain, or its set in a union), int64 [n] or None."""

    x: Array
    y: Array
    group: Array | None = None
    source: Array | None = None


class Vocabulary(NamedTuple):
    """The tokens behind token ids, 0 to `size` - 1, with the ids of the padding (`pad`) and of the end of a text
    (`separator`).

    `tokenizer`: the description (JSON, as uint8) for the `tokenizers` library; None: public text cannot get the same
    ids. For models that answer in words: `labels`, the first token of each class's word; `task_of`, the task of each
    class; `tasks`, the token with which the texts of each task begin (empty: none). Without words all three are empty.
    """

    size: int
    pad: int
    separator: int
    tokenizer: Array | None = None
    labels: tuple[int, ...] = ()
    task_of: tuple[int, ...] = ()
    tasks: tuple[int, ...] = ()

    @property
    def fingerprint(self) -> str:
        words = self[4:] if self.labels else ()
        return digest(*self[:3], array_checksum(self.tokenizer), *words)


class Splits(NamedTuple):
    """The result of a source. `test` is None without an official test split. `key` identifies the contents, or is "".

    `vocabulary`: of token ids. `notes`: messages to the user about rows left out. `content`: checksum of samples from
    the cache, or "". `sources`: the names that `Split.source` numbers. `source_of`: the source of each class if each
    source has its own classes, as in a union of text, else empty. `cut`: (split, texts that were cut off, all texts).
    `reading`: short lines that say how each column, class and picture was read; empty: the source says nothing.
    `features`: the names of the columns of a table that `x` is made of, in order; empty: they have no names.
    `groups`: the texts [G] that `Split.group` numbers; None: its numbers are the ids.
    """

    train: Split
    test: Split | None
    classes: tuple[str, ...]
    key: str = ""
    vocabulary: Vocabulary | None = None
    notes: tuple[str, ...] = ()
    content: str = ""
    sources: tuple[str, ...] = ()
    source_of: tuple[int, ...] = ()
    cut: tuple[tuple[str, int, int], ...] = ()
    reading: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    groups: Array | None = None


def check_features(key: str, names: Sequence[str], place: str, others: Sequence[str], place_of_others: str) -> None:
    """Raises `DataError` if two tables have features of other names, or in another order, and both have names."""
    if names and others and tuple(names) != tuple(others):
        raise DataError(
            f"{key}: {place} has the features {in_line(names)} and {place_of_others} {in_line(others)}; features are "
            f"matched by place, so name the same columns in the same order with `input`, or rename them"
        )


def class_list(classes: Sequence[str]) -> str:
    """`10 classes: airplane, automobile, ...` for a line of `Splits.reading`."""
    return f"{len(classes)} classes: {in_line(classes)}"


def in_line(names: Sequence[str]) -> str:
    """Names for one line; those after the first `SHOWN` are left out."""
    return listed(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def listed(names: Collection[str]) -> str:
    """Names with commas between them; one that has a comma, or spaces that a reader does not see, is in quotes."""
    odd = (not name or "," in name or name != " ".join(name.split()) for name in names)
    return ", ".join(repr(name) if quote else name for name, quote in zip(names, odd, strict=True))


def cached(key: str, build: Callable[[], Splits], where: str = "") -> Splits:
    """The splits that `build` returns, stored as one cache entry and memory-mapped.

    `where`: the place that the notes are about. It is not stored, because the same contents may lie in several.
    """

    def make() -> CacheEntry:
        splits = build()
        arrays = pack(splits.train, splits.test)
        if splits.groups is not None:
            arrays["groups"] = splits.groups
        meta: dict[str, Any] = {name: list(getattr(splits, name)) for name in NOTED}
        if splits.vocabulary is not None and splits.vocabulary.tokenizer is not None:
            arrays["tokenizer"], meta["vocabulary"] = splits.vocabulary.tokenizer, list(splits.vocabulary[:3])
            if splits.vocabulary.labels:
                meta["words"] = [list(numbers) for numbers in splits.vocabulary[4:]]
        return CacheEntry(arrays, meta)

    entry = fetch(key, make)
    train, test = unpack(entry, "train"), unpack(entry, "test")
    if train is None:
        raise DataError(f"data cache entry {key} has no train split; delete it from FLRAY_CACHE")
    known = entry.meta.get("vocabulary")
    words: list[Any] = [tuple(numbers) for numbers in entry.meta.get("words", ())]
    vocabulary = None if known is None else Vocabulary(*[*known, entry.arrays["tokenizer"], *words])
    noted: dict[str, Any] = {name: tuple(entry.meta.get(name, ())) for name in NOTED}
    noted["cut"] = tuple(map(tuple, noted["cut"]))
    noted["notes"] = tuple(f"{where}: {note}" if where else note for note in noted["notes"])
    noted["groups"] = entry.arrays.get("groups")
    return Splits(train, test, key=key, vocabulary=vocabulary, content=content_of(entry), **noted)


def content_of(entry: CacheEntry) -> str:
    """The checksum of an entry's samples, from the verified checksums of its files."""
    others = ("tokenizer", "shift", "matrix", "groups")
    return digest({name: value for name, value in entry.checksums.items() if name not in others})


def pack(train: Split | None, test: Split | None) -> dict[str, Array]:
    """The arrays of up to two splits by their names in a cache entry."""
    both = {"train": train, "test": test}
    named = {
        f"{name}_{field}": array
        for name, split in both.items()
        if split
        for field, array in zip(Split._fields, split, strict=True)
    }
    return {name: array for name, array in named.items() if array is not None}


def unpack(entry: CacheEntry, name: str) -> Split | None:
    arrays = entry.arrays
    if f"{name}_x" not in arrays:
        return None
    return Split(*(arrays.get(f"{name}_{field}") for field in Split._fields))  # type: ignore[arg-type]
