"""A run whose updates shrink, with the probe of latent forgetting."""

PROBE = {"name": "latent_forgetting", "W": 5, "m": 2, "guard": 1, "warmup": 3, "rho": 0.2, "rho_off": 0.1}

CONFIG = {
    "rounds": 9,
    "data": {"source": "digits", "train_size": 300},
    "proxy": {"source": "holdout", "size": 40},
    "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.3},
    "model": {"name": "mlp", "hidden": [8]},
    "algorithm": {"name": "fedavg", "lr": 0.1, "lr_decay": 0.6, "batch_size": 16, "local_epochs": 1},
    "cohort": {"size": 3},
    "checkpoint": {"every": 1, "keep": 0},
    "diagnostics": [PROBE],
    "resources": {"executor": "local", "server": {"threads": 1}},
}
