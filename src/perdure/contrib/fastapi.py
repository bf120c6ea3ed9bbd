"""What handlers of FastAPI can ask for: the app, and jobs in the place of `BackgroundTasks`. Needs the lifespan of
`contrib/asgi`, which says which app.

    api = FastAPI(lifespan=lifespan(app))

    @api.post("/orders")
    async def order(jobs: BackgroundJobs) -> None:
        await jobs.add(confirm, 7)
"""

from __future__ import annotations

from typing import Annotated, ParamSpec, TypeVar

from fastapi import Depends
from starlette.requests import HTTPConnection

from perdure.app import Perdure
from perdure.contrib.asgi import lifespan
from perdure.errors import ConfigError, InvalidInput, shown
from perdure.job.views import Job
from perdure.kind import Bound

__all__ = ["BackgroundJobs", "Jobs", "lifespan"]

P = ParamSpec("P")
R = TypeVar("R")


def _app(connection: HTTPConnection) -> Perdure:
    app = getattr(connection.state, "perdure", None)
    if not isinstance(app, Perdure):
        raise ConfigError(
            "this application has no Perdure app; write FastAPI(lifespan=perdure.contrib.fastapi.lifespan(app)), and in"
            " tests enter the lifespan: with TestClient(api) as client",
            code="lifespan_missing",
        )
    return app


Jobs = Annotated[Perdure, Depends(_app)]
"""The app, in a handler: `async def show(jobs: Jobs): await jobs.aio.get(…)`."""


class _BackgroundJobs:
    """Adds jobs as `BackgroundTasks` adds functions. A job is on disk when the call returns, before the response is
    sent, and survives the process."""

    def __init__(self, app: Jobs) -> None:
        self._app = app

    async def add(self, kind: Bound[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Enqueue a job; `kind.options(tx=session)` enqueues it in the transaction of your session."""
        _checked(kind)
        return await kind.aenqueue(*args, **kwargs)

    def add_task(self, kind: Bound[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """The same for handlers that are plain functions, with the name that `BackgroundTasks` has."""
        _checked(kind)
        return kind.enqueue(*args, **kwargs)


def _checked(kind: object) -> None:
    if not isinstance(kind, Bound):
        raise InvalidInput(
            f"a background job is a kind, not {shown(kind)}; write @app.job above the function", code="kind_invalid"
        )


BackgroundJobs = Annotated[_BackgroundJobs, Depends()]
