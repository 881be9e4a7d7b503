"""The planned arrivals of `coordination: buffered`: by hand, by an independent simulation of events, and what holds of
every schedule."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given, strategies as st

from flray.config.loader import load_config
from flray.core.protocol.seeding import rng
from flray.core.schema.errors import ConfigError
from flray.engine.prepare import build_data, build_scenario
from flray.engine.tickets import Schedule, ServerStep
from flray.scenario import Work

WORK = Work(step=0.0, sample=1.0, down=0, up=0)  # a second for each sample at 1 FLOP a second


def planned(speeds: list[float], seed: int = 0, drift: Any = None, **coordination: Any) -> Schedule:
    """A schedule of clients of 8 samples each, one epoch of batches of 8, with these speeds."""
    clients = len(speeds)
    experiment = load_config(
        {
            "seed": seed,
            "rounds": 10,
            "data": {"source": "synthetic", "options": {"num_train": 8 * clients, "num_test": 8, "shape": 4}},
            "partition": {"name": "iid", "clients": clients},
            "model": {"name": "mlp", "hidden": []},
            "algorithm": {"name": "fedavg", "local_epochs": 1, "batch_size": 8},
            "devices": {"speed": "equal"},
            "coordination": {"name": "buffered", **coordination},
            "drift": drift,
        }
    )[0]
    scenario = build_scenario(experiment, build_data(experiment))
    assert scenario.devices is not None
    scenario.devices.speeds = lambda asked: np.array(speeds)[asked]  # type: ignore[method-assign]
    return Schedule(experiment, scenario, WORK)


def told(step: ServerStep, number: int) -> tuple[float, list[tuple[int, int]]]:
    """(seconds, the ages by client)."""
    return step.seconds, [(ticket.client, number - ticket.version) for ticket in step.tickets]


def test_ten_steps_of_two_clients_by_hand() -> None:
    """Client 0 takes 2 s and client 1 takes 5 s; each starts again when the server has its update.

    At 10 s both arrive: two steps, of which the second is of the older ticket's server step after the first.
    """
    schedule = planned([4.0, 1.6], size=1, concurrency=2)
    assert [told(schedule.step(number), number) for number in range(10)] == [
        (2.0, [(0, 0)]),
        (4.0, [(0, 0)]),
        (5.0, [(1, 2)]),
        (6.0, [(0, 1)]),
        (8.0, [(0, 0)]),
        (10.0, [(1, 2)]) if _first(schedule) == 1 else (10.0, [(0, 0)]),
        (10.0, [(0, 1)]) if _first(schedule) == 1 else (10.0, [(1, 3)]),
        (12.0, [(0, 0)]),
        (14.0, [(0, 0)]),
        (15.0, [(1, 2)]),
    ]


def test_a_client_takes_the_seconds_of_the_samples_that_it_has_under_a_drift() -> None:
    """One client of 8 samples in a batch, a second each; from round 2 to 3 it lacks class 0. Rounds count from 1."""
    drift = {"name": "remove_classes", "classes": [0], "from_round": 2, "to_round": 4}
    schedule = planned([1.0], size=1, concurrency=1, drift=drift)
    labels = build_data(schedule._experiment).dataset.train.y
    assert len(labels) == 8 and 0 < (left := int((labels != 0).sum())) < 8
    ends = [schedule.step(number).seconds for number in range(5)]
    assert np.diff([0.0, *ends]).tolist() == [8, left, left, 8, 8]


def _first(schedule: Schedule) -> int:
    """The client of the ticket with the lower number among the two that arrive at 10 s."""
    return min(schedule.step(5).tickets + schedule.step(6).tickets).client


def independent(
    speeds: list[float], seed: int, size: int, concurrency: int, steps: int
) -> list[tuple[float, list[int]]]:
    """(seconds, clients in the order of dispatch) of server steps, by simpy: a process a client at work.

    A moment is over when its events are; then come steps and dispatches.
    """
    world, arrived, waiting, busy = simpy.Environment(), list[tuple[int, int]](), list[tuple[int, int]](), set[int]()
    found, state = list[tuple[float, list[int]]](), {"version": 0, "draws": 0, "number": 0, "at_work": 0}

    def work(number: int, client: int) -> Iterator[Any]:
        yield world.timeout(8 / speeds[client])
        arrived.append((number, client))
        state["at_work"] -= 1

    def dispatch() -> None:
        count = concurrency - state["at_work"]
        if count:
            key = (0, state["version"], *([state["draws"]] if state["draws"] else []))
            state["draws"] += 1
            drawn = rng(seed, "cohort", *key).choice(len(speeds), min(count + len(busy), len(speeds)), replace=False)
            for client in [client for client in drawn.tolist() if client not in busy][:count]:
                busy.add(client)
                world.process(work(state["number"], client))
                state["number"] += 1
                state["at_work"] += 1

    dispatch()
    while len(found) < steps:
        now = world.peek()
        while world.peek() == now:
            world.step()
        if now == 0:  # the processes begin
            continue
        waiting += sorted(arrived)
        arrived.clear()
        while len(waiting) >= size:
            taken, waiting = waiting[:size], waiting[size:]
            found.append((now, [client for _, client in sorted(taken)]))
            busy.difference_update(client for _, client in taken)
            state["version"], state["draws"] = state["version"] + 1, 0
        dispatch()
    return found[:steps]


@given(st.lists(st.floats(0.5, 20.0), min_size=4, max_size=9), st.integers(0, 3), st.integers(1, 3), st.integers(0, 1))
def test_the_schedule_of_an_independent_simulation(speeds: list[float], seed: int, size: int, more: int) -> None:
    concurrency = min(size + more, len(speeds))
    schedule = planned(speeds, seed, size=size, concurrency=concurrency)
    for number, (seconds, clients) in enumerate(independent(speeds, seed, size, concurrency, 12)):
        step = schedule.step(number)
        assert [ticket.client for ticket in step.tickets] == clients
        assert step.seconds == pytest.approx(seconds, rel=1e-9)


@given(
    st.lists(st.sampled_from([1.0, 2.0, 4.0, 7.0]), min_size=3, max_size=8),
    st.integers(0, 3),
    st.integers(1, 3),
    st.integers(0, 3),
    st.sampled_from([None, 0, 2]),
)
def test_what_holds_of_every_schedule(speeds: list[float], seed: int, size: int, more: int, oldest: int | None) -> None:
    """No client is at work twice, no version is of the future, and a ticket is delivered, dropped or at work."""
    concurrency = min(size + more, len(speeds))
    schedule = planned(speeds, seed, size=size, concurrency=concurrency, max_staleness=oldest)
    delivered, dropped = dict[int, Any](), dict[int, Any]()
    before = 0.0
    for number in range(15):
        step = schedule.step(number)
        assert step.seconds >= before and len(step.tickets) == size
        before = step.seconds
        for ticket in step.tickets:
            assert ticket.version <= number and (oldest is None or number - ticket.version <= oldest)
            assert ticket.began < ticket.arrives <= step.seconds
        assert {ticket.version for ticket in step.tickets} - {number} <= set(
            schedule.step(number - 1).held if number else ()
        )
        assert not {t.number for t in (*step.tickets, *step.stale)} & {*delivered, *dropped}
        delivered |= {ticket.number: (ticket, step.seconds) for ticket in step.tickets}
        dropped |= {ticket.number: (ticket, ticket.arrives) for ticket in step.stale}
    ends = {**delivered, **dropped}
    by_client: dict[int, list[tuple[float, float]]] = {}
    for ticket, end in ends.values():
        by_client.setdefault(ticket.client, []).append((ticket.began, end))
    for spans in by_client.values():
        for (_, end), (began, _) in zip(sorted(spans)[:-1], sorted(spans)[1:], strict=True):
            assert end <= began
    assert set(range(max(ends))) - set(ends) <= {ticket.number for _, _, ticket in schedule._at_work} | {
        ticket.number for ticket in schedule._waiting
    }


@pytest.mark.parametrize(
    ("coordination", "words"),
    [
        ({"size": 3, "concurrency": 2}, ("size 3", "concurrency 2")),
        ({"size": 1, "concurrency": 9}, ("concurrency 9", "4 clients")),
    ],
)
def test_numbers_that_can_never_work_are_refused(coordination: dict[str, int], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as error:
        planned([1.0] * 4, **coordination)
    assert all(word in str(error.value) for word in words)


def test_the_weights_of_an_age() -> None:
    """FedAsync, section 5.2: (d + 1)^-a; 1 up to b, then 1 / (a (d - b) + 1)."""
    ages = np.arange(6)

    def weights(**staleness: Any) -> np.ndarray:
        given = {"staleness": staleness} if staleness else {}
        return planned([1.0] * 4, size=2, **given)._experiment.coordination.age_weights.weights(ages)

    np.testing.assert_allclose(weights(), 1 / np.sqrt(1 + ages))
    np.testing.assert_allclose(weights(name="polynomial", a=2.0), (ages + 1.0) ** -2)
    np.testing.assert_allclose(weights(name="constant"), np.ones(6))
    np.testing.assert_allclose(weights(name="hinge", a=10, b=3), [1, 1, 1, 1, 1 / 11, 1 / 21])
