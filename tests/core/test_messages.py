"""Messages as values: measured, flattened, rebuilt, compared."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from flray.core.messages import Update, equal, flatten, map_tensors, nbytes, rebuild, tensors, to_numpy, to_torch


class Inner(NamedTuple):
    c: torch.Tensor
    count: int


class Outer(NamedTuple):
    w: torch.Tensor
    inner: Inner
    rate: float
    nothing: Any = None
    empty: Any = ()


def message() -> Outer:
    return Outer(torch.arange(6.0).view(2, 3), Inner(torch.tensor([1, 2], dtype=torch.int64), 7), 0.1)


def test_bytes_are_those_of_the_tensors_and_8_for_a_number():
    # 6 float32 + 2 int64 + one int + one float
    assert nbytes(message()) == 6 * 4 + 2 * 8 + 8 + 8
    assert nbytes(to_numpy(message())) == nbytes(message())
    assert nbytes(()) == 0 and nbytes(None) == 0


def test_flatten_and_rebuild_are_inverse_with_numbers_of_their_own_type():
    flat = flatten(message())
    assert set(flat) == {"w", "inner.c", "inner.count", "rate"}
    assert all(isinstance(array, np.ndarray) for array in flat.values())
    back = to_torch(rebuild(to_numpy(message()), flat))
    assert equal(back, message())
    assert type(back.inner.count) is int and type(back.rate) is float and back.rate == 0.1
    assert back.nothing is None and back.empty == ()


def test_rebuild_names_the_missing_field():
    flat = flatten(message())
    del flat["inner.c"]
    with pytest.raises(KeyError, match=r"inner\.c"):
        rebuild(message(), flat)


def test_a_bare_tensor_is_a_message():
    tensor = torch.ones(3)
    assert torch.equal(to_torch(rebuild(tensor, flatten(tensor))), tensor)


def test_to_torch_copies_so_that_shared_memory_is_never_written():
    array = np.zeros(3, dtype=np.float32)
    array.flags.writeable = False
    tensor = to_torch(Update(array, array)).w
    tensor.add_(1)
    assert not array.any()
    source = torch.zeros(3)
    to_torch(source).add_(1)
    assert not source.any()


def test_a_list_in_a_message_is_refused():
    with pytest.raises(TypeError, match="not list"):
        map_tensors(torch.clone, Update([torch.zeros(1)], torch.zeros(1)))


def test_tensors_are_named_with_dots():
    assert list(tensors(message())) == ["w", "inner.c"]


NAN = float("nan")


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (torch.tensor([1.0]), torch.tensor([1.0]), True),
        (torch.tensor([1.0]), torch.tensor([1.0 + 2**-23]), False),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64), False),
        (torch.tensor([1.0]), torch.tensor([[1.0]]), False),
        (torch.tensor([NAN]), torch.tensor([NAN]), True),
        (torch.tensor([NAN]), torch.tensor([0.0]), False),
        (torch.tensor([float("inf")]), torch.tensor([torch.finfo(torch.float32).max]), False),
        (Update(torch.ones(2), torch.ones(1)), Update(torch.ones(2), torch.ones(1)), True),
        (Update(torch.ones(2), torch.ones(1)), Update(torch.ones(2), torch.zeros(1)), False),
        (Inner(torch.ones(1), 1), Inner(torch.ones(1), 2), False),
        (Inner(torch.ones(2), 1), Update(torch.ones(2), torch.ones(1)), False),
        ((), (), True),
        (1, 1.0, False),
    ],
)
def test_equal(left, right, same):
    assert equal(left, right) is same


def test_equal_on_arrays():
    assert equal(np.arange(3.0), np.arange(3.0))
    assert not equal(np.arange(3.0), np.arange(1.0, 4.0))
