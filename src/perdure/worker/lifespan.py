"""`lifespan=`: what all handlers of a worker share, made before its first job and unmade after its last.

Entered and left by `worker`; handlers find what it yields as `ctx.state`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, suppress
from typing import Any, cast

from perdure.errors import InvalidOption

logger = logging.getLogger("perdure.worker")


class Lifespan:
    """The user's context manager, plain or asynchronous.

    A plain one is entered and left by the threads that start and join the worker. An asynchronous one lives in one task
    on the event loop that the handlers run on: its clients and cancel scopes are bound to it.
    """

    def __init__(self, make: Callable[[], object], loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._make = make
        self._loop = loop
        self._plain = ExitStack()
        self._task: concurrent.futures.Future[None] | None = None
        self._leave: asyncio.Event | None = None

    def enter(self) -> Mapping[str, Any]:
        """What it yields. Its own errors are raised unchanged."""
        manager = self._make()
        if isinstance(manager, AbstractAsyncContextManager):
            return _mapping(self._enter_in_the_loop(cast("AbstractAsyncContextManager[object]", manager)))
        if isinstance(manager, AbstractContextManager):
            return _mapping(self._plain.enter_context(cast("AbstractContextManager[object]", manager)))
        raise InvalidOption(
            f"lifespan= must return a context manager, not {type(manager).__name__}; decorate the function with"
            " contextlib.contextmanager or contextlib.asynccontextmanager",
            code="lifespan_invalid",
        )

    def leave(self, patience_s: float) -> None:
        """An asynchronous one that does not end in time is left behind. Its own errors are raised unchanged."""
        self._plain.close()
        if self._task is None:
            return
        with suppress(RuntimeError):  # the loop is closed
            self._loop().call_soon_threadsafe(self._let_go)
        concurrent.futures.wait([self._task], patience_s)
        if not self._task.done():
            self._task.cancel()
            logger.error("the worker's lifespan did not end within %g s and was left behind", patience_s)
        elif not self._task.cancelled():
            self._task.result()

    def _enter_in_the_loop(self, manager: AbstractAsyncContextManager[object]) -> object:
        entered: concurrent.futures.Future[object] = concurrent.futures.Future()
        self._task = asyncio.run_coroutine_threadsafe(self._hold(manager, entered), self._loop())
        return entered.result()

    async def _hold(
        self, manager: AbstractAsyncContextManager[object], entered: concurrent.futures.Future[object]
    ) -> None:
        self._leave = asyncio.Event()
        try:
            async with manager as given:
                entered.set_result(given)
                await self._leave.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error)

    def _let_go(self) -> None:
        if self._leave is not None:
            self._leave.set()


def _mapping(given: object) -> Mapping[str, Any]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return cast("Mapping[str, Any]", given)
    raise InvalidOption(
        f"lifespan= yielded {type(given).__name__}; yield a dict, whose items handlers find as ctx.state[…]",
        code="lifespan_invalid",
    )
