"""A runner for one simulated process: before each call others may come first; a call may fail, or its process die."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeVar

from perdure.errors import DatabaseBusy, DatabaseUnavailable, StoreError
from perdure.store.engine import Make, Op
from perdure.store.protocols import Bell, ConnectionLost
from perdure.store.store import Runner

T = TypeVar("T")


class Died(BaseException):
    """The process that made the call is gone."""


class Refused(StoreError):
    """A statement failed, and nobody knows why."""

    default_code = "simulated"


class Fault(NamedTuple):
    """What happens to one of the next writing calls."""

    after_calls: int
    how: str
    """`before`: nothing is written; `after`: all is written, but the answer is lost; `middle`: a statement fails."""
    error: type[BaseException]
    statement: int = 1
    times: int = 1
    """How many calls in a row."""
    then: Fault | None = None


HOWS: tuple[tuple[str, type[BaseException]], ...] = (
    ("before", DatabaseBusy),
    ("before", DatabaseUnavailable),
    ("before", ConnectionLost),
    ("after", DatabaseUnavailable),
    ("after", ConnectionLost),
    ("middle", Refused),
    ("middle", DatabaseUnavailable),
)


class Reachable(Protocol):
    """Whether the database can be had now, to read or to write."""

    def __call__(self, *, writes: bool) -> bool: ...


class FaultyRunner:
    """Passes operations on to the real runner, as long as nothing is wrong."""

    def __init__(self, inner: Runner, meanwhile: Callable[[], None], is_reachable: Reachable) -> None:
        self.inner = inner
        self.fault: Fault | None = None
        self.dead = False
        self._meanwhile = meanwhile
        self._is_reachable = is_reachable
        self._inside = False

    def write(self, make: Make[T], *, brief: bool = False) -> T:
        fault = self._next_call(writes=True)
        if fault is None or (self._inside and fault.how == "after"):
            return self.inner.write(make, brief=brief)
        if fault.how == "before":
            raise self._error(fault)
        if fault.how == "middle":
            return self.inner.write(lambda: self._failing(make(), fault), brief=brief)
        self.inner.write(make, brief=brief)
        raise self._error(fault)

    def read(self, make: Make[T]) -> T:
        self._next_call(writes=False)
        return self.inner.read(make)

    def look(self, make: Make[T]) -> T:
        return self.read(make)

    @contextmanager
    def transaction(self, *, join: bool = False) -> Generator[object, None, None]:
        fault = self._next_call(writes=True)
        if fault is not None and fault.how == "middle":
            self.fault = fault._replace(after_calls=0, times=1)  # of the next call, inside
        self._inside = True
        try:
            with self.inner.transaction(join=join) as tx:
                yield tx
                if fault is not None and fault.how == "before":
                    raise self._error(fault)
        finally:
            self._inside = False
        if fault is not None and fault.how == "after":
            raise self._error(fault)

    async def awrite(self, make: Make[T]) -> T:
        raise NotImplementedError

    def write_within(self, tx: object, make: Make[T]) -> T:
        return self.inner.write_within(tx, make)

    async def awrite_within(self, tx: object, make: Make[T]) -> T:
        raise NotImplementedError

    def bell(self, queues: Sequence[str] | None = None) -> Bell:
        raise NotImplementedError

    def upgrade(self) -> str:
        return self.inner.upgrade()

    def close(self) -> None:
        pass

    def _next_call(self, *, writes: bool) -> Fault | None:
        if not self._inside:
            self._meanwhile()
        if self.dead:
            raise Died
        if not self._is_reachable(writes=False):
            raise DatabaseUnavailable("the simulated database cannot be reached")
        if writes and not self._is_reachable(writes=True):
            raise DatabaseBusy("someone else holds the simulated write lock")
        if self.fault is None or not writes:
            return None
        fault, self.fault = self.fault, None
        if fault.after_calls > 0:
            self.fault = fault._replace(after_calls=fault.after_calls - 1)
            return None
        self.fault = fault._replace(times=fault.times - 1) if fault.times > 1 else fault.then
        return fault

    def _error(self, fault: Fault) -> BaseException:
        if fault.error is Died:
            self.dead = True
            return Died()
        return fault.error(f"simulated: the call failed ({fault.how})")

    def _failing(self, op: Op[T], fault: Fault) -> Op[T]:
        """The operation with one of its statements failing, where the driver would raise."""
        calls = 0
        try:
            call = next(op)
            while True:
                calls += 1
                if calls == fault.statement:
                    error = self._error(fault)
                    if not isinstance(error, StoreError):
                        raise error
                    call = op.throw(error)
                    continue
                try:
                    result = yield call
                except StoreError as error:
                    call = op.throw(error)
                else:
                    call = op.send(result)
        except StopIteration as stop:
            answer: T = stop.value
            return answer
