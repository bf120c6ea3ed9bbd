"""When a silent node counts as dead and a run as overdue: what one observer has itself seen, by its own clock."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from perdure.clock import Micros
from perdure.ids import JobId, NodeId, RunId
from perdure.job.model import LiveJob
from perdure.store.rows import USUAL_LEASE_US, NodeRow
from perdure.upkeep.rescue import LOOKS, Overtime, Watch, lease_s_of, look_every_s
from perdure.worker.heartbeat import BEATS_PER_LEASE

LEASE_S = 60.0
GAP_S = LEASE_S / LOOKS
OWN = NodeId(b"\xff" * 16)


def node(number: int = 1, beat: int = 0, lease_s: float | None = LEASE_S) -> NodeRow:
    never = Micros(0)
    lease_us = None if lease_s is None else round(lease_s * 1_000_000)
    return NodeRow(
        NodeId(bytes([number]) * 16), None, beat, never, never, None, None, None, None, None, None, None, None, lease_us
    )


class Observer:
    """A watch, and the node that keeps it: at each look it may have beaten since the last."""

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self.watch = Watch(lease_s)
        self._own = node(255, lease_s=lease_s)

    def look(self, nodes: list[NodeRow], at: float, *, beats: bool = True) -> list[NodeRow]:
        if beats:
            self._own = self._own._replace(beat=self._own.beat + 1)
        return self.watch.look([*nodes, self._own], OWN, at)


def run(number: int = 1, timeout_s: float | None = 10) -> LiveJob:
    known = {
        "job_id": JobId(bytes([number]) * 16),
        "run_id": RunId(bytes([number]) * 16),
        "node_id": node().id,
        "timeout_ms": None if timeout_s is None else round(timeout_s * 1000),
    }
    return LiveJob._make(known.get(column) for column in LiveJob._fields)


# -- nodes -----------------------------------------------------------------------------------------------------------


def test_a_node_that_is_silent_for_a_lease_is_dead() -> None:
    watch = Observer()

    answers = [watch.look([node()], at) for at in range(0, 80, 10)]

    assert answers == [[]] * 6 + [[node()]] * 2


def test_a_beat_starts_the_lease_anew() -> None:
    watch = Observer()
    for at in range(0, 60, 10):
        watch.look([node()], at)

    assert watch.look([node(beat=1)], 60) == []
    assert [watch.look([node(beat=1)], at) for at in range(70, 120, 10)] == [[]] * 5
    assert watch.look([node(beat=1)], 120) == [node(beat=1)]


def test_a_lease_that_passed_between_two_looks_does_not_count() -> None:
    watch = Observer()
    watch.look([node()], 0)

    assert watch.look([node()], 1_000) == []
    assert watch.look([node()], 1_010) == []


def test_a_gap_starts_over_for_everyone() -> None:
    watch = Observer()
    for at in range(0, 60, 10):
        watch.look([node(1), node(2)], at)

    back = 50 + GAP_S + 0.1
    assert watch.look([node(1), node(2)], back) == []
    assert [watch.look([node(1), node(2)], back + later) for later in (15, 30, 45)] == [[]] * 3
    assert watch.look([node(1), node(2)], back + 60) == [node(1), node(2)]


def test_a_short_lease_still_wants_its_number_of_looks() -> None:
    watch = Observer(0.0)

    assert [bool(watch.look([node(lease_s=0)], 0)) for _ in range(5)] == [False] * LOOKS + [True] * 2


def test_a_node_that_was_not_seen_for_a_look_starts_over() -> None:
    watch = Observer()
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
    watch, at = Observer(), 0.0
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
    watch, at = Observer(), 0.0
    for pause, beaten in steps:
        at += pause
        watch.look([node(number, int(has)) for number, has in enumerate(beaten)], at)
    at = float(round(at + 1))  # whole seconds: no float is a hair's breadth short of a lease
    found = [watch.look([node(beat=7)], at + second) for second in range(0, 80, 5)]

    assert [bool(dead) for dead in found] == [False] * 12 + [True] * 4


# -- by the lease of the one that is watched -------------------------------------------------------------------------


def seconds_until_dead(watch: Observer, watched: NodeRow, start: float = 0.0) -> int:
    """Looks every second."""
    second = 0
    while not watch.look([watched], start + second):
        second += 1
    return second


@pytest.mark.parametrize("own", [3.0, 60.0, 1_000.0])
@pytest.mark.parametrize("lease_s", [12.0, 60.0, 600.0])
def test_a_node_is_judged_by_its_own_lease_whatever_the_observers_is(own: float, lease_s: float) -> None:
    assert seconds_until_dead(Observer(own), node(lease_s=lease_s)) == lease_s


@pytest.mark.parametrize(("own", "judged_by"), [(3.0, 60), (60.0, 60), (600.0, 600)])
def test_a_node_that_names_no_lease_is_given_the_longer_of_the_usual_one_and_the_observers(
    own: float, judged_by: int
) -> None:
    assert seconds_until_dead(Observer(own), node(lease_s=None)) == judged_by
    assert lease_s_of(node(lease_s=None), 3.0) * 1_000_000 == USUAL_LEASE_US


def test_a_gap_that_is_long_for_one_node_is_short_for_another() -> None:
    watch, short, long = Observer(), node(1, lease_s=12), node(2, lease_s=60)
    for at in range(10):
        watch.look([short, long], at)
    watch.look([short, long], 15)  # six seconds: half a lease, or a tenth

    found = [watch.look([short, long], at) for at in range(16, 61)]
    assert found.index([short]) == 27 - 16, "twelve seconds from the gap on"
    assert found[-1] == [short, long], "sixty from the beginning"


# -- an observer that cannot write -----------------------------------------------------------------------------------


def test_an_observer_whose_own_beat_does_not_move_declares_nobody_dead() -> None:
    watch = Observer()

    assert not any(watch.look([node()], at, beats=False) for at in range(1_000))


def test_after_the_observer_could_not_write_the_lease_starts_anew() -> None:
    """Eighty seconds in which the file is locked by somebody else, with the usual settings."""
    watch = Observer()
    watch.look([node()], 0)
    for at in range(1, 80):
        assert watch.look([node()], at, beats=False) == []

    assert seconds_until_dead(watch, node(), 80) == LEASE_S


def test_an_observer_whose_beats_are_as_rare_as_they_may_be_is_trusted() -> None:
    watch, every = Observer(), round(LEASE_S / BEATS_PER_LEASE)

    assert next(at for at in range(70) if watch.look([node()], at, beats=at % every == 0)) == LEASE_S


def test_an_observer_that_was_declared_dead_itself_declares_nobody() -> None:
    watch = Watch(LEASE_S)

    assert not any(watch.look([node()], OWN, at) for at in range(1_000))


def test_an_observer_under_a_new_id_begins_at_once() -> None:
    watch = Watch(LEASE_S)
    for at in range(100):
        watch.look([node()], OWN, at)
    come_back = [node(254, beat=beat) for beat in range(62)]

    found = [watch.look([node(), own], own.id, 100 + at) for at, own in enumerate(come_back)]
    assert [bool(dead) for dead in found] == [False] * 60 + [True] * 2


def test_an_observer_doubts_once_somebody_is_silent_for_a_third_of_its_lease_and_as_long_as_that_lasts() -> None:
    watch = Observer()
    doubts: list[bool] = []
    for at in range(0, 100, 10):
        watch.look([node(1, beat=at // 30), node(2, beat=at)], at)
        doubts.append(watch.watch.doubts)

    assert doubts == [False, False, True, False, False, True, False, False, True, False]


class Happening:
    """A database that at times takes no writes, an observer, and a node; by the second, or less."""

    def __init__(self, own_s: float, lease_s: float, locked: list[tuple[float, float]]) -> None:
        self.lease_s = lease_s
        self.at = 0.0
        self._own_s = own_s
        self._watch = Watch(own_s)
        self._locked = locked
        self._beats = {OWN: 0, node().id: 0}
        self._next_beat = {OWN: 0.0, node().id: 0.0}

    @property
    def is_locked(self) -> bool:
        return any(start <= self.at < end for start, end in self._locked)

    def _beat(self, who: NodeId, lease_s: float) -> None:
        """As a heart does: six times per lease, and if one fails, again when the next is due."""
        if self.at >= self._next_beat[who]:
            self._next_beat[who] = self.at + lease_s / BEATS_PER_LEASE
            self._beats[who] += not self.is_locked

    def step(self, *, alive: bool) -> bool:
        """One look of the observer, and what the hearts do until then, its own first. True: the node is declared."""
        self.at += look_every_s(self._own_s)
        self._beat(OWN, self._own_s)
        is_silent = self._look()
        before = self._beats[node().id]
        if alive:
            self._beat(node().id, self.lease_s)
        # Declared by a compare-and-set, which waits for the lock as long as it takes.
        return is_silent and (self.is_locked or self._beats[node().id] == before)

    def _look(self) -> bool:
        if self._watch.doubts:
            if self.is_locked:
                return False
            self._beats[OWN] += 1
        rows = [node(255, self._beats[OWN], self._own_s), node(1, self._beats[node().id], self.lease_s)]
        return bool(self._watch.look(rows, OWN, self.at))


leases = st.sampled_from([1.5, 5.0, 12.0, 60.0, 400.0])


@given(leases, leases, st.lists(st.tuples(st.floats(0, 3), st.floats(0, 4)), max_size=4))
def test_no_node_that_beats_is_declared_dead_whatever_the_leases_and_however_long_nobody_could_write(
    own_s: float, lease_s: float, locks: list[tuple[float, float]]
) -> None:
    longest = max(own_s, lease_s)
    locked: list[tuple[float, float]] = []
    end = 0.0
    for pause, lasting in locks:  # in leases; between two locks the node has at least the time for two of its beats
        start = end + pause * longest + lease_s / LOOKS + 2
        end = start + lasting * longest
        locked.append((start, end))
    happening = Happening(own_s, lease_s, locked)
    while happening.at < end + 2 * longest:
        assert not happening.step(alive=True)


@given(leases, leases, st.floats(0, 4))
def test_a_node_that_dies_while_nobody_can_write_is_found_within_two_leases_of_its_own_afterwards(
    own_s: float, lease_s: float, lasting: float
) -> None:
    unlocked = 2 * lease_s + lasting * max(own_s, lease_s)
    happening = Happening(own_s, lease_s, [(2 * lease_s, unlocked)])
    while happening.at < unlocked:
        assert not happening.step(alive=happening.at < 2 * lease_s)
    while not happening.step(alive=False):
        assert happening.at <= unlocked + 2 * lease_s + (LOOKS + 2) * look_every_s(own_s)


# -- runs ------------------------------------------------------------------------------------------------------------


def watched(overtime: Overtime, runs: list[LiveJob], at: float, *, is_attentive: bool = True) -> list[LiveJob]:
    return overtime.look(runs, {node().id: node()}, at, is_attentive=is_attentive)


def seconds_until_overdue(overtime: Overtime, live: LiveJob, at: float) -> int:
    """Looks every second."""
    second = 0
    while not watched(overtime, [live], at + second):
        second += 1
    return second


def test_a_run_seen_open_for_its_time_out_and_a_lease_is_overdue() -> None:
    assert seconds_until_overdue(Overtime(LEASE_S), run(timeout_s=3_600), 5) == 3_600 + LEASE_S


def test_a_run_without_a_time_out_is_never_overdue() -> None:
    overtime = Overtime(LEASE_S)

    assert not any(watched(overtime, [run(timeout_s=None)], at) for at in range(0, 100_000, 10))


def test_the_time_in_which_an_observer_slept_does_not_count_but_what_it_saw_before_does() -> None:
    overtime = Overtime(LEASE_S)
    for at in range(51):
        watched(overtime, [run(timeout_s=10)], at)

    assert watched(overtime, [run(timeout_s=10)], 30_000, is_attentive=False) == []
    assert seconds_until_overdue(overtime, run(timeout_s=10), 30_001) == 19


def test_a_run_is_given_the_lease_of_the_node_that_holds_it() -> None:
    overtime, holder = Overtime(LEASE_S), node(lease_s=600)
    found = [overtime.look([run()], {holder.id: holder}, at, is_attentive=True) for at in range(700)]

    assert found.index([run()]) == 10 + 600


def test_another_run_of_the_same_job_has_its_own_time() -> None:
    overtime = Overtime(LEASE_S)
    for at in range(60):
        watched(overtime, [run()], at)
    again = run()._replace(run_id=RunId(b"x" * 16))

    assert seconds_until_overdue(overtime, again, 60) == 70


def test_a_run_that_was_out_of_sight_starts_over() -> None:
    overtime = Overtime(LEASE_S)
    for at in range(60):
        watched(overtime, [run()], at)
    watched(overtime, [], 60)

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
    watched(overtime, runs, at)
    counted = 0.0
    for pause in pauses:
        at += pause
        counted += pause if pause <= GAP_S else 0
        for late in watched(overtime, runs, at, is_attentive=pause <= GAP_S):
            assert late.timeout_ms is not None
            assert counted >= late.timeout_ms / 1000 + LEASE_S - 1e-6
