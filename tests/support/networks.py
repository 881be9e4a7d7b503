"""Small networks for the tests of `Objective` and of the algorithms."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flray.core.network.objective import Objective
from flray.models.base import Classifier


class Mlp(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(5, 7)
        self.head = nn.Linear(7, 3)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.hidden(x))


class Norm(Classifier):
    """With batch norm, whose statistics are `b`."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(5, 7, bias=False)  # a bias before a norm has no gradient but rounding
        self.norm = nn.BatchNorm1d(7)
        self.head = nn.Linear(7, 3)

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.hidden(x)))


class Norms(Classifier):
    """Statistics of three kinds in one `b`: of batch norm, of instance norm, and vectors of spectral norm."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 7))
        self.norm = nn.BatchNorm1d(7)
        self.single = nn.InstanceNorm1d(1, track_running_stats=True)
        self.head = nn.Linear(7, 3)

    def features(self, x: Tensor) -> Tensor:
        return self.single(torch.tanh(self.norm(torch.tanh(self.hidden(x)))).unsqueeze(1)).squeeze(1)


class Conv(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 4 * 4, 3)

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x))).flatten(1)


class Tied(Classifier):
    """One matrix used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.head = nn.Linear(5, 3)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(torch.tanh(self.first(x))))


class OtherNames(Classifier):
    """One matrix under three leaf names: of a layer, of the network itself and of a list."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.back = self.first.weight
        self.listed = nn.ParameterList([self.back])
        self.head = nn.Linear(5, 3)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(torch.tanh(self.first(x)) @ self.back @ self.listed[0].T)


class Branches(Classifier):
    """`never` takes part in no forward pass, `now_and_then` where the first number of a batch is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(5, 7)
        self.never = nn.Linear(5, 7)
        self.now_and_then = nn.Linear(5, 7)
        self.head = nn.Linear(7, 3)

    def features(self, x: Tensor) -> Tensor:
        z = self.hidden(x)
        return torch.tanh(z + self.now_and_then(x) if x[0, 0] > 0 else z)


class Frozen(Classifier):
    """The first layer is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(5, 7)
        self.hidden.requires_grad_(False)
        self.head = nn.Linear(7, 3)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.hidden(x))


class Pixels(nn.Module):
    """A user's own network for digits, with a batch norm, whose statistics and counter are in the state dict."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def build(kind: type[nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return kind()


def in_float64(module: nn.Module) -> nn.Module:
    """The module itself; inputs in float32 are exact in float64."""
    module.register_forward_pre_hook(lambda _, given: tuple(x.double() for x in given))
    return module.double()


def inputs(kind: type[nn.Module], count: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (count, 2, 4, 4) if kind is Conv else (count, 5)
    return torch.randn(shape, generator=generator), torch.randint(0, 3, (count,), generator=generator)


def averaged(
    server: nn.Module, local: Sequence[nn.Module], shares: Sequence[float], statistics: bool = True
) -> nn.Module:
    """A copy of `server` with the weighted mean of the clients' state dicts, as the public codes take it; counters, and
    without `statistics` those of batch norm, stay."""
    states, server = [module.state_dict() for module in local], copy.deepcopy(server)
    mean = {
        name: sum(share * state[name] for share, state in zip(shares, states, strict=True))
        for name, tensor in server.state_dict().items()
        if tensor.is_floating_point() and (statistics or "running" not in name)
    }
    server.load_state_dict(mean, strict=False)
    return server


def federated(
    server: nn.Module,
    rounds: int,
    shares: Sequence[float],
    train: Callable[[nn.Module, int, int], nn.Module],
    statistics: bool = True,
) -> nn.Module:
    """The server's module after the rounds: in each `train(copy, k, round)` of every client, :func:`averaged`."""
    for round in range(rounds):
        local = [train(copy.deepcopy(server), k, round) for k in range(len(shares))]
        server = averaged(server, local, shares, statistics)
    return server


def assert_same(objective: Objective, point: Any, module: nn.Module, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Parameters and statistics of a record with `w`, `b` and of a module agree."""
    found = objective.state_dict(point.w, point.b)
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(
                found[name], tensor, rtol=rtol, atol=atol, msg=lambda m, name=name: f"{name}: {m}"
            )


def assert_backward(
    objective: Objective, found: tuple[Tensor, Tensor], b: Tensor, expected: Tensor, module: nn.Module
) -> None:
    """Value and gradient are those of a plain backward pass from `expected`, computed by `module`, and the statistics
    `b` are the module's own after it."""
    expected.backward()
    torch.testing.assert_close(found[0], expected.detach())
    gradients = {name: p.grad for name, p in module.named_parameters() if p.requires_grad}
    statistics = {name: t for name, t in module.named_buffers() if t.is_floating_point()}
    for views, wanted in ((objective.views(found[1]), gradients), (objective.buffer_layout.views(b), statistics)):
        assert views.keys() == wanted.keys()
        for name, tensor in wanted.items():
            torch.testing.assert_close(views[name], tensor, rtol=1e-5, atol=1e-6)
