"""A synthesis from its settings to a data set; generates only what does not exist yet.

The output is a Parquet data set for each task, in the layout of the real one, and a card.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flray.data.cache import digest, listing_digest
from flray.engine.progress import Progress, line, stage
from flray.files import atomic_write
from flray.rundir.lock import FolderLock
from flray.synthesis.chunks import TextChunk, Writer, plan, save, saved, storing
from flray.synthesis.selection import Account, Sample, select
from flray.synthesis.settings import Synthesis
from flray.synthesis.stand_in import make_stand_in
from flray.synthesis.templates import Template
from flray.synthesis.texts import USABLE, Text, read_corpus, start_sentences


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
        return own.name, digest(own.dtype, listing_digest(files, copies=False) if files else own.name)
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

    folder = Path(os.path.expanduser(name))
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
    with Progress(
        "synthesize", len(chunks), done, progress, unit="chunk", facts="{what}  {usable:.0%} usable".format_map
    ) as show:
        for chunk, texts in _written(config, missing, place):
            save(home, chunk, texts)
            count += len(texts)
            usable += sum(text.dropped == USABLE for text in texts)
            show({"what": f"{chunk.task} {chunk.stream}", "usable": usable / count})


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


SHOWN = 3  # samples of a label on the card


def write_task(folder: Path, task: str, template: Template, samples: Sequence[Sample]) -> None:
    """Write `FOLDER/TASK/train.parquet`: the task's own columns, `label` as a `ClassLabel` with its names, `idx`."""
    import datasets

    texts = {name: datasets.Value("string") for name in template.columns}
    features = datasets.Features(
        {**texts, "label": datasets.ClassLabel(names=list(template.labels)), "idx": datasets.Value("int32")}
    )
    columns: dict[str, list[Any]] = {
        name: [sample.texts[place] for sample in samples] for place, name in enumerate(template.columns)
    }
    columns["label"] = [sample.label for sample in samples]
    columns["idx"] = list(range(len(samples)))
    with storing(folder / task):
        (folder / task).mkdir(exist_ok=True)
        with atomic_write(folder / task / "train.parquet") as temporary:
            pq.write_table(pa.table(columns, schema=features.arrow_schema), temporary)


def write_card(
    folder: Path, config: Synthesis, command: str, accounts: Sequence[Account], chosen: Mapping[str, Sequence[Sample]]
) -> None:
    """Writes `FOLDER/README.md`; its header lets `datasets.load_dataset(FOLDER, TASK)` read a task."""
    generator = config.generator
    origin = (
        f"`{generator.name}` ({generator.dtype})" if generator.name else "a stand-in, made on the corpora (see below)"
    )
    lines = [
        "---",
        "configs:",
        *(f"- config_name: {task}\n  data_files: {{train: {task}/train.parquet}}" for task in chosen),
        "---",
        "# Synthetic text proxies",
        "",
        "Written by a language model from prompts with labels (`flray synthesize`, after SuperGen, arXiv:2202.04538). "
        "No sample is real; first texts of pairs are sentences of the corpora below.",
        "",
        f"* Generator: {origin}. Seed {config.seed}, batches of {config.batch_size}.",
    ]
    if generator.train is not None:
        lines.append(
            f"* The stand-in is a GPT-2 of {generator.train.layers} layers, trained {generator.train.steps} steps: it "
            "knows nothing of the labels, so these samples try out the machinery and teach nothing."
        )
    for name in ("sentences", "questions"):
        corpus = getattr(config, name)
        if corpus is not None:
            lines.append(f"* First {name}: `{corpus.source}`, column `{corpus.column}`, split `{corpus.split}`.")
    lines += [
        f"* Command: `{command}`; all settings are in `config.yaml`.",
        "* In a run: `proxy: {source: TASK, root: THIS_FOLDER, test_fraction: 0}` (all of it is for training).",
        "",
        "Log-probability: the mean over a text's tokens, averaged over the usable texts and over the chosen ones.",
        "",
        "| task | label | generated | dropped | duplicates | usable | chosen | log-probability | of the chosen |",
        "|---|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for a in accounts:
        why = ", ".join(f"{count} {reason}" for reason, count in a.dropped.items()) or "0"
        lines.append(
            f"| {a.task} | {a.label} | {a.generated} | {why} | {a.duplicates} | {a.usable} | {a.chosen} "
            f"| {a.score_usable:.3f} | {a.score_chosen:.3f} |"
        )
    for task, samples in chosen.items():
        labels = config.templates()[task].labels
        lines += ["", f"## {task}", ""]
        for number, label in enumerate(labels):
            own = [sample for sample in samples if sample.label == number][:SHOWN]
            lines += [f"* {label}: {' | '.join(json.dumps(text, ensure_ascii=False) for text in s.texts)}" for s in own]
    with storing(folder / "README.md"), atomic_write(folder / "README.md") as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
