"""The text benchmark compares like with like: the same steps, the same weights; no timed assertion."""

from __future__ import annotations

import pytest
import torch

from flray.api import simulate
from flray.bench import text_cost as text
from flray.bench.bare import Way
from flray.data import load_dataset
from flray.models.weights import read_weights
from flray.scenario import build

TINY = {"name": "t5", "layers": 1, "hidden": 8, "heads": 2, "intermediate": 8, "dropout": 0.0}


def test_bare_loop_and_flray_end_with_the_same_prefixes(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "TEXTS", 8)
    monkeypatch.setattr(text, "BATCH", 3)
    chosen = text.experiment(tmp_path, TINY, 2)
    scenario = build(load_dataset(chosen.data), chosen.partition, seed=chosen.seed)
    simulate(chosen, tmp_path / "run", scenario=scenario)
    bare = text.BareText(chosen, scenario, Way(1, 1), addressed=True)
    begun = [p.detach().clone() for p in bare.parameters]
    weights = [p.clone() for p in begun]
    for number in range(2):
        clients = text._cohort(chosen, scenario, number)
        assert bare.train(weights, number, clients, [1 / text.COHORT] * text.COHORT) == 3 * text.COHORT
        torch._foreach_copy_(weights, bare.total)
    found = read_weights(str(tmp_path / "run"))
    names = [name for name, p in bare.model.named_parameters() if p.requires_grad]
    assert len(names) == 4 and max(float((w - b).abs().max()) for w, b in zip(weights, begun, strict=True)) > 1e-3
    for name, weight in zip(names, weights, strict=True):
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "LARGE", {**TINY, "hidden": 640, "heads": 10, "intermediate": 2048})
    monkeypatch.setattr(text, "NETWORK", TINY)
    monkeypatch.setattr(text, "ACTORS", (1, 2))
    monkeypatch.setattr(text, "TEXTS", 8)
    rows = text.costs(1, tmp_path)
    assert list(rows) == ["text: prefix tuning, round flray/bare", "text: backbone that each actor holds alone"]
    assert rows["text: backbone that each actor holds alone"][0] < 0.9
