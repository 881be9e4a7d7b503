"""Which split a name means: of Parquet files, folders, CSV files, splits of Hugging Face. What is in doubt is refused.

The words are those of the `datasets` library, read without regard to case.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from flray.core.schema.errors import DataError, shown
from flray.data.splits import listed

WORDS = {
    "train": ("train", "training"),
    "test": ("test", "testing", "eval", "evaluation"),
    "validation": ("validation", "valid", "dev", "val"),
}
MATCHED = "validation_matched"  # MNLI: of the train genres
# words that may mean a split, and that nobody reads as one
LIKE_A_SPLIT = re.compile(
    r"(train(ing)?|test(ing)?|val(id(ation)?)?)(set|data|images|imgs?|x|y)?\d*|trn|tst|vld|dev|eval(uation)?|"
    r"holdout|heldout|unseen"
)
WORD = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*")
SHARD = re.compile(r"[-_. ]?\d+(-of-\d+)?")  # the end of the name of one of several files
PICTURES = {
    ".apng", ".avif", ".bmp", ".dib", ".gif", ".heic", ".heif", ".j2k", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg",
    ".jxl", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp",
}  # fmt: skip
TABLES = {".arrow", ".csv", ".json", ".jsonl", ".ndjson", ".parquet", ".tsv"}
# of `datasets` itself
IGNORED = {"README.md", "config.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json"}


class Chosen(NamedTuple):
    """The names of the train split and of the official other one (None: there is none), and of those not read."""

    train: str
    test: str | None
    unread: tuple[str, ...]


def kind_of(name: str) -> str | None:
    """`train`, `test` or `validation` of a name that certainly means it, as `Testing` does; else None."""
    return next((kind for kind, words in WORDS.items() if name.casefold() in words), None)


def choose_splits(
    names: Iterable[str], train: str | None, test: str | None, where: str, remedy: str = "options: {{{}: {}}}"
) -> Chosen:
    """The splits of `names` to read: those that the options `train` and `test` name, else train, and test, else
    validation.

    Raises `DataError` if two names mean the same split, and for other splits whose rows nobody would miss: all, if none
    is the test split, and more train splits. `remedy` has places for an option and a name.
    """
    names = list(names)
    first = train or _only(names, "train", "train", where, remedy) or "train"
    others = [name for name in names if name != first]
    if test is None:
        test = _only(others, "test", "test", where, remedy) or _only(others, "validation", "test", where, remedy)
        test = test or next((name for name in others if name == MATCHED), None)
    unread = tuple(name for name in others if name != test)
    # train2 and train_b begin as a train split does
    first_words = {name: next(iter(_words(name)), "").rstrip("0123456789") for name in unread}
    more = [name for name in unread if test is None or kind_of(first_words[name]) == "train"]
    if more and train is None and first in names:
        other = f"{remedy.format('test', more[0])}, or " if test is None else ""
        raise DataError(
            f"{where} has the splits {listed(names)}, and {shown(more[0])} would not be read; write "
            f"{other}{remedy.format('train', first)} to leave it out"
        )
    return Chosen(first, test, unread)


def _only(names: Sequence[str], kind: str, option: str, where: str, remedy: str) -> str | None:
    """The one name of a kind of split, None without one. Raises `DataError` for several."""
    found = [name for name in names if kind_of(name) == kind]
    if len(found) > 1:
        raise DataError(
            f"{where} has the splits {listed(found)}, which mean the same; choose one with "
            f"{remedy.format(option, found[0])}"
        )
    return found[0] if found else None


def _words(name: str) -> list[str]:
    """The words of a name, also of `TrainImages`, in small letters."""
    return [word.casefold() for word in WORD.findall(name)]


def has_configs(folder: Path) -> bool:
    """Whether the data set's own card names the files."""
    cards = [card for card in (folder / "README.md", folder / ".huggingface.yaml") if card.is_file()]
    return any(re.search(r"^configs:", card.read_text("utf-8", "replace"), re.MULTILINE) for card in cards)


def split_patterns(
    folder: Path, read: Mapping[str, Sequence[str]], certain: bool = False
) -> tuple[dict[str, list[str]] | None, list[str]]:
    """(patterns of the files of each split below `folder`, for `datasets`; None: those that it has found are right, the
    files that are not read).

    `read`: the files that `datasets` would read, by split; `certain`: the user names a split of it. Raises `DataError`
    for a file that may belong to a split and is in none, or in two.
    """
    if has_configs(folder):
        return None, []
    place = folder.resolve()
    found = {split: {PurePosixPath(os.path.relpath(file, place)) for file in files} for split, files in read.items()}
    known = set().union(*found.values())
    _check_metadata(folder, known)
    files = _files(folder, {file.suffix.casefold() for file in known})
    own, lost = _by_word(files), sorted(files - known)
    both = len(_by_word(known) or ()) > 1  # named train, and another
    others = lost if certain or (both and not any(map(_split_word, lost))) else []
    lost = [file for file in lost if file not in others]
    check_links(folder, lost)
    twice = sorted(file for file in known if sum(file in one for one in found.values()) > 1)
    sure = certain or len(found) > 1 or (own is not None and len(own) == 1)
    doubt = None if sure else _doubt(sorted(known))
    nested = None if certain else _nested(found.values() if own is None else [files])
    if not lost and not twice and doubt is None and nested is None:
        unread = list(map(str, others))
        if all(len(files) == len(set(files)) for files in read.values()):
            return None, unread
        once = {split: [glob.escape(str(file)) for file in sorted(files)] for split, files in found.items()}
        return own or once, unread  # `datasets` reads a file once for each of its patterns that fits
    if own is not None and nested is None:
        return own, []
    if own is not None:
        doubt = nested
    elif twice:
        doubt = f"{shown(str(twice[0]))} could be in several splits"
    elif lost:
        others_too = f" and {len(lost) - 1} more files" if len(lost) > 1 else ""
        doubt = f"{shown(str(lost[0]))}{others_too} would be in no split, unlike {shown(str(min(known)))}"
    else:
        doubt = doubt or nested
    first = "train" if "train" in found else min(found)
    more = "" if twice else f", or name the split as Hugging Face finds it, options: {{train: {first}}}"
    raise DataError(
        f"hf:{folder}: {doubt}; put all files into folders train and test (pictures: train/CLASS/picture.png){more}"
    )


def check_links(folder: Path, files: Iterable[PurePosixPath] | None = None) -> None:
    """Raises `DataError` for one of `files` (None: all) that `datasets` leaves out in silence: one in a folder that is
    a link, and a link to nothing."""
    place = folder.resolve()
    for file in sorted(_files(folder, PICTURES | TABLES) if files is None else files):
        if not (place / file).exists():
            raise DataError(
                f"hf:{folder}: {shown(str(file))} is a link to a file that is not there; fetch or remove it"
            )
        if (place / file).parent.resolve() != place / file.parent:
            raise DataError(
                f"hf:{folder}: {shown(str(file))} would not be read: its folder is a link; copy that folder here"
            )


def _check_metadata(folder: Path, files: Iterable[PurePosixPath]) -> None:
    """Raises `DataError` for a table of metadata above the folders of the splits, whose pictures get no row of it."""
    pictures = (file for file in files if file.suffix.casefold() in PICTURES)
    if any(kind_of(part) for file in pictures for part in file.parts[:1]):
        for table in (folder / f"metadata.{kind}" for kind in ("csv", "jsonl", "parquet")):
            if table.is_file() and b"file_name" in table.read_bytes():  # else it describes the data set, not pictures
                raise DataError(
                    f"hf:{folder}: {table.name} above the folders of the splits is not read; write its rows into "
                    f"train/{table.name} and test/{table.name}, or remove it"
                )


def _split_word(file: PurePosixPath) -> str | None:
    """The first folder, or the name of the file, that has a word which may mean a split."""
    parts = (*file.parts[:-1], file.name.partition(".")[0])
    return next((part for part in parts if any(map(LIKE_A_SPLIT.fullmatch, _words(part)))), None)


def _files(folder: Path, suffixes: Collection[str]) -> set[PurePosixPath]:
    """The files below `folder` that are data: of the `suffixes` that are read, other pictures beside pictures, and
    tables that have the name of a split. Hidden ones are none."""
    of_pictures = bool(PICTURES & set(suffixes))
    out, seen = set[PurePosixPath](), set[str]()
    for place, folders, files in os.walk(folder, followlinks=True):
        again = os.path.realpath(place) in seen  # a link to a folder above
        seen.add(os.path.realpath(place))
        folders[:] = [] if again else [name for name in folders if not name.startswith((".", "__"))]
        for name in [] if again else files:
            suffix = os.path.splitext(name)[1].casefold()
            named = suffix in TABLES and _kind_of_file(name) is not None
            if name.startswith(".") or name in IGNORED:
                continue
            if suffix in suffixes or named or (of_pictures and suffix in PICTURES):
                out.add(PurePosixPath(os.path.relpath(os.path.join(place, name), folder)))
    return out


def _kind_of_file(name: str) -> str | None:
    """The split that the name of a file or of a shard means."""
    stem = name.partition(".")[0]
    return kind_of(stem) or kind_of(SHARD.sub("", stem))


def _by_word(files: Collection[PurePosixPath]) -> dict[str, list[str]] | None:
    """Patterns of the files of each split, if a folder names the split of each file, or the name of the file does, all
    at one depth, and in one spelling. None: it is not certain."""
    patterns: dict[str, set[str]] = {}
    spellings: dict[str, set[str]] = {}
    depths = set()
    for file in files:
        parts = file.parts
        depth = next((place for place, name in enumerate(parts[:-1]) if kind_of(name)), None)
        kind = _kind_of_file(parts[-1]) if depth is None else kind_of(parts[depth])
        if kind is None or (depth is None and file.suffix.casefold() not in TABLES):
            return None
        depths.add(depth)
        spellings.setdefault(kind, set()).add("" if depth is None else parts[depth])
        pattern = str(file) if depth is None else "/".join(parts[: depth + 1])
        patterns.setdefault(kind, set()).add(glob.escape(pattern) + ("" if depth is None else "/**"))
    if len(depths) > 1 or any(len(names) > 1 for names in spellings.values()):
        return None
    return {kind: sorted(patterns[kind]) for kind in WORDS if kind in patterns}


def _doubt(files: Sequence[PurePosixPath]) -> str | None:
    """Why files that are all in one split may be several splits; None: no doubt."""
    for file in files if len(files) > 1 else ():
        if (word := _split_word(file)) is not None:
            return f"{shown(word)} looks like a split, and would be training samples with all others"
    classes: dict[str, PurePosixPath] = {}
    for file in files:
        if file.suffix.casefold() in PICTURES:
            other = classes.setdefault(file.parent.name, file.parent)
            if other != file.parent:
                return f"{shown(str(other))} and {shown(str(file.parent))} would be one class of training samples"
    return None


def _nested(splits: Iterable[Collection[PurePosixPath]]) -> str | None:
    """Why the last folders of pictures may be no classes: in one split they have other names in each folder, as
    patients in classes do. None: no doubt, as for the same classes in each domain, or with a table of metadata."""
    for files in splits:
        if any(file.stem == "metadata" and file.suffix.casefold() in TABLES for file in files):
            continue
        # by the split's folder and the folders below it: by its name the last folder
        last: dict[tuple[str, ...], dict[PurePosixPath, dict[str, PurePosixPath]]] = {}
        for file in sorted(files):
            parts = file.parent.parts
            depth = next((place for place, name in enumerate(parts) if kind_of(name)), -1) + 1
            if file.suffix.casefold() in PICTURES and len(parts) > depth:
                above = PurePosixPath(*parts[depth:-1])
                last.setdefault(parts[:depth], {}).setdefault(above, {}).setdefault(parts[-1], file.parent)
        for folders in last.values():
            one, *others = folders.values()
            for other in others:
                if one.keys() != other.keys():
                    pair = shown(str(min(one.values()))), shown(str(min(other.values())))
                    return f"the last folders of {pair[0]} and {pair[1]} would be the classes"
    return None
