"""The file of `model.weights`: where it is and what it contains, in bytes. Imports no torch.

`cache://NAME` is `FLRAY_CACHE/weights/NAME/model.safetensors`, which `flray pretrain` stores with a card (`card.json`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from flray.core.schema.errors import ConfigError
from flray.files import cache_root, checksum, read_checksummed, regular
from flray.shipped import shipped

FILE = "model.safetensors"  # in a run folder, and of a pretrained network
PICKLED = (".pth", ".pt", ".bin", ".ckpt")  # written by torch.save
HUB = "hf://"  # then NAME/FILE, in the local cache of the Hugging Face hub
CACHED = "cache://"  # then NAME, in flray's cache
CARD = "card.json"
GIVE = "give a .safetensors file or a finished run's folder"


def weights_place(source: str) -> str:
    """The one file of `model.weights`: an absolute path, or a URI."""
    if source.startswith(CACHED):
        return str(cached_weights(source.removeprefix(CACHED)) / FILE)
    if "://" in source:
        return source if source.endswith((".safetensors", *PICKLED)) else f"{source}/{FILE}"
    path = Path(os.path.expanduser(source))
    return str((path / FILE if path.is_dir() else path).absolute())


def cached_weights(name: str) -> Path:
    """The folder of the weights `name` in flray's cache."""
    if not name or name != Path(name).name or name.startswith("."):
        raise ConfigError(f"model.weights: {CACHED}{name} is not {CACHED}NAME with the name of a configuration")
    return (cache_root() / "weights" / name).absolute()


def hub() -> Any:
    import huggingface_hub

    return huggingface_hub


def read_content(place: str, what: str, hint: str) -> bytes:
    """The bytes of the file at a place; `what` and `hint` begin and end the line of a `ConfigError`."""
    cached = CACHED in what
    if cached:
        hint = _cached_hint(Path(place).parent.name)
    try:
        if place.startswith(HUB):
            name, _, file = place.removeprefix(HUB).rpartition("/")
            hint = f"fetch it: hf download {name}"
            place = hub().hf_hub_download(name, file, local_files_only=True)
        if "://" not in place:
            content = regular(Path(place)).read_bytes()
            if cached:
                _check_card(Path(place).with_name(CARD), content)
            return content
        from pyarrow.fs import FileSystem

        system, path = FileSystem.from_uri(place)
        with system.open_input_stream(path) as file:
            return file.read()  # type: ignore[no-any-return]
    except (OSError, ValueError, RuntimeError) as error:  # pyarrow's errors are among these; ~nobody has no home
        why = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise ConfigError(f"{what} cannot be read ({why}); {hint}") from error


def _check_card(card: Path, content: bytes) -> None:
    """Raises `OSError` or `ValueError` for a damaged card, or that of other weights. A user's own file has none."""
    if card.exists() and read_checksummed(card).get("weights") != checksum(content):
        raise ValueError(f"its weights are not those of its {CARD}")


def _cached_hint(name: str) -> str:
    """Which weights the cache has, and how to get these."""
    try:
        there = sorted(path.name for path in (cache_root() / "weights").iterdir() if (path / CARD).is_file())
    except OSError:
        there = []
    known = (shipped("configs") / "pretrain" / f"{name}.yaml").is_file()
    config = f"configs/pretrain/{name}.yaml" if known else f"CONFIG name={name}"
    return f"the cache has {', '.join(there) if there else 'no weights'}; train it: flray pretrain {config}"


def weights_fingerprint(source: str | None) -> str | None:
    """Checksum of the file; None without one. Raises `ConfigError` for a file that cannot be read."""
    return None if source is None else checksum(read_content(weights_place(source), f"model.weights: {source}", GIVE))


def is_weights_file(source: str) -> bool:
    """Whether the name is that of a file of weights, not of a folder or a network."""
    return "://" not in source and source.endswith((".safetensors", *PICKLED))


def check_weights(source: str, option: str = "model.weights") -> None:
    """Raises the `ConfigError` of :func:`read_content` if a local file of weights cannot be opened; `option` names
    it."""
    place = weights_place(source)
    if "://" not in place and not Path(place).is_file():
        read_content(place, f"{option}: {source}", GIVE)
