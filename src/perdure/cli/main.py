"""`perdure`: the program, and how errors become one line. Called by the console script and `python -m perdure`.

`commands` loads a command when it runs: `perdure --version` must not wait for what a worker needs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from perdure.cli.commands import InvalidValue, Program
from perdure.cli.target import App, Url, database_options_in
from perdure.errors import PerdureError
from perdure.version import __version__

ERROR = 2
"""The exit status of a command that could not do what was asked; the same as for a wrong option."""

INTERRUPTED = 130
DEBUG = "--debug"
_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
"""Click's UsageError, which typer does not export: wrong options, missing arguments, unknown commands."""

app = typer.Typer(
    name="perdure",
    cls=Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\
Begin with:
  perdure init                              a jobs.py that works
  perdure worker jobs:app                   run its jobs
  perdure jobs --state failed --app jobs:app

Exit status: 0 done, nothing wrong; 1 something is wrong, or a question was not
answered; 2 it could not be done; 3 and 75 see perdure worker --help; 130 ended
by Ctrl-C, but 0 where that is the way to end: worker, --follow, --watch.
""",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"perdure {__version__}")
        raise typer.Exit


@app.callback()
def perdure(
    url: Url = None,  # these three are handed down by `commands`
    app: App = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with the commands that can.")] = False,
    _debug: Annotated[bool, typer.Option(DEBUG, help="Show where an error comes from.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Durable jobs for Python.

    Every command finds its database by --url or --app, else by PERDURE_URL or PERDURE_APP, else by url or app under
    [tool.perdure] in the pyproject.toml of the working directory. --url, --app, --json and --debug may be given before
    or after the command; where one is given twice, the last counts. Jobs are named by their id or its last 4 or more
    characters.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit. 0: done, nothing wrong; 1: something wrong was found; 2: it could not be done.

    0 also where the reader of the output has closed it, as head does.
    """
    given, debug = _without_debug(sys.argv[1:] if arguments is None else arguments)
    try:
        status = app(given, prog_name="perdure", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        _leave_the_pipe()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer and rich make a status of it themselves
            _leave_the_pipe()
        raise
    except typer.Abort as abort:
        if isinstance(abort.__context__, KeyboardInterrupt):
            print(file=sys.stderr)  # the line of the question is still open
            sys.exit(INTERRUPTED)
        _fail("the question was not answered; nothing was changed", status=1)
    except _USAGE_ERROR as error:
        _explain_usage(error)
    except PerdureError as error:
        from perdure.cli.render import error_text  # errors alone need it, and --help is to be quick

        _fail(error_text(error, database_options_in(given)), error if debug else None)
    except Exception as error:  # noqa: BLE001 - whatever it is, the user gets one line and a status
        _fail(f"unexpected {type(error).__name__}: {error} [internal_error]", error if debug else None)
    sys.exit(status if isinstance(status, int) else 0)


def _without_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """--debug may be given anywhere, also after commands that do not know it; what follows -- is not ours."""
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    kept = [argument for argument in given[:end] if argument != DEBUG]
    return kept + given[end:], len(kept) < end


def _explain_usage(error: Any) -> NoReturn:
    """What is wrong with the command line, and where to read more. Help that was asked for is no error."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message())
        sys.exit(0)
    path = "perdure" if error.ctx is None else error.ctx.command_path
    ours = isinstance(error, InvalidValue) or (isinstance(error, typer.BadParameter) and error.param is None)
    text = error.message if ours else _in_our_words(error)
    _fail(f"{text.rstrip('.')} (see {path} --help) [usage_error]")


def _in_our_words(error: Any) -> str:
    """What click has to say of a command line."""
    match type(error).__name__:
        case "NoSuchOption":
            return _no_such_option(error.option_name, error.possibilities or ())
        case "MissingParameter" if error.param is not None and error.param.metavar:
            return f"{error.param.metavar} is missing: {getattr(error.param, 'help', None) or 'it is needed'}"
        case _:
            return str(error.format_message())


def _no_such_option(option: str, near: Sequence[str]) -> str:
    from perdure.words_of_others import ON_THE_COMMAND_LINE

    found = ON_THE_COMMAND_LINE.get(option)
    hint = f"; write {found}" if found else f"; did you mean {' or '.join(sorted(near))}?" if near else ""
    return f"there is no option {option}{hint}"


def _fail(message: str, error: BaseException | None = None, status: int = ERROR) -> NoReturn:
    from perdure.cli.render import one_line, visible  # as above

    if error is not None:
        import traceback

        print(visible("".join(traceback.format_exception(error)).rstrip()), file=sys.stderr)
    print(f"perdure: {one_line(message)}", file=sys.stderr)
    sys.exit(status)


def _leave_the_pipe() -> NoReturn:
    """The reader of our output has closed it: always status 0, whether a write or the last flush met that.

    Nothing may be written at exit either, or Python would complain.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)
