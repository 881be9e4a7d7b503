"""Proxy data from a language model: `flray synthesize`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from flray.cli.arguments import own_modules
from flray.cli.interrupts import interruptible
from flray.cli.output import print_rows, suggest, write
from flray.engine.progress import stage
from flray.log import LOGGER


def synthesize(
    config: Annotated[Path, typer.Argument(help="YAML file")],
    out: Annotated[Path, typer.Option(help="folder of the result: TASK/train.parquet a task, README.md, chunks/")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="overrides: preset, generator, tasks, quota, resources.executor"),
    ] = None,
) -> None:
    """Write labelled text with a language model from prompts, for the server of FedMemo (SuperGen, arXiv:2202.04538).

    `flray synthesize configs/fedmemo/synthesize.yaml generator=gpt2 tasks=sst2,mnli per_label=1000 --out runs/proxies`

    The same command continues where it stopped. The bytes are the same with any number of actors (`resources.actors`),
    and without Ray (`resources.executor=local`). Then, in a run:

    `proxy: {source: sst2, root: runs/proxies, test_fraction: 0}`

    Keys of CONFIG, with their defaults:

    * `generator`: NAME or folder of a causal language model of Hugging Face, on this machine (nothing is downloaded);
      or `{train: {layers: 2, hidden: 128, steps: 300}}`, a small one that is trained on the corpora, for tests
    * `tasks`: of cola, mnli, mrpc, qnli, qqp, rte, sst2; each by its name, or with values that differ from the paper:
      `{name: sst2, temperature: [0.5], top_k: 10, per_label: 25000, max_new_tokens: 40, prompts: {positive: {before:
      "Rating: 5.0", penalty: 1.2}}, control: Reviews}`
    * `sentences`, `questions`: corpora of the first texts of pairs, `{source: boolq, column: passage, split: train,
      root: FOLDER}`; Parquet files below `FLRAY_DATA` or root
    * `quota` 6000: samples a task in the result, as many of each label; `per_label`, `max_new_tokens`: for all tasks
    * `batch_size` 32 (another one rounds differently, so texts may differ), `seed` 0
    * `resources`: `{executor: ray, actors: auto, num_cpus: 1, num_gpus: 0, address: null}`; executor local: no Ray
    """
    own_modules()
    from flray.synthesis.settings import load_synthesis

    synthesis = load_synthesis(config, overrides or [])
    with stage("loading torch"):
        from flray.synthesis.synthesize import synthesize as run
    command = shlex.join(["flray", "synthesize", str(config), *(overrides or []), "--out", str(out)])
    with interruptible(out, "the same command continues"):
        accounts = run(synthesis, out, progress=True, command=command)
    print_rows(
        [
            {
                "task": a.task, "label": a.label, "generated": a.generated, "usable": a.usable, "chosen": a.chosen,
                "log-probability": round(a.score_chosen, 3),
            }
            for a in accounts
        ],
        f"{sum(a.chosen for a in accounts)} samples",
    )  # fmt: skip
    few = sorted({a.task for a in accounts if a.chosen < synthesis.quota // len(synthesis.templates()[a.task].labels)})
    if few:
        LOGGER.info(
            f"note: fewer than quota={synthesis.quota} samples of {', '.join(few)}; README.md counts the dropped ones"
        )
    write(f"results: {out}   (README.md is the card)")
    suggest([f"in a run: proxy: {{source: {accounts[0].task}, root: {out}, test_fraction: 0}}"])
