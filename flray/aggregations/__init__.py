"""Rules of aggregation, one file each: how the server makes the next model of the clients' models. Adding one: its
file, its line here, its row in the contracts."""

from flray.core.schema.registry import Registry

AGGREGATIONS = Registry(
    "aggregation",
    {
        "mean": "flray.aggregations.mean:Mean",
        "fedavgm": "flray.aggregations.fedavgm:FedAvgM",
        "fedadam": "flray.aggregations.fedadam:FedAdam",
        "fedyogi": "flray.aggregations.fedyogi:FedYogi",
        "fedadagrad": "flray.aggregations.fedadagrad:FedAdagrad",
        "feddf": "flray.aggregations.feddf:FedDF",
        "fedmemo": "flray.aggregations.fedmemo:FedMemo",
        "median": "flray.aggregations.median:Median",
        "trimmed_mean": "flray.aggregations.trimmed_mean:TrimmedMean",
        "krum": "flray.aggregations.krum:Krum",
        "multi_krum": "flray.aggregations.multi_krum:MultiKrum",
        "fedasync": "flray.aggregations.fedasync:FedAsync",
        "geometric_median": "flray.aggregations.geometric_median:GeometricMedian",
    },
    base="flray.core.protocol.aggregation:Aggregation",
)
