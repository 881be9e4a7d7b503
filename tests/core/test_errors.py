"""One line that names the nearest valid name."""

from __future__ import annotations

from flray.core.errors import ClientError, ConfigError, FlrayError, NonFiniteError, nearest, unknown


def test_nearest_suggests_one_name_or_lists_all():
    names = ["fedavg", "feddf", "fedproj"]
    assert nearest("fedproy", names) == " (did you mean 'fedproj'?)"
    assert nearest("zzz", names) == " (valid: fedavg, feddf, fedproj)"
    assert nearest("zzz", []) == ""


def test_unknown_is_one_line_with_kind_name_and_place():
    error = unknown("algorithm", "fedavgg", ["fedavg"], "config.yaml")
    assert isinstance(error, ConfigError)
    assert str(error) == "unknown algorithm 'fedavgg' in config.yaml (did you mean 'fedavg'?)"


def test_a_caller_can_catch_everything_of_flray_at_once():
    assert issubclass(NonFiniteError, ClientError) and issubclass(ClientError, FlrayError)
