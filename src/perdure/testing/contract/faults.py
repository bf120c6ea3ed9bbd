"""A failed statement in the middle of any operation leaves nothing behind. Across the protocols.

Each operation runs once to count its calls; then, for each call, it runs again and that call fails. The failure is
raised in the operation where the driver would raise it, so no database has to break.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from perdure.errors import StoreError
from perdure.store.engine import Make, Op, Pair, Tell
from perdure.store.protocols import Bell
from perdure.store.store import Runner, SqlStore
from perdure.testing.contract.case import each, raises
from perdure.testing.contract.operations import OPERATIONS, Operation
from perdure.testing.contract.rig import FULL, NotSupported, Rig

T = TypeVar("T")

NEVER = -1


class Injected(StoreError):
    """The failure that a test asked for."""

    default_code = "injected"


class PassingRunner:
    """Passes every operation on to a store's own runner: the base of runners with faults."""

    def __init__(self, inner: Runner) -> None:
        self.inner = inner

    def write(self, make: Make[T], *, brief: bool = False) -> T:
        return self.inner.write(make, brief=brief)

    async def awrite(self, make: Make[T]) -> T:
        return await self.inner.awrite(make)

    def write_within(self, tx: object, make: Make[T]) -> T:
        return self.inner.write_within(tx, make)

    async def awrite_within(self, tx: object, make: Make[T]) -> T:
        return await self.inner.awrite_within(tx, make)

    def read(self, make: Make[T]) -> T:
        return self.inner.read(make)

    def look(self, make: Make[T]) -> T:
        return self.read(make)

    def transaction(self, *, join: bool = False) -> AbstractContextManager[object]:
        return self.inner.transaction(join=join)

    def bell(self, queues: Sequence[str] | None = None) -> Bell:
        return self.inner.bell(queues)

    def upgrade(self) -> str:
        return self.inner.upgrade()

    def close(self) -> None:
        self.inner.close()


class FailingRunner(PassingRunner):
    """The nth call of each write fails, before or after its effect."""

    def __init__(self, inner: Runner, nth: int, error: type[BaseException] = Injected, *, after: bool = False) -> None:
        super().__init__(inner)
        self.nth = nth
        self.error = error
        self.after = after
        self.calls = 0

    def write(self, make: Make[T], *, brief: bool = False) -> T:
        return self.inner.write(lambda: self._failing(make()), brief=brief)

    async def awrite(self, make: Make[T]) -> T:
        return await self.inner.awrite(lambda: self._failing(make()))

    def write_within(self, tx: object, make: Make[T]) -> T:
        return self.inner.write_within(tx, lambda: self._failing(make()))

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
                    call = self._throw(op) if fails else op.throw(error)
                else:
                    call = self._throw(op) if fails else op.send(result)
        except StopIteration as stop:
            answer: T = stop.value
            return answer

    def _throw(self, op: Op[T]) -> Pair | Tell:
        """An error that is no StoreError skips the operation, like an interrupt in the driver."""
        error = self.error("the test wanted this call to fail")
        if isinstance(error, StoreError):
            return op.throw(error)
        raise error


def _failing(rig: Rig, nth: int, error: type[BaseException] = Injected, *, after: bool = False) -> SqlStore:
    if not isinstance(rig.store, SqlStore):
        raise NotSupported("the suite can make calls fail only in stores that run operations on a Runner")
    return SqlStore(FailingRunner(rig.store.runner, nth, error, after=after))


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

    for nth in _interrupted(rig, _calls_of(rig, operation)):
        for _ in range(PATIENCE):
            interrupted = _is_interrupted(operation, _failing(rig, nth, KeyboardInterrupt, after=True))
            assert rig.everything() == before, f"interrupted after call {nth}"
            if interrupted:
                break
        else:
            raise AssertionError(f"call {nth} was never made")

    for _ in range(PATIENCE):
        operation(rig.store)
        if rig.everything() != before:
            return
    raise AssertionError("it does nothing any more")


PATIENCE = 1_000
"""An interrupted connection is given up. Until its server notices, its rows stay locked, and operations that pass over
locked rows find less to do."""


def _interrupted(rig: Rig, calls: int) -> Sequence[int]:
    """After which calls: all of them. In everyday tests on a server, where each costs a connection: the first, one in
    the middle, and the last."""
    if FULL or rig.scheme == "sqlite":
        return range(1, calls + 1)
    return sorted({1, (calls + 1) // 2, calls})


def _is_interrupted(operation: Operation, store: SqlStore) -> bool:
    try:
        operation(store)
    except KeyboardInterrupt:
        return True
    return False


def _calls_of(rig: Rig, operation: Operation) -> int:
    """How many calls the operation makes; it is rolled back."""
    counting = _failing(rig, NEVER)
    with raises(_Undone), rig.store.transaction():
        operation(counting)
        raise _Undone
    assert isinstance(counting.runner, FailingRunner)
    assert counting.runner.calls > 0
    return counting.runner.calls


class _Undone(Exception):
    """Leaves a transaction."""


# -- among others ----------------------------------------------------------------------------------------------------


@each(*OPERATIONS)
def test_a_failed_operation_in_a_transaction_leaves_the_rest_of_it_whole(rig: Rig, name: str) -> None:
    operation = OPERATIONS[name](rig)
    calls = _calls_of(rig, operation)
    before = rig.tables()
    elsewhere = rig.key("elsewhere")
    with rig.store.transaction():
        first = rig.enqueue(queue=elsewhere)
        for nth in (1, (calls + 1) // 2, calls):
            with raises(Injected):
                operation(_failing(rig, nth, after=True))
        second = rig.enqueue(queue=elsewhere)

    after = rig.tables()
    assert rig.in_order(elsewhere) == [first, second]
    assert {name for name in after if after[name] != before[name]} == {"job", "ready", "queue"}
    assert (len(after["job"]), len(after["ready"])) == (len(before["job"]) + 2, len(before["ready"]) + 2)


@contextmanager
def _writers_kept_out(rig: Rig) -> Generator[Callable[[], None], None, None]:
    """On a store with a single writer, all writers wait until the given function is called, and then share a
    transaction."""
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
    assert set(rig.in_order()) == {new.id for new in good}
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
