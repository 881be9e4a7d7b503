"""What a caller has set in its process changes no bit of what is computed in it, and is there afterwards."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.backends import mha, mkldnn, opt_einsum
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from flray.core.protocol.generators import seed_globals
from flray.engine.this_process import compute


class Passes(TorchFunctionMode):
    """It changes nothing, and yet attention takes other kernels in it."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def put(setter: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    setter(value)
    try:
        yield
    finally:
        setter(before)


def rounded(t: Tensor) -> Tensor:
    return t.half() if t.is_floating_point() else t


def precision(backend: str, part: str) -> Any:
    return put(lambda value: torch._C._set_fp32_precision_setter(backend, part, value), "tf32", "none")


SETTINGS: dict[str, Callable[[], Any]] = {
    "device": lambda: torch.device("cpu"),
    "default device": lambda: put(torch.set_default_device, "cpu", None),
    "meta": lambda: put(torch.set_default_device, "meta", None),
    "mode": Passes,
    "fast path": lambda: put(mha.set_fastpath_enabled, False, True),
    "math attention": lambda: sdpa_kernel(SDPBackend.MATH),
    "mkldnn": lambda: put(torch._C._set_mkldnn_enabled, False, True),
    "matmul": lambda: precision("mkldnn", "matmul"),  # what set_float32_matmul_precision sets
    "precision": lambda: precision("generic", "all"),
    "einsum": lambda: opt_einsum.flags(enabled=False),
    "einsum's attribute": lambda: mock.patch.object(opt_einsum, "enabled", False),
    "denormals": lambda: put(torch.set_flush_denormal, True, False),
    "saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(rounded, lambda t: t.float()),
}


def state() -> list[Any]:
    """What the settings are, as far as PyTorch tells it."""
    top = torch._C._autograd._top_saved_tensors_default_hooks(True)
    precisions = [torch._C._get_fp32_precision_getter(*of) for of in [("generic", "all"), ("mkldnn", "matmul")]]
    flags = [mha.get_fastpath_enabled(), mkldnn.enabled, torch.backends.cuda.flash_sdp_enabled(), opt_einsum.enabled]
    return [
        *(_get_current_function_mode_stack(), top, precisions, flags, sys.float_info.min / 2),
        *(torch._GLOBAL_DEVICE_CONTEXT.__dict__.get("device_context"), torch.utils._device.CURRENT_DEVICE),
    ]


def work() -> tuple[list[Any], list[bytes]]:
    """(the settings, results in float32 of layers whose kernels depend on one of them)"""
    seed_globals(0)
    encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    convolution, x = nn.Conv2d(3, 16, 3, padding=1), torch.randn(8, 3, 12, 12)
    h = convolution(x).relu().flatten(2).transpose(1, 2)
    logits = encoder(h)
    chain = torch.einsum("bij,bkj,bkl->bil", h, h, h)
    gradient = torch.autograd.grad(logits.pow(3).mean() + chain.mean(), list(convolution.parameters()))
    heads = h.view(8, -1, 2, 8).transpose(1, 2)
    with torch.no_grad():
        alone = encoder(h)
    found = [logits, alone, chain, nn.functional.scaled_dot_product_attention(heads, heads, heads), *gradient]
    return state(), [t.detach().numpy().tobytes() for t in [*found, torch.full((9,), 3e-39) / 2]]


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_decides_kernels_is_pytorchs_default_and_put_back(setting: str) -> None:
    expected = compute(1, work)
    with SETTINGS[setting]():
        before = state()
        assert compute(1, work) == expected
        assert state() == before
        with pytest.raises(ZeroDivisionError):
            compute(1, lambda: work() and 1 / 0)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(compute, 1, work).result() == expected
        assert state() == before
    assert compute(1, work) == expected and before != expected[0]


def test_modes_that_the_work_leaves_behind_end_with_it() -> None:
    with torch.device("meta"), Passes():
        before = state()
        compute(1, lambda: torch.set_default_device("cpu"))
        assert state() == before and torch.empty(1).is_meta
    assert state() == compute(1, state)
