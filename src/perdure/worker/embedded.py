"""`worker.running()`: a worker beside other code, for `with` and `async with`. Made by `worker`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.worker.worker import Worker


class Running:
    """Jobs run while the block does. At its end they have the worker's grace to finish.

    A forked child that leaves the block leaves the parent's worker alone.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def __enter__(self) -> Worker:
        self._worker.start()
        return self._worker

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._worker.is_forked:
            self._worker.stop()
            self._worker.join()

    async def __aenter__(self) -> Worker:
        try:
            await _finish_in_thread(self._worker.start)
        except asyncio.CancelledError:
            await self.__aexit__(None, None, None)
            raise
        return self._worker

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._worker.is_forked:
            self._worker.stop()
            await _finish_in_thread(self._worker.join)


async def _finish_in_thread(act: Callable[[], None]) -> None:
    """Do it in a thread of its own while the event loop runs. If this task is cancelled, it is cancelled after."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[BaseException | None] = loop.create_future()

    def serve() -> None:
        raised: BaseException | None = None
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - raised in the task that waits
            raised = error
        loop.call_soon_threadsafe(done.set_result, raised)

    threading.Thread(target=serve, name="perdure-embedded", daemon=True).start()
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError as error:
            cancelled = error
    raised = done.result()
    if raised is not None:
        raise raised
    if cancelled is not None:
        raise cancelled
