"""Storages on this machine: a folder, an S3 server in this process, fsspec's file system in memory."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """Address of an S3 server with an empty bucket `bucket`."""
    pytest.importorskip("moto.server", reason='needs moto and flask, which pip install -e ".[dev]" brings')
    import logging

    from moto.server import ThreadedMotoServer
    from pyarrow.fs import FileSystem

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    FileSystem.from_uri(f"s3://bucket?endpoint_override={endpoint}&allow_bucket_creation=true")[0].create_dir("bucket")
    yield endpoint
    server.stop()


@pytest.fixture
def new_base(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """`new_base("file" | "s3" | "memory")`: the URI of a storage that holds nothing yet."""

    def make(kind: str) -> str:
        name = f"exp-{uuid.uuid4().hex[:8]}"
        if kind == "s3":
            return f"s3://bucket/{name}?endpoint_override={request.getfixturevalue('s3_endpoint')}"
        return f"file://{tmp_path}/{name}" if kind == "file" else f"memory://{name}/deeper"

    return make


@pytest.fixture(params=["file", "s3", "memory"])
def base(request: pytest.FixtureRequest, new_base: Callable[[str], str]) -> str:
    """The URI of an empty storage: pyarrow's local and S3 file systems, and one that only fsspec knows."""
    return new_base(request.param)
