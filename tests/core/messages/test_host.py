"""What the host reads of a device's tensors: the same numbers, in one copy."""

import numpy as np
import pytest
import torch

from flray.core.messages import Record, to_numpy
from flray.core.messages.host import LARGEST, to_host
from flray.core.messages.records import Streamed
from tests.support import second_device
from tests.support.devices import using

TENSORS = (
    torch.tensor(1 / 3),
    torch.tensor([1e300, -0.0, torch.inf], dtype=torch.float64),
    torch.tensor([[2**40 + 1, -3]]),
    torch.tensor([True, False]),
    torch.zeros(0),
)


@pytest.fixture
def copies():
    """(the device, the number of copies to the host since the last question)."""
    with using("strict") as device:
        before = [0]

        def asked():
            total = sum(count for (_, what), count in second_device.traffic.items() if what in ("copy", "wait"))
            new, before[0] = total - before[0], total
            return new

        asked()
        yield device, asked


def test_numbers_of_all_tensors_come_in_one_copy(copies):
    device, asked = copies
    found = to_host([*(t.to(device) for t in TENSORS), "text", 3])
    assert asked() == 1 and found[-2:] == ["text", 3]
    for tensor, read in zip(TENSORS, found, strict=False):
        assert read.tolist() == tensor.double().tolist() and read.shape == tensor.shape


def test_tensors_of_the_cpu_and_other_values_are_what_they_were():
    values = [*TENSORS, None, "x"]
    assert all(found is value for found, value in zip(to_host(values), values, strict=True))


def test_a_message_comes_in_one_copy_with_its_types_and_shapes(copies):
    class Many(Record):
        parts: tuple[torch.Tensor, ...]
        large: torch.Tensor
        turned: torch.Tensor
        number: int

    large = torch.arange(LARGEST // 4 + 1, dtype=torch.float32)
    turned = torch.arange(6.0).view(2, 3).T
    message = Many(TENSORS, large, turned, 7)
    device, asked = copies
    there = Many(tuple(t.to(device) for t in TENSORS), large.to(device), turned.to(device), 7)
    asked()
    found = to_numpy(there)
    assert asked() == 2  # the large one comes alone
    expected = to_numpy(message)
    assert found.number == 7
    for mine, other in zip((*found.parts, found.large, found.turned),
                           (*expected.parts, expected.large, expected.turned), strict=True):  # fmt: skip
        assert mine.dtype == other.dtype and mine.shape == other.shape and np.array_equal(mine, other)
        assert mine.ctypes.data % mine.itemsize == 0


def test_a_streamed_field_is_copied_as_a_tuple() -> None:
    """Its tensors are other ones each time that they are read."""
    values = [np.arange(3, dtype=np.float32) + i for i in range(3)]
    copied = to_numpy({"w": Streamed(values), "n": torch.ones(2)})
    assert type(copied["w"]) is tuple and copied["n"].tolist() == [1, 1]
    assert [one.tolist() for one in copied["w"]] == [one.tolist() for one in values]
