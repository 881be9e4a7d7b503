"""What `flray run | resume | pretrain` and a grid say at their end: results on stdout, what to try next on stderr."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flray.cli.output import print_comparison, show, suggest, tables_by_mode, write
from flray.files import quoted

if TYPE_CHECKING:
    from flray.rundir.reader import Run


def report(folder: Path) -> None:
    """The last accuracies of a run, where its results are, and what to try next."""
    from flray.results.essentials import privacy
    from flray.rundir.reader import load
    from flray.rundir.uri import join

    run = load(folder)
    _write_accuracies(run)
    show(*tables_by_mode(run))
    _write_memory(run)
    if spent := privacy(run):
        write(f"privacy: {spent}")
    if run.status.startswith("diverged"):
        write(run.status)
    tasks, drift = ["tasks"] * (run.experiment.num_tasks > 1), ["drift"] * (run.experiment.drift is not None)
    figures = ["curves", *tasks, *drift]
    look = f", tensorboard --logdir {quoted(folder / 'tensorboard')}" if importlib.util.find_spec("tensorboard") else ""
    write(f"results: {folder}   (pandas.read_parquet({f'{folder}/rounds'!r}){look})")
    if run.experiment.storage is not None:
        write(f"storage: {join(run.experiment.storage, folder.absolute().name)}")
    typed = quoted(folder)
    config = quoted(folder / "config.yaml")
    commands = [
        f"flray run {config} algorithm={other_algorithm(run.experiment)}   (flray list algorithms)",
        *(f"flray figure {kind} {typed} --out {kind}.png" for kind in figures),
    ]
    if run.status.startswith("diverged"):
        commands.insert(0, _with_less(run, folder))
    else:
        commands[:0] = _longer(run, max(run.experiment.rounds, 1))
    suggest(commands)


def _write_accuracies(run: Run) -> None:
    """The last test of the global model, and those of the clients on their own shares."""
    from flray.core.protocol.clock import task_name

    split = run.experiment.evaluate.split
    tested = run.rounds.dropna(subset=f"{split}/acc") if f"{split}/acc" in run.rounds else run.rounds.iloc[:0]
    if len(tested):
        last = tested.iloc[-1]
        what = "test" if split == "test" else "validation"
        when = f"round {int(last['done'])}"
        if run.experiment.num_tasks > 1 and "task" in tested.dropna(axis="columns"):
            when += f", {task_name(int(last['task']))}"
        loss = f", loss {last[f'{split}/loss']:.4f}" if f"{split}/loss" in last else ""
        write(f"{when}: {what} accuracy {last[f'{split}/acc']:.2%}{loss}")
    personal = run.last_personal
    if len(personal):
        for epochs, rows in personal.groupby("finetune_epochs"):
            accuracies = rows["test/acc"].dropna()
            spread = f"{accuracies.mean():.2%} +- {accuracies.std(ddof=0):.2%} over {len(accuracies)} clients"
            write(f"clients on their own test shares, {epochs} epochs of fine-tuning: {spread}")


def _longer(run: Run, rounds: int) -> list[str]:
    """The command that resumes a run of `rounds` rounds for twice as many; none over tasks, where it would be
    another experiment, and where `resume` would refuse it: a noise that was solved for an epsilon, and a file of
    cohorts, hold for the rounds that were planned."""
    from flray.results.tables import settings

    config = settings(run)
    noises = [step for step in json.loads(config.get("uplink") or "[]") if step["name"] == "gaussian"]
    solved = any(step.get("epsilon") and step.get("where") != "client" for step in noises)
    if config.get("tasks.num_tasks", 1) > 1 or solved or config.get("cohort.from"):
        return []
    return [f"flray resume {quoted(run.folder)} rounds={2 * rounds}"]


def _with_less(run: Run, folder: Path) -> str:
    """The command that repeats a diverged run with a tenth of its learning rate."""
    lr = getattr(run.experiment.algorithm, "lr", 0.1) / 10
    return f"flray run {quoted(folder / 'config.yaml')} algorithm.lr={lr:.3g}   (a tenth)"


def other_algorithm(experiment: Any) -> str:
    from flray.config.experiment import algorithm_name

    if algorithm_name(experiment.algorithm) != "fedavg":
        return "fedavg"
    return "fedproj" if experiment.proxy is not None else "fedsol"


def report_grid(frame: Any, root: Path) -> None:
    from flray.results.tables import keys_of, settings_of
    from flray.rundir.reader import Run as RunReader

    print_comparison(frame)
    write(f"results: {root}: {len(frame)} run folders")
    first, typed = frame["folder"].iloc[0], quoted(root)
    figures = ["curves"] + ["tasks"] * ("ACC" in frame) + ["drift"] * ("drift/acc_end" in frame)
    compared = []
    if any(frame[key].nunique(dropna=False) > 1 for key in keys_of(frame)):
        figures.append("ablation")
        if frame["seed"].nunique() > 1:
            names = frame["algorithm"]
            setting = names.iloc[0] if settings_of(frame)["algorithm"].is_unique else first
            compared = [f"flray compare {typed} --against {quoted(setting)}   (paired differences on the same seeds)"]
    lost = frame[frame["status"].str.startswith("diverged")]
    if len(lost):
        compared.append(_with_less(RunReader(lost["folder"].iloc[0]), Path(lost["folder"].iloc[0])))
    drawn = (f"flray figure {kind} {typed} --out {kind}.png" for kind in figures)
    suggest([*drawn, *compared, *_longer(RunReader(first), max(frame["done"].max(), 1))])


def _write_memory(run: Run) -> None:
    """What the algorithm stores of earlier tasks' samples, and its bytes on clients and server."""
    from flray.engine.progress import size

    if "kept/clients" not in run.tasks or not len(rows := run.tasks.dropna(subset="kept/clients")):
        return
    row = rows.iloc[-1]
    clients, samples = int(row["kept/clients"]), int(row["kept/samples"])
    where = [f"{clients} clients: states of {size(row['kept/client_bytes'])}"] if clients else []
    where += [f"{samples} samples of {size(row['kept/sample_bytes'])}"] if samples else []
    where += [f"server: {size(row['kept/server_bytes'])} besides the model"]
    write(f"kept:    {run.experiment.algorithm.keeps} ({', '.join(where)})")
