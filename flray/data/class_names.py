"""The owner of class names: labels of several places (files, splits, sets of a union) as ids of one list of classes.

Where there are names, ids are compared by them and never by their numbers.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from flray.core.schema.errors import DataError, nearest, shown
from flray.data.cache import Array
from flray.data.splits import in_line


class Labels(NamedTuple):
    """The labels `ids` [n] (integers) of one `place`, such as a file or a split.

    `names`: the class of each id; None: ids without names. `closed`: the names are declared, so there are no others;
    else they are the texts of the samples. `row(i)` says where sample i is.
    """

    place: str
    ids: Array
    names: Mapping[int, str] | None = None
    closed: bool = True
    row: Callable[[int], str] = "sample {}".format

    def where(self, id_: int) -> str:
        """The place of a class: the declaration, or the first sample."""
        return self.place if self.closed else self.row(int(np.flatnonzero(self.ids == id_)[0]))


class Owned(NamedTuple):
    """The labels of each place as int64 numbers of `classes`, and lines on what was mapped (for `Splits.reading`)."""

    ids: list[Array]
    classes: tuple[str, ...]
    lines: tuple[str, ...]


def owned(places: Sequence[Labels], what: str, unite: bool = False) -> Owned:
    """The labels of all `places` (train first) as numbers of one list of classes.

    The list is that of the first place whose declared names hold the names of all others. `unite`: the names of all
    places, in the order in which they appear. No declared names: the texts, sorted. No names at all: the values that
    occur, in their order. Ids without names beside declared names are numbers of the list.

    Raises `DataError`, which begins with `what` and names the place and the class: for names that the list does not
    have, for names that differ in case or spaces only, for ids without a name, and for ids that may be names.
    """
    places = _with_names(places, what)
    named = [place for place in places if place.names is not None]
    check_alike(named, what)
    if not named:
        return _values(places)
    if all(place.closed and place.names == named[0].names for place in named):
        names = named[0].names or {}
        classes = tuple(names[id_] for id_ in sorted(names))
        numbers = [{id_: number for number, id_ in enumerate(sorted(names))}] * len(named)
    else:
        classes = _list_of(named, what, unite)
        number = {name: place for place, name in enumerate(classes)}
        numbers = [{id_: number[name] for id_, name in (place.names or {}).items()} for place in named]
    table = dict(zip(map(id, named), numbers, strict=True))
    ids, lines = [], []
    for place in places:
        own = table.get(id(place))
        if own is None:
            _check_bare(place, named, classes, what)
            _check_numbers(places, classes, what)
            lines.append(f"{place.place}: ids without names, read as numbers of the classes of {named[0].place}")
            own = {number: number for number in range(len(classes))}
        elif place.closed and any(id_ != number for id_, number in own.items()):
            lines.append(f"{place.place}: ids mapped by name from its own order, {in_line(_ordered(place))}")
        ids.append(_mapped(place, own, what))
    return Owned(ids, classes, tuple(lines))


def _with_names(places: Sequence[Labels], what: str) -> list[Labels]:
    """Names that only repeat the ids ("0", "1", ...) are none beside names in words. Raises `DataError` if their
    number differs."""
    words = next((p for p in places if any(not name.isdecimal() for name in (p.names or {}).values())), None)
    if words is None:
        return list(places)
    out = []
    for place in places:
        if place.names is None or not place.closed or any(name != str(id_) for id_, name in place.names.items()):
            out.append(place)
            continue
        if len(place.names) != len(words.names or {}):
            raise DataError(
                f"{what}: {place.place} has {len(place.names)} classes without names and {words.place} "
                f"{len(words.names or {})} ({in_line(_ordered(words))}); give them the same classes, by name"
            )
        out.append(place._replace(names=None))
    return out


def _ordered(place: Labels) -> list[str]:
    names = place.names or {}
    return [names[id_] for id_ in sorted(names)]


def _values(places: Sequence[Labels]) -> Owned:
    values, inverse = np.unique(np.concatenate([place.ids for place in places]), return_inverse=True)
    ends = np.cumsum([len(place.ids) for place in places])[:-1]
    ids = [part.astype(np.int64) for part in np.split(inverse, ends)]
    classes = tuple(str(value) for value in values)
    count = len(classes)
    moved = classes != tuple(map(str, range(count)))
    lines = (f"classes: the ids {in_line(classes)} are numbered 0 to {count - 1}",) if moved else ()
    return Owned(ids, classes, lines)


def _list_of(named: Sequence[Labels], what: str, unite: bool) -> tuple[str, ...]:
    """The one list of classes. Raises `DataError` if there is none."""
    declared = [place for place in named if place.closed]
    for place in declared:
        twice = _ordered(place)
        if len(set(twice)) < len(twice):
            name = next(name for name in twice if twice.count(name) > 1)
            raise DataError(
                f"{what}: {place.place} has two classes {name!r} and other places have other names or another order; "
                "give each class a name of its own"
            )
    texts = sorted({name for place in named if not place.closed for name in (place.names or {}).values()})
    if not declared or unite:
        listed = [name for place in declared for name in _ordered(place)]
        return tuple(dict.fromkeys([*listed, *texts]))
    every = {name for place in named for name in (place.names or {}).values()}
    owner = next((place for place in declared if every <= set(_ordered(place))), None)
    if owner is not None:
        return tuple(_ordered(owner))
    known = _ordered(declared[0])
    place, id_, name = next(
        (place, id_, name) for place in named for id_, name in sorted((place.names or {}).items()) if name not in known
    )
    raise DataError(
        f"{what}: {place.where(id_)} has the class {shown(name)}, which {declared[0].place} does not have "
        f"({in_line(known)}){nearest(name, known)}; use the same names everywhere, or leave such samples out"
    )


def check_alike(texts: Sequence[Labels], what: str, case: bool = True) -> None:
    """Raises `DataError` for two texts that differ in `case`, in spaces or in the form of their letters only."""
    first: dict[str, tuple[str, Labels, int]] = {}
    for place in texts:
        for id_, name in (place.names or {}).items():
            plain = " ".join(unicodedata.normalize("NFKC", name).split())
            key = plain.casefold() if case and len(plain) > 1 else plain  # letters are classes of their own
            other, owner, number = first.setdefault(key, (name, place, id_))
            if other != name:
                there = f"{shown(other)} in {owner.where(number)}"
                raise DataError(
                    f"{what}: {shown(name)} in {place.where(id_)} and {there} differ in "
                    f"{'case, ' if case else ''}spaces or form only; write them alike"
                )


def _check_bare(place: Labels, named: Sequence[Labels], classes: Sequence[str], what: str) -> None:
    """Raises `DataError` unless ids without names can be numbers of `classes`."""
    for other in named:
        if not other.closed:
            raise DataError(f"{what}: {place.place} holds ids and {other.place} names; write them alike")
        if tuple(_ordered(other)) != tuple(classes):
            raise DataError(
                f"{what}: {place.place} has ids without names, and {named[0].place} and {other.place} number their "
                "classes differently, so that the ids are not clear; give them names, too"
            )


def _check_numbers(places: Sequence[Labels], classes: Sequence[str], what: str) -> None:
    """Raises `DataError` if the ids of the places without names may be the names themselves, as 1, 2, 3 of classes
    `1` to `4`. An id that is no name, such as 0, is a number of the list, and so are the others."""
    bare = [place for place in places if place.names is None]
    ids = np.unique(np.concatenate([place.ids for place in bare])).tolist()
    number = {int(name): place for place, name in enumerate(classes) if name.isdecimal()}
    if number.keys() >= set(ids) and any(number[id_] != id_ for id_ in ids):
        raise DataError(
            f"{what}: {bare[0].place} has the ids {in_line(list(map(str, ids)))} without names, which may be the names "
            f"of classes ({in_line(classes)}) or their numbers, from 0; give them names, too"
        )


def _mapped(place: Labels, own: Mapping[int, int], what: str) -> Array:
    """The ids as the numbers that `own` gives them. Raises `DataError` for an id that it does not have."""
    known = np.array(sorted(own), np.int64)
    at = np.minimum(np.searchsorted(known, place.ids), len(known) - 1)
    wrong = np.flatnonzero(known[at] != place.ids)
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{what}: label {place.ids[row]} in {place.row(row)} is none of the {len(known)} classes, {known[0]} to "
            f"{known[-1]}; remove such samples, or name their class"
        )
    return np.array([own[int(id_)] for id_ in known], np.int64)[at]
