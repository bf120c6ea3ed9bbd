"""Log lines on standard error, for people or for programs. Used by commands that go on for a while."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TextIO

from perdure.cli.show import json_text, visible


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


def log_on_stderr(form: LogFormat | None = None, level: LogLevel | None = None) -> None:
    """Show what is logged by Perdure and by the handlers, and Python's warnings, from INFO on or the level given.

    An app that has set up logging keeps it, unless a form is asked for: then this replaces it. A level is set anyway.
    """
    root = logging.getLogger()
    if level is not None:
        logging.getLogger("perdure").setLevel(level.upper())
    if root.handlers and form is None:
        return
    handler = Console()
    handler.setFormatter(JsonLines() if form is LogFormat.JSON else Lines())
    for other in list(root.handlers):
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel((level or LogLevel.INFO).upper())
    logging.captureWarnings(True)  # else Python prints them as they are, between the lines


class Console(logging.StreamHandler[TextIO]):
    """Standard error. What is logged while a job runs, by whatever logger, is shown without the job's secrets."""

    def format(self, record: logging.LogRecord) -> str:
        from perdure.worker.context import current

        ctx = current()
        return super().format(record if ctx is None else ctx.fit_record(record))


class Lines(logging.Formatter):
    """Time, level, who says it (of `ctx.log` the kind; nobody where Perdure itself does), and what, made harmless."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(who)s%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.who = _who(record)
        return visible(super().format(record))


def _who(record: logging.LogRecord) -> str:
    if record.name == "perdure.job":
        return f"{getattr(record, 'perdure', {}).get('kind', record.name)}: "
    return "" if record.name.startswith("perdure.") else f"{record.name}: "


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message; of jobs' events the facts too; errors with traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        facts = getattr(record, "perdure", None)
        if isinstance(facts, dict):
            line |= facts
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json_text(line)
