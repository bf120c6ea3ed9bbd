"""Group commit: callers that write at the same time share one transaction, and so one fsync. Used by `database`.

The first to come leads: it waits for its turn at the file, takes everyone who has come meanwhile, runs all their
operations in one transaction and tells them. Whoever comes during that waits, and the first of them leads next.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from perdure.store.sql.engine import Make

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

MOST = 256
"""How many operations one transaction takes: enough to share the fsync, few enough to keep the lock short."""


class Member(Generic[T]):
    """One caller's operation on its way. Done when `answered`; otherwise woken to lead."""

    __slots__ = ("answer", "answered", "error", "leads", "make")

    def __init__(self, make: Make[T]) -> None:
        self.make = make
        self.answer: T | None = None
        self.error: BaseException | None = None
        self.answered = False
        self.leads = False

    def settle(self, answer: T) -> None:
        self.answer, self.answered = answer, True

    def fail(self, error: BaseException) -> None:
        self.error, self.answered = error, True

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return self.answer  # type: ignore[return-value]  # settled: it is a T

    def lie_down(self) -> None:
        """Someone else leads: from now on the caller has to be woken."""

    def wake(self) -> bool:
        """Tell the caller that it is answered, or that it is its turn to lead. False: it is not there any more."""
        raise NotImplementedError


class _Waiting(Member[T]):
    """A thread's operation; the thread sleeps on a lock of its own."""

    __slots__ = ("_asleep",)

    def lie_down(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def sleep(self) -> None:
        self._asleep.acquire()

    def wake(self) -> bool:
        self._asleep.release()
        return True


class _Awaited(Member[T]):
    """A coroutine's operation; where it has to lead, it does so in the loop's executor."""

    __slots__ = ("_group", "_loop", "future")

    def __init__(self, make: Make[T], group: GroupCommit, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(make)
        self._group = group
        self._loop = loop
        self.future: asyncio.Future[None] = loop.create_future()

    def wake(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._told)
        except RuntimeError:  # the loop was closed while the operation was under way
            return False
        return True

    def start(self) -> None:
        self._loop.run_in_executor(None, self._group.lead, self)

    def _told(self) -> None:
        if self.answered:
            if not self.future.done():
                self.future.set_result(None)
        else:
            self.start()


RunGroup = Callable[[list[Member[Any]]], None]


class GroupCommit:
    """The queue in front of one database's write transaction.

    `run` is given an empty list. It waits for the turn at the file, fills the list with whoever has come by then, and
    settles or fails each of them.
    """

    def __init__(self, run: RunGroup) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._waiting: deque[Member[Any]] = deque()
        self._led = False

    def submit(self, make: Make[T]) -> T:
        """Run an operation in the next transaction; returns when that has committed."""
        member = _Waiting(make)
        if self._join(member):
            self.lead(member)
        while not member.answered:
            self._sleep(member)
            if not member.answered:
                self.lead(member)
        return member.result()

    async def asubmit(self, make: Make[T]) -> T:
        """The same for a coroutine: no thread waits for it, unless it is the one that leads."""
        import asyncio

        member = _Awaited(make, self, asyncio.get_running_loop())
        if self._join(member):
            member.start()
        await asyncio.shield(member.future)
        return member.result()

    def lead(self, own: Member[Any]) -> None:
        """Run one group, then hand over. An interrupted leader leaves its group to the next one, itself excepted."""
        group: list[Member[Any]] = []
        try:
            self._run(group)
        except BaseException as error:
            own.fail(error)
            with self._lock:
                if own in self._waiting:
                    self._waiting.remove(own)
            raise
        finally:
            self._hand_over(own, group)

    def fill(self, group: list[Member[Any]]) -> None:
        """Add those who wait to a group, as many as one transaction takes."""
        with self._lock:
            while self._waiting and len(group) < MOST:
                group.append(self._waiting.popleft())

    def _join(self, member: Member[Any]) -> bool:
        """True: nobody leads, so this one does."""
        with self._lock:
            if self._led:
                member.lie_down()
                self._waiting.append(member)
                return False
            self._waiting.append(member)
            self._led = True
            return True

    def _sleep(self, member: _Waiting[Any]) -> None:
        try:
            member.sleep()
        except BaseException:
            self._abandon(member)
            raise

    def _abandon(self, member: Member[Any]) -> None:
        """A waiter was interrupted: an operation that has not begun never will; if it was to lead, the next one is."""
        with self._lock:
            if member in self._waiting:
                self._waiting.remove(member)
            leads = member.leads
        if leads:
            self._hand_over(member, [])

    def _hand_over(self, own: Member[Any], group: list[Member[Any]]) -> None:
        if group == [own] and own.answered and isinstance(own, _Waiting):
            with self._lock:
                if not self._waiting:
                    self._led = False
                    return
        with self._lock:
            unanswered = [member for member in group if not member.answered and member is not own]
            self._waiting.extendleft(reversed(unanswered))
        for member in group:
            if member.answered and (member is not own or isinstance(member, _Awaited)):
                member.wake()
        while (following := self._next_leader()) is not None and not following.wake():
            with self._lock:
                self._waiting.remove(following)

    def _next_leader(self) -> Member[Any] | None:
        with self._lock:
            self._led = bool(self._waiting)
            if not self._led:
                return None
            self._waiting[0].leads = True
            return self._waiting[0]
