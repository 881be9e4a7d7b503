"""Runs on text with a T5 that answers in words: what travels, what is written, and that methods that read logits do."""

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file
from transformers import T5Config, T5ForConditionalGeneration

import flray
from flray.data import DataConfig, load_dataset
from flray.models.weights import read_weights

SMALL = {"hidden": 16, "heads": 2, "intermediate": 32}
PREFIXES = 2 * 2 * 20 * 16  # of two layers
PROXY = {"source": "holdout", "size": 40}
WORDS = {"negative": "awful", "positive": "great"}


@pytest.fixture
def data(tmp_path):
    """240 reviews of five words, two of them tell the class."""
    draws = np.random.default_rng(0)
    words = [["awful", "dull", "poor"], ["great", "fine", "lovely"]]
    texts = [f"the {' '.join(draws.choice(words[i % 2], 2))} film" for i in range(240)]
    (tmp_path / "data" / "talk").mkdir(parents=True)
    frame = pd.DataFrame({"text": texts, "label": ["negative", "positive"] * 120})
    frame.to_parquet(tmp_path / "data" / "talk" / "train.parquet")
    found = {"source": "talk", "root": str(tmp_path / "data"), "tokenizer": "train", "words": WORDS, "test_fraction": 0}
    return {**found, "prompt": "review: {text}", "leak_check": False}


def run(out, data, model=SMALL, rounds=1, **more):
    algorithm = {"name": "fedavg", "batch_size": 16, "lr": 0.3, **more.pop("algorithm", {})}
    return flray.run(
        {
            "data": data, "model": {"name": "t5", **model}, "rounds": rounds, "algorithm": algorithm, **more,
            "partition": {"name": "iid", "clients": 4}, "cohort": {"size": 2},
            "resources": {"executor": "local", "server": {"threads": 1}},
        },
        out=out,
    )  # fmt: skip


def test_only_what_is_trained_travels_and_is_written(data, tmp_path):
    """Messages, checkpoint and `model.safetensors` of a run on a pretrained folder that transformers wrote."""
    size = load_dataset(DataConfig(**data)).vocabulary.size
    shape = {"vocab_size": size, "num_layers": 2, "d_model": 16, "num_heads": 2, "d_kv": 8, "d_ff": 32}
    T5ForConditionalGeneration(T5Config(pad_token_id=0, **shape)).save_pretrained(tmp_path / "t5")
    found = run(tmp_path / "run", data, {"pretrained": str(tmp_path / "t5")})
    assert set(found.rounds["comm/up_bytes"]) == {2 * 4 * PREFIXES}
    assert set(found.rounds["comm/down_bytes"]) == {2 * 4 * PREFIXES}
    checkpoint = sum(file.stat().st_size for file in (tmp_path / "run" / "checkpoints").rglob("*.safetensors"))
    assert 4 * PREFIXES < checkpoint < 4 * PREFIXES + 2000 < (tmp_path / "t5" / "model.safetensors").stat().st_size
    written = load_file(tmp_path / "run" / "model.safetensors")
    prefixes = {name for name in written if name.endswith((".keys", ".values"))}
    assert len(prefixes) == 4 and written.keys() == prefixes | {"head.weight"}
    table = load_file(tmp_path / "t5" / "model.safetensors")["shared.weight"]
    assert read_weights(str(tmp_path / "run"))["shared.weight"].equal(table)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedprox", {"mu": 0.1}),
        ("feddf", {}),
        ("fedproj", {}),
        ("fedsol", {"perturb": "all", "rho": 0.1}),
        ("fedmemo", {"trigger": "scheduled", "r0": 1, "r1": 2, "proxy": {"data": "real", "size": 40}}),
    ],
)
def test_methods_that_read_logits(data, tmp_path, name, options):
    proxy = {"proxy": PROXY} if name in ("feddf", "fedproj", "fedmemo") else {}
    found = run(tmp_path / "run", data, rounds=2, algorithm={"name": name, **options}, **proxy)
    assert found.rounds["test/loss"].iloc[-1] < 2 and set(found.rounds["comm/up_bytes"]) == {2 * 4 * PREFIXES}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "lr", "accuracy"),
    [({"prefix_layers": "all"}, 0.03, 0.9), ({"tune": "lora"}, 0.01, 0.9), ({"tune": "full"}, 0.01, 0.95)],
)
def test_it_learns(data, tmp_path, options, lr, accuracy):
    """Even a prefix, on a random backbone."""
    model, algorithm = {**SMALL, "hidden": 32, "dropout": 0.0, **options}, {"optimizer": "adam", "lr": lr}
    found = run(tmp_path / "run", data, model, rounds=12, algorithm={**algorithm, "local_epochs": 3})
    assert found.rounds["test/acc"].iloc[-1] > accuracy
