"""Relevances, similarities and votes by hand and against NumPy (FedProTIP Eqs. 10 and 11)."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from flray.ops.task_vote import (
    batch_relevance,
    predict_tasks,
    relevance,
    similarity,
    vote,
    vote_by_length,
    window_relevance,
)

INF = float("inf")


def features(n=7, d=5, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)))


def test_relevance_is_the_norm_of_what_lies_in_each_block():
    """F = [[3, 4, 0], [0, 0, 2]] on the first axis, the second, and both others: 3, 4, sqrt(16 + 4)."""
    f, eye = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 2.0]]), torch.eye(3)
    blocks = [eye[:, :1], eye[:, 1:2], eye[:, 1:]]
    np.testing.assert_allclose(relevance(f, blocks).numpy(), [3, 4, 20**0.5], rtol=1e-6)
    np.testing.assert_allclose(relevance(f[:, None], blocks).numpy(), [[3, 4, 4], [0, 0, 2]], rtol=1e-6)
    assert relevance(f[:, None], []).shape == (2, 0)


@pytest.mark.parametrize("mean", [False, True])
def test_relevances_of_batches_and_windows_come_from_those_of_samples(mean):
    f, blocks = features(), [torch.eye(5).double()[:, :2], torch.eye(5).double()[:, 2:]]
    samples = relevance(f[:, None], blocks)

    def whole(part):
        return relevance(part, blocks) / (len(part) ** 0.5 if mean else 1)

    for i, part in enumerate(f.split(3)):
        np.testing.assert_allclose(batch_relevance(samples, 3, mean)[i], whole(part), rtol=1e-12)
    for i in range(7):
        np.testing.assert_allclose(window_relevance(samples, 3, mean)[i], whole(f[max(i - 2, 0) : i + 1]), rtol=1e-12)


def test_similarity_is_the_mean_cosine():
    omega, references = features(4, 3).abs(), features(6, 3, seed=1).abs()
    expected = torch.nn.functional.cosine_similarity(omega[:, None], references[None], dim=2).mean(1)
    np.testing.assert_allclose(similarity(omega, references), expected, rtol=1e-12)
    assert similarity(torch.zeros(1, 3), references.float()).tolist() == [0.0]


def test_votes_by_hand():
    """Majority; then the larger sum; then the lower task. A client without any reference has no vote."""
    majority = [[0.9, 0.1], [0.2, 0.3], [0.2, 0.3]]
    tie = [[0.6, 0.5], [0.1, 0.7]]
    same = [[0.6, 0.5], [0.5, 0.6]]
    for rows, expected, lowest in ((majority, 1, 1), (tie, 1, 0), (same, 0, 0)):
        s = torch.tensor([rows])
        assert vote(s).tolist() == [expected] and vote(s, "lowest").tolist() == [lowest]
        silent = torch.cat([s, torch.full((1, 1, 2), -INF)], dim=1)
        assert vote(silent).tolist() == [expected] and vote(silent, "lowest").tolist() == [lowest]
    three = torch.tensor([[[-INF, 0.2, 0.4], [0.3, 0.9, -INF]]])
    assert vote(three).tolist() == [1]  # one vote each for 2 and 1; sums -inf and 1.1


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 999))
def test_votes_against_a_loop(clients, tasks, seed):
    draws = np.random.default_rng(seed)
    s = np.round(draws.random((6, clients, tasks)), 1)
    s[:, draws.random((clients, tasks)) < 0.3] = -np.inf
    expected = []
    for row in s:
        votes, sums = np.zeros(tasks), np.zeros(tasks)
        for own in row:
            if np.isfinite(own).any():
                votes[own.argmax()] += 1
                sums += own
        best = [t for t in range(tasks) if votes[t] == votes.max()]
        expected.append(max(best, key=lambda t: (sums[t], -t)))
    found = vote(torch.from_numpy(s)).tolist()
    assert all(f == e for f, e in zip(found, expected, strict=True))


def test_the_rule_for_two_tasks_and_one_block():
    """Means 1 and 3: below 1 the first, above 3 the second, between them the nearer, the first of equal ones."""
    omega = torch.tensor([0.5, 1.0, 1.9, 2.0, 2.1, 3.5])
    assert vote_by_length(omega, (1.0, 3.0)).tolist() == [0, 0, 0, 0, 1, 1]
    assert vote_by_length(torch.tensor([2.0]), (3.0, 1.0)).tolist() == [0]  # below the first mean, whatever the second


def test_routes():
    """Client 0 saw both tasks, client 1 the second alone, whose references know the first block only."""
    one, two = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0], [0.0, 1.0]])
    own = [[one, two], [None, torch.tensor([[1.0]])]]
    omega = torch.tensor([[3.0, 0.1], [0.1, 3.0]])
    assert predict_tasks(omega, own).tolist() == [1, 1]  # one vote each; -inf in the sum of task 0
    assert predict_tasks(omega, own[:1]).tolist() == [0, 1]
    assert predict_tasks(omega, []).tolist() == [0, 0] and predict_tasks(omega, [[one]]).tolist() == [0, 0]
    lengths = [[torch.tensor([[1.0], [3.0]]), torch.tensor([[8.0]])], [torch.tensor([[4.0]]), None]]  # means 3 and 8
    assert predict_tasks(torch.tensor([[2.0], [5.0], [6.0], [9.0]]), lengths).tolist() == [0, 0, 1, 1]


def test_the_rule_for_two_tasks_where_the_first_references_end_before_the_block():
    """Task 0's references were made when it had no block to be measured on: they are 0, and 3.5 is the middle."""
    own = [[torch.zeros(3, 0), torch.tensor([[8.0], [6.0]])]]
    assert predict_tasks(torch.tensor([[2.0], [3.4], [3.6], [9.0]]), own).tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("mean", [False, True])
def test_units_of_no_sample_of_few_and_of_no_block(mean):
    empty, one = torch.zeros(0, 3), torch.tensor([[3.0, 4.0]])
    assert batch_relevance(empty, 4, mean).shape == window_relevance(empty, 4, mean).shape == (0, 3)
    assert batch_relevance(one, 4, mean).tolist() == window_relevance(one, 4, mean).tolist() == one.tolist()
    no_block = torch.zeros(5, 0)
    assert batch_relevance(no_block, 4, mean).shape == (2, 0) and window_relevance(no_block, 4, mean).shape == (5, 0)
