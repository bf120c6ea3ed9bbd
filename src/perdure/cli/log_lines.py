"""Log lines on standard error, for people or as JSON. Set up by `perdure worker` and the demo's worker.

Lines of jobs name their job: `[send 3fa2c1d0 #2]`, of the second attempt; as JSON they have its facts.
"""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TextIO, cast

from perdure.cli.render import SHORT, json_text, visible
from perdure.clock import Micros
from perdure.text import stamp

_COLOURS = {"DEBUG": "2", "WARNING": "35", "ERROR": "31", "CRITICAL": "1;31"}
"""Can be read on black and on white; yellow cannot."""
_TIME, _JOB = "2", "36"
_STAMP = len("2026-01-31 12:00:00.000Z")
_LEVEL = 7


class LogFormat(StrEnum):
    """How log lines are written."""

    HUMAN = "human"
    JSON = "json"


class LogLevel(StrEnum):
    """From which level on."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def log_on_stderr(form: LogFormat | None = None, level: LogLevel | None = None) -> StderrHandler | None:
    """Show what is logged by Perdure and by the handlers, and Python's warnings, from INFO on or the level given.

    An app that has set up logging keeps it, unless a form is asked for: then this replaces it. A level is set anyway.
    Returns the handler that shows it. None: the app has its own.
    """
    from perdure.worker.capture import remove_other_handlers

    root = logging.getLogger()
    if level is not None:
        logging.getLogger("perdure").setLevel(level.upper())
    if root.handlers and form is None:
        return None
    handler = StderrHandler()
    handler.is_the_only_one = form is not None
    handler.setFormatter(JsonFormatter() if form is LogFormat.JSON else HumanFormatter(colour=is_colourful(sys.stderr)))
    remove_other_handlers()
    root.addHandler(handler)
    root.setLevel((level or LogLevel.INFO).upper())
    logging.captureWarnings(True)  # else Python prints them as they are, between the lines
    return handler


def is_colourful(out: TextIO) -> bool:
    """As rich decides it: on a terminal that knows colours, unless NO_COLOR says no; anywhere with FORCE_COLOR."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (out.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"))


class StderrHandler(logging.StreamHandler[TextIO]):
    """Standard error. What is logged while a job runs, by whatever logger, is shown without the job's secrets."""

    is_the_only_one = False
    """Whatever the app sets up, in child processes too: all lines come here."""

    def format(self, record: logging.LogRecord) -> str:
        from perdure.worker.context import current

        ctx = current()
        return super().format(record if ctx is None else ctx.fit_record(record))


class HumanFormatter(logging.Formatter):
    """Time, level, job, logger (none where it is Perdure itself, or `ctx.log`) and message, made harmless."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        at = stamp(Micros(round(record.created * 1_000_000)))
        source = "" if record.name.startswith("perdure.") else f"{record.name}: "
        return f"{at} {record.levelname:<{_LEVEL}} {_job(record)}{source}{record.message}"

    def format(self, record: logging.LogRecord) -> str:
        text = visible(super().format(record))
        return _coloured(text, record) if self._colour else text


def _job(record: logging.LogRecord) -> str:
    """`[send 3fa2c1d0 #2] `. Nothing outside of jobs, and in lines about events, which name the job themselves."""
    facts = _facts(record)
    if "job_id" not in facts or "event" in facts:
        return ""
    attempt = facts.get("attempt", 1)
    return f"[{facts.get('kind')} {str(facts['job_id'])[-SHORT:]}{f' #{attempt}' if attempt != 1 else ''}] "


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    facts = getattr(record, "perdure", None)
    return cast("dict[str, Any]", facts) if isinstance(facts, dict) else {}


def _coloured(text: str, record: logging.LogRecord) -> str:
    job = visible(_job(record))
    level_at, rest_at = _STAMP + 1, _STAMP + 1 + max(_LEVEL, len(record.levelname)) + 1
    pieces = (
        (text[:level_at], _TIME),
        (text[level_at:rest_at], _COLOURS.get(record.levelname, "")),
        (job, _JOB),
        (text[rest_at + len(job) :], ""),
    )
    return "".join(f"\x1b[{code}m{piece}\x1b[0m" if code and piece else piece for piece, code in pieces)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message; of jobs the facts too; errors with their traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= _facts(record)
        trace = record.exc_text or (self.formatException(record.exc_info) if record.exc_info else None)
        if trace:
            line["traceback"] = trace
        return json_text(line)
