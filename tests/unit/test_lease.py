"""When a silent node counts as dead and a run as overdue: what one observer has itself seen, by its own clock."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from perdure.clock import Micros
from perdure.ids import JobId, NodeId, RunId
from perdure.job.model import LiveJob
from perdure.store.answers import NodeRow
from perdure.worker.lease import LOOKS, Overtime, Watch

LEASE_S = 60.0
GAP_S = LEASE_S / LOOKS


def node(number: int = 1, beat: int = 0) -> NodeRow:
    never = Micros(0)
    return NodeRow(NodeId(bytes([number]) * 16), None, beat, never, never, None, None, None, None, None, None, None)


def run(number: int = 1, timeout_s: float | None = 10) -> LiveJob:
    known = {
        "job_id": JobId(bytes([number]) * 16),
        "run_id": RunId(bytes([number]) * 16),
        "timeout_ms": None if timeout_s is None else round(timeout_s * 1000),
    }
    return LiveJob._make(known.get(column) for column in LiveJob._fields)


# -- nodes -----------------------------------------------------------------------------------------------------------


def test_a_node_that_is_silent_for_a_lease_is_dead() -> None:
    watch = Watch(LEASE_S)

    answers = [watch.look([node()], at) for at in range(0, 80, 10)]

    assert answers == [[]] * 6 + [[node()]] * 2


def test_a_beat_starts_the_lease_anew() -> None:
    watch = Watch(LEASE_S)
    for at in range(0, 60, 10):
        watch.look([node()], at)

    assert watch.look([node(beat=1)], 60) == []
    assert [watch.look([node(beat=1)], at) for at in range(70, 120, 10)] == [[]] * 5
    assert watch.look([node(beat=1)], 120) == [node(beat=1)]


def test_a_lease_that_passed_between_two_looks_does_not_count() -> None:
    watch = Watch(LEASE_S)
    watch.look([node()], 0)

    assert watch.look([node()], 1_000) == []
    assert watch.look([node()], 1_010) == []


def test_a_gap_starts_over_for_everyone() -> None:
    watch = Watch(LEASE_S)
    for at in range(0, 60, 10):
        watch.look([node(1), node(2)], at)

    back = 50 + GAP_S + 0.1
    assert watch.look([node(1), node(2)], back) == []
    assert [watch.look([node(1), node(2)], back + later) for later in (15, 30, 45)] == [[]] * 3
    assert watch.look([node(1), node(2)], back + 60) == [node(1), node(2)]


def test_a_short_lease_still_wants_its_number_of_looks() -> None:
    watch = Watch(0.0)

    assert [bool(watch.look([node()], 0)) for _ in range(5)] == [False] * LOOKS + [True] * 2


def test_a_node_that_was_not_seen_for_a_look_starts_over() -> None:
    watch = Watch(LEASE_S)
    for at in range(0, 60, 10):
        watch.look([node()], at)
    watch.look([], 60)

    assert watch.look([node()], 70) == []


looks = st.lists(
    st.tuples(st.floats(0, 30, allow_nan=False), st.lists(st.booleans(), min_size=3, max_size=3)), max_size=60
)


@given(looks)
def test_nobody_is_declared_dead_who_beat_within_a_lease_or_whom_nobody_watched(
    steps: list[tuple[float, list[bool]]],
) -> None:
    watch, at = Watch(LEASE_S), 0.0
    beats = [0, 0, 0]
    history: list[tuple[float, list[int]]] = []
    for pause, beaten in steps:
        at += pause
        beats = [beat + has for beat, has in zip(beats, beaten, strict=True)]
        history.append((at, beats))
        nodes = [node(number, beat) for number, beat in enumerate(beats)]
        for dead in watch.look(nodes, at):
            number = nodes.index(dead)
            same = [moment for moment, seen in history if seen[number] == dead.beat]
            watched = _without_gaps(same)
            assert watched[-1] - watched[0] >= LEASE_S
            assert len(watched) > LOOKS


def _without_gaps(moments: list[float]) -> list[float]:
    """The last of these looks that followed each other closely enough."""
    kept = moments[-1:]
    for moment in reversed(moments[:-1]):
        if kept[0] - moment > GAP_S:
            break
        kept.insert(0, moment)
    return kept


@given(looks)
def test_whoever_is_silent_long_enough_is_found(steps: list[tuple[float, list[bool]]]) -> None:
    watch, at = Watch(LEASE_S), 0.0
    for pause, beaten in steps:
        at += pause
        watch.look([node(number, int(has)) for number, has in enumerate(beaten)], at)
    at = float(round(at + 1))  # whole seconds: no float is a hair's breadth short of a lease
    found = [watch.look([node(beat=7)], at + second) for second in range(0, 80, 5)]

    assert [bool(dead) for dead in found] == [False] * 12 + [True] * 4


# -- runs ------------------------------------------------------------------------------------------------------------


def seconds_until_overdue(overtime: Overtime, live: LiveJob, at: float) -> int:
    """Looks every second."""
    second = 0
    while not overtime.look([live], at + second):
        second += 1
    return second


def test_a_run_seen_open_for_its_time_out_and_a_lease_is_overdue() -> None:
    assert seconds_until_overdue(Overtime(LEASE_S), run(timeout_s=3_600), 5) == 3_600 + LEASE_S


def test_a_run_without_a_time_out_is_never_overdue() -> None:
    overtime = Overtime(LEASE_S)

    assert not any(overtime.look([run(timeout_s=None)], at) for at in range(0, 100_000, 10))


def test_the_time_in_which_an_observer_slept_does_not_count_but_what_it_saw_before_does() -> None:
    overtime = Overtime(LEASE_S)
    for at in range(51):
        overtime.look([run(timeout_s=10)], at)

    assert overtime.look([run(timeout_s=10)], 30_000) == []
    assert seconds_until_overdue(overtime, run(timeout_s=10), 30_001) == 19


def test_another_run_of_the_same_job_has_its_own_time() -> None:
    overtime = Overtime(LEASE_S)
    for at in range(60):
        overtime.look([run()], at)
    again = run()._replace(run_id=RunId(b"x" * 16))

    assert seconds_until_overdue(overtime, again, 60) == 70


def test_a_run_that_was_out_of_sight_starts_over() -> None:
    overtime = Overtime(LEASE_S)
    for at in range(60):
        overtime.look([run()], at)
    overtime.look([], 60)

    assert seconds_until_overdue(overtime, run(), 61) == 70


@given(
    st.lists(st.floats(0, 200, allow_nan=False), min_size=1, max_size=80),
    st.lists(st.floats(0, 300, allow_nan=False), min_size=3, max_size=3),
)
def test_no_run_is_overdue_before_its_time_out_and_a_lease_have_been_watched(
    pauses: list[float], timeouts: list[float]
) -> None:
    overtime, at = Overtime(LEASE_S), 0.0
    runs = [run(number, timeout) for number, timeout in enumerate(timeouts)]
    overtime.look(runs, at)
    watched = 0.0
    for pause in pauses:
        at += pause
        watched += pause if pause <= GAP_S else 0
        for late in overtime.look(runs, at):
            assert late.timeout_ms is not None
            assert watched >= late.timeout_ms / 1000 + LEASE_S - 1e-6
