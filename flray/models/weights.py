"""Starting weights from a file: `model.weights`, written by any run (`flray pretrain`), read alike in every actor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from flray.core.disk import checksum
from flray.core.errors import ConfigError

Head = Literal["load", "fresh"]
FILE = "model.safetensors"  # in a run folder
CHECKSUM = "flray.checksum"


def load_weights(module: nn.Module, source: str, head: Head) -> None:
    """Give `module` the tensors of `source`: a `.safetensors` file with the names of its `state_dict`, or a run folder; path or URI.

    `head="fresh"` leaves the head as it was initialised, whatever the file's is. Raises `ConfigError` for a file that cannot be read,
    and for a tensor that is missing, left over or of another shape.
    """
    what = f"model.weights: {source}"
    found, own = _read(source), module.state_dict()
    in_head = _head_names(module)
    if head == "fresh":
        if not in_head:
            raise ConfigError(f"{what}: {type(module).__name__} declares no head; set model.weights_head: load")
        found, own = ({name: t for name, t in tensors.items() if name not in in_head} for tensors in (found, own))
    for name, tensor in own.items():
        if name not in found:
            if tensor.is_floating_point():  # a counter of batches is no state
                raise ConfigError(f"{what} has no {name}, which {type(module).__name__} needs; it is of another network")
        elif found[name].shape != tensor.shape:
            hint = "set model.weights_head: fresh to start with a new head" if name in in_head else "it is of another network"
            raise ConfigError(f"{what} has {name} of shape {list(found[name].shape)}, {list(tensor.shape)} is needed; {hint}")
    left = sorted(found.keys() - own.keys())
    if left:
        raise ConfigError(f"{what} has {left[0]}, which {type(module).__name__} has not; it is of another network")
    module.load_state_dict(found, strict=False)


def save_weights(named: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors as a `.safetensors` file whose metadata holds the checksum of its data, which :func:`load_weights` compares."""
    from safetensors.torch import save, save_file

    tensors = {name: tensor.cpu() for name, tensor in named.items()}
    save_file(tensors, path, {CHECKSUM: checksum(_data(save(tensors))[1])})


def _data(content: bytes) -> tuple[dict[str, str], memoryview]:
    """(metadata, the tensors' bytes) of a `.safetensors` file: eight bytes with the length of a JSON header, the header, the data."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]).get("__metadata__", {}), memoryview(content)[end:]


def weights_fingerprint(source: str | None) -> str | None:
    """Checksum of the file; None without one. Raises `ConfigError` for a file that cannot be read."""
    return None if source is None else checksum(_content(source))


def _read(source: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    content = _content(source)
    try:
        found = load(content)
    except SafetensorError as error:
        raise ConfigError(f"model.weights: {source} is no .safetensors file ({error}); give one, or a run folder") from error
    metadata, data = _data(content)
    if metadata.get(CHECKSUM, checksum(data)) != checksum(data):  # a file of another program has none
        raise ConfigError(f"model.weights: {source} is damaged: its checksum is not the one that was written; make it again")
    return found


def _content(source: str) -> bytes:
    try:
        if "://" not in source:
            path = Path(source).expanduser()
            return (path / FILE if path.is_dir() else path).read_bytes()
        from pyarrow.fs import FileSystem  # type: ignore[import-untyped]

        system, place = FileSystem.from_uri(source)
        with system.open_input_stream(place if place.endswith(".safetensors") else f"{place}/{FILE}") as file:
            return file.read()  # type: ignore[no-any-return]
    except (OSError, ValueError, RuntimeError) as error:  # pyarrow's errors are among these; ~nobody has no home
        why = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise ConfigError(f"model.weights: {source} cannot be read ({why}); give a .safetensors file or a finished run's folder") from error


def _head_names(module: nn.Module) -> set[str]:
    """Names in the `state_dict` of what belongs to the head; the attribute may be an alias of the last child."""
    head = getattr(module, "head", None)
    inside = {id(t) for t in (*head.parameters(), *head.buffers())} if isinstance(head, nn.Module) else set()
    return {name for name, t in (*module.named_parameters(), *module.named_buffers()) if id(t) in inside}
