"""Flask: handlers in the application's context, and `flask perdure …`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flask import Flask, current_app, has_app_context

from perdure import Perdure
from perdure.contrib.flask import init_app


@pytest.fixture
def app(tmp_path: Path) -> Perdure:
    return Perdure(tmp_path / "jobs.db")


def config_of(flask: Any) -> dict[str, Any]:
    """Flask's own type is untyped."""
    found: dict[str, Any] = flask.config
    return found


def an_application(name: str, **config: Any) -> Flask:
    flask = Flask(__name__)
    config_of(flask).update(SHOP=name, **config)
    return flask


def name_of_shop() -> str:
    return str(config_of(current_app)["SHOP"])


async def name_of_shop_awaited() -> str:
    return name_of_shop()


@pytest.mark.parametrize("handler", [name_of_shop, name_of_shop_awaited])
def test_a_handler_runs_in_the_application_that_was_joined_last(app: Perdure, handler: Any) -> None:
    """Once, however often a factory makes one."""
    shop = app.job(handler)
    for name in ("first", "second"):
        init_app(app, an_application(name))
    assert len(app.middlewares) == 1
    with app.testing() as t:
        job = shop.enqueue()
        t.drain()
        found = app.get(job.id)
        assert found is not None
        assert found.result == "second"
        assert not has_app_context()


def test_the_application_says_where_the_jobs_are(app: Perdure, tmp_path: Path) -> None:
    init_app(app, an_application("shop", PERDURE_URL=f"sqlite:///{tmp_path}/other.db"))
    assert app.url.endswith("other.db")


def test_the_program_is_a_command_of_flask(app: Perdure) -> None:
    @app.job
    def send(to: str) -> None: ...

    flask = an_application("shop")
    init_app(app, flask)
    runner = flask.test_cli_runner()
    enqueued = runner.invoke(args=["perdure", "enqueue", "send", "to=ann"])
    assert enqueued.exit_code == 0, enqueued.output
    listed = runner.invoke(args=["perdure", "jobs", "--json"])
    assert '"ann"' in listed.output
    assert "Usage: perdure" in runner.invoke(args=["perdure", "--help"]).output


def test_an_application_that_was_not_joined_is_told_so(app: Perdure) -> None:
    flask, other = an_application("shop"), an_application("other")
    init_app(app, flask)
    del flask.extensions["perdure"]
    refused = flask.test_cli_runner().invoke(args=["perdure", "jobs"])
    assert refused.exit_code == 2
    assert "init_app" in refused.output
    assert "perdure" not in other.cli.commands
