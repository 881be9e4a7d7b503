"""The floor of a decimal share, against whole numbers."""

import pytest
from hypothesis import given, strategies as st

from flray.core.schema.shares import floor_share


@given(st.integers(0, 10**6), st.integers(0, 10**9))
def test_a_decimal_of_six_places_is_exact(millionths, count):
    assert floor_share(millionths / 10**6, count) == millionths * count // 10**6


@pytest.mark.parametrize(("share", "count", "floor"), [(0.29, 100, 29), (0.57, 100, 57), (1e-7, 10**7, 1), (1.0, 3, 3)])
def test_cases_that_a_floating_point_product_gets_wrong_or_nearly_so(share, count, floor):
    assert floor_share(share, count) == floor
