"""Federated algorithms, one file each. Adding one: its file, its line and group here, its row in the contracts."""

from flray.core.schema.registry import Registry

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

GROUPS = {  # of `flray list algorithms`
    "averaging, and its bound": ("fedavg", "centralized"),
    "server optimisers": ("fedavgm", "fedadam", "fedyogi", "fedadagrad"),
    "corrections of local training": (
        "fedprox", "fednova", "scaffold", "feddyn", "fedsam", "fedasam", "fedsol", "moon", "fedntd", "fedrcl",
        "fedcurv",
    ),
    "distillation on the server": ("feddf", "fedproj", "fedet"),
    "personalised models": ("perfedavg", "fedbabu", "knnper", "ditto", "local"),
    "continual: over tasks, without samples of old ones": (
        "fedprotip", "fot", "ewc", "fedpec", "target", "lander", "mfcl",
    ),
    "replay: over tasks, with stored samples": ("er", "der", "fedscr", "glfc", "lga"),
    "latent forgetting": ("fedmemo",),
}  # fmt: skip


def group_of(name: str) -> str:
    """The group of an algorithm by its name; `your own` for one that flray does not have."""
    return next((group for group, names in GROUPS.items() if name in names), "your own")


def built_in(federated: bool = False) -> list[str]:
    """The names of flray's own algorithms, without those that a package or an `--import` added; `federated`: those with
    clients."""
    own = [name for name in ALGORITHMS.names() if ALGORITHMS.get(name).__module__.startswith("flray.")]
    return [name for name in own if not (federated and ALGORITHMS.get(name).centralized)]
