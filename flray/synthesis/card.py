"""The output of a synthesis: a Parquet data set for each task, in the layout of the real one, and a card."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flray.files import atomic_write
from flray.synthesis.chunks import storing
from flray.synthesis.selection import Account, Sample
from flray.synthesis.settings import Synthesis
from flray.synthesis.templates import Template

SHOWN = 3  # samples of a label on the card


def write_task(folder: Path, task: str, template: Template, samples: Sequence[Sample]) -> None:
    """Write `FOLDER/TASK/train.parquet`: the task's own columns, `label` as a `ClassLabel` with its names, `idx`."""
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

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
