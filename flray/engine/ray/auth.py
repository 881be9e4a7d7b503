"""Ray's token: which mode a connection has, where the token is read, and what to do about one that is refused."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from pathlib import Path

import ray
import ray.exceptions

from flray.core.schema.errors import ResourceError, message_of
from flray.engine.ray.versions import CHANGED, FIRST_WITH_TOKEN, fall_back, knows_tokens

# a Ray without tokens never raises it
AuthenticationError: type[Exception] = getattr(ray.exceptions, "AuthenticationError", type("_Never", (Exception,), {}))
INSECURE = "set resources.insecure_ray: true to start it all the same"
_configured = os.environ.get("RAY_AUTH_MODE")  # what the environment says, before flray decides


def auth_mode(address: str | None) -> str:
    """`RAY_AUTH_MODE` of a run at `address`: what the environment says, else `token` for a Ray that flray starts,
    `disabled` elsewhere.

    Never left to Ray, whose choice depends on whether the machine happens to hold a token.
    """
    return _configured or ("disabled" if address or os.environ.get("RAY_ADDRESS") else "token")


def set_mode(address: str | None) -> None:
    """Set `RAY_AUTH_MODE` for a connection to `address`, in this process and those that it starts."""
    os.environ["RAY_AUTH_MODE"] = mode = auth_mode(address)
    try:
        from flray.engine.ray.private.connection import read_environment

        read_environment()
    except CHANGED:
        if mode != _configured:  # else Ray read it when it was imported
            fall_back("RAY_AUTH_MODE of flray's own", f"run with RAY_AUTH_MODE={mode} in the environment")


def make_ready(insecure: bool) -> None:
    """A token for a Ray that this process starts: that of `RAY_AUTH_TOKEN`, of the file `RAY_AUTH_TOKEN_PATH` or of
    ~/.ray/auth_token, which is made when there is none; workers read it there, or inherit the variable.

    Raises `ResourceError` where no token can be had and `insecure` is false.
    """
    if os.environ["RAY_AUTH_MODE"].lower() != "token":
        return
    if not knows_tokens():
        if not insecure:
            raise ResourceError(
                f"Ray {ray.__version__} knows no token ({FIRST_WITH_TOKEN} is the first that does): every user of this "
                f"machine could use a Ray that flray starts; {INSECURE}, or install a newer Ray"
            )
        os.environ["RAY_AUTH_MODE"] = "disabled"
        fall_back("a token", "other users of this machine can use this Ray (resources.insecure_ray)")
        return
    if os.environ.get("RAY_AUTH_TOKEN"):
        return
    if path := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        if not _is_filled(Path(path)):
            raise ResourceError(
                f"a new cluster here: RAY_AUTH_TOKEN_PATH is set but file cannot be opened or is empty: {path}"
            )
        return
    if not _is_filled(_token_path()):
        _make_token()
    with contextlib.suppress(OSError):
        _token_path().chmod(0o600)  # one that Ray has made is open to all


def _is_filled(path: Path) -> bool:
    try:
        return bool(path.read_text().strip())
    except OSError:
        return False


def _token_path() -> Path:
    return Path.home() / ".ray" / "auth_token"  # Ray's own place


def _make_token() -> None:
    """A new token in ~/.ray/auth_token, for this user only; in this process's environment where the file cannot be
    written."""
    token, path = secrets.token_hex(32), _token_path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # 0600; Ray would leave it to the umask
        descriptor, temporary = tempfile.mkstemp(prefix=".auth_token.", dir=path.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(token)
        try:
            os.link(temporary, path)  # the first of several processes wins
        except FileExistsError:
            if path.stat().st_size == 0:
                os.replace(temporary, path)
        Path(temporary).unlink(missing_ok=True)
    except OSError:
        os.environ["RAY_AUTH_TOKEN"] = token


def refused(where: str, error: Exception) -> ResourceError:
    """What to do about a token that is missing, wrong or not expected, at the cluster `where`."""
    mode = os.environ["RAY_AUTH_MODE"]
    if mode.lower() != "token":
        return ResourceError(
            f"{where}: the cluster asks for a token, and RAY_AUTH_MODE is {mode}; run with RAY_AUTH_MODE=token "
            "(and the token in RAY_AUTH_TOKEN, in the file RAY_AUTH_TOKEN_PATH or in ~/.ray/auth_token)"
        )
    return ResourceError(
        f"{where}: {message_of(error).partition('. ')[0]}; put the token of the cluster's nodes into RAY_AUTH_TOKEN, "
        "into the file RAY_AUTH_TOKEN_PATH or into ~/.ray/auth_token"
    )
