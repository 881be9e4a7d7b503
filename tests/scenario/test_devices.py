"""Devices and whom a round waits for. Seconds: down / bandwidth + steps (step + sample batch) / speed + up / bandwidth,
by hand; the draws by their addresses and their moments."""

import numpy as np
import pytest
import yaml
from hypothesis import given, strategies as st

from flray.core.protocol.seeding import rng
from flray.core.schema.errors import ConfigError, DataError
from flray.scenario import Coordination, Devices, DevicesConfig, Work
from tests.support.messages import facts, mistakes
from tests.support.runs import config

EVERYONE = np.arange(4000)


def devices(seed=0, **sections):
    return Devices(DevicesConfig(**sections), seed)


def test_the_seconds_of_two_clients_by_hand(tmp_path):
    """20 and 50 FLOPs a second; 100 bytes down at 10 and 50 a second, 40 bytes up at 4 and 8."""
    (tmp_path / "speed.csv").write_text("client,flops_per_second\n1,50\n0,20\n")
    (tmp_path / "band.csv").write_text("client,down,up\n0,10,4\n1,50,8\n")
    two = devices(
        speed={"name": "trace", "file": str(tmp_path / "speed.csv")},
        bandwidth={"name": "trace", "file": str(tmp_path / "band.csv")},
    )
    found = two.seconds(
        np.array([1, 0]), np.array([3, 2]), np.array([8, 5]), Work(step=4.0, sample=2.0, down=100, up=40)
    )
    assert found.tolist() == pytest.approx([2 + 3 * (4 + 2 * 8) / 50 + 5, 10 + 2 * (4 + 2 * 5) / 20 + 10])


def test_without_a_bandwidth_messages_take_no_time():
    seconds = devices(speed={"flops_per_second": 10.0}).seconds(
        np.array([7]), np.array([2]), np.array([1]), Work(5.0, 0.0, 10**9, 10**9)
    )
    assert seconds.tolist() == [1.0]


@pytest.mark.parametrize("what", ["speed", "bandwidth"])
def test_lognormal_factors_have_the_moments_and_the_addresses(what):
    """log of the factor: mean 0, standard deviation sigma; each client's own draw, whoever else is asked."""
    one = devices(3, **{what: {"name": "lognormal", "sigma": 0.7}})
    values = one.speeds(EVERYONE) / 1e9 if what == "speed" else one.bandwidths(EVERYONE)[1] / 1e6
    logs = np.log(values)
    assert abs(logs.mean()) < 5 * 0.7 / np.sqrt(4000) and abs(logs.std() - 0.7) < 5 * 0.7 / np.sqrt(8000)
    assert logs[17] == pytest.approx(0.7 * rng(3, "device", what, 17).standard_normal())
    again = one.speeds(EVERYONE[::-1]) / 1e9 if what == "speed" else one.bandwidths(EVERYONE[::-1])[1] / 1e6
    assert np.array_equal(again[::-1], values)


def test_a_client_is_as_slow_up_as_down():
    down, up = devices(bandwidth={"name": "two_classes", "share": 0.25, "factor": 8}).bandwidths(EVERYONE)
    slow = down < 1e7
    assert np.array_equal(np.unique(down), [1e7 / 8, 1e7]) and np.array_equal(up == 1e6 / 8, slow)
    assert abs(slow.mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 4000)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("client,flops_per_second\n0,1\n", "no row of client 1; add it"),
        ("client,flops_per_second\n0,1\n1,2\n0,3\n", "client 0 twice"),
        ("client,flops_per_second\n0,1\n1,0\n", "row 2 has flops_per_second 0"),
        ("client,flops_per_second\n0,1\n1,fast\n", "no numbers"),
        ("client,flops_per_second\n0,1\n1,\n", "row 2 has flops_per_second nan"),
        ("client,speed\n0,1\n1,2\n", "no column flops_per_second; write client,flops_per_second"),
    ],
)
def test_a_trace_that_cannot_be_meant_is_one_line(tmp_path, rows, words):
    (tmp_path / "speed.csv").write_text(rows)
    with pytest.raises(DataError, match=words):
        devices(speed={"name": "trace", "file": str(tmp_path / "speed.csv")}).check(2)


def test_one_file_may_have_the_speed_and_the_bandwidth(tmp_path):
    (tmp_path / "both.csv").write_text("client,flops_per_second,down,up\n1,50,9,8\n0,20,7,6\n")
    trace = {"name": "trace", "file": str(tmp_path / "both.csv")}
    both = devices(speed=trace, bandwidth=trace)
    assert both.speeds(np.arange(2)).tolist() == [20, 50]
    assert [part.tolist() for part in both.bandwidths(np.arange(2))] == [[7, 9], [6, 8]]


# whom a round waits for -----------------------------------------------------------------------
times = st.lists(st.floats(0.01, 100), min_size=1, max_size=12).map(np.array)


@given(times, st.floats(0.01, 100))
def test_a_deadline_takes_those_who_are_in_time(seconds, limit):
    within, took = Coordination(name="deadline", seconds=limit).delivered(seconds, 5)
    assert within.tolist() == [s <= limit for s in seconds]
    assert took == (max(seconds) if max(seconds) <= limit else limit)


@given(times, st.integers(1, 12))
def test_over_selection_takes_the_first_k_of_them(seconds, size):
    """Ties: the first in cohort order, so that exactly K count."""
    within, took = Coordination(name="over_selected", share=0.5).delivered(np.round(seconds), size)
    first = sorted(range(len(seconds)), key=lambda i: (round(seconds[i]), i))[:size]
    assert np.flatnonzero(within).tolist() == sorted(first) and took == max(np.round(seconds)[first])


def test_a_deadline_is_waited_for_those_who_never_come():
    deadline, all_in_time = Coordination(name="deadline", seconds=9.0), np.array([1.0, 4.0])
    assert deadline.delivered(all_in_time, 2).seconds == 4.0 and deadline.delivered(all_in_time, 3, 1).seconds == 9.0
    assert Coordination().delivered(all_in_time, 3, 1).seconds == 4.0
    assert Coordination(name="over_selected", share=0.21).drawn(10, 100) == 13
    first = Coordination(name="over_selected", share=0.5)
    within, took = first.delivered(np.array([np.inf, 3.0, np.inf, 2.0]), 3)
    assert within.tolist() == [False, True, False, True] and took == 3.0, "fewer than K ever come"
    assert first.delivered(np.array([np.inf]), 1).seconds == 0.0
    assert Coordination(name="over_selected", share=3.0).drawn(10, 20) == 20
    tenth = Coordination(name="over_selected", share=0.1)  # 100 * 1.1 is 110.00000000000001 in floating point
    assert [tenth.drawn(size, 1000) for size in (10, 50, 100, 101)] == [11, 55, 110, 112]


@pytest.mark.parametrize(
    ("sections", "says"),
    mistakes("""
{devices: {speed: {name: lognormal}}} | lognormal needs sigma
{devices: {speed: {name: equal, sigma: 1.0}}} | sigma is read by lognormal, not by equal
{devices: {bandwidth: {name: two_classes, share: 0.1}}} | two_classes needs factor
{devices: {speed: {flops_per_second: 0}}} | greater than 0
{coordination: deadline, EQUAL} | deadline needs seconds
{coordination: {name: deadline, seconds: 1, share: 0.1}, EQUAL} | share is read by over_selected
{coordination: {name: deadline, seconds: 1}} | deadline needs devices
{coordination: {name: buffered}, EQUAL} | buffered needs size
{coordination: {name: over_selected, share: 1}, cohort: {size: 2, sampling: poisson}, EQUAL}
     | over_selected draws the clients itself; leave cohort.sampling=poisson out
{coordination: {name: deadline, seconds: 1}, uplink: [{name: clip, norm: 1.0}, {name: gaussian, noise: 1.0}], EQUAL}
     | epsilon does not hold under coordination deadline
{algorithm: centralized, EQUAL} | a centralized run has no clients
{tasks: {num_tasks: 2}, EQUAL} | the virtual clock has no tasks
"""),
)
def test_what_does_not_fit_is_one_line(sections, says):
    with pytest.raises(ConfigError, match=facts(*says)):
        config(**yaml.safe_load(sections.replace("EQUAL", "devices: {speed: equal}")))


@pytest.mark.parametrize(
    ("section", "given"), [("speed", {"flops_per_second": 5.0}), ("bandwidth", {"up": 5.0, "down": 1e7})]
)
def test_a_reference_beside_a_trace_is_said_and_a_stored_one_is_read_again(section, given):
    """What an earlier flray stored is resumed, and differs in no key from what is given again."""
    first = next(iter(given))
    with pytest.warns(UserWarning, match=rf"trace has its own {first}, so the given one is not read; leave it out"):
        read = config(devices={section: {"name": "trace", "file": "t.csv", **given}}).dump()["devices"][section]
    assert read[first] == 5.0


def test_the_defaults_beside_a_trace_are_those_of_a_stored_configuration(tmp_path):
    (tmp_path / "speed.csv").write_text("client,flops_per_second\n0,5\n")
    first = config(devices={"speed": {"name": "trace", "file": str(tmp_path / "speed.csv")}})
    assert first.dump()["devices"]["speed"]["flops_per_second"] == 1e9
    assert config(devices=first.dump()["devices"]).devices == first.devices
