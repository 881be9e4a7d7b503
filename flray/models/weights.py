"""Starting weights from a file: `model.weights`, which each run writes (see `flray pretrain`), or of other programs.

Tensors are read by name, or where they have other names, by order and shape. A file of `torch.save` keeps the order of
its state dict. A `.safetensors` file sorts its tensors, so that only a shape which occurs once says which tensor is
meant. A network's own option `pretrained` reads files with the names of other programs (:func:`adopt`).
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from flray.core.network.attributes import content
from flray.core.schema.errors import ConfigError
from flray.files import array_checksum, checksum
from flray.models.model_config import Head
from flray.models.weight_files import FILE, GIVE, HUB, PICKLED, hub, read_content, weights_place

COUNTER = "num_batches_tracked"  # of batch norm: no part of a model
# names that say what a tensor is for
ROLES = ("weight", "bias", "running_mean", "running_var", "in_proj_weight", "in_proj_bias", "weight_g", "weight_v")
WRAPPERS = ("module.", "_orig_mod.")  # before all names of a network in DataParallel, or compiled
STATISTICS = ("running_mean", "running_var")
CHECKSUM = "flray.checksum"
ELSEWHERE = "flray.elsewhere"  # {checksum, files: {file: {checksum: of that file, tensors: {name: its name there}}}}


def load_weights(module: nn.Module, source: str, head: Head) -> str:
    """Load the tensors of `source` into `module`: a run folder, or a `.safetensors` or PyTorch file; path or URI.

    `head="fresh"` leaves the head as initialised. A file with other names is read by order and shape; returns how, in
    words ("": by name). Raises `ConfigError` for a file that cannot be read, for a tensor that is missing, unknown
    or of another shape, and for NaN or infinity in a parameter that is trained.
    """
    what = f"model.weights: {source}"
    own = module.state_dict(keep_vars=True)  # a tied tensor is one object under its names
    stored = state_dict_in(read_weights(source), what, own)
    in_head, network = _head_names(module), type(module).__name__
    if head == "fresh":
        _check_fresh(what, module, in_head)
        stored, own = ({name: t for name, t in tensors.items() if name not in in_head} for tensors in (stored, own))
    ordered = weights_place(source).endswith(PICKLED)
    stored, how = renamed(stored, own, ordered, head == "fresh", what, network)
    trained = {name for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
    for name, tensor in own.items():
        if name in stored and stored[name].shape != tensor.shape:
            hint = (
                "set model.weights_head: fresh to start with a new head"
                if name in in_head
                else "it is of another network"
            )
            raise ConfigError(
                f"{what} has {name} of shape {list(stored[name].shape)}, {list(tensor.shape)} is needed; {hint}"
            )
        if name in stored:
            _check_numbers(what, name, stored[name], tensor)
            if name in trained and not stored[name].to(tensor.dtype).isfinite().all():
                raise ConfigError(f"{what} has NaN or infinity in {name}; give weights of a training that went well")
    left = sorted(stored.keys() - own.keys())
    if left:
        raise ConfigError(f"{what} has {left[0]}, which {network} has not; it is of another network")
    _check_tied(what, module, stored)
    # a frozen tensor with equal values is not copied: it may be mapped from a file that processes share
    frozen = {name for name, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad}
    there = {name for name in frozen & stored.keys() if name in own and torch.equal(own[name], stored[name])}
    module.load_state_dict({name: t for name, t in stored.items() if name not in there}, strict=False)
    return how


def _check_numbers(what: str, name: str, stored: Tensor, own: Tensor) -> None:
    """Raises `ConfigError` unless a stored tensor is dense, and floating, complex or whole as the network's is."""
    plain = stored.layout == torch.strided and not stored.is_meta and stored.is_complex() == own.is_complex()
    if not plain or own.is_floating_point() > stored.is_floating_point():
        kind = "a meta tensor" if stored.is_meta else f"{stored.dtype} ({stored.layout})"
        numbers = "complex" if own.is_complex() else "floating" if own.is_floating_point() else "whole"
        raise ConfigError(f"{what} has {name} as {kind}, {own.dtype} is needed; give dense {numbers} numbers")
    if own.is_floating_point() < stored.is_floating_point() and not torch.equal(
        stored, stored.to(own.dtype).to(stored)
    ):
        raise ConfigError(f"{what} has {name} as {stored.dtype} with fractions, {own.dtype} is needed; it is another")


def save_weights(
    named: Mapping[str, Tensor], path: Path, frozen: Collection[str] = (), sources: Sequence[str] = ()
) -> None:
    """Write tensors as a `.safetensors` file with the checksum of its content in the metadata.

    A `frozen` tensor that a named checkpoint has bit for bit is not written: the metadata name that file, its checksum
    and the tensor's name there. `sources`: the checkpoints that the configuration names (`ModelConfig.sources`); the
    tensors of one that cannot be read are written.
    """
    from safetensors.torch import save, save_file

    tensors = {name: tensor.cpu().resolve_conj().resolve_neg().contiguous() for name, tensor in named.items()}
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
        # safetensors gives its tensors in any order; a file of torch.save may hold other things beside its tensors
        entries = [entry for file in files for entry in sorted(file.items(), key=lambda named: str(named[0]))]
        tensors = [entry for _, entry in entries if isinstance(entry[0], Tensor)]
        known = {_identity(t, kind): origin for t, origin in reversed(tensors) for kind in kinds}
        for name in [name for name, identity in wanted.items() if identity in known]:
            origin = known[wanted.pop(name)]
            holder = elsewhere.setdefault(origin.place, {"checksum": origin.checksum, "tensors": {}})
            holder["tensors"][name] = origin.name
    return elsewhere


def _identity(tensor: Tensor, kind: torch.dtype) -> tuple[torch.Size, torch.dtype, str]:
    """Shape and content of a tensor as one of the type `kind`."""
    return tensor.shape, kind, array_checksum(content(tensor.to(kind)).numpy())


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
        if not isinstance(tensors, Mapping):
            raise ConfigError(f"{what} holds a {type(tensors).__name__}; save the network's state_dict()")
        return _Stored(dict(tensors), checksum(content), {})
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
    folder = Path(os.path.expanduser(source))
    if "://" in source or folder.is_file() or (folder / FILE).is_file():
        return [weights_place(source)]
    try:
        cached = folder if folder.is_dir() else Path(hub().snapshot_download(source, local_files_only=True))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source} is not here") from error
    names = sorted(path.name for path in (list(cached.glob("*.safetensors")) or cached.glob("pytorch_model*.bin")))
    return [str(folder.absolute() / name) if folder.is_dir() else f"{HUB}{source}/{name}" for name in names]


def _head_names(module: nn.Module) -> set[str]:
    """The names of the head's tensors in the `state_dict`; the attribute may be an alias of the last child. A tied one
    has names outside of the head as well."""
    head = getattr(module, "head", None)
    inside = {id(t) for t in (*head.parameters(), *head.buffers())} if isinstance(head, nn.Module) else set()
    return {name for name, tensor in module.state_dict(keep_vars=True).items() if id(tensor) in inside}


def _check_fresh(what: str, module: nn.Module, in_head: Collection[str]) -> None:
    """Raises `ConfigError` for a network without a head, with one that is all of it, or that another part shares."""
    if not in_head:
        raise ConfigError(f"{what}: {type(module).__name__} declares no head; set model.weights_head: load")
    inside = {*module.head.modules()}  # type: ignore[union-attr]
    # one layer after buffers (a random projection) is a head; several are the only child, if the network names no head
    several = sum(bool([*layer.parameters(recurse=False)]) for layer in inside) > 1 and "head" in vars(module)
    read = dict(module.named_parameters()) if several else module.state_dict()
    if all(name in in_head or name.endswith(COUNTER) for name in read):
        raise ConfigError(
            f"{what}: the head of {type(module).__name__} is the whole network, so no layer would be read; set "
            "model.weights_head: load, or name its last layer self.head"
        )
    tied = sorted(name for name in in_head if module.get_submodule(name.rpartition(".")[0]) not in inside)
    if tied:
        raise ConfigError(
            f"{what}: {tied[0]} is a tensor of the head as well, so it cannot be read and be fresh; set "
            "model.weights_head: load"
        )


def _check_tied(what: str, module: nn.Module, stored: Mapping[str, Tensor]) -> None:
    """Raises `ConfigError` for two different tensors under the names of one tied tensor of the network."""
    first: dict[int, str] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        other = first.setdefault(id(tensor), name) if name in stored else name
        if other != name and not torch.equal(content(stored[other]), content(stored[name])):
            raise ConfigError(
                f"{what} has different tensors as {other} and {name}, which are one in {type(module).__name__}; it is "
                "of another network"
            )


def state_dict_in(content: Mapping[Any, Any], what: str, own: Collection[str]) -> dict[str, Tensor]:
    """The named tensors of a loaded file: a state dict, or the only one in a dict of other things.

    Prefixes of all names that wrappers add (`module.`, `_orig_mod.`) are left out, unless the network's `own` names
    have them. Raises `ConfigError`.
    """
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if len(tensors) < len(content):
        mappings = [(str(key), value) for key, value in content.items() if isinstance(value, Mapping) and value]
        inside = [key for key, value in mappings if all(isinstance(part, Tensor) for part in value.values())]
        if tensors or len(inside) != 1:
            other = next(str(name) for name in content if str(name) not in tensors)
            held = f"the state dicts {', '.join(inside)}" if inside else f"{other}, which is not a tensor"
            raise ConfigError(f"{what} holds {held}; save the network's state_dict() alone")
        tensors = {str(name): value for name, value in content[inside[0]].items()}
    return _unwrapped(tensors, set(own))


def _unwrapped(tensors: dict[str, Tensor], own: set[str]) -> dict[str, Tensor]:
    """`tensors` without the prefixes of wrappers; one stays where more names are `own` ones with it."""
    for wrapper in WRAPPERS:
        if tensors and all(name.startswith(wrapper) for name in tensors):
            inside = {name.removeprefix(wrapper): tensor for name, tensor in tensors.items()}
            if len(own & inside.keys()) >= len(own & tensors.keys()):
                return _unwrapped(inside, own)
    return tensors


def renamed(
    stored: Mapping[str, Tensor], own: Mapping[str, Tensor], ordered: bool, more: bool, what: str, network: str
) -> tuple[dict[str, Tensor], str]:
    """(`stored` under the names of `own`; how they were found, in words, "": under these very names).

    `own`: a tied tensor is one object under all its names; the file may have it under each of them, or once. `ordered`:
    the file keeps the order of its state dict. `more`: it may have tensors after those of `own` (a head that is not
    read). Raises `ConfigError` that names the first difference.
    """
    numbers = {name for name, tensor in own.items() if tensor.is_floating_point() or tensor.is_complex()}
    needed = [name for name in own if name in numbers and not name.endswith(COUNTER)]
    there = {id(own[name]): tensor for name, tensor in stored.items() if name in own}
    tied = {name: there[id(tensor)] for name, tensor in own.items() if name not in stored and id(tensor) in there}
    missing = next((name for name in needed if name not in stored and name not in tied), None)
    if missing is None:
        stored = {**stored, **tied}
        kept = [name for name in own if name not in stored and not name.endswith(COUNTER)]
        parts = {name.partition(".")[0] for name in own}
        other = [name for name in stored if more and name not in own and name.partition(".")[0] not in parts]
        tensors = {name: tensor for name, tensor in stored.items() if name not in other}
        said = [f"not read: {', '.join(other)}"] if other else []
        said += [f"not there, and as {network} makes it: {', '.join(kept)}"] if kept else []
        return tensors, "; ".join(["by name", *said]) if said else ""
    theirs = {name: tensor for name, tensor in stored.items() if not name.endswith(COUNTER)}
    first = {id(own[name]): name for name in reversed(needed)}  # of a tied tensor's names
    once = [name for name in needed if first[id(own[name])] == name]
    match = _by_order if ordered else _by_shape
    tries = [match(theirs, {name: own[name] for name in names}, more) for names in (needed, once)]
    found = next((pairs for pairs in tries if not isinstance(pairs, str)), None)
    if found is None:
        raise ConfigError(f"{what} has no {missing}, which {network} needs; it is of another network: {tries[0]}")
    pairs = [f"{there} is {name}" for name, there in found.items() if name != there]
    left = [name for name in theirs if name not in set(found.values())]
    more_pairs = f" and {len(pairs) - 1} more" if len(pairs) > 1 else ""
    how = f"by {'order and ' if ordered else ''}shape, names differ ({pairs[0]}{more_pairs})"
    how += f"; not read: {', '.join(left)}" if left else ""
    return {name: stored[found.get(name) or found[first[id(own[name])]]] for name in needed}, how


def _by_order(stored: Mapping[str, Tensor], own: Mapping[str, Tensor], more: bool) -> dict[str, str] | str:
    """Own name -> name in the file, or in words the first difference."""
    theirs, ours = list(stored), list(own)
    for place, (there, name) in enumerate(zip(theirs, ours, strict=False), 1):
        here = f"tensor {place} is {there} {list(stored[there].shape)} there and {name} {list(own[name].shape)} here"
        role, wanted = there.rpartition(".")[2], name.rpartition(".")[2]
        if stored[there].shape != own[name].shape or (role in ROLES and wanted in ROLES and role != wanted):
            return here
        if there != name and (there in own or name in stored):
            return f"{here}, and {there if there in own else name} is in both at other places"
    if len(theirs) < len(ours) or (len(theirs) > len(ours) and not more):
        return f"it has {len(theirs)} tensors, {len(ours)} are needed"
    if (turned := _turned(theirs, stored)) is not None:
        return f"{turned[0]} comes before {turned[1]} there, so its order is not that of the layers; rename them"
    return dict(zip(ours, theirs, strict=False))


def _turned(names: Iterable[str], stored: Mapping[str, Tensor]) -> tuple[str, str] | None:
    """Two tensors of one shape whose names differ in their numbers alone, the larger one first."""
    before: dict[tuple[str, tuple[int, ...]], tuple[list[int], str]] = {}
    for name in names:
        numbers = [int(digits) for digits in re.findall(r"\d+", name)]
        kind = re.sub(r"\d+", "#", name), tuple(stored[name].shape)
        if kind in before and before[kind][0] > numbers:
            return before[kind][1], name
        before[kind] = numbers, name
    return None


def _by_shape(stored: Mapping[str, Tensor], own: Mapping[str, Tensor], more: bool) -> dict[str, str] | str:
    """Own name -> name in a file without an order, where each shape occurs once; or in words the first difference."""
    counts = Counter(tuple(tensor.shape) for tensor in stored.values())
    wanted = Counter(tuple(tensor.shape) for tensor in own.values())
    places = {tuple(tensor.shape): name for name, tensor in stored.items()}
    for name, tensor in own.items():
        shape = tuple(tensor.shape)
        if not counts[shape]:
            return f"no tensor there has the shape {list(shape)} of {name}"
        if (counts[shape] > 1 or wanted[shape] > 1) and name not in stored:
            return (
                f"{max(counts[shape], wanted[shape])} tensors have the shape {list(shape)} of {name}, and a "
                ".safetensors file keeps no order; save it with torch.save, or rename them"
            )
    if len(stored) > len(own) and not more:
        return f"it has {len(stored)} tensors, {len(own)} are needed"
    return {name: name if name in stored else places[tuple(tensor.shape)] for name, tensor in own.items()}


def adopt(module: nn.Module, source: str, weights: Mapping[str, Tensor], fresh: Collection[str]) -> str:
    """Copy the tensors `weights` of the file `source`, by the module's own names, into `module`.

    The children in `fresh` take tensors of equal shapes, and otherwise stay as initialised. Counters of batches are
    ignored, and so are running statistics that the module does not have. Returns a line with the source and the random
    parts. Raises `ConfigError` for other tensors that are missing, unknown or of another shape.
    """
    own, what, left = module.state_dict(), f"model.pretrained: {source}", dict[str, str]()
    for name, tensor in own.items():
        child = name.partition(".")[0]
        if name in weights and weights[name].shape == tensor.shape:
            _check_numbers(what, name, weights[name], tensor)
            continue
        there = f"{list(weights[name].shape)} there" if name in weights else "not there"
        if child in fresh:
            left.setdefault(child, f" ({there})" if name in weights else "")
        elif tensor.is_floating_point():
            need = f"{type(module).__name__} needs it as {list(tensor.shape)}"
            raise ConfigError(f"{what}: {name} is {there}, {need}; it is of another network")
    for name in weights.keys() - own.keys():
        if name.partition(".")[0] not in left and name.rpartition(".")[2] not in (*STATISTICS, COUNTER):
            raise ConfigError(f"{what} has {name}, which {type(module).__name__} has not; it is of another network")
    taken = {name: t for name, t in weights.items() if name in own and name.partition(".")[0] not in left}
    _check_tied(what, module, taken)
    module.load_state_dict(taken, strict=False)
    said = ", ".join(child + why for child, why in left.items())
    return source + (f"; random: {said}" if left else "")


def foreign_weights(source: str) -> dict[str, Tensor]:
    """The tensors of a `.safetensors`, `.pth`, `.pt` or `.bin` file, floating ones as float32.

    Raises `ConfigError` for a file that cannot be read, or has other values than tensors.
    """
    weights = read_weights(source, "model.pretrained")
    wrong = next((name for name, value in weights.items() if not isinstance(value, Tensor)), None)
    if wrong is not None:
        raise ConfigError(f"model.pretrained: {source} has {wrong!r}, which is not a tensor; save the state_dict alone")
    return {name: t.to(torch.float32) if t.is_floating_point() else t for name, t in weights.items()}
