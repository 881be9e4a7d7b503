"""What is made from tensors is kept while they live, and keeps nothing itself."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from flray.core.network.objective import CACHED_POINTS, Objective
from flray.core.network.tensor_cache import TensorCache
from tests.support.networks import Mlp, Norm, build, inputs


def test_a_value_goes_with_the_first_of_its_tensors():
    kept, first, second = TensorCache(3), torch.zeros(2), torch.zeros(2)
    kept.put("both", "value", first, second)
    kept.put("none", "other")
    assert (kept.get("both"), kept.get("none"), kept.get("nothing")) == ("value", "other", None)
    del second
    assert kept.get("both") is None and len(kept) == 1


def test_a_value_that_is_used_outlives_newer_ones():
    kept = TensorCache(2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert kept.get("a") == 1
    kept.put("c", 3)
    assert [kept.get(key) for key in "abc"] == [1, None, 3]
    kept.put("a", 4)
    kept.put("d", 5)
    assert [kept.get(key) for key in "acd"] == [4, None, 5]


def test_the_rows_of_a_stack_do_not_hold_it():
    """As an ensemble is asked: row by row of `[K, P]`, then the average. With the average's model bound, nothing knows
    the stack.
    """
    objective, (x, _) = Objective(build(Norm)), inputs(Norm, 3)
    w, b = objective.initial()
    stack, statistics = torch.stack([w, 0.5 * w, 2 * w]), torch.stack([b, b, b])
    storages = [StorageWeakRef(t.untyped_storage()) for t in (stack, statistics)]
    with torch.no_grad():
        for row, moments in zip(stack, statistics, strict=True):
            objective.at(row, moments)(x)
        objective.at(w, b)(x)
    del row, moments, stack, statistics
    assert all(storage.expired() for storage in storages)


def test_a_gradient_is_not_held_either():
    objective, (x, y) = Objective(build(Mlp)), inputs(Mlp, 3)
    w, b = objective.initial()
    out = torch.zeros_like(w)
    objective.value_and_grad(lambda f: torch.nn.functional.cross_entropy(f(x), y), w, b, out=out)
    storage = StorageWeakRef(out.untyped_storage())
    del out
    assert storage.expired()


def test_points_that_live_are_made_once():
    objective = Objective(build(Norm))
    points = [(w, b) for w, b in (objective.initial() for _ in range(CACHED_POINTS))]
    models = [objective.at(*point) for point in points]
    assert all(objective.at(*point) is model for point, model in zip(points, models, strict=True))
