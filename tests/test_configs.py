"""Every file in configs/: it loads, with every algorithm, in full and small, and says what the papers' tables print."""

from pathlib import Path

import pytest

from flray.algorithms import ALGORITHMS, built_in
from flray.config.loader import load_config
from tests.support.papers import assert_has

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


def baseline(name, file="imagenet_r", **options):
    return load_config(HOME / "fedprotip" / f"{file}.yaml", {"algorithm.name": name, **options})[0]


def test_fedprotips_baselines_have_their_own_values():
    """Batches and rates of its code on ImageNet-R; PEC's rate, which is not the protocol's; its GLFC, LGA and FOT
    (`server_lga.py`, `client_lga.py`, `server_fot.py`, `imagenet-r_fot.json`)."""
    for name in ("target", "lander"):
        assert_has(baseline(name), syn_batch=64, kd_batch=64)
        assert_has(baseline(name, "cifar100_10tasks"), syn_batch=256, kd_batch=256)
        for file in ("imagenet_r", "domainnet_order1"):
            assert_has(baseline(name, file, preset="official"), crop_padding=4, pool_crop="resized")
    assert_has(baseline("fedpec", "cifar100_10tasks"), lr=1e-3, weight_decay=0.0, optimizer="adam")
    lga = baseline("lga", preset="official")
    assert_has(lga, memory_size=1000, inversion_steps=100, inversion_lr=0.5, proto_lr=0.2)
    assert_has(lga, radius=None, augmentation="official", proxy_init=0, proto_steps=0)
    assert_has(lga, replay="first_round", reset_best=False, activation="softmax", weighted_distillation=False)
    assert_has(baseline("glfc"), replay="every_round", reset_best=True)
    assert_has(baseline("glfc", preset="official"), replay="first_round", reset_best=False)
    assert_has(baseline("fot", "cifar100_10tasks", preset="official"), n_batches=20, sketch=None)
    assert_has(baseline("fot", preset="official"), n_batches=5, sketch=None)
