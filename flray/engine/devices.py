"""The device that a process computes on, set up so that the same work has the same bits."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flray.config.experiment import ResourcesConfig
from flray.core.network.objective import Precision
from flray.core.network.threads import threads
from flray.core.schema.errors import warn
from flray.data.cache import Array
from flray.data.splits import Split
from flray.files import array_checksum

METAL = "this Mac's own, PyTorch's device mps,"
RESIDENT = 2**30  # bytes of samples in each process: CIFAR-100 has 150 MB, Tiny ImageNet 1.2 GB


class IdleGPUWarning(UserWarning):
    """There are GPUs, and the run uses none."""


def arithmetic(device: torch.device) -> str:
    """What computes on this device and draws the initial weights: torch's set of kernels for this CPU, with a checksum
    of a convolution and a product by one thread, which other libraries compute; before it the name of a GPU.

    Equal words do not prove equal bits; other words mean that bits may differ.
    """
    x = torch.from_numpy(np.linspace(-1, 1, 3 * 16 * 16, dtype=np.float32).reshape(1, 3, 16, 16))
    w = torch.from_numpy(np.linspace(1, -1, 8 * 27, dtype=np.float32).reshape(8, 3, 3, 3))
    with threads(1):
        products = array_checksum(torch.nn.functional.conv2d(x, w).numpy(), (x[0, 0] @ x[0, 1].T).numpy())
    processor = f"{torch.backends.cpu.get_cpu_capability()} {products[:8]}"
    return f"{torch.cuda.get_device_name(device)}, {processor}" if device.type == "cuda" else processor


def gpus(root: Path = Path("/")) -> str:
    """The GPUs that this process may use, and how processes share one: by turns, by NVIDIA's Multi-Process Service
    (MPS), or as slices (Multi-Instance GPU, MIG). Starts no CUDA; `root`: of the files that tell of both."""
    count = torch.cuda.device_count()
    if not count:
        return f"0 GPUs ({METAL} is not used)" if torch.backends.mps.is_available() else "0 GPUs"
    words = f"{count} GPU{'s' * (count != 1)}"
    if slices := len(list(root.glob("proc/driver/nvidia/capabilities/gpu*/mig/gi*/ci*"))):
        words += f" (MIG: the machine has {slices} slice{'s' * (slices != 1)}; name several in CUDA_VISIBLE_DEVICES)"
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", root / "tmp/nvidia-mps"))
    with contextlib.suppress(PermissionError):  # another user's
        words += ", shared by NVIDIA's MPS" * (pipes / "control").exists()
    return words


def warn_of_idle(gpus: float, resources: ResourcesConfig) -> None:
    """An `IdleGPUWarning` where there are so many `gpus` and no actor of the run takes a share."""
    if gpus and not resources.client.num_gpus and not resources.server.num_gpus:
        what = f"{gpus:g} GPU{'s' * (gpus != 1)} stand{'s' * (gpus == 1)} idle: this run computes on CPUs"
        also = " and resources.executor=auto" if resources.executor == "local" else ""
        warn(f"{what}; to use them, set resources.client.num_gpus=auto{also}", IdleGPUWarning)


def set_up(device: str, precision: Precision) -> str:
    """The process's settings for this `device` (`cpu` or `cuda`), which is returned.

    On a GPU, cuDNN is not to choose kernels by measuring them, PyTorch takes the deterministic ones where it has them
    and warns where it has none, and products are computed in float32 unless `precision` says TF32. PyTorch's own
    default is TF32 in convolutions. Gradients in TF32 differ by 1 to 9 % from those in double precision (measured on an
    H100: `docs/pages/how-to/gpu.md`).
    """
    if device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True, warn_only=True)
        # flray reads no memory that it has not written
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a module's property
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    return device


def resident(split: Split, device: torch.device) -> Split:
    """The split with its samples on the device, where they are gathered; see :func:`resident_arrays`."""
    x, y = resident_arrays(device, split.x, split.y)
    return split._replace(x=x, y=y)


def resident_bytes(*arrays: Array | None) -> int:
    """What :func:`resident_arrays` takes of a device's memory."""
    total = sum(array.nbytes for array in arrays if array is not None)
    return total if total <= RESIDENT else 0


def resident_arrays(device: torch.device, *arrays: Array | None) -> list[Any]:
    """Samples as tensors on the device, as they are stored; the arrays themselves on a CPU, or if they are larger than
    `RESIDENT` bytes together."""
    if device.type == "cpu" or not resident_bytes(*arrays):
        return list(arrays)
    return [None if array is None else torch.from_numpy(np.array(array)).to(device) for array in arrays]
