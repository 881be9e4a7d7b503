"""`flray plan`: what an experiment or a sweep takes on a cluster, before it is paid for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flray.cli.arguments import Format, Imports, Overrides, import_modules, own_modules
from flray.cli.output import check_format, print_rows, write, write_json
from flray.core.schema.errors import ConfigError
from flray.engine.progress import stage

if TYPE_CHECKING:
    from flray.config.experiment import Experiment
    from flray.planning.machines import Cluster
    from flray.planning.measured import Measured
    from flray.tuning.config import Sweep


def plan(
    config: Annotated[Path, typer.Argument(help="YAML file of an experiment, or of a sweep")],
    overrides: Overrides = None,
    nodes: Annotated[str, typer.Option(help="nodes of the cluster; by comma: a row for each number")] = "1",
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", min=0, help="GPUs of a node")] = 0,
    cpus_per_node: Annotated[
        int | None, typer.Option("--cpus-per-node", min=1, help="CPUs of a node; default: this machine's cores")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="seconds by counted FLOPs and this GPU's stated peak: a100, h100, l4, t4 ...")
    ] = None,
    utilisation: Annotated[
        float | None, typer.Option(min=0.01, max=1.0, help="share of the GPU's peak that local steps reach")
    ] = None,
    network: Annotated[str, typer.Option(help="of a node, a second each way: 100gbit, 12.5gb")] = "10gbit",
    measured: Annotated[
        Path | None, typer.Option(help="file that --measure wrote on a machine of the kind; default: measured here")
    ] = None,
    measure: Annotated[Path | None, typer.Option(help="write what was measured here into this file")] = None,
    seconds: Annotated[
        float, typer.Option(min=0.0, help="how long to measure, after two rounds; 0: count alone, which needs --gpu")
    ] = 10.0,
    together: Annotated[
        int | None, typer.Option(min=1, help="processes that train in every second timed round; default: one a core")
    ] = None,
    format: Format = "table",
    imports: Imports = None,
) -> None:
    """Actors, memory, bytes, seconds and cost of a run on a cluster, and its bottleneck. Starts no Ray.

    Two clients train a few batches here, or on the machine of --measured, alone and beside other processes. With --gpu
    and without --measure or --measured FLOPs and bytes are counted, nothing is timed. Every assumption is printed.
    """
    check_format(format)
    numbers = _numbers(nodes)
    if measured is not None and measure is not None:
        raise ConfigError("--measured reads a file and --measure writes one: give one of them")
    if gpu is not None and not gpus_per_node:
        raise ConfigError(f"--gpu {gpu}: also say how many a node has, for example --gpus-per-node 8")
    if utilisation is not None and gpu is None:
        raise ConfigError("--utilisation is the share of a stated peak: it needs --gpu NAME")
    from flray.config.declared import check_declared
    from flray.planning.machines import UTILISATION, Cluster, gpu_of, network_rate

    rate = network_rate(network)
    kind = None if gpu is None else (gpu_of(gpu) and gpu.lower(), utilisation or UTILISATION)
    own_modules()
    import_modules(imports)
    check_declared(lambda: _load(config, overrides or [], imports or []))
    with stage("loading torch"):
        from flray.engine.threads import cores
        from flray.planning.measured import Measured

        if measure is not None:
            Measured.check_out(measure)
        read = None if measured is None else Measured.read(measured)
        source = _load(config, overrides or [], imports or [])
    clusters = [Cluster(n, gpus_per_node, cpus_per_node or cores(), rate) for n in numbers]
    _write(config, source, read, measured, measure, (seconds, together), clusters, kind, format)


def _numbers(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.isdigit() and int(word) for word in words):
        raise ConfigError(f"--nodes {text}: give numbers from 1, with commas, e.g. 1,8,100")
    return [int(word) for word in words]


def _load(config: Path, overrides: list[str], imports: list[str]) -> Experiment | Sweep:
    """The sweep of a file with a section `experiment`, else the experiment. Raises `ConfigError` for a grid."""
    from flray.config.loader import load_config
    from flray.core.schema.plain import read
    from flray.tuning.sweep_file import load_sweep

    content = read(config.read_text(errors="replace"), str(config)) if config.is_file() else None
    if isinstance(content, dict) and "experiment" in content:
        return load_sweep(config, overrides, imports)
    cells = load_config(config, overrides, imports)
    if len(cells) > 1:
        raise ConfigError(f"flray plan takes one experiment, these overrides make {len(cells)}; plan them one by one")
    return cells[0]


def _write(
    config: Path,
    source: Experiment | Sweep,
    measured: Measured | None,
    path: Path | None,
    out: Path | None,
    timing: tuple[float, int | None],
    clusters: list[Cluster],
    gpu: tuple[str, float] | None,
    format: str,
) -> None:
    """Measures, plans for every cluster, and prints."""
    from flray.engine.prepare import build_data, build_scenario
    from flray.planning.measure import measure
    from flray.planning.plan import plan as planned
    from flray.planning.sweeps import sweep_plan, trial_of
    from flray.tuning.config import Sweep

    sweep = source if isinstance(source, Sweep) else None
    trials = [trial_of(source, cluster) for cluster in clusters] if isinstance(source, Sweep) else []
    experiment = trials[0].experiment if trials else source
    assert not isinstance(experiment, Sweep)
    if measured is not None and path is not None:
        measured.check(experiment, path)
    else:
        seconds, together = timing
        timed = seconds > 0 and (gpu is None or out is not None)
        with stage("measuring two clients" if timed else "counting a local step"):
            measured = measure(experiment, seconds, timed, on_gpu=gpu is not None, together=together)
        if out is not None:
            measured.write(out)
    dataset, _, private = build_data(experiment)
    scenario = build_scenario(experiment, dataset, private)
    table, parts, assumed = [], [], list[str]()
    for i, cluster in enumerate(clusters):
        if sweep is not None:
            experiment, taken = trials[i].experiment, cluster._replace(nodes=trials[i].nodes)
        else:
            taken = cluster
        one = planned(experiment, scenario, dataset, measured, taken, gpu)
        row, rows = (one.row, one.rows)
        if sweep is not None:
            row, more = sweep_plan(sweep, trials[i], one, cluster)
            kept = [each for each in rows if each["what"] not in ("cost", "change")]
            rows = [{**each, "what": f"a trial: {each['what']}"} for each in kept] + more
        table.append(row)
        parts.append((f"{config}: {cluster.nodes} nodes", rows))
        assumed = one.assumptions
    if format == "json":
        plans: list[dict[str, Any]] = [{**row, "rows": rows} for row, (_, rows) in zip(table, parts, strict=True)]
        write_json({"plans": plans, "assumptions": assumed, "measured": measured.model_dump()})
        return
    if len(table) == 1:
        print_rows(parts[0][1], parts[0][0])
    else:
        print_rows([shown(row) for row in table], str(config))
        print_rows(parts[-1][1], parts[-1][0])
    for sentence in assumed:
        write(f"* {sentence}")


def shown(row: dict[str, Any]) -> dict[str, str]:
    """A row of the table of node numbers, in words."""
    from flray.engine.progress import size
    from flray.planning.plan import duration

    texts = {}
    for name, value in row.items():
        if name.endswith("_s"):
            texts[name.removesuffix("_s").replace("_", " ")] = duration(value)
        elif name.startswith("bytes_"):
            texts[name.removeprefix("bytes_")] = size(value)
        elif name in ("gpu_hours", "core_hours"):
            texts[name.replace("_", " ")] = f"{value:.3g}"
        else:
            texts[name.replace("_", " ")] = str(value).replace("_", " ")
    return texts
