"""URIs of pyarrow's and fsspec's file systems: `s3://bucket/exp`, `gs://...`, `file:///...`."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from flray.core.schema.errors import ConfigError, first_line, nearest

RESERVED = "%/:?#@!$&'()*+,;=~"  # in a URI itself; other characters than these, letters and digits are written %XX


def is_uri(place: str | Path) -> bool:
    return "://" in str(place)


def join(base: str, name: str) -> str:
    """`base/name`; a query such as `?endpoint_override=...` stays at the end."""
    parts = urlsplit(base)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name)}").geturl()


def split(uri: str) -> tuple[str, str]:
    """(base, name), the inverse of :func:`join`. Raises `ConfigError` for a URI without a path."""
    parts = urlsplit(uri)
    path, _, name = parts.path.rstrip("/").rpartition("/")
    if not name:
        raise ConfigError(f"{uri} names no run; write it with the run's own name, e.g. s3://bucket/exp/fedavg-seed0")
    return parts._replace(path=path).geturl(), unquote(name)


def open_uri(uri: str) -> tuple[Any, str]:
    """(pyarrow file system, path on it). Raises `ConfigError` for an unknown URI, and for a password in it."""
    if not is_uri(uri):
        raise ConfigError(
            f"storage: {uri!r} is no URI; write e.g. s3://bucket/exp, or {Path(uri).absolute().as_uri()} for a folder"
        )
    parts = urlsplit(uri)
    if parts.password:
        raise ConfigError(
            f"storage: {parts.scheme}://... contains a secret, which would be written to config.yaml; set it in the "
            "environment instead"
        )
    try:
        fs, path = _find(uri, parts.scheme)
    except ConfigError:
        raise
    except Exception as error:  # every file system has errors of its own
        written = quote(uri, safe=RESERVED)
        instead = f"; write it as {written}" if written != uri else ""  # pyarrow names a place in the text alone
        raise ConfigError(f"storage: {uri}: {reason(error)}{instead}") from error
    if not path.strip("/"):
        raise ConfigError(f"storage: {uri} names no bucket or folder; write e.g. {parts.scheme}://bucket/exp")
    return fs, path.rstrip("/")


def _find(uri: str, scheme: str) -> tuple[Any, str]:
    from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem

    try:
        pair: tuple[Any, str] = FileSystem.from_uri(uri)
        return pair
    except ValueError as error:  # also of a malformed URI
        if "Unrecognized filesystem" not in str(error):
            raise
    import fsspec

    if scheme not in fsspec.available_protocols():
        known = ("file", "s3", "gs", "hdfs", "abfs")
        raise ConfigError(
            f"storage: neither pyarrow nor fsspec knows a file system {scheme}://{nearest(scheme, known)}"
        )
    inner, path = fsspec.core.url_to_fs(uri)
    return PyFileSystem(FSSpecHandler(inner)), path


def reason(error: BaseException) -> str:
    """The first line of an error, without its full stop."""
    return first_line(error).rstrip(".;: ")
