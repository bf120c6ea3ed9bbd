"""Group commit: callers that write at the same time share one transaction, and so one fsync. Used by `server` and
`sqlite/database`.

The first caller leads: it waits for its turn, runs the operations of all who have come meanwhile in one transaction,
and wakes them. Callers that come during that wait, and the first of them leads next.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from perdure.store.engine import Make

if TYPE_CHECKING:
    import asyncio


T = TypeVar("T")

MOST = 256
"""The most operations in one transaction: enough to share the fsync, few enough to hold the lock only shortly."""


class Member(Generic[T]):
    """One caller's operation. Done when `answered`; if woken before that, the caller leads."""

    answer: T | None = None
    error: BaseException | None = None
    answered = False
    gone = False
    begun = False
    """A leader has begun to write it. If it waits again, that leader was interrupted: it may be written or not."""

    def __init__(self, make: Make[T]) -> None:
        self.make = make

    def fail(self, error: BaseException) -> None:
        self.error, self.answered = error, True

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return self.answer  # type: ignore[return-value]  # settled: it is a T

    def lie_down(self) -> None:
        """Another caller leads: from now on this one has to be woken."""

    def wake(self) -> bool:
        """Wake the caller: it is answered, or it must lead. False: it does not exist any more."""
        raise NotImplementedError


class _Waiting(Member[T]):
    """A thread's operation; the thread sleeps on its own lock."""

    _asleep: threading.Lock | None = None

    def lie_down(self) -> None:
        asleep = threading.Lock()
        asleep.acquire()
        self._asleep = asleep

    def sleep(self) -> None:
        if self._asleep is not None:
            self._asleep.acquire()

    def wake(self) -> bool:
        try:
            if self._asleep is not None:
                self._asleep.release()
        except RuntimeError:  # it is awake already
            pass
        return True


class _Awaited(Member[T]):
    """A coroutine's operation; if it has to lead, it does so in the loop's executor."""

    def __init__(self, make: Make[T], group: GroupCommit, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(make)
        self._group = group
        self.loop = loop
        self.future: asyncio.Future[None] = loop.create_future()

    def wake(self) -> bool:
        try:
            self.loop.call_soon_threadsafe(self._woken)
        except RuntimeError:  # the loop was closed while the operation ran
            return False
        return True

    def start(self) -> None:
        try:
            self.loop.run_in_executor(None, self._group.lead, self)
        except RuntimeError:  # the loop is about to close and takes no more work, but others wait behind this one
            self._group.lead(self)

    def _woken(self) -> None:
        if self.answered:
            if not self.future.done():
                self.future.set_result(None)
        else:
            self.start()


RunGroup = Callable[[list[Member[Any]]], None]


class GroupCommit:
    """The queue in front of one write transaction at a time.

    `run` gets an empty list. It waits for its turn, fills the list with all members that wait by then, and
    answers or fails each of them.

    An interrupted caller (KeyboardInterrupt, an exception raised in the thread) wakes the next one in its clean-up. One
    leader too many does no harm: it waits for its turn and may find nothing to do. One too few would leave the others
    asleep for ever. So the clean-up can be repeated, and is repeated after another interrupt.
    """

    def __init__(self, run: RunGroup) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._waiting: deque[Member[Any]] = deque()
        self._led = False
        self._called: Member[Any] | None = None
        """The member that was woken to lead and has not begun."""

    @property
    def is_busy(self) -> bool:
        """Somebody leads or waits. Only a hint: it may change at any time."""
        return self._led or bool(self._waiting)

    def submit(self, make: Make[T]) -> T:
        """Run an operation in the next transaction; returns when that has committed."""
        member = _Waiting(make)
        try:
            if self._join(member):
                self.lead(member)
            while not member.answered:
                member.sleep()
                if not member.answered:
                    self.lead(member)
        except BaseException:
            self._abandon_surely(member)
            raise
        return member.result() if member.error is not None else member.answer  # type: ignore[return-value]

    async def asubmit(self, make: Make[T]) -> T:
        """The same for a coroutine: no thread waits for it, unless it leads."""
        import asyncio

        member = _Awaited(make, self, asyncio.get_running_loop())
        try:
            if self._join(member):
                member.start()
            await asyncio.shield(member.future)
        except BaseException:
            self._abandon_surely(member)
            raise
        return member.result()

    def lead(self, own: Member[Any]) -> None:
        """Run one group, then hand over. An interrupted leader leaves its group, without itself, to the next one."""
        self._called = None
        group: list[Member[Any]] = []
        try:
            self._run(group)
        except BaseException as error:
            if isinstance(own, _Awaited):  # a thread gets the error by itself
                self._fail_leader(own, error)
            raise
        finally:
            try:
                self._hand_over(own, group)
            except BaseException:
                self._hand_over(own, group)
                raise

    def fill(self, group: list[Member[Any]]) -> None:
        """Add waiting members to a group, as many as one transaction takes."""
        waiting = self._waiting
        with self._lock:
            while waiting and len(group) < MOST:
                group.append(waiting[0])  # append before pop: an interrupt between the two loses no member
                waiting.popleft()

    def _fail_leader(self, own: _Awaited[Any], error: BaseException) -> None:
        """Give the error to the coroutine that led, unless its operation is done. No one else runs it later."""
        with self._lock:
            if own in self._waiting:
                self._waiting.remove(own)
        if not own.answered:
            own.fail(error)
        own.wake()

    def _join(self, member: Member[Any]) -> bool:
        """True: nobody leads, so this one does."""
        with self._lock:
            if self._led and not self._may_overtake(member):
                member.lie_down()
                self._waiting.append(member)
                return False
            if self._waiting:  # more than one group may be in front
                member.lie_down()
            self._waiting.append(member)
            self._led = True
            return True

    def _may_overtake(self, member: Member[Any]) -> bool:
        """A coroutine that was woken to lead begins when its loop runs, which may be never."""
        called = self._called
        return isinstance(called, _Awaited) and not (isinstance(member, _Awaited) and member.loop is called.loop)

    def _abandon_surely(self, member: Member[Any]) -> None:
        try:
            self._abandon(member)
        except BaseException:
            self._abandon(member)
            raise

    def _abandon(self, member: Member[Any]) -> None:
        """The caller leaves: an operation that has not begun never will, and another caller leads."""
        with self._lock:
            member.gone = True
            if member in self._waiting:
                self._waiting.remove(member)
        self._wake_next()

    def _hand_over(self, own: Member[Any], group: list[Member[Any]]) -> None:
        if len(group) == 1 and group[0] is own and own.answered and isinstance(own, _Waiting):
            with self._lock:
                if not self._waiting:
                    self._led = False
                    return
        with self._lock:
            for member in reversed(group):
                if not (member.answered or member.gone or member is own or member in self._waiting):
                    self._waiting.appendleft(member)
        for member in group:
            if member.answered and (member is not own or isinstance(member, _Awaited)):
                member.wake()
        self._wake_next()

    def _wake_next(self) -> None:
        while (following := self._next_leader()) is not None and not following.wake():
            with self._lock:
                if following in self._waiting:
                    self._waiting.remove(following)

    def _next_leader(self) -> Member[Any] | None:
        """A thread if there is one: it can surely be woken, while a coroutine's loop may have stopped."""
        with self._lock:
            self._led = bool(self._waiting)
            self._called = None
            for member in self._waiting:
                if isinstance(member, _Waiting):
                    return member
            if self._waiting:
                self._called = self._waiting[0]
            return self._called
