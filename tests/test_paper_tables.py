"""The commands on the pages of configs/fedsol and configs/fedproj: each loads, and together they are the papers'
tables.

What is expected is written down here from the papers' tables and from their authors' configurations, not read from
configs/.
"""

import re
import shlex
import sys
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from flray.algorithms import ALGORITHMS, built_in
from flray.config.experiment import Experiment
from flray.config.loader import load_config
from flray.core.schema.errors import ConfigError
from flray.data import load_dataset, load_proxy
from tests.support.data_files import image_column, png, write
from tests.support.papers import SETTINGS, assert_has

ROOT = Path(__file__).parents[1]
NAMES = {ALGORITHMS.get(name): name for name in built_in()}
OTHERS = ("flray figure ", "flray bench ", "flray papers reproduce ", "hf download ")  # lines that are no experiment

# FedSOL: 4 levels of sharding and 4 of LDA for CIFAR-10, one of each for the others
COLUMNS = [("cifar10", level) for level in ("s2", "s3", "s5", "s10", "a0.05", "a0.1", "a0.3", "a0.5")]
COLUMNS += list(product(("mnist", "svhn", "cinic10", "pathmnist", "tissuemnist"), ("s2", "a0.1")))
# its Table 8; rho of FedSOL from Table 5, alpha of FedDyn from the shipped configuration
TABLE_8 = {
    "fedprox": {"mu": 1.0}, "fedntd": {"beta": 1.0, "tau": 1.0}, "fedsam": {"rho": 0.1}, "fedasam": {"rho": 1.0},
    "feddyn": {"alpha": 0.1},
    "moon": {"mu": 0.1, "tau": 0.5}, "fedsol": {"rho": 1.5, "perturb": "head", "temperature": 3.0},
    "fednova": {"ccvr": "off"},
    "perfedavg": {"form": "code", "beta": 0.01}, "knnper": {"k": 5, "lam": 0.5, "capacity": 500, "mix": "logits",
    "store_augment": True},
}  # fmt: skip
# FedProj: the best alpha of Table 3, which is Table 1's entry
CELLS = list(product(("cifar10", "cifar100", "cinic10"), ("b0.3", "b0.5")))
BEST = dict(zip(CELLS, (0.0, 0.3, 0.0, 0.5, 0.0, 0.3), strict=True))
# FedZoo-Bench's defaults, FedRCL's code, TAKFL's code (None: its own 0.1 and T = 3)
BASELINES = {
    "fedprox": {"mu": 0.001}, "feddyn": {"alpha": 0.25, "official": False}, "moon": {"mu": 1.0, "tau": 0.5},
    "fednova": {"mu": 0.0, "ccvr": "off"},
    "fedrcl": {"rcl": "code", "tau": 0.05, "threshold": 0.7, "scl_weight": 1.0, "penalty_weight": 1.0, "clip": None},
    "feddf": {"teacher": "avg_logits", "temperature": 3.0}, "fedet": {"fedet": "takfl",
    "diversity": None, "temperature": None},
}  # fmt: skip


def page(paper: str) -> str:
    """The README of a paper's configurations with the commands of its tables, as the site has it."""
    sys.path.append(str(ROOT / "docs"))
    from paper_commands import filled

    return filled((ROOT / "configs" / paper / "README.md").read_text())


def commands(paper: str) -> list[tuple[str, str]]:
    """(heading, line) of every line in the code blocks of a paper's page that is no comment."""
    found, heading, code = [], "", False
    for line in page(paper).splitlines():
        heading = line.removeprefix("## ") if line.startswith("## ") else heading
        if line.startswith("```"):
            code = not code
        elif code and not line.startswith("#"):
            found.append((heading, line))
    return found


def load(line: str) -> list[Experiment]:
    """The experiments that a line `flray run CONFIG KEY=VALUE...` runs."""
    words = shlex.split(line, comments=True)
    assert words[:2] == ["flray", "run"]
    options = [words.index("--out"), words.index("--out") + 1] if "--out" in words else []
    config, *overrides = [word for place, word in enumerate(words) if place > 1 and place not in options]
    return load_config(ROOT / config, overrides)


@cache
def cells(paper: str, section: str) -> tuple[Experiment, ...]:
    """All experiments of the section whose heading starts with `section`."""
    lines = [line for heading, line in commands(paper) if heading.startswith(section) and line.startswith("flray run ")]
    assert lines, f"{paper} has no commands under {section!r}"
    return tuple(experiment for line in lines for experiment in load(line))


def name(e: Experiment) -> str:
    return NAMES[type(e.algorithm)]


def column(e: Experiment) -> tuple[str, str]:
    """Data set and level of heterogeneity: s shards, alpha of FedSOL, beta of FedProj."""
    p = e.partition
    if p.name == "shards":
        return e.data.source, f"s{p.shards_per_client}"
    return e.data.source, f"{'a' if p.variant == 'fedml' else 'b'}{p.alpha}"


def same_cells(found: list, expected: list) -> None:
    """Every expected cell once for each of three seeds, and no other."""
    assert sorted(map(repr, found)) == sorted(repr(cell) for cell in expected for _ in range(3))


@pytest.mark.parametrize("paper", ["fedsol", "fedproj"])
def test_every_command_is_one_that_loads(paper):
    for heading, line in commands(paper):
        assert heading, f"a command before the first heading: {line}"
        if line.startswith(OTHERS):
            continue
        for e in load(line):
            if "pilot" in line:
                continue
            data = {"amazon_reviews_multi": "marc"}.get(e.data.source, e.data.source)
            clients, cohort, rounds = SETTINGS[f"{paper}/{data}"]
            assert e.partition.clients == clients
            if name(e) != "local":
                assert e.cohort.count(clients) == cohort
            kind = {"s": "shards", "a": "lda", "b": "dir"}[column(e)[1][0]]
            assert line.split()[2].endswith(f"_{kind}{column(e)[1][1:].replace('.', '')}.yaml")
            assert e.rounds == (200 if name(e) == "local" else 3 if heading.startswith("Table 5: overhead") else rounds)
    told = page(paper)
    assert set(re.findall(r"configs/\w+/\w+\.yaml", told)) >= {
        str(path.relative_to(ROOT)) for path in (ROOT / "configs" / paper).glob("[!_]*.yaml")
    }, "a configuration that no cell uses"


@pytest.mark.parametrize("paper", ["fedsol", "fedproj"])
def test_every_override_that_the_text_names_is_one(paper):
    """`key=value` in running text and tables: with some algorithm of the comparison, or on some data set, it loads."""
    text = re.sub(r"```.*?```", "", (ROOT / "configs" / paper / "README.md").read_text(), flags=re.DOTALL)
    spans = [shlex.split(code) for code in re.findall(r"`([^`]+)`", text) if "'" not in code]
    told = [words for words in spans if all(re.match(r"[a-z_]+(\.[a-z_]+)*=", word) for word in words)]
    assert len(told) > 5
    homes = {"fedsol": ["cifar10_lda01"], "fedproj": ["cifar10_dir03", "mnli_dir03"]}[paper]
    methods = (paper, "fednova", "fedet", "perfedavg", "knnper")
    tries = [
        (ROOT / "configs" / paper / f"{home}.yaml", f"algorithm={method}") for home, method in product(homes, methods)
    ]

    def loads(words: list[str], config: Path, algorithm: str) -> bool:
        try:
            return bool(load_config(config, [algorithm, *words]))
        except ConfigError:
            return False

    assert [words for words in told if not any(loads(words, *attempt) for attempt in tries)] == []


# FedSOL ---------------------------------------------------------------------------------------------
def test_fedsol_table_1_projection():
    found = cells("fedsol", "Table 1:")
    own = [(e.algorithm.strategy, e.algorithm.proximal) if name(e) == "fedsol" else () for e in found]
    base = [("fedavg",), ("fedprox",), ("fedsol", "S5", "kl")]
    projected = [("fedsol", "projection", "l2"), ("fedsol", "projection", "kl")]
    same_cells([(name(e), *s) for e, s in zip(found, own, strict=True)], base + projected)
    assert {column(e) for e in found} == {("cifar10", "a0.1")}
    assert {e.algorithm.beta for e in found if name(e) == "fedsol"} == {1.0}


def test_fedsol_table_2_main_with_the_hyper_parameters_of_table_8():
    found = cells("fedsol", "Table 2")
    methods = ["fedavg", "fedprox", "fednova", "scaffold", "fedntd", "fedsam", "fedasam", "fedsol"]
    same_cells([(*column(e), name(e)) for e in found], [(*c, m) for c, m in product(COLUMNS, methods)])
    assert len(found) == 144 * 3
    for e in found:
        assert_has(e, lr=0.01, lr_decay=0.99, momentum=0.9, weight_decay=1e-5, local_epochs=5, batch_size=50)
        assert_has(e, **TABLE_8.get(name(e), {}))
        assert (e.model.name, e.partition.seed, e.cohort.sampling) == ("fedavg_cnn", 19940817, "numpy_round_seed")
        assert e.data.augment.cutout == (16 if e.data.source in ("cifar10", "mnist") else 0)


def test_fedsol_table_3_models():
    data, models = ("cifar10", "svhn", "pathmnist"), ("vgg11", "resnet18", "sl_vit")
    methods = ("fedavg", "fedprox", "fedntd", "fedsol")
    found = cells("fedsol", "Table 3")
    expected = [(d, "a0.1", m, a) for d, m, a in product(data, models, methods)]
    same_cells([(*column(e), e.model.name, name(e)) for e in found], expected)
    assert {e.model.options["norm"] for e in found if e.model.name == "resnet18"} == {"none_tracked"}


def test_fedsol_table_4_proximal_losses():
    data, methods = ("cifar10", "svhn", "cinic10"), ("fedprox", "fednova", "scaffold", "feddyn", "moon")
    found = cells("fedsol", "Table 4")
    base = [e for e in found if name(e) != "fedsol"]
    combined = [e for e in found if name(e) == "fedsol"]
    expected = [(d, "a0.1", m) for d, m in product(data, methods)]
    same_cells([(*column(e), name(e)) for e in base], expected)
    same_cells([(*column(e), e.algorithm.proximal.replace("l2", "fedprox")) for e in combined], expected)
    for e in base:
        assert_has(e, **TABLE_8.get(name(e), {}))
    for e in combined:
        assert_has(e, perturb="all", rho=1.0, strategy="S1")
        assert getattr(e.algorithm.base, "alpha", 0.1) == 0.1 and getattr(e.algorithm.base, "tau", 0.5) == 0.5


def test_fedsol_table_5_partial_perturbation():
    found = cells("fedsol", "Table 5")
    expected = [("none", 0.0), *product(("all", "body", "head"), (0.5, 1.0, 1.5, 2.0))]
    same_cells([(e.algorithm.perturb if e.algorithm.rho else "none", float(e.algorithm.rho)) for e in found], expected)
    assert {column(e) for e in found} == {("cifar10", "a0.1")}
    for e in found:
        assert_has(e, strategy="S1", proximal="kl")


def test_fedsol_table_9_personalised():
    """Local-only: 200 epochs of every client, of which TissueMNIST has 200."""
    data = ("cifar10", "svhn", "tissuemnist")
    found = cells("fedsol", "Table 9")
    methods = ("local", "fedavg", "perfedavg", "fedbabu", "knnper", "fedsol")
    same_cells([(*column(e), name(e)) for e in found], [(d, "a0.1", m) for d, m in product(data, methods)])
    for e in found:
        assert_has(e, **TABLE_8.get(name(e), {}))
        if name(e) != "local":
            assert e.evaluate.finetune_epochs == (1, 5)
            continue
        clients = {"cifar10": 100, "svhn": 100, "tissuemnist": 200}[e.data.source]
        assert (e.evaluate.finetune_epochs, e.rounds, e.cohort.count(e.partition.clients)) == ((0,), 200, clients)
        assert_has(e, local_epochs=1, lr=0.01, lr_decay=0.99, momentum=0.9, weight_decay=1e-5)


def test_fedsol_table_10_strategies():
    found = cells("fedsol", "Table 10")
    same_cells([(*column(e), e.algorithm.strategy) for e in found], [("cifar10", "a0.1", f"S{i}") for i in range(7)])
    for e in found:
        assert_has(e, rho=1.5, perturb="head", beta=1.0, proximal="kl")


# FedProj --------------------------------------------------------------------------------------------
def test_fedproj_table_1_vision_of_both_versions():
    found = cells("fedproj", "Table 1")
    preprint = [e for e in found if getattr(e.algorithm, "rule", None) == "epsilon"]
    journal = [e for e in found if e not in preprint]
    methods = ["fedavg", "fedprox", "fednova", "feddyn", "moon", "fedrcl", "feddf", "fedet", "fedproj"]
    same_cells([(*column(e), name(e)) for e in journal], [(*c, m) for c, m in product(CELLS, methods)])
    same_cells([(*column(e), name(e)) for e in preprint], [(*c, "fedproj") for c in CELLS])
    for e in found:
        assert_has(e, optimizer="adam", lr=1e-3, lr_decay=1.0, weight_decay=0.0, local_epochs=20, batch_size=256)
        assert_has(e, **BASELINES.get(name(e), {}))
        assert e.model.name == ("resnet8" if e.data.source == "cifar10" else "resnet18")
        assert e.model.options["stem"] == "cifar_pool"
        if name(e) in ("feddf", "fedet", "fedproj"):
            assert_has(
                e, distill_lr=1e-5, distill_batch_size=256, distill_epochs=3 if e.data.source == "cifar100" else 1
            )
            assert_has(e, student_bn="train", distill_weight_decay=0.0)
        if name(e) == "fedproj":
            assert_has(e, alpha=BEST[column(e)], projection_rate=1.0, temperature=3.0, squared=True, memory_size=None)
            assert not e.algorithm.alpha or e.algorithm.wd_anchor == "sum_clients"


def test_fedproj_public_data_and_normalisation():
    """CIFAR-100 whole, 60,000, with FedZoo-Bench's constants; ImageNet-100 as TAKFL has it: 500 of each class, its own
    constants."""
    for e in cells("fedproj", "Table 1"):
        assert e.data.normalize == ("dataset" if e.data.source == "cinic10" else "fedzoo") and not e.data.augment.active
        assert not e.proxy.labelled and e.data.train_size is None
        known = (e.proxy.source, e.proxy.splits, e.proxy.size)
        if e.data.source == "cifar100":
            assert (*known, e.proxy.resize) == ("imagenet100", "train", 50_000, 32)
            assert e.proxy.normalize.mean == (0.4807, 0.4574, 0.4083)
            assert e.proxy.normalize.std == (0.2056, 0.2035, 0.2041)
        else:
            assert (*known, e.proxy.normalize) == ("cifar100", "all", None, "fedzoo")


def test_fedproj_reads_the_whole_of_an_imagenet100_folder_as_the_readme_describes_it(tmp_path, monkeypatch):
    """`DATA/imagenet100/train*.parquet` with bytes of image files of any size, and no other split."""
    monkeypatch.setenv("FLRAY_CACHE", str(tmp_path / "cache"))
    y, draw = np.arange(100), np.random.default_rng(0).integers
    files = [png(draw(0, 256, (40 + k, 50, 3), dtype=np.uint8)) for k in y]
    write(tmp_path / "imagenet100", "train", {"image": pa.array(files, pa.binary()), "label": y})
    for split in ("train", "test"):
        write(
            tmp_path / "cifar100",
            split,
            {"img": image_column(draw(0, 256, (100, 32, 32, 3), dtype=np.uint8)), "fine_label": y},
        )
    (e,) = load_config(ROOT / "configs/fedproj/cifar100_dir05.yaml", [f"data.root={tmp_path}", "proxy.size=100"])
    proxy, _ = load_proxy(e.proxy, load_dataset(e.data))
    assert proxy.x.shape == (100, 32, 32, 3) and proxy.y is None and not proxy.same_labels


def test_fedproj_table_2_text():
    found = cells("fedproj", "Table 2")
    data = {"mnli": "snli", "sst2": "sentiment140", "amazon_reviews_multi": "yelp_review_full"}
    methods = ("fedavg", "feddf", "fedet", "fedproj")
    expected = [(d, b, data[d], m) for d, b, m in product(data, ("b0.3", "b0.5"), methods)]
    same_cells([(*column(e), e.proxy.source, name(e)) for e in found], expected)
    for e in found:
        assert_has(e, optimizer="adam", lr=3e-5, local_epochs=1, batch_size=128, **BASELINES.get(name(e), {}))
        if name(e) != "fedavg":
            assert_has(e, distill_lr=3e-5, distill_batch_size=128, distill_epochs=1)
        assert e.model.options["pretrained"] == e.data.tokenizer == "prajjwal1/bert-tiny"
        assert (e.proxy.size, e.proxy.same_labels) == (30_000, True)


def test_fedproj_table_3_divergence():
    found = cells("fedproj", "Table 3")
    expected = [(*c, a) for c, a in product(CELLS, (0.0, 0.1, 0.3, 0.5))]
    same_cells([(*column(e), float(e.algorithm.alpha)) for e in found], expected)
    assert {(name(e), e.algorithm.wd_anchor) for e in found} == {("fedproj", "sum_clients")}


def test_fedproj_table_4_public_size():
    """Its alpha is that of the Table 1 entry which its last column repeats."""
    sizes = (500, 1000, 5000, 10_000, 20_000, 30_000, 40_000, 60_000)
    found = cells("fedproj", "Table 4")
    expected = [("cifar10", *cell) for cell in product(("b0.3", "b0.5"), sizes)]
    same_cells([(*column(e), e.proxy.size) for e in found], expected)
    for e in found:
        assert_has(e, alpha=BEST[column(e)], projection_rate=1.0)


def test_fedproj_table_5_overhead():
    """K = 7 steps an epoch: batches of 64 of 500 samples, the last left out; |M| = 50,000."""
    found = cells("fedproj", "Table 5")
    assert {name(e) for e in found} == {"fedavg", "feddf", "fedproj"} and {
        500 // e.algorithm.batch_size for e in found
    } == {7}
    assert [e.algorithm.memory_size for e in found if name(e) == "fedproj"] == [50_000]
    assert {(e.model.name, e.algorithm.local_epochs) for e in found} == {("resnet8", 20)}


def test_fedproj_figures():
    found = cells("fedproj", "Figures")
    rate = [e for e in found if e.data.source == "cifar10" and getattr(e.algorithm, "projection_rate", 1) < 1]
    expected = [("cifar10", b, r) for b, r in product(("b0.3", "b0.5"), (0.0, 0.25, 0.5, 0.75))]
    same_cells([(*column(e), float(e.algorithm.projection_rate)) for e in rate], expected)
    assert {e.algorithm.alpha for e in rate} == {0}
    pilot = [e for e in found if e.data.source == "iris"]
    assert {(name(e), e.seed) for e in pilot} == set(product(("fedavg", "feddf", "fedproj"), range(10)))
    for e in pilot:
        assert_has(e, optimizer="sgd", lr=1e-3, momentum=0.9, local_epochs=5)
        assert (e.rounds, e.data.pca, e.data.test_fraction) == (20, 2, 0)
