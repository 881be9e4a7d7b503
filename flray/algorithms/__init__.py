"""Federated algorithms, one file each. Adding one: its file, its line, group and name here, its row in contracts."""

from flray.core.schema.registry import Registry, readable

ALGORITHMS = Registry(
    "algorithm",
    {
        "fedavg": "flray.algorithms.fedavg:FedAvg",
        "fedprox": "flray.algorithms.fedprox:FedProx",
        "fednova": "flray.algorithms.fednova:FedNova",
        "scaffold": "flray.algorithms.scaffold:Scaffold",
        "feddyn": "flray.algorithms.feddyn:FedDyn",
        "fedavgm": "flray.algorithms.fedopt:FedAvgM",
        "fedadam": "flray.algorithms.fedopt:FedAdam",
        "fedyogi": "flray.algorithms.fedopt:FedYogi",
        "fedadagrad": "flray.algorithms.fedopt:FedAdagrad",
        "perfedavg": "flray.algorithms.perfedavg:PerFedAvg",
        "fedbabu": "flray.algorithms.fedbabu:FedBABU",
        "knnper": "flray.algorithms.knnper:KNNPer",
        "ditto": "flray.algorithms.ditto:Ditto",
        "local": "flray.algorithms.local:Local",
        "fedsam": "flray.algorithms.fedsam:FedSAM",
        "fedasam": "flray.algorithms.fedasam:FedASAM",
        "fedsol": "flray.algorithms.fedsol:FedSOL",
        "feddf": "flray.algorithms.feddf:FedDF",
        "fedproj": "flray.algorithms.fedproj:FedProj",
        "moon": "flray.algorithms.moon:Moon",
        "fedntd": "flray.algorithms.fedntd:FedNTD",
        "fedrcl": "flray.algorithms.fedrcl:FedRCL",
        "fedet": "flray.algorithms.fedet:FedET",
        "glfc": "flray.algorithms.glfc:GLFC",
        "lga": "flray.algorithms.lga:LGA",
        "fedpec": "flray.algorithms.fedpec:FedPEC",
        "fedscr": "flray.algorithms.fedscr:FedSCR",
        "er": "flray.algorithms.er:ER",
        "der": "flray.algorithms.der:DER",
        "ewc": "flray.algorithms.ewc:EWC",
        "fedcurv": "flray.algorithms.fedcurv:FedCurv",
        "fedprotip": "flray.algorithms.fedprotip:FedProTIP",
        "fot": "flray.algorithms.fot:FOT",
        "target": "flray.algorithms.target:Target",
        "lander": "flray.algorithms.lander:Lander",
        "mfcl": "flray.algorithms.mfcl:MFCL",
        "centralized": "flray.algorithms.centralized:Centralized",
        "fedmemo": "flray.algorithms.fedmemo:FedMemo",
    },
    base="flray.core.protocol.algorithm:Algorithm",
)

GROUPS = {  # of `flray list algorithms`; a name in a configuration -> the name as papers write it
    "averaging, and its bound": {"fedavg": "FedAvg", "centralized": "Centralized"},
    "server optimisers": {
        "fedavgm": "FedAvgM", "fedadam": "FedAdam", "fedyogi": "FedYogi", "fedadagrad": "FedAdagrad",
    },
    "corrections of local training": {
        "fedprox": "FedProx", "fednova": "FedNova", "scaffold": "SCAFFOLD", "feddyn": "FedDyn", "fedsam": "FedSAM",
        "fedasam": "FedASAM", "fedsol": "FedSOL", "moon": "MOON", "fedntd": "FedNTD", "fedrcl": "FedRCL",
        "fedcurv": "FedCurv",
    },
    "distillation on the server": {"feddf": "FedDF", "fedproj": "FedProj", "fedet": "Fed-ET"},
    "personalised models": {
        "perfedavg": "Per-FedAvg", "fedbabu": "FedBABU", "knnper": "kNN-Per", "ditto": "Ditto", "local": "Local",
    },
    "continual: over tasks, without samples of old ones": {
        "fedprotip": "FedProTIP", "fot": "FOT", "ewc": "EWC", "fedpec": "Fed+PEC", "target": "TARGET",
        "lander": "LANDER", "mfcl": "MFCL",
    },
    "replay: over tasks, with stored samples": {
        "er": "ER", "der": "DER", "fedscr": "Fed+SCR", "glfc": "GLFC", "lga": "LGA",
    },
    "latent forgetting": {"fedmemo": "FedMemo"},
}  # fmt: skip
_WRITTEN = {name: written for names in GROUPS.values() for name, written in names.items()}


def group_of(name: str) -> str:
    """The group of an algorithm by its name; `your own` for one that flray does not have."""
    return next((group for group, names in GROUPS.items() if name in names), "your own")


def as_written(name: str) -> str:
    """An algorithm's name in tables and figures: `FedSOL` for `fedsol`; a user's own algorithm as :func:`readable`."""
    return _WRITTEN.get(name) or readable(name)


def built_in(federated: bool = False) -> list[str]:
    """The names of flray's own algorithms, without those that a package or an `--import` added; `federated`: those with
    clients."""
    own = [name for name in ALGORITHMS.names() if ALGORITHMS.get(name).__module__.startswith("flray.")]
    return [name for name in own if not (federated and ALGORITHMS.get(name).centralized)]
