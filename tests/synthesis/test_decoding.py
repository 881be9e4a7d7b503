"""The repetition rule and the choice of a token against NumPy, and `generate` against a loop without any of it."""

import numpy as np
import pytest
import torch

from flray.synthesis.language_model import choose, repetition
from flray.synthesis.templates import Prompt


def scaled(s: float, a: float) -> float:
    return s * a if s < 0 else s / a


def ruled(scores: np.ndarray, first: list[int], others: list[int], reward: float | None, penalty: float) -> np.ndarray:
    """Token by token: the value is that of the first text, unless the token occurs elsewhere as well."""
    out = scores.copy()
    for token in set(first) if reward is not None else ():
        out[token] = scaled(scores[token], reward)
    for token in set(others) | (set() if reward is not None else set(first)):
        out[token] = scaled(scores[token], penalty)
    return out


def test_the_repetition_rule_is_supergens():
    scores = np.random.default_rng(0).normal(size=(2, 12)).astype(np.float32)
    first, others = [[1, 2, 3], []], [[3, 7], [0, 5, 5]]
    masks = [torch.zeros(2, 12, dtype=torch.bool) for _ in range(2)]
    for mask, tokens in zip(masks, (first, others), strict=True):
        for row, own in enumerate(tokens):
            mask[row, own] = True
    found = repetition(torch.from_numpy(scores), *masks, torch.full((2, 1), 0.8), torch.full((2, 1), 1.2))
    expected = np.stack([ruled(scores[row], first[row], others[row], 0.8, 1.2) for row in range(2)])
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    assert repetition(torch.tensor([[-2.0, 2.0]]), *(torch.ones(1, 2, dtype=torch.bool),) * 2,
                      torch.tensor([[0.5]]), torch.tensor([[4.0]])).tolist() == [[-8.0, 0.5]]  # fmt: skip


def test_a_greedy_token_is_the_likeliest_with_its_log_probability():
    scores = torch.tensor([[1.0, 3.0, 2.0], [0.0, -1.0, -5.0]])
    token, score = choose(scores, torch.zeros(2, 1), None)
    assert token.tolist() == [1, 0]
    p = np.exp(scores.numpy()) / np.exp(scores.numpy()).sum(1, keepdims=True)
    np.testing.assert_allclose(score.numpy(), np.log([p[0, 1], p[1, 0]]), rtol=1e-6)


def test_gumbel_noise_samples_from_the_likeliest_k_at_the_temperature():
    """60,000 draws; the standard deviation of a share is below 0.0021."""
    scores, T, k, draws = np.array([1.0, 0.5, 0.2, -0.3, 0.9]), 0.5, 3, 60_000
    noise = torch.from_numpy(np.random.default_rng(1).gumbel(size=(draws, k)))
    token, score = choose(torch.from_numpy(scores).repeat(draws, 1), torch.full((draws, 1), T), noise)
    z = np.exp(np.sort(scores)[::-1][:k] / T)
    shares = np.bincount(token.numpy(), minlength=5) / draws
    np.testing.assert_allclose(shares[[0, 4, 1]], z / z.sum(), atol=0.01)
    assert shares[2] == shares[3] == 0
    top = np.log(np.exp(scores[[0, 4, 1]]) / np.exp(scores[[0, 4, 1]]).sum())  # at temperature 1
    np.testing.assert_allclose(score.numpy(), top[[{0: 0, 4: 1, 1: 2}[t] for t in token.tolist()]], rtol=1e-6)


@pytest.fixture(scope="module", params=["gpt2", "ctrl"])
def model(request, tmp_path_factory):
    """Two layers with random weights, large enough that no two logits are near; as CTRL with sinusoidal positions."""
    from transformers import CTRLConfig, CTRLLMHeadModel
    from transformers.utils.logging import is_progress_bar_enabled

    from flray.synthesis.language_model import LanguageModel
    from flray.synthesis.settings import StandIn
    from flray.synthesis.stand_in import make_stand_in

    shown = is_progress_bar_enabled()
    folder = tmp_path_factory.mktemp("lm") / "lm"
    config = StandIn(hidden=16, heads=2, tokens=300, steps=0)
    make_stand_in(config, [["The cat is here. " * 30]], 0, folder, lambda _: None)
    if request.param == "ctrl":
        shape = CTRLConfig(vocab_size=300, n_embd=16, dff=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0)
        CTRLLMHeadModel(shape).save_pretrained(folder)
    found = LanguageModel(str(folder))
    assert is_progress_bar_enabled() == shown  # of the caller's own networks
    with torch.random.fork_rng():
        torch.manual_seed(3)
        for parameter in found.model.parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("reward", [0.8, None])
def test_generate_writes_what_a_loop_writes(model, temperature, reward):
    """One text at a time, all of it through the network for every token, the rule in NumPy; the batch is padded."""
    beginnings, spans, steps, k = (
        [[5, 9, 30, 31, 7], [8, 40, 41, 42, 43, 44, 45, 6], [70, 71]],
        [(2, 4), (1, 7), (0, 2)],
        12,
        4,
    )
    noise = np.random.default_rng(2).gumbel(size=(3, steps, k)) if temperature else None
    prompt = Prompt(reward=reward, penalty=1.3)
    found = model.write(beginnings, spans, prompt, [temperature] * 3, noise, steps)
    for row, (beginning, (low, high)) in enumerate(zip(beginnings, spans, strict=True)):
        ids, scores = list(beginning), []
        for step in range(steps):
            with torch.no_grad():
                logits = model.model(torch.tensor([ids])).logits[0, -1].numpy()
            s = ruled(logits, ids[low:high], ids[:low] + ids[high:], reward, 1.3).astype(np.float64)
            kept = np.argsort(-s)[:k] if temperature else np.arange(len(s))
            if temperature:
                token = int(kept[np.argmax(s[kept] / temperature + noise[row, step])])
            else:
                token = int(np.argmax(s))
            if token == model.tokenizer.eos_token_id:
                break
            scores.append(s[token] - np.log(np.exp(s[kept]).sum()))
            ids.append(token)
        assert found[row].ids == ids[len(beginning) :]
        np.testing.assert_allclose(found[row].scores, scores, rtol=1e-3, atol=1e-4)
        assert found[row].ended == (len(ids) < len(beginning) + steps)
