"""Networks of timm, torchvision and transformers by name: `timm:resnet18`, `torchvision:resnet18`, `hf:NAME`.

Nothing is downloaded, and no code of a checkpoint is run. Importing this module imports no torch. Its functions
return `Any`: a name of torch in a signature could not be read, and would hide the types of the options.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from flray.core.schema.errors import ConfigError, first_line, nearest, shown
from flray.models.weight_files import hub

if TYPE_CHECKING:
    from torch import Tensor, nn

HEADS = ("classifier", "score", "head", "pooler", "fc")  # transformers' names of what comes after the features
EXTRAS = {"timm": "'flray[timm]'"}
AUXILIARY = ("googlenet", "inception_v3")  # whose heads for training alone would be unused parameters
TASKS = {"text": "sequence-classification", "image": "image-classification"}


@functools.cache
def library_model(name: str) -> Callable[..., Any] | None:
    """The function that builds the network `LIBRARY:NETWORK`; None: another name.

    Raises `ConfigError` for a library that is not installed.
    """
    home, _, network = name.partition(":")
    if home not in LIBRARIES or not network:
        return None
    build, package = LIBRARIES[home]
    library(package, f"model {shown(name)}")
    return functools.partial(build, network)


def library(package: str, what: str) -> None:
    """Raises `ConfigError`, which begins with `what`, for a package that is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"{what}: {package} is not installed; pip install {EXTRAS.get(package, package)}")


def timm_network(
    network: str,
    /,
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    pretrained: Annotated[
        bool | str | None,
        Field(description="true: timm's weights in the local hub cache; or a file (.safetensors, .pth); none: random"),
    ] = None,
    **options: Any,
) -> Any:
    """A network of timm (Wightman 2019) for inputs `[B, *input_shape]`; `options` are those of its own function."""
    import timm

    what = f"model 'timm:{network}'"
    if not timm.is_model(network.partition(".")[0]):
        raise ConfigError(f"{what}: timm has no network of that name{nearest(network, timm.list_models())}")
    channels, height, width = _image(what, input_shape)
    with _library_errors(what, pretrained):
        known = timm.get_pretrained_cfg(network)
    if known is not None and known.fixed_input_size:
        options.setdefault("img_size", (height, width))
    file = _timm_file(what, known, pretrained) if pretrained else None
    own: dict[str, Any] = {}
    with _library_errors(what, pretrained):
        if file is not None:
            own["pretrained_cfg_overlay"] = {"file": file, **_classes_of(file, known)}
        body: Any = timm.create_model(
            network, pretrained=file is not None, num_classes=num_classes, in_chans=channels, **own, **options
        )
    start = None if file is None else (file, known is not None and body.pretrained_cfg["num_classes"] == num_classes)
    return _split(what, body, _images(input_shape), num_classes, start)


def torchvision_network(
    network: str,
    /,
    input_shape: tuple[int, ...],
    num_classes: int,
    **options: Any,
) -> Any:
    """A network for classification of torchvision, with random weights; `options` are those of its own function. Its
    weights are for `model.weights`, or `timm:NAME`."""
    from torchvision import models

    from flray.models.fitted import with_channels

    what = f"model 'torchvision:{network}'"
    names = models.list_models(module=models)
    if network not in names:
        raise ConfigError(f"{what}: torchvision has no network of that name{nearest(network, names)}")
    channels, height, _ = _image(what, input_shape)
    if network.startswith("vit_"):
        options.setdefault("image_size", height)
    if network in AUXILIARY:
        options = {"aux_logits": False, "init_weights": True, **options}
    with _library_errors(what, None):
        body = models.get_model(network, weights=None, num_classes=num_classes, **options)
    with_channels(body, channels)
    return _split(what, body, _images(input_shape), num_classes, None)


def hf_network(
    network: str,
    /,
    input_shape: tuple[int, ...],
    num_classes: int,
    num_tokens: int | None = None,
    pad_token: int | None = None,
    separator_token: int | None = None,
    *,
    pretrained: Annotated[
        bool | None,
        Field(description="the checkpoint's weights; none: if NAME is a checkpoint, random if it is a type"),
    ] = None,
    **options: Any,
) -> Any:
    """A network of transformers for classification of images or of token ids.

    `network`: a folder, a name in the local hub cache, or a type of network (`vit`, `bert`). `options` change its
    configuration. The number of classes, and the channels, sides and tokens of a random network, are those of the data.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    from flray.models.hugging_face import Tokens

    what, kind = f"model 'hf:{network}'", "image" if num_tokens is None else "text"
    folder = Path(os.path.expanduser(network))
    is_type = network in CONFIG_MAPPING and not folder.is_dir()
    if is_type and pretrained:
        raise ConfigError(f"{what}: {network} is a type of network without weights; name a checkpoint")
    with _library_errors(what, network):
        if is_type:
            config = AutoConfig.for_model(network)
        else:
            place = str(folder) if folder.is_dir() else network
            config = AutoConfig.from_pretrained(place, local_files_only=True, trust_remote_code=False)
    for key, value in options.items():
        if not hasattr(config, key):
            raise ConfigError(f"{what}: its configuration has no {key!r}{nearest(key, config.to_dict())}")
        setattr(config, key, value)
    random = is_type or pretrained is False
    _fit(what, config, input_shape, num_classes, num_tokens, pad_token, random)
    for key, value in options.items():
        if (fitted := getattr(config, key)) != value:
            raise ConfigError(f"{what}: {key} is {fitted} by the data, not {value}; leave it out")
    body, loaded = _transformers_network(what, network if is_type else place, config, kind, random)
    if num_tokens is None:
        sample = _images(input_shape)
    else:
        assert pad_token is not None and separator_token is not None
        body = Tokens(body, pad_token, separator_token)
        sample = _tokens(input_shape, num_tokens, pad_token, getattr(config, "eos_token_id", None))
    return _split(what, body, sample, num_classes, None if random else (network, loaded))


def _fit(
    what: str,
    config: Any,
    input_shape: tuple[int, ...],
    num_classes: int,
    num_tokens: int | None,
    pad_token: int | None,
    random: bool,
) -> None:
    """Set the sizes of the data in a configuration. Raises `ConfigError` for those that a checkpoint cannot have."""
    from flray.models.hugging_face import OWN_TOKENIZER, reads_tokens

    config.num_labels = num_classes
    if num_tokens is not None:
        wanted = {"vocab_size": (num_tokens, OWN_TOKENIZER)}
        config.pad_token_id = pad_token
        positions = getattr(config, "max_position_embeddings", None)
        if positions is not None and 0 <= positions < input_shape[0]:  # XLNet, of any length, says -1
            raise ConfigError(f"{what} has {positions} positions, samples {input_shape[0]}; lower data.max_length")
    else:
        channels, height, width = _image(what, input_shape)
        side: Any = height if height == width else (height, width)
        wanted = {
            "num_channels": (channels, f"set data.channels={getattr(config, 'num_channels', channels)}"),
            "image_size": (side, f"set data.resize={getattr(config, 'image_size', side)}"),
        }
    for key, (value, hint) in wanted.items():
        own = getattr(config, key, None)
        if own is None or own == value or list(own if isinstance(own, list | tuple) else [own] * 2) == [value] * 2:
            continue
        if key == "vocab_size" and not random and reads_tokens(config, value):
            continue
        if not random:
            raise ConfigError(f"{what}: its weights are for {key} {own}, the data have {value}; {hint}")
        setattr(config, key, value)


def _transformers_network(what: str, place: str, config: Any, kind: str, random: bool) -> tuple[Any, bool]:
    """(the network, with random weights or those at `place`; whether its head is from there). Raises `ConfigError`."""
    import torch
    from transformers import AutoModelForImageClassification, AutoModelForSequenceClassification
    from transformers.utils import logging as their_logging

    logging: Any = their_logging  # parts of transformers have no types
    loader: Any = AutoModelForImageClassification if kind == "image" else AutoModelForSequenceClassification
    if type(config) not in loader._model_mapping:
        raise ConfigError(f"{what}: a {config.model_type} network has no form for {TASKS[kind]}; choose another")
    with _library_errors(what, None if random else place, kind == "text"):
        if random:
            return loader.from_config(config, trust_remote_code=False), False
        before = logging.get_verbosity()
        logging.set_verbosity_error()  # a table of the head's tensors, from every actor
        try:
            body, notes = loader.from_pretrained(
                place,
                config=config,
                local_files_only=True,
                trust_remote_code=False,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,  # of the head
                output_loading_info=True,
            )
        finally:
            logging.set_verbosity(before)
    left = {str(key) for key in notes["missing_keys"]} | {str(key[0]) for key in notes["mismatched_keys"]}
    wrong = sorted(name for name in left if not name.startswith(HEADS))
    if wrong:
        raise ConfigError(f"{what}: its weights lack {wrong[0]}; the checkpoint is of another network")
    return body.train(), not left


def _image(what: str, input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(input_shape) != 3:
        raise ConfigError(f"{what} reads images [K, H, W], the data have shape {list(input_shape)}; choose another")
    channels, height, width = input_shape
    return channels, height, width


def _images(shape: tuple[int, ...]) -> Tensor:
    """One image `[1, *shape]` on which a network is tried. Of zeros, layers without a bias would give equal logits."""
    import torch

    return torch.rand(1, *shape, generator=torch.Generator().manual_seed(0))


def _tokens(shape: tuple[int, ...], num_tokens: int, pad: int, end: int | None) -> Tensor:
    """One text `[1, *shape]` without padding on which a network is tried. Some networks read the place of its end."""
    import torch

    ids = torch.randint(num_tokens, (1, *shape), generator=torch.Generator().manual_seed(0))
    ids[ids == pad] = (pad + 1) % num_tokens
    if end is not None and 0 <= end < num_tokens:
        ids[ids == end] = next(token for token in range(num_tokens) if token not in (pad, end))
        ids[..., -1] = end
    return ids


def _split(what: str, body: nn.Module, sample: Tensor, num_classes: int, start: tuple[str, bool] | None) -> nn.Module:
    """`body` with its head apart, tried on one `sample`. `start`: the checkpoint, and whether it has the head."""
    import torch

    from flray.models.fitted import logits, split

    with _library_errors(what, None, not sample.is_floating_point()), torch.no_grad():
        shape = tuple(logits(body.eval()(sample)).shape)
    if shape != (1, num_classes):
        raise ConfigError(f"{what} gives {list(shape)} for one sample, not [1, {num_classes}] logits; choose another")
    module = split(body.train(), num_classes, sample)
    if start is not None:
        module.starts_from = f"{start[0]}, its head: {'load' if start[1] else 'fresh'}"  # type: ignore[assignment]
    return module


def _timm_file(what: str, known: Any, pretrained: bool | str) -> str:
    """The file of timm's weights. Raises `ConfigError` if it is not here."""
    if isinstance(pretrained, str):
        file = Path(os.path.expanduser(pretrained))
        if not file.is_file():
            raise ConfigError(f"{what}: pretrained {pretrained} is not a file; give a .safetensors or .pth file")
        return str(file.absolute())
    name = None if known is None else known.hf_hub_id
    if name is None:
        raise ConfigError(f"{what}: timm names no weights of it; give a file with model.pretrained")
    try:
        return str(hub().hf_hub_download(name, "model.safetensors", local_files_only=True))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{what}: its weights are not in the local hub cache and nothing is downloaded; fetch them: hf download "
            f"{name}, or give a file with model.pretrained"
        ) from error


def _classes_of(file: str, known: Any) -> dict[str, int]:
    """What timm has to know of a file whose classifier has other classes than its own weights of a network."""
    from timm.models import load_state_dict

    names = () if known is None else known.classifier
    first = names if isinstance(names, str) else next(iter(names or ()), "")
    weight = load_state_dict(file).get(f"{first}.weight")
    if weight is None or len(weight) == known.num_classes + (known.label_offset or 0):
        return {}
    return {"num_classes": len(weight), "label_offset": 0}


@contextlib.contextmanager
def _library_errors(what: str, fetch: object, text: bool = False) -> Iterator[None]:
    """Turn an error of a library in the block into one `ConfigError` line; `fetch`: the checkpoint that it may lack;
    `text`: the network reads token ids."""
    try:
        yield
    except (ConfigError, MemoryError):  # `build_model` names the size
        raise
    except Exception as error:
        if "allocate memory" in str(error):
            raise
        said = first_line(error)[:200]
        sizes = "data.max_length, model.max_position_embeddings" if text else "data.resize, data.channels"
        hint = f"check the model's options and {sizes}"
        if isinstance(fetch, str) and isinstance(error, OSError):
            hint = f"give a folder that holds it, or fetch it: hf download {fetch}"
            if Path(os.path.expanduser(fetch)).is_dir():
                hint = "copy the weights there, or set model.pretrained to false for random ones"
        raise ConfigError(f"{what} cannot be built ({said}); {hint}") from error


LIBRARIES: dict[str, tuple[Callable[..., Any], str]] = {
    "timm": (timm_network, "timm"),
    "torchvision": (torchvision_network, "torchvision"),
    "hf": (hf_network, "transformers"),
}
PREFIXES = ", ".join(f"{library}:NAME" for library in LIBRARIES)
NETWORKS = f"{PREFIXES} are networks of {', '.join(package for _, package in LIBRARIES.values())}"
