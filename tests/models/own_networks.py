"""Networks as a user would write them, for `tests/models/test_model_config.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import torch
from pydantic import BaseModel, Field, computed_field
from torch import Tensor, nn

from flray.models.base import Classifier
from flray.models.bert import Bert

if TYPE_CHECKING:
    from nowhere import Missing


class Plain(nn.Module):
    """Takes both sizes; no `head`, no `features`; an option without annotation and one that is no plain value."""

    def __init__(self, num_classes: int, input_shape: tuple[int, ...], widths=(5, 4), activation=nn.ReLU):
        super().__init__()
        assert isinstance(widths, tuple)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], widths[0]), activation())
        self.final = nn.Linear(widths[0], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.final(self.body(x))


class Split(nn.Module):
    """Its own `features` and `head`, and no size from the data."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.head = nn.Linear(width, 3)
        self.body = nn.Linear(2, width)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.body(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Wide(Split):
    """Its parameters are float64, whatever `model.dtype` says."""

    def __init__(self) -> None:
        super().__init__()
        self.double()


class OwnDtype(Split):
    """`dtype` is an option of its own."""

    def __init__(self, dtype: str = "float64") -> None:
        super().__init__()
        self.to(getattr(torch, dtype))


class Apart(Split):
    """Its logits are not those of its head."""

    def forward(self, x: Tensor) -> Tensor:
        return 1 - super().forward(x)


class Pyramid(nn.Module):
    """`features` is a part of the network, not what the head reads."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.body, self.head = nn.Identity(), nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return 1 - self.head(torch.tanh(self.body(self.features(x))))


class Between(nn.Module):
    """`between` comes after the features and before the last layer, which is not called head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 6)
        self.final = nn.Linear(6, 3)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.body(x))

    def between(self, z: Tensor) -> Tensor:
        return z

    def forward(self, x: Tensor) -> Tensor:
        return self.final(self.between(self.features(x)))


class Activated(Between):
    def between(self, z: Tensor) -> Tensor:
        return torch.relu(z)


class Dropped(Between):
    def between(self, z: Tensor) -> Tensor:
        return nn.functional.dropout(z, training=self.training)


class Masked(Split):
    """A layer between its features and its head drops."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.features(x)))


class Shifted(Split):
    """Its features drop, and forward draws before them, as for another loss."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout()

    def features(self, x: Tensor) -> Tensor:
        return self.drop(super().features(x))

    def forward(self, x: Tensor) -> Tensor:
        torch.rand(1)
        return super().forward(x)


class Mapped(Between):
    """Its features are not flat."""

    def features(self, x: Tensor) -> Tensor:
        return super().features(x).unflatten(1, (2, 3))

    def between(self, z: Tensor) -> Tensor:
        return z.flatten(1)


class Blocks(nn.Module):
    """`features` is a part, and forward has an activation after it."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(2, 6))
        self.final = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.final(torch.relu(self.features(x)))


class TiedHead(nn.Module):
    """The last layer reads the matrix of the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.mid = nn.Linear(2, 2)
        self.head = nn.Linear(2, 2)
        self.head.weight = self.mid.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mid(x))


class TwoNamedHead(nn.Module):
    """The last of its layers is called head as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.head = self.layers[1]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers[0](x))


class Cumulative(nn.Module):
    def __init__(self, lazy: bool = False) -> None:
        super().__init__()
        self.norm = nn.LazyLinear(3) if lazy else nn.BatchNorm1d(2, momentum=None)


class Wrapped(nn.Module):
    """The network of another library, in a class of one's own."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(*input_shape, 5), nn.ReLU(), nn.Linear(5, num_classes))

    def forward(self, x):
        return self.net(x)


class Standardized(Wrapped):
    """Its inputs are standardised by buffers of its own."""

    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes)
        self.register_buffer("mean", torch.zeros(input_shape))

    def forward(self, x):
        return self.net(x - self.mean)


class OwnWrapper(nn.Module):
    """Its child has the name that DataParallel gives."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.module = nn.Sequential(nn.Linear(*input_shape, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, num_classes))

    def forward(self, x):
        return self.module(x)


class Dotted(nn.Module):
    """`setattr` lets a name with a dot in, which `add_module` refuses."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Identity())
        setattr(self.body, "v1.0", nn.Linear(input_shape[0], num_classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Backbone(Classifier):
    """A frozen layer, a frozen one tied to it, a frozen random projection that no checkpoint has, a trained head."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, projection: bool = False) -> None:
        super().__init__()
        self.body = nn.Linear(input_shape[0], input_shape[0])
        self.again = nn.Linear(input_shape[0], input_shape[0])
        self.again.weight = self.body.weight
        self.random = nn.Linear(input_shape[0], 5, bias=False) if projection else nn.Identity()
        self.requires_grad_(False)
        self.head = nn.Linear(5 if projection else input_shape[0], num_classes)

    def features(self, x: Tensor) -> Tensor:
        return self.random(torch.tanh(self.again(torch.tanh(self.body(x)))))


class FrozenBert(Bert):
    """Only the head of a pretrained network is trained."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        num_tokens: int,
        pad_token: int,
        separator_token: int,
        pretrained: str,
    ) -> None:
        super().__init__(input_shape, num_classes, num_tokens, pad_token, separator_token, pretrained=pretrained)
        self.bert.requires_grad_(False)


class NoHead(nn.Module):
    """The last child has no parameters: nothing tells which layer the head is."""

    def __init__(self, width: Missing = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(2, width)
        self.out = nn.LogSoftmax(dim=1)


class Words(nn.Module):
    """Mean of the embeddings of a text's words; `num_tokens` and `pad_token` come from the data."""

    def __init__(self, num_tokens: int, num_classes: int, pad_token: int, width: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, width, padding_idx=pad_token)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).mean(dim=1))


def not_a_module(**options: int) -> dict[str, int]:
    return options


number = 3


def unannotated(input_shape, num_classes, width=5):
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], width), nn.Linear(width, num_classes))


def truthful(input_shape, num_classes, pretrained=False):
    return nn.Linear(input_shape[0], num_classes)


class Speed(Enum):
    SLOW = "slow"
    FAST = "fast"


class Part(BaseModel):
    width: int = Field(4, alias="Width")

    @computed_field
    def area(self) -> int:
        return self.width**2


class Written(BaseModel):
    """Its field is written by a key that does not read it."""

    width: int = Field(4, serialization_alias="w")


class OfWritten(nn.Module):
    def __init__(self, part: Written = Written(), same=Written(width=5)) -> None:  # noqa: B008
        super().__init__()
        self.got = (part, same)
        self.head = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


class OfPart(nn.Module):
    """An option that is a model of pydantic, whose key has another name."""

    def __init__(self, part: Part = Part()) -> None:  # noqa: B008
        super().__init__()
        self.body, self.head = nn.Linear(2, part.width), nn.Linear(part.width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@dataclass
class Shape:
    width: int = 4
    kind: str = "round"


@dataclass
class Squared:
    """Its fields give another object."""

    width: int = 2

    def __post_init__(self) -> None:
        self.width **= 2


class Sides(NamedTuple):
    left: int
    right: int


class OfItsDefaults(nn.Module):
    """Options without annotations, and what it got of them, in `got`."""

    def __init__(
        self,
        count=1,
        rate=0.5,
        on=True,
        shape=Shape(),  # noqa: B008
        squared=Squared(),  # noqa: B008
        sides=Sides(1, 2),  # noqa: B008
        part=Part(),  # noqa: B008
    ):
        super().__init__()
        self.got = {key: value for key, value in locals().items() if key not in ("self", "__class__")}
        self.head = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


class Defaults(nn.Module):
    """Default values that YAML has no form for, and what it got of them, in `got`."""

    def __init__(
        self,
        input_shape,
        num_classes,
        speed=Speed.SLOW,
        clip: float = math.inf,
        widths={1: 64, 2: 32},  # noqa: B006
        sides: dict = {3: 1},  # noqa: B006
        pairs=((1, 2), (3, 4)),
        names=frozenset({"b", "a"}),
        depth: int = None,  # noqa: RUF013
        code=b"xy",
        rate: float = 1,
        kernel=None,
    ):
        super().__init__()
        self.got = {k: v for k, v in locals().items() if k not in ("self", "__class__", "input_shape", "num_classes")}
        self.head = nn.Linear(2, num_classes)
