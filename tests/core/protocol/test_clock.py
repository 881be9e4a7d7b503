"""Moments of an experiment: what they are addressed by, in which order they come, what is left after any of them."""

import itertools

import pytest
from hypothesis import given, strategies as st

from flray.core.protocol.clock import START, Clock, Position, schedule, task_name
from flray.core.protocol.seeding import key

CLOCKS = st.builds(
    Clock,
    task=st.integers(0, 3),
    round=st.integers(0, 3),
    phase=st.sampled_from(["task_begin", "round", "task_end", "personal"]),
    exchange=st.integers(0, 3),
    turn=st.integers(0, 3),
    done=st.integers(0, 9),
)


@pytest.mark.parametrize(
    ("clock", "address"),
    [
        (Clock(1, 4, exchange=2, done=24), (1, 4, 2)),
        (Clock(1, 4, "task_end", 2, done=24), (1, 4, "task_end", 2)),
        (Clock(1, 0, "task_begin", done=20), (1, 0, "task_begin", 0)),
        (Clock(0, 4, "personal", done=4), (0, 4, "personal", 0)),
        (Clock(1, 4, exchange=2, turn=3, done=24), (1, 4, 2, "hop", 3)),
        (Clock(1, 4, "task_end", 2, 3, 24), (1, 4, "task_end", 2, "hop", 3)),
    ],
)
def test_the_address_names_the_phase_but_for_a_round_and_the_hop_but_for_the_first(clock, address):
    """Published results rest on those of rounds: task, round, exchange, and nothing else."""
    assert clock.address == address


@given(CLOCKS, CLOCKS)
def test_two_moments_share_an_address_only_where_they_differ_in_done_alone(left, right):
    assert (key(0, *left.address) == key(0, *right.address)) == (left._replace(done=0) == right._replace(done=0))


def test_a_transaction_is_complete_as_one():
    clock = Clock(1, 2, "round", 3, 4, done=7)
    assert clock.transaction == Clock(1, 2, "round", 0, 0, done=7)
    assert clock.complete == Position(1, 3, 8, "round")
    assert Clock(1, 5, "task_end", 2, 1, done=10).complete == Position(1, 5, 10, "task_end")
    assert Clock(1, 0, "task_begin", done=5).complete == Position(1, 0, 5, "task_begin")


def test_two_tasks_of_two_rounds_moment_by_moment():
    assert list(schedule(START, 2, 2)) == [
        Clock(0, 0, "task_begin", done=0),
        Clock(0, 0, "round", done=0),
        Clock(0, 1, "round", done=1),
        Clock(0, 2, "task_end", done=2),
        Clock(1, 0, "task_begin", done=2),
        Clock(1, 0, "round", done=2),
        Clock(1, 1, "round", done=3),
        Clock(1, 2, "task_end", done=4),
    ]


@given(st.integers(1, 5), st.integers(1, 4), st.data())
def test_from_any_commit_the_rest_comes_in_the_same_order(rounds, tasks, data):
    """Each commit is later than the one before; what comes after it is the rest, nothing twice, nothing left out."""
    whole = list(schedule(START, rounds, tasks))
    assert [clock.done for clock in whole if clock.phase == "round"] == list(range(rounds * tasks))
    orders = [START.order, *(clock.complete.order for clock in whole)]
    assert all(earlier < later for earlier, later in itertools.pairwise(orders))
    at = data.draw(st.integers(0, len(whole) - 1))
    assert list(schedule(whole[at].complete, rounds, tasks)) == whole[at + 1 :]


def test_a_resume_with_more_rounds_goes_on_behind_the_end_that_there_was():
    *_, end = schedule(START, 2, 1)
    assert list(schedule(end.complete, 3, 1)) == [Clock(0, 2, done=2), Clock(0, 3, "task_end", done=3)]


def test_a_position_names_its_checkpoint():
    positions = (START, Position(0, 20, 20, "round"), Position(0, 20, 20, "task_end"), Position(1, 0, 20, "task_begin"))
    assert [position.name for position in positions] == [
        "round-000000",
        "round-000020",
        "round-000020-task-end",
        "round-000020-task-begin",
    ]


def test_a_message_says_from_where_tasks_count():
    assert [task_name(0), task_name(2)] == ["task 0", "task 2 (0 is the first)"]
    assert str(Clock(1, 4, exchange=2)) == "task 1 (0 is the first), round 5"
    assert str(Clock(0, 5, "task_end")) == "task 0, task end"


@given(st.integers(1, 4), st.integers(2, 4))
def test_the_stage_before_is_near_at_the_beginning_of_a_task_and_in_its_first_round(rounds, tasks):
    """What it names is the end of the task before, as the schedule has it."""
    whole = list(schedule(START, rounds, tasks))
    ends = {clock.task: clock for clock in whole if clock.phase == "task_end"}
    for clock in whole:
        near = clock.task > 0 and clock.phase != "task_end" and clock.round == 0
        assert clock.stage_before == (ends[clock.task - 1] if near else None)
    assert Clock(1, 0, "round", exchange=2, turn=3, done=4).stage_before == Clock(0, 4, "task_end", done=4)
    assert Clock(1, 0, "personal", done=4).stage_before is None
