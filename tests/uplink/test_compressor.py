"""Encodings against NumPy: what is sent, what is read from it, and its bytes."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from flray.core.messages import nbytes, to_numpy
from flray.uplink import Quantize, TopK
from flray.uplink.compressor import as_compressor

DRAWS = np.random.default_rng(0)


def vector(size: int, seed: int = 0) -> torch.Tensor:
    """Magnitudes over six powers of ten, some zeros."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(size) * 10.0 ** rng.integers(-3, 3, size) * (rng.random(size) > 0.1)
    return torch.from_numpy(x.astype(np.float32))


def through_bytes(sent: dict[str, torch.Tensor]) -> tuple[bytes, dict[str, torch.Tensor]]:
    """The message as bytes alone, and the message that is read from them, whose shapes both sides know."""
    arrays = to_numpy(sent)
    wire = b"".join(array.tobytes() for array in arrays.values())
    read, start = {}, 0
    for name, array in arrays.items():
        read[name] = torch.from_numpy(np.frombuffer(wire, array.dtype, array.size, start).copy())
        start += array.nbytes
    return wire, read


def test_the_largest_entries_by_hand():
    sent = TopK(fraction=0.5).encode(torch.tensor([1.0, -5.0, 0.5, 4.0, 0.0, -2.0, 0.0]), DRAWS)
    assert sent["indices"].tolist() == [1, 3, 5] and sent["values"].tolist() == [-5.0, 4.0, -2.0]
    assert sent["indices"].dtype == torch.int32
    assert TopK(fraction=0.5).decode(sent, 7).tolist() == [0.0, -5.0, 0.0, 4.0, 0.0, -2.0, 0.0]


@pytest.mark.parametrize(("fraction", "size", "kept"), [(0.29, 100, 29), (0.01, 300, 3), (0.01, 99, 1), (0.001, 5, 1)])
def test_the_number_of_entries_is_exact_and_at_least_one(fraction, size, kept):
    assert len(TopK(fraction=fraction).encode(vector(size), DRAWS)["values"]) == kept


def test_codes_by_hand():
    """3 bits are -3 to 3; scales 6/3 and 0.3/3; 5/2 = 2.5 goes to the even 2; the third bucket is empty and short."""
    x = torch.tensor([6.0, -5.0, 1.1, 0.0, 0.3, -0.1, 0.04, 0.2, 0.0, 0.0])
    code = Quantize(bits=3, bucket=4)
    sent = code.encode(x, DRAWS)
    assert sent["scales"].tolist() == [2.0, np.float32(0.3) / np.float32(3), 0.0]
    codes = np.array([3, -2, 1, 0, 3, -1, 0, 2, 0, 0])
    bits = ((codes + 3)[:, None] >> np.arange(3)) & 1
    assert sent["codes"].numpy().tobytes() == np.packbits(bits.flatten(), bitorder="little").tobytes()
    expected = codes.astype(np.float32) * np.repeat(sent["scales"].numpy(), 4)[:10]
    assert code.decode(sent, 10).numpy().tobytes() == expected.tobytes()


@given(st.integers(1, 400), st.floats(0.001, 0.5), st.integers(0, 10**6))
@settings(deadline=None, max_examples=60)
def test_top_k_keeps_exactly_the_largest(size, fraction, seed):
    x, code = vector(size, seed), TopK(fraction=fraction)
    wire, sent = through_bytes(code.encode(x, DRAWS))
    read = code.decode(sent, size)
    kept = len(sent["values"])
    assert len(wire) == nbytes(sent) == 8 * kept
    there = np.zeros(size, dtype=bool)
    there[sent["indices"].numpy()] = True
    assert there.sum() == kept and bool((read[there] == x[there]).all()) and not read[~there].any()
    magnitudes = np.sort(np.abs(x.numpy()))[::-1]
    assert sorted(np.abs(sent["values"].numpy()), reverse=True) == magnitudes[:kept].tolist()


@given(
    st.integers(1, 400), st.integers(2, 8), st.integers(1, 90), st.sampled_from(["nearest", "stochastic"]),
    st.integers(0, 10**6),
)  # fmt: skip
@settings(deadline=None, max_examples=80)
def test_a_code_is_at_most_a_step_away(size, bits, bucket, rounding, seed):
    x, code = vector(size, seed), Quantize(bits=bits, bucket=bucket, rounding=rounding)
    wire, sent = through_bytes(code.encode(x, np.random.default_rng(seed)))
    read = code.decode(sent, size)
    assert len(wire) == nbytes(sent) == -(-size * bits // 8) + 4 * -(-size // bucket)
    step = np.repeat(sent["scales"].numpy(), bucket)[:size]
    most = 0.5 if rounding == "nearest" else 1.0
    assert (np.abs((read - x).numpy()) <= most * step * (1 + 1e-4)).all()
    assert not read[x == 0].any()
    levels = 2 ** (bits - 1) - 1
    largest = [np.abs(x.numpy()[i : i + bucket]).max() for i in range(0, size, bucket)]
    np.testing.assert_allclose(sent["scales"].numpy(), np.array(largest) / levels, rtol=1e-6)


def test_stochastic_rounding_is_right_on_average_and_repeats_with_its_generator():
    x, code = torch.tensor([3.0, 0.3, -1.75, 0.0]), Quantize(bits=3, rounding="stochastic")
    draws = np.random.default_rng(1)
    mean = torch.stack([code.decode(code.encode(x, draws), 4) for _ in range(4000)]).mean(0)
    # the standard error of a coin's mean is at most 0.5 / sqrt(4000) = 0.008
    torch.testing.assert_close(mean, x, atol=0.04, rtol=0)
    one, again, other = (code.encode(vector(50), np.random.default_rng(s))["codes"] for s in (2, 2, 3))
    assert one.equal(again) and not one.equal(other)


@pytest.mark.parametrize("code", [TopK(fraction=0.1), Quantize(bits=8), Quantize(bits=2)])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(code, bad):
    x = vector(40)
    x[7] = bad
    assert not bool(torch.isfinite(code.decode(code.encode(x, DRAWS), 40)).all())


def test_two_functions_are_an_encoding():
    def halves(x: torch.Tensor, draws: Any) -> dict[str, torch.Tensor]:
        return {"halves": x.half()}

    code = as_compressor((halves, lambda sent, size: sent["halves"].float()))
    sent = code.encode(vector(9), DRAWS)
    assert nbytes(sent) == 18 and code.decode(sent, 9).equal(vector(9).half().float())
    assert code.feedback and as_compressor(TopK()) == TopK()
