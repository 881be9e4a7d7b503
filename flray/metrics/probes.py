"""Diagnostics by name. Adding one: its file, and one line here; from outside an entry point of the group
`flray.diagnostics`, or `--import my_module`, whose import calls `PROBES.add(...)`."""

from flray.core.schema.registry import Registry

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
