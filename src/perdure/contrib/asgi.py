"""Perdure in an application of FastAPI, Starlette or any other ASGI framework with a lifespan. Imports none of them;
what only FastAPI can use is in `contrib/fastapi`.

    api = FastAPI(lifespan=lifespan(app))
"""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.worker.worker import Worker

Own = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]
Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]
"""What FastAPI and Starlette take as `lifespan=`; one's own may yield no state."""


def lifespan(app: Perdure, *, worker: Callable[[], Worker] | None = None, inner: Own | None = None) -> Lifespan:
    """A lifespan that opens the app's database when the server starts, and closes it when the server stops.

    A wrong URL, or a schema that needs an upgrade, stops the server at its start instead of the first request.

    `worker`: what makes a worker that runs jobs in this process, such as `app.worker`, or
    `partial(app.worker, concurrency=4)`. Every web process then has one. When the server stops, running jobs may finish
    for the worker's grace.

    `inner`: a lifespan of your own. It begins when the database is open and ends before the worker stops.

    Handlers of requests find the app as `request.state.perdure`, beside the state that `inner` yields.
    """

    @asynccontextmanager
    async def opened(server: Any) -> AsyncGenerator[Mapping[str, Any]]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(to_thread, app.close)
            await to_thread(lambda: next(app.jobs(limit=1), None))
            if worker is not None:
                await stack.enter_async_context(worker().running())
            state = await stack.enter_async_context(inner(server)) if inner is not None else None
            yield {**(state or {}), "perdure": app}

    return opened
