"""A failed statement in the middle of any operation leaves nothing behind. Across the protocols.

Each operation is run once to count its calls; then, for every one of them, it is run again and that call fails. The
failure is thrown into the operation where the driver would throw it, so no database has to be told to break.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from perdure.errors import StoreError
from perdure.ids import JobId, NodeId
from perdure.job import transitions
from perdure.job.reports import (
    Cancelled,
    Completed,
    Failed,
    Released,
    Report,
    Skipped,
    Snoozed,
    TimedOut,
    Unreadable,
)
from perdure.job.states import Verb
from perdure.store.answers import Edit, Lane, LogLine, Place, Process
from perdure.store.protocols import Store
from perdure.store.sql.engine import Call, Make, Op
from perdure.store.sql.store import Runner, SqlStore
from perdure.testing.contract.case import each, raises
from perdure.testing.contract.rig import BROKEN, CRASHED, HOPELESS, NONE, NotSupported, Rig

T = TypeVar("T")

NEVER = -1


class Injected(StoreError):
    """The failure that a test asked for."""

    default_code = "injected"


class FailingRunner:
    """Passes operations on to a store's own runner; the nth call of each write fails, before or after it took effect."""

    def __init__(self, inner: Runner, nth: int, error: type[BaseException] = Injected, *, after: bool = False) -> None:
        self.inner = inner
        self.nth = nth
        self.error = error
        self.after = after
        self.calls = 0

    def write(self, make: Make[T]) -> T:
        return self.inner.write(lambda: self._failing(make()))

    async def awrite(self, make: Make[T]) -> T:
        return await self.inner.awrite(lambda: self._failing(make()))

    def write_within(self, tx: object, make: Make[T]) -> T:
        return self.inner.write_within(tx, lambda: self._failing(make()))

    def read(self, make: Make[T]) -> T:
        return self.inner.read(make)

    def transaction(self, *, join: bool = False) -> AbstractContextManager[object]:
        return self.inner.transaction(join=join)

    def upgrade(self) -> str:
        return self.inner.upgrade()

    def close(self) -> None:
        self.inner.close()

    def _failing(self, op: Op[T]) -> Op[T]:
        self.calls = 0
        try:
            call = next(op)
            while True:
                self.calls += 1
                fails = self.calls == self.nth
                if fails and not self.after:
                    call = self._throw(op)
                    continue
                try:
                    result = yield call
                except StoreError as error:
                    call = op.throw(error)
                else:
                    call = self._throw(op) if fails else op.send(result)
        except StopIteration as stop:
            answer: T = stop.value
            return answer

    def _throw(self, op: Op[T]) -> Call:
        """What is no StoreError is raised past the operation, as an interrupt in the driver would be."""
        error = self.error("the test wanted this call to fail")
        if isinstance(error, StoreError):
            return op.throw(error)
        raise error


def _failing(rig: Rig, nth: int, error: type[BaseException] = Injected, *, after: bool = False) -> SqlStore:
    if not isinstance(rig.store, SqlStore):
        raise NotSupported("the suite can make calls fail only in stores that run operations on a Runner")
    return SqlStore(FailingRunner(rig.store.runner, nth, error, after=after))


# -- the operations --------------------------------------------------------------------------------------------------

Operation = Callable[[Store], object]


def _enqueue_plain(rig: Rig) -> Operation:
    new = rig.new()
    return lambda store: store.enqueue([new])


def _enqueue_several(rig: Rig) -> Operation:
    new = [rig.new(tags=("a", "b"), queue=rig.key(f"q{number % 2}")) for number in range(4)]
    return lambda store: store.enqueue(new)


def _enqueue_keyed(rig: Rig) -> Operation:
    new = rig.new(idempotency_key=rig.key("k"), business_key=rig.key("b"), tags=("a",))
    return lambda store: store.enqueue([new])


def _enqueue_among_duplicates(rig: Rig) -> Operation:
    rig.enqueue(idempotency_key=rig.key("known"))
    new = [rig.new(idempotency_key=rig.key(key)) for key in ("known", "new", "known")]
    return lambda store: store.enqueue(new)


def _edit(rig: Rig) -> Operation:
    job_id = rig.enqueue(tags=("a",))
    row, live = rig.row(job_id), rig.live(job_id)
    edited = live._replace(queue=rig.key("other"), version=live.version + 1)
    edit = Edit(row._replace(payload="{}", queue=edited.queue), edited, ("b",))
    return lambda store: store.edit(edit, live.version)


def _delete(rig: Rig) -> Operation:
    claim = rig.start(idempotency_key=rig.key("k"), tags=("a",))
    rig.store.append_log([LogLine(claim.run_id, 1, claim.job_id, rig.now, "INFO", "hello")])
    rig.finish(claim, Completed())
    return lambda store: store.delete(claim.job_id)


def _cancel_waiting(rig: Rig) -> Operation:
    job_id = rig.enqueue(business_key=rig.key("b"))
    return lambda store: store.change(job_id, Verb.CANCEL, transitions.cancel, rig.now)


def _cancel_running(rig: Rig) -> Operation:
    job_id = rig.start().job_id
    return lambda store: store.change(job_id, Verb.CANCEL, transitions.cancel, rig.now)


def _pause(rig: Rig) -> Operation:
    job_id = rig.enqueue()
    return lambda store: store.change(job_id, Verb.PAUSE, transitions.pause, rig.now)


def _resume(rig: Rig) -> Operation:
    job_id = rig.pause(rig.enqueue()).row.id
    return lambda store: store.change(job_id, Verb.RESUME, transitions.resume, rig.now)


def _retry(rig: Rig) -> Operation:
    job_id = rig.cancel(rig.enqueue(business_key=rig.key("b"))).row.id
    return lambda store: store.retry(job_id, rig.now)


def _retry_as_new(rig: Rig) -> Operation:
    job_id = rig.cancel(rig.enqueue(business_key=rig.key("b"), tags=("a",))).row.id
    new_id = JobId(rig.ids.new())
    return lambda store: store.retry_as_new(job_id, new_id, rig.now)


def _supersede_waiting(rig: Rig) -> Operation:
    job_id, new = rig.enqueue(business_key=rig.key("b")), rig.new(idempotency_key=rig.key("k"), tags=("a",))
    return lambda store: store.supersede(job_id, new, rig.now)


def _supersede_running(rig: Rig) -> Operation:
    job_id, new = rig.start(business_key=rig.key("b")).job_id, rig.new(tags=("a",))
    return lambda store: store.supersede(job_id, new, rig.now)


def _move_into_a_spent_gap(rig: Rig) -> Operation:
    ids = rig.enqueue_many(6)
    rig.execute(f"UPDATE {{ready}} SET position = position / 100 WHERE queue = '{rig.queue}'")
    return lambda store: store.move(ids[5], Place(after=ids[0]), rig.now)


def _set_priority(rig: Rig) -> Operation:
    job_id = rig.enqueue()
    return lambda store: store.set_priority(job_id, -5, rig.now)


def _claim(rig: Rig) -> Operation:
    rig.enqueue_many(3)
    return _claims(rig)


def _claim_with_parking(rig: Rig) -> Operation:
    rig.enqueue_many(2)
    rig.claim(5, kinds=NONE)
    rig.enqueue(kind=rig.key("strange"))
    rig.enqueue_many(2)
    return _claims(rig)


def _claims(rig: Rig) -> Operation:
    claimer, lanes = rig.claimer(5, kinds={rig.kind: 1}), [Lane(rig.key("none"), 1), Lane(rig.queue, 4)]
    return lambda store: store.claim(lanes, claimer, rig.now)


def _finish(report: Report, *, as_new_job: bool = False) -> Callable[[Rig], Operation]:
    def prepare(rig: Rig) -> Operation:
        claim = rig.start(as_new_job=as_new_job, business_key=rig.key("b"), tags=("a",))
        finish = rig.report(claim, report)
        return lambda store: store.finish([finish], rig.now)

    return prepare


def _finish_and_unblock(rig: Rig) -> Operation:
    claim = rig.start(business_key=rig.key("b"))
    rig.store.supersede(claim.job_id, rig.new(), rig.now)
    finish = rig.report(claim, Completed())
    return lambda store: store.finish([finish], rig.now)


def _finish_with_one_lost(rig: Rig) -> Operation:
    rig.enqueue_many(3)
    claims = rig.claim(3)
    rig.finish(claims[1], Cancelled())
    batch = [rig.report(claim, report) for claim, report in zip(claims, (Completed(), Completed(), Failed(BROKEN)), strict=True)]
    return lambda store: store.finish(batch, rig.now)


def _promote(rig: Rig) -> Operation:
    rig.enqueue_many(3, delay_s=1)
    rig.clock.advance(seconds=1)
    return lambda store: store.promote(rig.now, 10)


def _rescue(rig: Rig) -> Operation:
    node, next_ids = rig.register(), [JobId(job_id) for job_id in rig.ids.new_many(3)]
    for wish in ({"max_attempts": 1}, {"as_new_job": True}, {"business_key": rig.key("b")}):
        rig.enqueue(**wish)  # type: ignore[typeddict-item]  # pyright: ignore[reportArgumentType]
    rig.claim(3, node=node)
    rig.store.stop(node, "crash", rig.now)
    return lambda store: store.rescue(node, CRASHED, 3, next_ids, rig.now)


def _append_artifacts(rig: Rig) -> Operation:
    run_id = rig.start().run_id
    return lambda store: store.append_artifacts(run_id, ["a"])


def _append_log(rig: Rig) -> Operation:
    claim = rig.start()
    lines = [LogLine(claim.run_id, number, claim.job_id, rig.now, "INFO", "x") for number in range(3)]
    return lambda store: store.append_log(lines)


def _pause_queue(rig: Rig) -> Operation:
    return lambda store: store.pause_queue(rig.queue, rig.now)


def _register(rig: Rig) -> Operation:
    node = NodeId(rig.ids.new())
    return lambda store: store.register(node, None, Process(), rig.now)


def _beat(rig: Rig) -> Operation:
    node = rig.register()
    return lambda store: store.beat(node, rig.now)


def _stop(rig: Rig) -> Operation:
    node = rig.register()
    return lambda store: store.stop(node, "crash", rig.now)


def _take_lock(rig: Rig) -> Operation:
    return lambda store: store.take_lock(rig.key("lock"), "ann", rig.now, 10**7)


def _release_lock(rig: Rig) -> Operation:
    rig.store.take_lock(rig.key("lock"), "ann", rig.now, 10**7)
    return lambda store: store.release_lock(rig.key("lock"), "ann")


OPERATIONS: dict[str, Callable[[Rig], Operation]] = {
    "enqueue": _enqueue_plain,
    "enqueue several": _enqueue_several,
    "enqueue with keys": _enqueue_keyed,
    "enqueue among duplicates": _enqueue_among_duplicates,
    "edit": _edit,
    "delete": _delete,
    "cancel a waiting job": _cancel_waiting,
    "cancel a running job": _cancel_running,
    "pause": _pause,
    "resume": _resume,
    "retry": _retry,
    "retry as new": _retry_as_new,
    "supersede a waiting job": _supersede_waiting,
    "supersede a running job": _supersede_running,
    "move into a spent gap": _move_into_a_spent_gap,
    "set priority": _set_priority,
    "claim": _claim,
    "claim with parking": _claim_with_parking,
    "complete": _finish(Completed()),
    "fail": _finish(Failed(BROKEN, 5)),
    "fail for good": _finish(Failed(HOPELESS)),
    "time out": _finish(TimedOut(BROKEN)),
    "snooze": _finish(Snoozed(5)),
    "release": _finish(Released()),
    "let go": _finish(Cancelled()),
    "skip": _finish(Skipped()),
    "park": _finish(Unreadable("?")),
    "fail with a successor": _finish(Failed(BROKEN), as_new_job=True),
    "snooze with a successor": _finish(Snoozed(5), as_new_job=True),
    "complete and unblock": _finish_and_unblock,
    "finish a batch with one lost": _finish_with_one_lost,
    "promote": _promote,
    "rescue": _rescue,
    "append artifacts": _append_artifacts,
    "append log": _append_log,
    "pause a queue": _pause_queue,
    "register": _register,
    "beat": _beat,
    "stop": _stop,
    "take a lock": _take_lock,
    "release a lock": _release_lock,
}


# -- one alone -------------------------------------------------------------------------------------------------------


@each(*OPERATIONS)
def test_a_failed_call_anywhere_leaves_nothing_behind(rig: Rig, name: str) -> None:
    operation = OPERATIONS[name](rig)
    before = rig.everything()

    for nth in range(1, _calls_of(rig, operation) + 1):
        for after in (False, True):
            with raises(Injected):
                operation(_failing(rig, nth, after=after))
            assert rig.everything() == before, f"call {nth} failed {'after' if after else 'before'} it took effect"

    operation(rig.store)
    assert rig.everything() != before


@each(*OPERATIONS)
def test_an_interrupt_anywhere_leaves_nothing_behind(rig: Rig, name: str) -> None:
    operation = OPERATIONS[name](rig)
    before = rig.everything()

    for nth in range(1, _calls_of(rig, operation) + 1):
        with raises(KeyboardInterrupt):
            operation(_failing(rig, nth, KeyboardInterrupt, after=True))
        assert rig.everything() == before, f"interrupted after call {nth}"

    operation(rig.store)
    assert rig.everything() != before


def _calls_of(rig: Rig, operation: Operation) -> int:
    """How many calls the operation makes; what it did is undone."""
    counting = _failing(rig, NEVER)
    with raises(_Undone), rig.store.transaction():
        operation(counting)
        raise _Undone
    assert isinstance(counting.runner, FailingRunner)
    assert counting.runner.calls > 0
    return counting.runner.calls


class _Undone(Exception):  # noqa: N818 - leaves a transaction
    pass


# -- among others ----------------------------------------------------------------------------------------------------


@each(*OPERATIONS)
def test_a_failed_operation_in_a_transaction_leaves_the_rest_of_it_whole(rig: Rig, name: str) -> None:
    operation = OPERATIONS[name](rig)
    calls = _calls_of(rig, operation)
    before = rig.everything()
    elsewhere = rig.key("elsewhere")
    with rig.store.transaction():
        first = rig.enqueue(queue=elsewhere)
        for nth in (1, (calls + 1) // 2, calls):
            with raises(Injected):
                operation(_failing(rig, nth, after=True))
        second = rig.enqueue(queue=elsewhere)

    after = rig.everything()
    assert rig.in_order(elsewhere) == [first, second]
    assert {name for name in after if after[name] != before[name]} == {"job", "ready", "queue"}
    assert (len(after["job"]), len(after["ready"])) == (len(before["job"]) + 2, len(before["ready"]) + 2)


@contextmanager
def _writers_kept_out(rig: Rig) -> Generator[Callable[[], None], None, None]:
    """Until the given function is called nobody gets to write, where the store has one writer at a time: those who
    come meanwhile share a transaction then."""
    begun, over = threading.Event(), threading.Event()

    def hold() -> None:
        with rig.store.transaction():
            begun.set()
            over.wait()

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        begun.wait()
        try:
            yield over.set
        finally:
            over.set()
            holding.result()


def test_those_who_share_a_transaction_with_a_failed_call_are_not_harmed(rig: Rig) -> None:
    good, bad = [rig.new(tags=("t",)) for _ in range(6)], [rig.new(tags=("t",)) for _ in range(3)]
    stores = [_failing(rig, nth, after=True) for nth in (1, 2, 4)]

    async def all_at_once(let_in: Callable[[], None]) -> list[Any]:
        writes = [rig.store.aenqueue([new]) for new in good[:3]]
        writes += [store.aenqueue([new]) for store, new in zip(stores, bad, strict=True)]
        writes += [rig.store.aenqueue([new]) for new in good[3:]]
        tasks = [asyncio.ensure_future(write) for write in writes]
        await asyncio.sleep(0)  # one step each: all of them are in the line now
        let_in()
        return await asyncio.gather(*tasks, return_exceptions=True)

    with _writers_kept_out(rig) as let_in:
        answers = asyncio.run(all_at_once(let_in))

    assert [type(answer) for answer in answers] == [list] * 3 + [Injected] * 3 + [list] * 3
    assert rig.in_order() == [new.id for new in good]
    assert [rig.store.get(new.id) for new in bad] == [None] * 3


def test_those_who_share_a_transaction_with_an_interrupt_are_whole_or_told(rig: Rig) -> None:
    new = [rig.new(tags=("t",)) for _ in range(12)]
    stores = [_failing(rig, 4, KeyboardInterrupt, after=True) if turn % 4 == 0 else rig.store for turn in range(12)]
    there = threading.Barrier(len(new) + 1)

    def write(turn: int) -> bool:
        there.wait()
        try:
            stores[turn].enqueue([new[turn]])
        except KeyboardInterrupt:
            return False
        return True

    with ThreadPoolExecutor(len(new)) as pool, _writers_kept_out(rig) as let_in:
        writing = [pool.submit(write, turn) for turn in range(len(new))]
        there.wait()
        let_in()
        written = [answer.result() for answer in writing]

    assert not any(written[0::4])
    assert [rig.store.get(job.id) is not None for job in new] == written
    assert rig.enqueue()
