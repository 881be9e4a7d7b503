"""One line that names the nearest valid name."""

import pickle

import pytest
from torch import nn

import flray
from flray.core.schema.errors import (
    ClientError,
    ConfigError,
    DataError,
    FlrayError,
    NonFiniteError,
    failure,
    first_line,
    headline,
    message_of,
    nearest,
    shown,
    unknown,
)


def test_nearest_suggests_one_name_or_lists_all():
    names = ["fedavg", "feddf", "fedproj"]
    assert nearest("fedproy", names) == " (did you mean 'fedproj'?)"
    assert nearest("method", ["model", "algorithm"]) == " (did you mean 'algorithm'?)"  # FL-bench's word
    assert nearest("method", ["model", "mode"]) == " (did you mean 'mode'?)"
    assert nearest("zzz", names) == " (valid: fedavg, feddf, fedproj)"
    assert nearest("zzz", []) == ""
    assert nearest("fedproj", names) == "", "a name that is known is no proposal for itself"


def test_unknown_is_one_line_with_kind_name_and_place():
    error = unknown("algorithm", "fedavgg", ["fedavg"], "config.yaml")
    assert isinstance(error, ConfigError)
    assert str(error) == "unknown algorithm 'fedavgg' in config.yaml (did you mean 'fedavg'?)"


def test_a_caller_can_catch_everything_of_flray_at_once():
    assert issubclass(NonFiniteError, ClientError) and issubclass(ClientError, FlrayError)


def test_an_error_is_one_line_whatever_is_put_into_it():
    error = DataError("file\n  is bad\r\n\x1b[31m and \0 and \udcff \u2028 end\n")
    assert str(error) == r"file is bad \x1b[31m and \x00 and \udcff end"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    # the traceback of the user's own code is kept
    assert str(ClientError("client 3\nTraceback")) == "client 3\nTraceback"


@pytest.mark.parametrize(
    ("error", "first", "whole", "kind", "told"),
    [
        (ValueError("a\n  b"), "a", "a b", "ValueError: a", "ValueError: a b"),
        (ValueError(" \n"), "ValueError", "ValueError", "ValueError: no message", "ValueError"),
        (ConfigError(), "ConfigError", "ConfigError", "ConfigError: no message", "ConfigError"),
        (ClientError("\nclient 3\nTrace"), "client 3", "client 3 Trace", "ClientError: client 3", "client 3"),
    ],
)
def test_what_is_told_of_an_error_is_one_line_with_words(error, first, whole, kind, told):
    assert [first_line(error), message_of(error), headline(error), failure(error)] == [first, whole, kind, told]


def test_a_quoted_value_is_short_and_never_fails():
    assert shown("a\nb") == r"'a\nb'"
    assert len(shown("x" * 10**6)) < 110
    assert shown(16**6000) == "a int"  # more digits than Python prints


def test_a_warning_names_the_line_of_the_user(tmp_path):
    def net(input_shape, num_classes):
        return nn.Linear(4, 3)

    config = {"data": "iris", "partition": {"name": "iid", "clients": 3}, "algorithm": "fedavg", "rounds": 1}
    with pytest.warns(UserWarning, match="no import path") as seen:
        flray.run(config, "resources.executor=local", model=net, out=tmp_path / "run", progress=False)
    assert {warning.filename for warning in seen} == {__file__}
