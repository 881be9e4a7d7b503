"""Convolutions with few channels, in a process of their own: PyTorch 2.15 corrupts memory in the backward pass of some
shapes, and a process that survives it proves nothing about the next one."""

from tests.support.processes import python

GRID = '''
import torch
from torch import nn
from flray.core.network.objective import Objective

torch.set_num_threads(1)

class Net(nn.Module):
    """A convolution behind one whose kernel makes activations channels-last."""

    def __init__(self, channels, kernel, stride, groups):
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, 2 * channels, kernel, stride, kernel // 2, groups=groups, bias=False)

    def forward(self, x):
        return self.second(self.first(x))

for channels in (2, 3, 4, 5, 6, 7, 8, 12, 16):
    for kernel in (1, 3):
        for stride in (1, 2):
            for groups in {1, channels, 2 if channels % 2 == 0 else 1}:
                torch.manual_seed(0)
                net = Net(channels, kernel, stride, groups)
                x = torch.randn(8, 3, 8, 8)
                exact = Net(channels, kernel, stride, groups).double()
                exact.load_state_dict({n: t.double() for n, t in net.state_dict().items()})
                y = exact(x.double())
                along = torch.randn(y.shape)
                expected = torch.autograd.grad((y * along.double()).sum(), list(exact.parameters()))
                objective = Objective(net)
                w, b = objective.initial()
                for _ in range(5):
                    g = objective.value_and_grad(lambda f: (f(x) * along).sum(), w, b)[1]
                    kept = [torch.randn(1000) for _ in range(20)]
                for view, right in zip(objective.views(g).values(), expected, strict=True):
                    error = float((view - right).abs().max() / right.abs().max())
                    assert error < 2e-5, (channels, kernel, stride, groups, error)
print("complete")
'''


def test_no_shape_corrupts_memory_and_gradients_are_those_of_float64():
    """2 to 16 channels, kernels 1 and 3, strides 1 and 2, plain, grouped and depthwise: the right gradients are those
    of the same network in float64, by PyTorch's own autograd without channels-last kernels."""
    assert "complete" in python("-c", GRID).stdout
