"""Perdure in an application of Flask: `init_app(app, flask)`. Handlers run in the application's context, and
`flask perdure …` is the program `perdure` for its jobs."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import click
from flask import current_app
from flask.cli import with_appcontext

from perdure.app import Perdure
from perdure.errors import ConfigError

if TYPE_CHECKING:
    from flask import Flask

URL_SETTING = "PERDURE_URL"
_applications: WeakKeyDictionary[Perdure, Flask] = WeakKeyDictionary()


def init_app(app: Perdure, flask: Flask) -> None:
    """Join them. May be called again with another application (a factory, in tests): the last one counts.

    `flask.config["PERDURE_URL"]`, if it is set, is the app's database.
    """
    settings: Any = flask.config  # its type says nothing of the values
    if url := settings.get(URL_SETTING):
        app.url = url
    if app not in _applications:

        @app.middleware
        def in_the_application(_: Any) -> AbstractContextManager[Any]:
            return _applications[app].app_context()

    _applications[app] = flask
    flask.extensions["perdure"] = app
    flask.cli.add_command(_program)


@click.command(
    "perdure",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
    short_help="Look at jobs, steer and run them: the program perdure.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@with_appcontext
def _program(arguments: tuple[str, ...]) -> None:
    """Arguments are handed on as they are, `--help` too. Flask has made the application by now."""
    from perdure.cli.discovery import APP_VARIABLE
    from perdure.cli.main import main
    from perdure.config import URL_VARIABLE

    os.environ.pop(URL_VARIABLE, None)  # the application says where the jobs are
    os.environ[APP_VARIABLE] = f"{__name__}:app"
    main(arguments)


def __getattr__(name: str) -> Perdure:
    """`app`: that of the Flask application which the program runs in."""
    if name != "app":
        raise AttributeError(name)
    found = current_app.extensions.get("perdure")
    if not isinstance(found, Perdure):
        raise ConfigError(
            "this Flask application has no Perdure app; call perdure.contrib.flask.init_app(app, flask) in it",
            code="app_not_found",
        )
    return found
