"""Frozen tensors in memory that all processes of a node share: each process maps the same file."""

from __future__ import annotations

import ctypes
import sys
from bisect import bisect
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from flray.core.network.attributes import content
from flray.data.cache import CacheEntry, digest, fetch
from flray.files import array_checksum, cache_root

MIN_BYTES = 16 * 2**20  # bytes: what is smaller is not worth a file
ALIGNMENT = 64  # bytes, as a tensor of its own would lie


def share_frozen(networks: Iterable[nn.Module]) -> int:
    """Move the frozen parameters of the networks into memory that all processes of the node share; returns its bytes.

    The first process writes them to the data cache, under the checksum of their contents; every process maps that file.
    Writing to a parameter copies its pages for this process. Parameters on a GPU, fewer than 16 MiB in all, and
    parameters that are mapped already (transformers maps a float32 `.safetensors` file) stay as they are.
    """
    files = _mapped_files()
    frozen = {id(p): p for network in networks for p in network.parameters() if not p.requires_grad}
    private = [p for p in frozen.values() if p.device.type == "cpu" and p.is_contiguous() and not _inside(p, files)]
    sizes = [-(-p.nbytes // ALIGNMENT) * ALIGNMENT for p in private]
    starts = [0, *np.cumsum(sizes).tolist()]
    if starts[-1] < MIN_BYTES:
        return 0
    # where each lies follows from it
    key = digest("frozen", ALIGNMENT, *(array_checksum(content(p).numpy()) for p in private))

    def build() -> CacheEntry:
        flat = np.zeros(starts[-1], np.uint8)
        for p, start in zip(private, starts, strict=False):
            flat[start : start + p.nbytes] = content(p).numpy()
        return CacheEntry({"tensors": flat}, {})

    fetch(key, build)  # compared with its checksum
    mapped = torch.from_numpy(np.load(cache_root() / "data" / key / "tensors.npy", mmap_mode="c"))
    for p, start in zip(private, starts, strict=False):
        p.data = mapped[start : start + p.nbytes].view(p.dtype).view(p.shape)
    with suppress(AttributeError):  # another libc
        ctypes.CDLL(None).malloc_trim(0)  # else it keeps the copies' pages for later
    return int(starts[-1])


def _mapped_files() -> list[tuple[int, int]]:
    """Address ranges (first, last + 1) of this process's mapped files, in order; empty if the system does not tell."""
    ranges = []
    with suppress(FileNotFoundError), Path("/proc/self/maps").open() as lines:
        for line in lines:
            where, _, _, _, inode, *_ = line.split()
            if inode != "0":
                first, last = where.split("-")
                ranges.append((int(first, 16), int(last, 16)))
    return ranges


def _inside(p: Tensor, ranges: list[tuple[int, int]]) -> bool:
    place = bisect(ranges, (p.data_ptr(), sys.maxsize)) - 1
    return place >= 0 and p.data_ptr() < ranges[place][1]
