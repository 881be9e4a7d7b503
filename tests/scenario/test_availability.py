"""When clients are there: windows and on and off times by their addresses and shares, a file row by row."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given, strategies as st

from flray.core.protocol.seeding import rng
from flray.core.schema.errors import ConfigError, DataError
from flray.scenario import Availability, Presence

EVERYONE = np.arange(2000)


def presence(seed: int = 0, **options: Any) -> Presence:
    return Presence(Availability(**options), seed)


def test_a_window_comes_again_every_period() -> None:
    """Client 5 draws its moment u of the period: it is there from (u + i) 10 to (u + i) 10 + 3."""
    found, u = presence(4, name="windows", period=10.0, share=0.3), rng(4, "device", "availability", 5).random()
    for at in (0.0, 3.3, 17.0, 1234.5):
        begin, end = (float(part[0]) for part in found.spans(np.array([5]), at))
        i = np.floor((at - 10 * u) / 10)
        inside = at < 10 * (u + i) + 3
        assert begin == pytest.approx(10 * (u + i + (not inside))) and end == pytest.approx(begin + 3)


@pytest.mark.parametrize(
    "options", [{"name": "windows", "period": 20.0, "share": 0.35}, {"name": "markov", "on": 7.0, "off": 13.0}]
)
def test_the_share_of_clients_that_are_there(options: dict[str, Any]) -> None:
    """35 % at any moment: share; on / (on + off)."""
    found = presence(1, **options)
    for at in (0.0, 4.0, 500.0):
        there = (found.spans(EVERYONE, at)[0] <= at).mean()
        assert abs(there - 0.35) < 5 * np.sqrt(0.35 * 0.65 / len(EVERYONE))


def test_times_on_and_off_are_exponential() -> None:
    """Means 7 and 13 over 300 clients and 1,000 s, with standard errors of the mean below 0.1."""
    found, on, off = presence(2, name="markov", on=7.0, off=13.0), list[float](), list[float]()
    for client in range(300):
        at, before = 0.0, None
        while at < 1000:
            begin, end = (float(part[0]) for part in found.spans(np.array([client]), at))
            if before is not None:
                off.append(begin - before)
                on.append(end - begin)
            before = at = end
    for times, mean in ((on, 7.0), (off, 13.0)):
        assert abs(np.mean(times) - mean) < 5 * mean / np.sqrt(len(times))
        assert abs(np.std(times) - mean) < 10 * mean / np.sqrt(len(times))


@given(st.lists(st.floats(0, 400), min_size=1, max_size=6), st.integers(0, 40))
def test_markov_does_not_depend_on_who_asks_when(moments: list[float], client: int) -> None:
    """Asked in any order, by one object or by several: the same times; the span has the moment, or is after it."""
    one = presence(3, name="markov", on=2.0, off=5.0)
    for at in moments:
        begin, end = (float(part[0]) for part in one.spans(np.array([client, 7]), at))
        fresh = presence(3, name="markov", on=2.0, off=5.0).spans(np.array([client]), at)
        assert (begin, end) == (float(fresh[0][0]), float(fresh[1][0]))
        assert begin < end and at < end


def test_a_trace_says_who_is_there(tmp_path: Path) -> None:
    """Client 1 is there twice, client 0 once, client 2 never; the end is no longer inside."""
    file = tmp_path / "there.csv"
    file.write_text("client,start,end\n1,10,20\n0,0,5\n1,2,4\n")
    found = presence(name="trace", file=str(file))
    asked = np.array([0, 1, 2])
    begins, ends = found.spans(asked, 3.0)
    assert begins.tolist() == [0, 2, np.inf] and ends.tolist() == [5, 4, np.inf]
    assert found.spans(asked, 4.0)[0].tolist() == [0, 10, np.inf]
    assert found.spans(asked, 20.0)[0].tolist() == [np.inf] * 3
    assert found.hash != presence(name="windows", period=1.0, share=0.5).hash == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("client,start\n0,1\n", ("end",)),
        ("client,start,end\n0,5,5\n", ("row 1", "start < end")),
        ("client,start,end\n0,a,5\n", ("virtual seconds",)),
        ("client,start,end\n0,1,5\n0,4,9\n", ("client 0", "join")),
        ("client,start,end\n0,1,inf\n", ("row 1",)),
        ("client,start,end\nx,1,2\n", ("client",)),
    ],
)
def test_a_trace_that_is_wrong_is_one_line(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError) as error:
        presence(name="trace", file=str(tmp_path / "t.csv"))
    assert "\n" not in str(error.value) and all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "windows", "period": 3.0}, ("windows", "share")),
        ({"name": "markov", "on": 3.0, "share": 0.5, "off": 1.0}, ("share", "windows", "markov")),
        ({"name": "always", "file": "x"}, ("file", "trace")),
    ],
)
def test_options_of_another_kind_are_refused(options: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises((ConfigError, ValueError)) as error:
        Availability(**options)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    "values", [pandas.to_timedelta([0, 60], unit="s"), pandas.to_datetime([0, 60], unit="s"), [False, True]]
)
def test_times_that_are_no_virtual_seconds_are_refused(tmp_path, values):
    """Nanoseconds of pandas would be read as seconds."""
    table = pandas.DataFrame({"client": [0], "start": values[:1], "end": values[1:]})
    table.to_parquet(tmp_path / "trace.parquet")
    with pytest.raises(DataError, match=r"column start is .*, no numbers; write virtual seconds"):
        Presence(Availability(name="trace", file=str(tmp_path / "trace.parquet")), 0)


def test_a_trace_that_counts_from_1_is_refused(tmp_path):
    (tmp_path / "trace.csv").write_text("client,start,end\n" + "".join(f"{client},0,9\n" for client in (1, 2, 3)))
    presence = Presence(Availability(name="trace", file=str(tmp_path / "trace.csv")), 0)
    with pytest.raises(DataError, match="has client 3 and no row of client 0; the clients are 0 to 2"):
        presence.check(3)
    presence.check(4)  # client 0 is never there
