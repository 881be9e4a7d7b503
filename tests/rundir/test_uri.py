"""Addresses: joined, split, and refused in one line."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from flray.core.schema.errors import ConfigError
from flray.rundir.uri import join, open_uri, split
from tests.support.messages import assert_says, facts


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("s3://bucket/exp", "s3://bucket/exp/run"),
        ("s3://bucket", "s3://bucket/run"),
        (
            "s3://bucket/exp/?endpoint_override=http://h:9000&region=x",
            "s3://bucket/exp/run?endpoint_override=http://h:9000&region=x",
        ),
        ("file:///data/exp", "file:///data/exp/run"),
        ("hdfs://name:8020/exp", "hdfs://name:8020/exp/run"),
    ],
)
def test_a_runs_address_is_its_storage_and_its_name(base, expected):
    assert join(base, "run") == expected
    assert split(expected) == (base.replace("exp/?", "exp?"), "run")


@given(st.text("abc01-._ %#?+&", min_size=1).filter(lambda name: name.strip(".")))
def test_every_name_survives_the_way_through_an_address(name):
    assert split(join("s3://bucket/exp?region=x", name)) == ("s3://bucket/exp?region=x", name)
    assert open_uri(join("file:///data", name))[1] == f"/data/{name}"


def test_an_address_is_opened_by_the_first_that_knows_its_scheme(tmp_path, s3_endpoint):
    assert [
        open_uri(uri)[0].type_name for uri in (f"file://{tmp_path}", "s3://b/x?region=us-east-1", "memory://x")
    ] == [
        "local",
        "s3",
        "py::fsspec+memory",
    ]
    assert open_uri("s3://b/x/?region=us-east-1")[1] == "b/x"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("runs/mirror", ("'runs/mirror'", "s3://bucket/exp", f"file://{Path('runs/mirror').absolute()}")),
        ("s4://bucket/exp", ("s4://", "'s3'")),
        ("s3://", ("s3://", "bucket", "s3://bucket/exp")),
        ("file://relative/exp", ("file://relative/exp", "hostname")),
        ("my runs", (f"file://{Path.cwd()}/my%20runs for a folder",)),
        ("file:///a b/%20[é]?x=1", ("file:///a b/", "write it as file:///a%20b/%20%5B%C3%A9%5D?x=1")),
        ("memory://a b", ("write it as memory://a%20b",)),
        ("oss://bucket/exp", ("Install ossfs",)),  # fsspec knows the scheme, and what has to be installed for it
    ],
)
def test_what_is_no_storage_is_one_line(uri, message):
    with pytest.raises(ConfigError) as error:
        open_uri(uri)
    assert_says(error.value, "storage: ", *message)


def test_a_secret_in_an_address_is_refused_and_not_repeated():
    with pytest.raises(ConfigError, match=facts("s3://", "secret", "environment")) as error:
        open_uri("s3://AKIA:hunter2@bucket/exp")
    assert "hunter2" not in str(error.value)


def test_an_address_without_a_runs_name():
    with pytest.raises(ConfigError, match=facts("s3://bucket", "s3://bucket/exp/")):
        split("s3://bucket")
