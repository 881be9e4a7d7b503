"""Starting weights from a file of flray: `model.weights`, which each run writes (see `flray pretrain`)."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from flray.core.schema.errors import ConfigError
from flray.files import array_checksum, checksum
from flray.models.model_config import Head
from flray.models.weight_files import FILE, GIVE, HUB, PICKLED, hub, read_content, weights_place

CHECKSUM = "flray.checksum"
ELSEWHERE = "flray.elsewhere"  # {checksum, files: {file: {checksum: of that file, tensors: {name: its name there}}}}


def load_weights(module: nn.Module, source: str, head: Head) -> None:
    """Load the tensors of `source` into `module`: a run folder, or a `.safetensors` file with its names; path or URI.

    `head="fresh"` leaves the head as initialised. Raises `ConfigError` for a file that cannot be read, and for a tensor
    that is missing, unknown or of another shape.
    """
    what = f"model.weights: {source}"
    stored, own = read_weights(source), module.state_dict()
    in_head = _head_names(module)
    if head == "fresh":
        if not in_head:
            raise ConfigError(f"{what}: {type(module).__name__} declares no head; set model.weights_head: load")
        stored, own = ({name: t for name, t in tensors.items() if name not in in_head} for tensors in (stored, own))
    for name, tensor in own.items():
        if name not in stored:
            if tensor.is_floating_point():  # a counter of batches is not needed
                raise ConfigError(
                    f"{what} has no {name}, which {type(module).__name__} needs; it is of another network"
                )
        elif stored[name].shape != tensor.shape:
            hint = (
                "set model.weights_head: fresh to start with a new head"
                if name in in_head
                else "it is of another network"
            )
            raise ConfigError(
                f"{what} has {name} of shape {list(stored[name].shape)}, {list(tensor.shape)} is needed; {hint}"
            )
    left = sorted(stored.keys() - own.keys())
    if left:
        raise ConfigError(f"{what} has {left[0]}, which {type(module).__name__} has not; it is of another network")
    # a frozen tensor with equal values is not copied: it may be mapped from a file that processes share
    frozen = {name for name, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad}
    there = {name for name in frozen & stored.keys() if name in own and torch.equal(own[name], stored[name])}
    module.load_state_dict({name: t for name, t in stored.items() if name not in there}, strict=False)


def save_weights(
    named: Mapping[str, Tensor], path: Path, frozen: Collection[str] = (), sources: Sequence[str] = ()
) -> None:
    """Write tensors as a `.safetensors` file with the checksum of its content in the metadata.

    A `frozen` tensor that a named checkpoint has bit for bit is not written: the metadata name that file, its checksum
    and the tensor's name there. `sources`: the checkpoints that the configuration names (`ModelConfig.sources`); the
    tensors of one that cannot be read are written.
    """
    from safetensors.torch import save, save_file

    tensors = {name: tensor.cpu().contiguous() for name, tensor in named.items()}
    elsewhere = _elsewhere({name: tensors[name] for name in frozen}, sources)
    left_out = {name for place in elsewhere.values() for name in place["tensors"]}
    tensors = {
        name: t.clone() if name in frozen else t for name, t in tensors.items() if name not in left_out
    }  # tied: two names
    digest = _checksum(elsewhere, _data(save(tensors))[1])
    note = {"checksum": digest, "files": elsewhere}  # one entry, because safetensors writes several in any order
    save_file(tensors, path, {ELSEWHERE: json.dumps(note)} if elsewhere else {CHECKSUM: digest})


def read_weights(source: str, option: str = "model.weights") -> dict[str, Tensor]:
    """All tensors of a `.safetensors` file or a run folder (path or URI), with frozen ones that lie in other files.

    A file of PyTorch (`.pth`, `.pt`, `.bin`) gives what `torch.load` returns. `option`: the key that names the source.
    Raises `ConfigError` for files that cannot be read, are damaged, or have changed.
    """
    return {name: tensor for name, (tensor, _) in _stored(weights_place(source), f"{option}: {source}").items()}


class _Stored(NamedTuple):
    """A file's own tensors, its checksum, and where it left others: {place: {checksum, tensors: {name: name there}}}"""

    tensors: dict[str, Tensor]
    checksum: str
    elsewhere: dict[str, dict[str, Any]]


class _Origin(NamedTuple):
    """The file that holds a tensor, its checksum, and the tensor's name in it."""

    place: str
    checksum: str
    name: str


def _stored(place: str, what: str) -> dict[str, tuple[Tensor, _Origin]]:
    """The tensors of a file, with those that lie in other files."""
    stored = _read(place, what, GIVE)
    stored_tensors = {name: (tensor, _Origin(place, stored.checksum, name)) for name, tensor in stored.tensors.items()}
    for other, left in stored.elsewhere.items():
        line = f"{what} has its frozen tensors in {other}, which"
        holder = _read(other, line, "put it back where it was")
        if holder.checksum != left["checksum"]:
            raise ConfigError(f"{line} is another file now; put the old one back")
        for name, there in left["tensors"].items():
            stored_tensors[name] = (holder.tensors[there], _Origin(other, holder.checksum, there))
    return stored_tensors


def _elsewhere(frozen: Mapping[str, Tensor], sources: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The files of the sources that hold frozen tensors, in the form of the metadata."""
    elsewhere: dict[str, dict[str, Any]] = {}
    wanted = {name: _identity(tensor, tensor.dtype) for name, tensor in frozen.items()}
    kinds = {tensor.dtype for tensor in frozen.values()}
    for source in sources if frozen else ():
        try:
            files = [_stored(place, source) for place in _files(source)]
        except ConfigError:  # deleted during the run: its tensors are then written
            continue
        tensors = [
            entry for file in files for entry in sorted(file.items(), key=itemgetter(0))
        ]  # safetensors gives them in any order
        known = {_identity(t, kind): origin for _, (t, origin) in reversed(tensors) for kind in kinds}
        for name in [name for name, identity in wanted.items() if identity in known]:
            origin = known[wanted.pop(name)]
            holder = elsewhere.setdefault(origin.place, {"checksum": origin.checksum, "tensors": {}})
            holder["tensors"][name] = origin.name
    return elsewhere


def _identity(tensor: Tensor, kind: torch.dtype) -> tuple[torch.Size, torch.dtype, str]:
    """Shape and content of a tensor as one of the type `kind`."""
    return tensor.shape, kind, array_checksum(tensor.to(kind).contiguous().reshape(-1).view(torch.uint8).numpy())


def _data(content: bytes) -> tuple[dict[str, str], memoryview]:
    """(metadata, the tensors' bytes) of a `.safetensors` file: eight bytes of a header's length, JSON header, data."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]).get("__metadata__", {}), memoryview(content)[end:]


def _checksum(elsewhere: Mapping[str, Any], data: memoryview) -> str:
    """The checksum of the tensors' bytes and of the places of the other tensors."""
    return checksum(json.dumps(elsewhere).encode() if elsewhere else b"", data)


def _read(place: str, what: str, hint: str) -> _Stored:
    """The file at a place; `what` and `hint` begin and end the line of a `ConfigError`."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    content = read_content(place, what, hint)
    if place.endswith(PICKLED):
        try:
            tensors = torch.load(io.BytesIO(content), "cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            raise ConfigError(f"{what} is not a file of torch.save with tensors alone; {hint}") from error
        return _Stored(tensors, checksum(content), {})
    try:
        content_of = load(content)
    except SafetensorError as error:
        raise ConfigError(f"{what} is not a .safetensors file ({error}); {hint}") from error
    metadata, data = _data(content)
    note = json.loads(metadata.get(ELSEWHERE, "{}"))
    elsewhere, digest = note.get("files", {}), note.get("checksum", metadata.get(CHECKSUM))
    if digest not in (None, _checksum(elsewhere, data)):  # a file of another program has none
        raise ConfigError(f"{what} is damaged: its checksum differs from the written one; write it again")
    return _Stored(content_of, checksum(content), elsewhere)


def _files(source: str) -> list[str]:
    """The files of a named checkpoint: that of `model.weights`, or of a pretrained network, a folder or a name."""
    folder = Path(source).expanduser()
    if "://" in source or folder.is_file() or (folder / FILE).is_file():
        return [weights_place(source)]
    try:
        cached = folder if folder.is_dir() else Path(hub().snapshot_download(source, local_files_only=True))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source} is not here") from error
    names = sorted(path.name for path in (list(cached.glob("*.safetensors")) or cached.glob("pytorch_model*.bin")))
    return [str(folder.absolute() / name) if folder.is_dir() else f"{HUB}{source}/{name}" for name in names]


def _head_names(module: nn.Module) -> set[str]:
    """The names of the head's tensors in the `state_dict`; the attribute may be an alias of the last child."""
    head = getattr(module, "head", None)
    inside = {id(t) for t in (*head.parameters(), *head.buffers())} if isinstance(head, nn.Module) else set()
    return {name for name, t in (*module.named_parameters(), *module.named_buffers()) if id(t) in inside}
