"""The first texts of pairs: sentences or questions from a text column of a data set."""

from __future__ import annotations

from collections.abc import Sequence

from flray.core.protocol.seeding import rng
from flray.core.schema.errors import DataError, nearest
from flray.data.data_config import DataConfig
from flray.data.sources.options import data_root
from flray.data.sources.readers import parquet_files, parquet_table
from flray.data.sources.table_sources import parquet_folder
from flray.synthesis.settings import CorpusConfig, Synthesis
from flray.synthesis.texts import sentences

QUESTION = "?"


def read_corpus(config: CorpusConfig, what: str) -> list[str]:
    """The texts of the column `config.column`.

    `what` is the section's name, for errors. Raises `DataError` for a missing data set, split or column.
    """
    data = DataConfig(source=config.source, root=config.root)
    folder = parquet_folder(data)
    if folder is None:
        root = data_root(data)
        raise DataError(
            f"{what}.source: no Parquet files in "
            + (f"{root / config.source}" if root else f"{config.source}: neither {what}.root nor FLRAY_DATA is set")
            + "; name a folder of Parquet files with texts"
        )
    table = parquet_table(parquet_files(folder, config.split)[0]["train"]).data
    if config.column not in table.column_names:
        raise DataError(
            f"{what}.column: {folder} has no column {config.column!r}{nearest(config.column, table.column_names)}"
        )
    texts = table.column(config.column).to_pylist()
    if not all(isinstance(text, str | None) for text in texts):
        raise DataError(
            f"{what}.column: {config.column!r} of {folder} holds {table.schema.field(config.column).type}, not text"
        )
    return [text for text in texts if text]


def usable(texts: Sequence[str], kind: str, words: tuple[int, int]) -> list[str]:
    """The distinct sentences in `texts` with `words` (fewest, most) words, in order: questions, or sentences that
    end with a full stop."""
    ending = QUESTION if kind == "questions" else "."
    candidates = (sentence for text in texts for sentence in sentences(" ".join(text.split())))
    return [s for s in dict.fromkeys(candidates) if s.endswith(ending) and words[0] <= len(s.split()) <= words[1]]


def start_sentences(config: Synthesis, corpora: dict[str, list[str]]) -> dict[tuple[str, str], list[str]]:
    """The first texts by number, for every task and stream that needs them: drawn by address, none twice.

    `corpora` are the texts of `sentences` and `questions`. Raises `DataError` if a corpus has too few: greedy texts
    with the same beginning would be equal.
    """
    beginnings = {}
    for task, template in config.templates().items():
        if template.sentences is None:
            continue
        own = usable(corpora[template.sentences], template.sentences, template.words)
        if len(own) < template.per_label:
            raise DataError(
                f"{template.sentences}: the corpus has {len(own)} different {template.sentences} of {template.words[0]}"
                f" to {template.words[1]} words, and {task} asks for {template.per_label}; name a larger corpus, or "
                "set per_label lower"
            )
        for stream in template.streams:
            order = rng(config.seed, "synthesize", task, stream, "sentences").permutation(len(own))
            beginnings[task, stream] = [own[place] for place in order[: template.per_label]]
    return beginnings
