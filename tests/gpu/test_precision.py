"""bfloat16 and `torch.compile` on a GPU: the same experiment, within their rounding."""

import numpy as np
import pytest
import torch

from flray.contracts.played import Local
from flray.core.protocol.clock import Clock
from tests.support.devices import finish
from tests.support.memory import small


def losses(config, folder, gpu, change=lambda local: None):
    local = Local(config, folder, device=gpu)
    change(local)
    tested = []
    for round in range(3):
        finish(local, 1)
        (counts,) = local.server.evaluate(Clock(0, round, done=round + 1)).values()
        tested.append(counts.loss)
    assert np.isfinite(tested).all()
    return np.array(tested)


@pytest.mark.parametrize("model", ["fedavg_cnn", "resnet8"])
def test_bf16_has_nearly_the_losses_of_float32(model, tmp_path, gpu):
    plain = small("fedavg", model)
    half = plain.model_copy(update={"precision": "bf16"})
    one, other = losses(plain, tmp_path / "fp32", gpu), losses(half, tmp_path / "bf16", gpu)
    assert not np.array_equal(one, other)
    np.testing.assert_allclose(other, one, rtol=0.05)


def test_a_compiled_network_has_nearly_the_losses_of_the_plain_one(tmp_path, gpu):
    def compiled(local):
        module = local.server.runtime.objective.module
        module.forward = torch.compile(module.forward)

    config = small("fedavg", "fedavg_cnn")
    one, other = losses(config, tmp_path / "plain", gpu), losses(config, tmp_path / "compiled", gpu, compiled)
    np.testing.assert_allclose(other, one, rtol=1e-3)
