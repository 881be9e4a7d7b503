"""The number of test samples in one forward pass, for modes whose predictions do not depend on it."""

from __future__ import annotations

import traceback

import torch
from torch import Tensor, nn

from flray.core.schema.errors import AlgorithmError

ACTIVATION_BYTES = 16 * 2**20  # of the largest activation of a block: beyond it, it no longer stays in a CPU's cache
# more samples gain nothing, even with a small model, and a test set has to make blocks for all actors
LEAST, MOST = 16, 512


def samples_at_once(module: nn.Module, x: Tensor, classes: int | None = None) -> int:
    """The largest power of two from 16 to 512 with which the largest activation takes at most 16 MiB.

    It depends on the module and on the shape of its inputs `x [B, ...]`, on which the module runs once. It does not
    depend on the machine, because a kernel may round differently for another number of samples. Measured on one core
    of a server CPU, microseconds a sample:

    | samples at once | 16 | 50 | 64 | 128 | 256 | 512 | chosen |
    |---|---|---|---|---|---|---|---|
    | MLP, 200 hidden | 6 | 5 | 4 | 4 | 4 | 4 | 512 |
    | CNN of FedAvg, 32 x 32 | 319 | 268 | 258 | 257 | 331 | 354 | 128 |
    | ResNet-8 | 1335 | 1067 | 1181 | 1299 | 2644 | 2175 | 64 |
    | VGG-11 | 2579 | 1741 | 1706 | 1753 | 1793 | 1832 | 64 |
    | SL-ViT | 3015 | 3071 | 2941 | 3013 | 3429 | 3532 | 64 |

    Raises `AlgorithmError` with the module's traceback if it fails on `x`, and if it does not return logits of so many
    `classes`.
    """
    largest = x.numel()

    def note(_module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal largest
        for tensor in output if isinstance(output, tuple | list) else (output,):
            if isinstance(tensor, Tensor):
                largest = max(largest, tensor.numel())

    hooks = [part.register_forward_hook(note) for part in module.modules()]
    training = module.training
    try:
        with torch.no_grad():
            logits = module.eval()(x)
    except Exception as error:
        what = (
            f"model {type(module).__name__} failed on inputs of shape {list(x.shape)}: {type(error).__name__}: {error}"
        )
        raise AlgorithmError(f"{what}\n{traceback.format_exc()}".rstrip()) from None
    finally:
        module.train(training)
        for hook in hooks:
            hook.remove()
    if classes is not None and (not isinstance(logits, Tensor) or logits.shape != (len(x), classes)):
        form = f"a tensor {list(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise AlgorithmError(
            f"model {type(module).__name__} gives {form} for {len(x)} samples; it must give logits "
            f"[{len(x)}, {classes}], one for each of {classes} classes"
        )
    fitting = ACTIVATION_BYTES * len(x) // (4 * largest)
    return max(LEAST, min(MOST, 1 << max(fitting.bit_length() - 1, 0)))
