"""Diagnostics by name. Adding one: its file, and one line here; from outside an entry point of the group
`flray.diagnostics`, or `--import my_module`, whose import calls `PROBES.add(...)`."""

from collections.abc import Iterable

from flray.core.schema.registry import Registry, address_of

PROBES = Registry(
    "diagnostic",
    {
        "divergence": "flray.metrics.divergence:Divergence",
        "latent_forgetting": "flray.metrics.latent_forgetting:LatentForgetting",
        "local_forgetting": "flray.metrics.local_forgetting:LocalForgetting",
        "conflict": "flray.metrics.conflict:GradientConflict",
        "heterogeneity": "flray.metrics.heterogeneity:Heterogeneity",
        "layers": "flray.metrics.layer_distance:LayerDistance",
        "propositions": "flray.metrics.propositions:Propositions",
        "memory": "flray.metrics.memory_drift:MemoryDrift",
        "landscape": "flray.metrics.landscape:Landscape",
    },
    base="flray.core.protocol.probe:Probe",
)


def table_names(names: Iterable[str]) -> list[str]:
    """The names of the probes' tables: a class by its import path has its own name, unless two have it."""
    given = list(names)
    own = [address_of(name).rpartition(":")[2].rpartition(".")[2] if ":" in name else name for name in given]
    return [short if own.count(short) == 1 else name for short, name in zip(own, given, strict=True)]
