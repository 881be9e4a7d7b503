"""A synthesis from its settings to a data set; generates only what does not exist yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flray.data.cache import digest, listing_digest
from flray.engine.progress import Progress, line, stage
from flray.files import atomic_write
from flray.rundir.lock import FolderLock
from flray.synthesis.card import write_card, write_task
from flray.synthesis.chunks import TextChunk, Writer, plan, save, saved, storing
from flray.synthesis.selection import Account, select
from flray.synthesis.settings import Synthesis
from flray.synthesis.stand_in import make_stand_in
from flray.synthesis.start_sentences import read_corpus, start_sentences
from flray.synthesis.texts import USABLE, Text


def synthesize(
    config: Synthesis, folder: str | Path, *, progress: bool = False, command: str = "flray synthesize"
) -> list[Account]:
    """Generates texts, and writes the chosen ones as `FOLDER/TASK/train.parquet`, with a card. Returns an account for
    each task and label.

    Texts are saved in `FOLDER/chunks` at once. The same call continues after an interruption, with any number of
    actors, with or without Ray, and gives the same bytes. `command` is for the card. Raises `FlrayError`s.
    """
    folder = Path(folder)
    with storing(folder):
        (folder / "chunks").mkdir(parents=True, exist_ok=True)
    lock = FolderLock.acquire(folder)
    try:
        with storing(folder / "config.yaml"), atomic_write(folder / "config.yaml") as temporary:
            temporary.write_text(config.yaml(), encoding="utf-8")
        corpora = {
            name: read_corpus(corpus, name)
            for name in ("sentences", "questions")
            if (corpus := getattr(config, name)) is not None
        }
        starts = start_sentences(config, corpora)
        place, contents = _generator(config, corpora, folder, progress)
        chunks = plan(config, starts, contents)
        _generate(config, chunks, place, folder, progress)
        accounts, chosen = [], {}
        for task, template in config.templates().items():
            streams: dict[str, list[Text]] = {name: [] for name in template.streams}
            for chunk in chunks:
                if chunk.task == task:
                    streams[chunk.stream] += saved(folder / "chunks", chunk) or []
            chosen[task], accounts_of = select(task, template, streams, config.quota, config.seed)
            write_task(folder, task, template, chosen[task])
            accounts += accounts_of
        write_card(folder, config, command, accounts, chosen)
        return accounts
    finally:
        lock.release()


def _generator(
    config: Synthesis, corpora: Mapping[str, Sequence[str]], folder: Path, progress: bool
) -> tuple[str, str]:
    """(the place of the language model, a digest of it); trains a stand-in if it does not exist yet."""
    own = config.generator
    if own.name is not None:
        home = _home(own.name)
        files = sorted(str(path) for path in home.iterdir() if path.is_file()) if home is not None else []
        return own.name, digest(own.dtype, listing_digest(files) if files else own.name)
    assert own.train is not None
    texts = list(corpora.values())
    contents = digest(own.dtype, own.train.model_dump(), texts, config.seed)
    home = folder / f"generator-{contents[:12]}"
    if not home.is_dir():
        with stage("making a stand-in for the language model", progress), storing(home):
            make_stand_in(own.train, texts, config.seed, home, partial(line, enabled=progress))
    return str(home.absolute()), contents


def _home(name: str) -> Path | None:
    """The folder of a language model: the named one, or that of its revision in the local hub cache."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    try:
        cached = try_to_load_from_cache(name, "config.json")
    except HFValidationError:  # no name of a repository either: loading it will say so
        return None
    return Path(cached).parent if isinstance(cached, str) else None


def _generate(config: Synthesis, chunks: Sequence[TextChunk], place: str, folder: Path, progress: bool) -> None:
    home = folder / "chunks"
    missing = [chunk for chunk in chunks if saved(home, chunk) is None]
    if not missing:
        return
    done = len(chunks) - len(missing)
    count = usable = 0
    with Progress("synthesize", len(chunks), done, progress, unit="chunk", facts=_facts) as show:
        for chunk, texts in _written(config, missing, place):
            save(home, chunk, texts)
            count += len(texts)
            usable += sum(text.dropped == USABLE for text in texts)
            show({"what": f"{chunk.task} {chunk.stream}", "usable": usable / count})


def _facts(row: Mapping[str, Any]) -> str:
    return f"{row['what']}  {row['usable']:.0%} usable"


def _written(config: Synthesis, chunks: Sequence[TextChunk], place: str) -> Iterator[tuple[TextChunk, list[Text]]]:
    """Chunks with their texts, in the order in which they are finished."""
    resources = config.resources
    if resources.executor == "local":
        writer = Writer(config, place)
        yield from ((chunk, writer(chunk)) for chunk in chunks)
        return
    from flray.engine.ray.spread import spread

    work = partial(Writer, config, place)
    yield from spread(
        work,
        chunks,
        resources.actors,
        resources.num_cpus,
        resources.num_gpus,
        resources.address,
        resources.insecure_ray,
    )
