"""Every algorithm has the numbers of the CPU on a GPU, but for rounding; the same bits twice."""

import numpy as np
import pytest

from flray.contracts.played import Local
from tests.contracts.table import TABLE
from tests.contracts.traffic import short
from tests.support.devices import assert_close, finish, numbers, played

TOLERANCE = 2e-3  # of a round: sums in another order, through a square root in the adaptive methods
# what they make of noise in many steps, each of which enlarges the difference: a pool of images, a generator, images.
# On an H100 12, 18 and 5 % of the numbers differ by more; on a CPU as many do between two libraries of convolutions,
# and their quantiles differ by 0.2 % of the range.
MADE = {"lander": ("pool",), "mfcl": ("generator_w", "generator_b"), "glfc": ("x",), "lga": ("x",)}
LEVELS, DISTANCE = (0.05, 0.25, 0.5, 0.75, 0.95), 0.01


@pytest.mark.parametrize("name", TABLE)
def test_a_short_run_has_the_numbers_of_the_cpu(name, tmp_path):
    found, expected = (played(short(name), tmp_path, device) for device in ("cuda", "cpu"))
    # a count of right answers may differ where two logits are nearly equal, the directions of a basis in their signs
    same = {key for key in found if "test (" not in key and not any(part in key for part in ("block", "space"))}
    for key in (f"server {part}" for part in MADE.get(name, ())):
        same.remove(key)
        one, other = found[key], expected[key]
        assert one.shape == other.shape and one.dtype == other.dtype
        apart = np.abs(np.quantile(one, LEVELS) - np.quantile(other, LEVELS))
        assert np.all(apart <= DISTANCE * np.ptp(other.astype(float))), key
    assert_close({key: found[key] for key in same}, {key: expected[key] for key in same}, TOLERANCE)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedproj", "fedprotip", "glfc"])
def test_the_same_run_has_the_same_bits(name, tmp_path, gpu):
    one, other = (numbers(finish(Local(short(name), tmp_path / run, device=gpu), 1)) for run in ("a", "b"))
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[key], other[key], equal_nan=True) for key in one if one[key].dtype.kind == "f")
