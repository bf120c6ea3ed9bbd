"""When a reservation is over: by the boot clock of its own machine, by a death that is certain, and elsewhere by what
an observer has seen for long enough. No wall clock takes part."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from perdure.clock import ManualClock
from perdure.ops.doctor import examine, is_healthy
from perdure.store.protocols import Store
from perdure.store.rows import NodeRow, Process, ReservationRow
from perdure.testing.contract.rig import START, Rig
from perdure.upkeep.reservations import ReservationWatch, why_over

HERE = Process("here", 7, "70", "boot", "pid:[1]")
ELSEWHERE = HERE._replace(host="elsewhere", boot_id="other boot")
RESTARTED = HERE._replace(boot_id="next boot")
UNKNOWN = Process("here", 7)
LASTS_US = 600_000_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(f"sqlite:///{tmp_path}/jobs.db")
    yield rig
    findings = examine(rig.store, rig.now)
    rig.close()
    assert is_healthy(findings), findings


def held(rig: Rig, process: Process = HERE, lasts_s: float = 600) -> ReservationRow:
    new = rig.reservation(lasts_s=lasts_s)._replace(**process._asdict())
    assert rig.store.reserve(new) is None
    return new


class Seen:
    """Who this process is, and who is gone."""

    def __init__(self, own: Process = HERE, *, gone: bool = False) -> None:
        self._own = own
        self.gone = gone

    def own(self) -> Process:
        return self._own

    def is_gone(self, node: NodeRow | ReservationRow) -> bool:
        del node
        return self.gone


class OnAServer:
    """The store of a database that many machines share."""

    single_writer = False

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def watch(rig: Rig, seen: Seen, clock: ManualClock | None = None) -> ReservationWatch:
    return ReservationWatch(cast("Store", OnAServer(rig.store)), clock or rig.clock, seen)


def status(rig: Rig, of: ReservationRow) -> str:
    [found] = [row for row in rig.store.reservations(100) if row.id == of.id]
    return found.status


# -- the decision ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("observer", "at_us", "seen_us", "is_local", "reason"),
    [
        (HERE, LASTS_US - 1, 0, False, None),
        (HERE, LASTS_US, 0, False, "its time is over"),
        (HERE, LASTS_US - 1, 10 * LASTS_US, False, None),
        (ELSEWHERE, 10 * LASTS_US, LASTS_US - 1, False, None),
        (ELSEWHERE, 10 * LASTS_US, LASTS_US - 1, True, None),
        (ELSEWHERE, 0, LASTS_US, False, "its time is over"),
        (RESTARTED, 0, 0, True, "its machine was started again"),
        (RESTARTED, 0, 0, False, None),  # on a server the name may be that of another machine
        (RESTARTED, 0, LASTS_US, False, "its time is over"),
        (UNKNOWN, 10 * LASTS_US, 0, True, None),
        (UNKNOWN, 0, LASTS_US, True, "its time is over"),
    ],
)
def test_a_reservation_is_over_by_its_own_boot_clock_or_by_what_was_seen(
    rig: Rig, observer: Process, at_us: int, seen_us: int, is_local: bool, reason: str | None
) -> None:
    row = rig.reservation(lasts_s=600)._replace(**HERE._asdict(), expires_boot=LASTS_US)

    assert why_over(row, observer, at_us, seen_us, is_gone=False, is_local=is_local) == reason
    assert why_over(row, observer, at_us, seen_us, is_gone=True, is_local=is_local) == "its process has ended"


# -- the observer ----------------------------------------------------------------------------------------------------


def test_a_reservation_whose_time_is_over_is_expired_and_its_queue_moves(rig: Rig) -> None:
    rig.enqueue()
    row = held(rig)
    observer = watch(rig, Seen())
    rig.clock.advance(seconds=599)
    assert observer.look() == 0
    assert rig.claim() == []

    rig.clock.advance(seconds=1)
    assert observer.look() == 1
    assert status(rig, row) == "expired"
    assert len(rig.claim()) == 1
    assert observer.look() == 0


@pytest.mark.parametrize("jump_s", [86_400, -86_400])
@pytest.mark.parametrize("observer", [HERE, ELSEWHERE])
def test_a_jump_of_the_wall_clock_neither_ends_nor_prolongs_it(rig: Rig, jump_s: float, observer: Process) -> None:
    row = held(rig)
    looking = watch(rig, Seen(observer))
    looking.look()
    rig.clock.step(seconds=jump_s)
    assert looking.look() == 0
    assert watch(rig, Seen(observer)).look() == 0  # one that starts after the jump

    rig.clock.advance(seconds=600)
    assert looking.look() == 1
    assert status(rig, row) == "expired"


def test_one_of_another_machine_expires_after_it_was_seen_unrenewed_for_its_whole_time(rig: Rig) -> None:
    row = held(rig)
    ahead = ManualClock(START)
    ahead.advance(days=9)  # the other machine was started long before, and its clock says what it likes
    observer = watch(rig, Seen(ELSEWHERE), ahead)
    assert observer.look() == 0
    ahead.advance(seconds=599)
    assert observer.look() == 0

    rig.store.renew_reservation(row.id, rig.until(600)._replace(expires_at=rig.now))
    assert observer.look() == 0
    ahead.advance(seconds=599)
    assert observer.look() == 0
    ahead.advance(seconds=1)
    assert observer.look() == 1


def test_the_reservation_of_a_process_that_has_ended_expires_at_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    row = held(rig)

    assert watch(rig, Seen(gone=True)).look() == 1
    assert status(rig, row) == "expired"
    [record] = [record for record in caplog.records if record.name == "perdure.lifecycle"]
    assert record.getMessage() == (
        f"the reservation of queue {rig.queue} by ann has expired: its process has ended; its jobs continue"
    )


def test_a_renewal_between_the_look_and_the_close_wins(rig: Rig) -> None:
    row = held(rig)
    rig.clock.advance(seconds=600)
    late = rig.store.active_reservations()
    rig.store.renew_reservation(row.id, rig.until(600))

    assert watch(rig, Seen()).close_over(late) == 0
    assert status(rig, row) == "active"


def test_a_store_without_reservations_is_asked_once(rig: Rig) -> None:
    class Without(OnAServer):
        def active_reservations(self) -> list[ReservationRow]:
            raise NotImplementedError

    chore = ReservationWatch(cast("Store", Without(rig.store)), rig.clock, Seen()).chore()

    assert chore.rest_s() == 1
    assert chore.run() == 0
    assert chore.rest_s() == math.inf
