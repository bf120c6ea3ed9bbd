"""`perdure`: the commands, and how errors become one line. Called by the console script and `python -m perdure`.

Imports nothing of a command before it runs: `perdure --version` must not wait for what a worker needs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from perdure.cli.db import db
from perdure.cli.doctor import doctor
from perdure.cli.show import one_line
from perdure.cli.worker import worker
from perdure.errors import PerdureError
from perdure.version import __version__

ERROR = 2
"""The exit status of a command that could not do what was asked; the same as for a wrong option."""

app = typer.Typer(
    name="perdure",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(worker)
app.command()(doctor)
app.add_typer(db, name="db")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"perdure {__version__}")
        raise typer.Exit


@app.callback()
def perdure(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Durable jobs for Python.

    Every command finds its database by --url or --app, else by PERDURE_URL or PERDURE_APP, else by url or app under
    [tool.perdure] in the pyproject.toml of the working directory.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit. 0: done, nothing wrong; 1: something wrong was found; 2: it could not be done."""
    try:
        app(None if arguments is None else list(arguments), prog_name="perdure")
    except PerdureError as error:
        _fail(str(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, the user gets one line and a status
        _fail(f"unexpected {type(error).__name__}: {error} [internal_error]")
    sys.exit(0)


def _fail(message: str) -> NoReturn:
    print(f"perdure: {one_line(message)}", file=sys.stderr)
    sys.exit(ERROR)
