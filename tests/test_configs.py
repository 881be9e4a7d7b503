"""Every file in configs/: it loads, with every algorithm, in full and small, and says what the papers' tables print."""

from __future__ import annotations

from pathlib import Path

import pytest

from flray.algorithms import ALGORITHMS, built_in
from flray.config.loader import load_config
from tests.support.papers import SETTINGS

HOME = Path(__file__).parents[1] / "configs"
FILES = sorted(
    path
    for path in HOME.rglob("*.yaml")
    if not path.name.startswith("_")
    and path.parent.name not in ("sweeps", "cluster")
    and path.stem != "synthesize"  # of another kind: tests/synthesis
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOME)))
def test_it_loads_with_every_algorithm_that_has_what_it_needs(path):
    config = load_config(path)[0]
    assert path.parent == HOME or config.name == path.stem
    by_domain = config.tasks is not None and config.tasks.name == "domain_incremental"
    names = ",".join(
        name
        for name in built_in()
        if (config.proxy is not None or not ALGORITHMS.get(name)().reads_proxy())
        and not (by_domain and ALGORITHMS.get(name).needs_new_classes)
    )
    cells = load_config(path, [f"algorithm={names}"])
    assert {type(cell.algorithm) for cell in cells} and len({cell.partition.model_dump_json() for cell in cells}) == 1
    if path.parent.name in ("evidence", "pretrain"):
        return
    if path.parent != HOME and "pilot" not in path.name and "detector" not in path.name:  # these are small
        small = load_config(path, ["preset=small"])[0]
        from_scratch = config.model.options.get("pretrained") is not None and small.model.options["pretrained"] is None
        assert small.rounds < config.rounds or from_scratch
        smaller = (small.data.train_size, small.data.resize, small.data.max_length, small.model.name)
        assert smaller != (config.data.train_size, config.data.resize, config.data.max_length, config.model.name)
        assert (small.partition.name, small.partition.alpha) == (config.partition.name, config.partition.alpha)


@pytest.mark.parametrize(
    "path",
    [p for p in FILES if p.parent.name in ("fedproj", "fedsol") and "pilot" not in p.name],
    ids=lambda path: str(path.relative_to(HOME)),
)
def test_it_has_the_papers_setting(path):
    config = load_config(path)[0]
    data, _, cell = path.stem.rpartition("_")
    clients, cohort, rounds = SETTINGS[f"{path.parent.name}/{data}"]
    assert (config.partition.clients, config.cohort.count(clients), config.rounds) == (clients, cohort, rounds)
    kind, digits = cell.rstrip("0123456789"), cell.lstrip("abcdefghijklmnopqrstuvwxyz")
    if kind == "shards":
        assert (config.partition.name, config.partition.shards_per_client) == ("shards", int(digits))
    else:
        assert (config.partition.name, config.partition.alpha) == ("dirichlet", float(f"{digits[0]}.{digits[1:]}"))
        assert config.partition.variant == {"lda": "fedml", "dir": "fedzoo"}[kind]
    a = config.algorithm
    if path.parent.name == "fedsol":
        assert (a.lr, a.lr_decay, a.momentum, a.weight_decay, a.local_epochs, a.batch_size) == (
            0.01,
            0.99,
            0.9,
            1e-5,
            5,
            50,
        )
        assert (a.rho, a.perturb) == (1.5, "head")
        return
    text = config.data.tokenizer is not None
    lr, epochs, batch, distill_lr = (3e-5, 1, 128, 3e-5) if text else (1e-3, 20, 256, 1e-5)
    assert (a.optimizer, a.lr, a.local_epochs, a.batch_size, a.temperature) == ("adam", lr, epochs, batch, 3.0)
    assert (a.distill_lr, a.distill_batch_size, a.distill_epochs) == (distill_lr, batch, 3 if data == "cifar100" else 1)
    if text:
        public = {"mnli": "snli", "sst2": "sentiment140", "marc": "yelp_review_full"}[data]
        assert (config.proxy.source, config.proxy.size, config.proxy.same_labels) == (public, 30_000, True)
        assert config.model.options["pretrained"] == config.data.tokenizer == "prajjwal1/bert-tiny"


def baseline(name, file="imagenet_r", **options):
    return load_config(HOME / "fedprotip" / f"{file}.yaml", {"algorithm.name": name, **options})[0].algorithm


def test_fedprotips_baselines_have_their_own_values():
    """Batches and rates of its code on ImageNet-R; PEC's rate, which is not the protocol's; its GLFC, LGA and FOT
    (`server_lga.py`, `client_lga.py`, `server_fot.py`, `imagenet-r_fot.json`)."""
    for name in ("target", "lander"):
        assert {(a := baseline(name)).syn_batch, a.kd_batch} == {64}
        assert {(a := baseline(name, "cifar100_10tasks")).syn_batch, a.kd_batch} == {256}
        for file in ("imagenet_r", "domainnet_order1"):
            assert ((a := baseline(name, file, preset="official")).crop_padding, a.pool_crop) == (4, "resized")
    pec = baseline("fedpec", "cifar100_10tasks")
    assert (pec.lr, pec.weight_decay, pec.optimizer) == (1e-3, 0.0, "adam")
    lga = baseline("lga", preset="official")
    assert (lga.memory_size, lga.inversion_steps, lga.inversion_lr, lga.proto_lr) == (1000, 100, 0.5, 0.2)
    assert (lga.radius, lga.augmentation, lga.proxy_init, lga.proto_steps) == (None, "official", 0, 0)
    assert (lga.replay, lga.reset_best, lga.activation, lga.weighted_distillation) == (
        "first_round",
        False,
        "softmax",
        False,
    )
    assert (baseline("glfc").replay, baseline("glfc", preset="official").replay) == ("every_round", "first_round")
    cifar, imagenet = (baseline("fot", file, preset="official") for file in ("cifar100_10tasks", "imagenet_r"))
    assert (cifar.n_batches, imagenet.n_batches, cifar.sketch, imagenet.sketch) == (20, 5, None, None)
    assert baseline("glfc").reset_best and not baseline("glfc", preset="official").reset_best
