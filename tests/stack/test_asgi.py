"""FastAPI and Starlette: the lifespan, the app in handlers, jobs in the place of background tasks."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from perdure import ConfigError, InvalidInput, Perdure
from perdure.contrib import asgi
from perdure.contrib.fastapi import BackgroundJobs, Jobs, lifespan


@pytest.fixture
def app(tmp_path: Path) -> Perdure:
    return Perdure(tmp_path / "jobs.db")


@pytest.fixture
def send(app: Perdure) -> Any:
    @app.job
    def send(to: str) -> str:
        return f"sent to {to}"

    return send


def test_a_job_is_there_when_the_response_comes(app: Perdure, send: Any) -> None:
    api = FastAPI(lifespan=lifespan(app))

    @api.post("/awaited")
    async def awaited(jobs: BackgroundJobs) -> str:
        return str((await jobs.add(send, "ann")).id)

    @api.post("/plain")
    def plain(jobs: BackgroundJobs) -> str:
        return str(jobs.add_task(send, to="bob").id)

    @api.get("/{job_id}")
    async def show(job_id: str, jobs: Jobs) -> Any:
        found = await jobs.aio.get(job_id)
        return found and found.payload

    with TestClient(api) as client:
        for path, name in [("/awaited", "ann"), ("/plain", "bob")]:
            job_id = client.post(path).json()
            assert client.get(f"/{job_id}").json() == {"to": name}


def test_a_function_that_is_no_kind_is_refused_by_name(app: Perdure) -> None:
    api = FastAPI(lifespan=lifespan(app))

    def plain(to: str) -> None: ...

    @api.post("/")
    async def post(jobs: BackgroundJobs) -> None:
        await jobs.add(plain, "ann")  # type: ignore[arg-type]

    with TestClient(api) as client, pytest.raises(InvalidInput, match="above the function"):
        client.post("/")


def test_without_the_lifespan_a_handler_is_told_what_is_missing() -> None:
    api = FastAPI()

    @api.get("/")
    async def show(jobs: Jobs) -> None: ...

    with TestClient(api) as client, pytest.raises(ConfigError, match="lifespan_missing"):
        client.get("/")


def test_the_lifespan_composes_with_the_users_own(app: Perdure, send: Any) -> None:
    """Its state comes through, it runs while the database is open, and under Starlette alone."""
    order: list[str] = []

    @asynccontextmanager
    async def own(_: object) -> AsyncGenerator[dict[str, str]]:
        order.append(str((await send.aenqueue("begin")).state))
        yield {"greeting": "hello"}
        order.append(str((await send.aenqueue("end")).state))

    async def show(request: Request) -> PlainTextResponse:
        assert request.state.perdure is app
        return PlainTextResponse(request.state.greeting)

    site = Starlette(routes=[Route("/", show)], lifespan=asgi.lifespan(app, inner=own))
    with TestClient(site) as client:
        assert client.get("/").text == "hello"
    assert order == ["queued", "queued"]


def test_a_worker_runs_beside_the_server_until_it_stops(app: Perdure) -> None:
    ran = threading.Event()

    @app.job
    def note() -> None:
        ran.set()

    api = FastAPI(lifespan=lifespan(app, worker=partial(app.worker, concurrency=1)))
    for _ in range(2):  # a server of tests starts more than once
        ran.clear()
        with TestClient(api):
            note.enqueue()
            assert ran.wait(60)
    assert app.store.live_nodes() == []


def test_a_database_that_cannot_be_used_stops_the_server_at_its_start(tmp_path: Path) -> None:
    app = Perdure(tmp_path / "jobs.db", auto_migrate=False)
    with pytest.raises(Exception, match="schema_missing"), TestClient(FastAPI(lifespan=lifespan(app))):
        pass
