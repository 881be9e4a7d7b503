"""Selects the generated texts that become proxy data: without duplicates, ranked, the same number for each label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from flray.core.protocol.seeding import rng
from flray.core.schema.errors import DataError
from flray.synthesis.templates import Template
from flray.synthesis.texts import USABLE, Text


class Sample(NamedTuple):
    """One sample: its text or its pair of texts, in the order of the task's columns, and its label's number."""

    texts: tuple[str, ...]
    label: int
    score: float


class Account(NamedTuple):
    """The texts of one label in numbers: `generated`, `dropped` by reason, `duplicates`, `usable` ones and `chosen`
    ones, and the mean of the texts' mean log-probabilities over the usable and over the chosen ones."""

    task: str
    label: str
    generated: int
    dropped: Mapping[str, int]
    duplicates: int
    usable: int
    chosen: int
    score_usable: float
    score_chosen: float


def distinct(samples: Sequence[Sample]) -> list[Sample]:
    """The samples without later duplicates of a text, in order."""
    samples_of: dict[tuple[str, ...], Sample] = {}
    for sample in samples:
        samples_of.setdefault(sample.texts, sample)
    return list(samples_of.values())


def ranked(samples: Sequence[Sample]) -> list[Sample]:
    """By mean log-probability, the likeliest first; equal ones stay in order."""
    order = np.argsort([-sample.score for sample in samples], kind="stable")
    return [samples[place] for place in order]


def select(
    task: str, template: Template, streams: Mapping[str, Sequence[Text]], quota: int, seed: int
) -> tuple[list[Sample], list[Account]]:
    """The samples of a task, alternating labels, and an account of all texts.

    Each label has `quota / labels` samples (rounded down), or the number of the label with the fewest: the result is
    balanced. They are the likeliest ones, with two exceptions: the template says that they are drawn (MNLI's neutral),
    and CoLA's, whose likeliest texts get the last label and whose least likely the first. Raises `DataError` for a
    label without any usable text.
    """
    pools = {label: ranked(pool) for label, pool in _pools(template, streams).items()}
    labels = template.labels
    different = {label: len(pools.get(label, pools[template.streams[0]])) for label in labels}
    if template.by_rank:
        pool = pools[template.streams[0]]
        half = len(pool) // 2
        pools = {labels[0]: pool[len(pool) - half :][::-1], labels[1]: pool[:half]}
    for label in labels:
        if not pools[label]:
            stream = label if label in streams else template.streams[0]
            why = Counter(text.dropped for text in streams[stream] if text.dropped).most_common()
            raise DataError(
                f"{task}: none of {len(streams[stream])} generated texts is usable for {label} "
                f"({', '.join(f'{reason}: {count}' for reason, count in why) or 'too few'}); use another generator, "
                "set per_label higher, or leave the task out"
            )
    share = min(quota // len(labels), *(len(pool) for pool in pools.values()))
    if not share:
        raise DataError(f"quota: {quota} samples of {task} are none for each of {len(labels)} labels; set it higher")
    chosen = {}
    for number, label in enumerate(labels):
        pool = pools[label]
        if label in template.random:
            order = rng(seed, "synthesize", task, label, "select").permutation(len(pool))
            pool = [pool[place] for place in order]
        chosen[label] = [sample._replace(label=number) for sample in pool[:share]]
    accounts = []
    for label in labels:
        texts = streams[label if label in streams else template.streams[0]]
        dropped = Counter(text.dropped for text in texts if text.dropped != USABLE)
        duplicates = len(texts) - dropped.total() - different[label]
        means = [float(np.mean([sample.score for sample in part])) for part in (pools[label], chosen[label])]
        counts = (duplicates, len(pools[label]), len(chosen[label]))
        accounts.append(Account(task, label, len(texts), dict(dropped.most_common()), *counts, *means))
    return [sample for turn in zip(*chosen.values(), strict=True) for sample in turn], accounts


def _pools(template: Template, streams: Mapping[str, Sequence[Text]]) -> dict[str, list[Sample]]:
    """The usable, distinct samples of every label; CoLA's labels share one stream."""
    pools = {}
    for stream, texts in streams.items():
        usable_texts = [text for text in texts if text.dropped == USABLE]
        pair = len(template.columns) == 2
        pools[stream] = distinct([Sample((t.first, t.text) if pair else (t.text,), -1, t.score) for t in usable_texts])
        if template.later is not None:
            pools[template.later] = distinct([Sample((t.first, t.later), -1, t.score) for t in usable_texts])
    return pools
