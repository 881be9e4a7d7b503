"""The flat vector: places, alignment, gaps, views."""

import numpy as np
import torch
from hypothesis import given, strategies as st

from flray.core.network.layout import Layout

SHAPES = st.lists(st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple), min_size=1, max_size=6)


def named(shapes):
    return {f"t{i}": shape for i, shape in enumerate(shapes)}


@given(SHAPES)
def test_every_tensor_starts_on_64_bytes_and_places_do_not_overlap(shapes):
    layout = Layout(named(shapes))
    end = 0
    for entry, shape in zip(layout.entries, shapes, strict=True):
        assert entry.offset * 4 % 64 == 0
        assert entry.offset >= end
        assert entry.offset - end < 16, "a gap is shorter than one cache line"
        assert entry.numel == int(np.prod(shape))
        end = entry.offset + entry.numel
    assert layout.size * 4 % 64 == 0 and layout.size >= end
    assert layout.count == sum(int(np.prod(s)) for s in shapes)


@given(SHAPES, st.integers(0, 2**31))
def test_flatten_and_views_are_inverse_and_gaps_hold_zeros(shapes, seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(shape, generator=generator) + 3 for name, shape in named(shapes).items()}
    layout = Layout(named(shapes))
    flat = layout.flatten(tensors)
    assert flat.shape == (layout.size,) and flat.dtype == torch.float32
    for name, view in layout.views(flat).items():
        assert view.shape == tensors[name].shape
        assert torch.equal(view, tensors[name])
    used = layout.mask(lambda name: True).bool()
    assert int(used.sum()) == layout.count
    assert not flat[~used].any()
    # the norm of the flat vector is that of the tensors together
    total = sum(float((t.double() ** 2).sum()) for t in tensors.values())
    assert np.isclose(float((flat.double() ** 2).sum()), total)


@given(SHAPES)
def test_writing_to_a_view_writes_to_that_tensor_alone(shapes):
    layout = Layout(named(shapes))
    for chosen in named(shapes):
        flat = torch.zeros(layout.size)
        layout.views(flat)[chosen].fill_(1.0)
        assert torch.equal(flat, layout.mask(lambda name, chosen=chosen: name == chosen))


def test_kernels_lie_channels_last_with_logical_shape():
    layout = Layout({"bias": (3,), "conv": (4, 3, 5, 2)})
    flat = torch.arange(layout.size, dtype=torch.float32)
    view = layout.views(flat)["conv"]
    assert view.shape == (4, 3, 5, 2)
    assert view.is_contiguous(memory_format=torch.channels_last)
    # element [o, i, y, x] stands at ((o*kh + y)*kw + x)*in + i behind the tensor's start
    start = layout.entries[1].offset
    assert float(view[2, 1, 4, 0]) == start + ((2 * 5 + 4) * 2 + 0) * 3 + 1
