"""Log lines while jobs run: each record says of which job it is, and is kept with its run. Switched on by whoever runs
jobs: `worker`, `child`, the test kit; asks `context` which run the code is part of."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from perdure.worker.context import current, job_logger, message_of, trace_of

PassOn = Callable[[dict[str, Any]], object]
"""Takes a line of log as `forwarded` gives it."""

_FORWARDED = (
    "name", "levelno", "levelname", "created", "msecs", "pathname", "filename", "module", "lineno", "funcName",
    "process", "processName", "threadName", "stack_info",
)  # fmt: skip


class JobRecords:
    """Makes log records whose attribute `perdure` has the facts of the job that they were logged in.

    A factory, not a filter: so that every handler of every logger sees them, and whatever reads records by other ways.
    One attribute, not one for each fact: `extra=` of the program may have any other name.
    """

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self.make = make

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self.make(*args, **kwargs)
        ctx = current()
        if ctx is not None:
            record.perdure = ctx.facts
        return record


class CaptureHandler(logging.Handler):
    """Keeps lines with the run they were logged in. Never fails, and takes no lock of its own.

    On the root logger it sees every line that the loggers' levels let through and that propagates up to there. The
    lines of `ctx.log` do not need it: they are kept from INFO on, whatever the levels say.

    Which run a line belongs to is a context variable: asyncio tasks and `asyncio.to_thread` inherit it, a thread that a
    handler starts by itself does not. There, use `ctx.log`, which knows its run.
    """

    pass_on: PassOn | None = None
    """In a child process: gives a line that no handler here would show to the worker, whose handlers do."""

    def createLock(self) -> None:  # noqa: N802 - logging's own name
        self.lock = None

    def _at_fork_reinit(self) -> None:  # logging's own, which expects a lock
        pass

    def handle(self, record: logging.LogRecord) -> bool:
        if self._is_alone(record):
            self._show(record)
        self.emit(record)
        return True

    def _show(self, record: logging.LogRecord) -> None:
        """Without this handler `logging` would print it on stderr. It still must, unless it is Perdure's own."""
        last, ctx = logging.lastResort, current()
        shown = record if ctx is None else ctx.fit_record(record)
        if self.pass_on is not None:
            self.pass_on(forwarded(shown))
        elif last is not None and record.levelno >= last.level and not is_ours(record.name):
            last.handle(shown)

    def emit(self, record: logging.LogRecord) -> None:
        ctx = current()
        if ctx is not None and not is_ours(record.name):
            ctx.keep(record)

    def _is_alone(self, record: logging.LogRecord) -> bool:
        """No other handler sees it."""
        if len(logging.root.handlers) > 1:
            return False
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(handler is not self and not _is_our_silence(handler, logger) for handler in logger.handlers):
                return False
            logger = logger.parent
        return True


def _is_our_silence(handler: logging.Handler, logger: logging.Logger) -> bool:
    return logger.name == "perdure" and isinstance(handler, logging.NullHandler)


def is_ours(name: str) -> bool:
    """Lines of Perdure itself, not of the handler. (`ctx.log` is the user's.)"""
    return name != job_logger.name and (name == "perdure" or name.startswith("perdure."))


# -- from a child to its worker ---------------------------------------------------------------------------------------


def forwarded(record: logging.LogRecord) -> dict[str, Any]:
    """A record as it travels: texts and numbers alone. What the program gave as `extra=` stays behind."""
    line = {name: getattr(record, name) for name in _FORWARDED}
    line |= {"msg": message_of(record), "exc_text": trace_of(record)}
    ctx = current()
    facts: dict[str, Any] = {} if ctx is None else ctx.facts
    if is_ours(record.name) or record.name == job_logger.name:
        facts = getattr(record, "perdure", facts)  # of other loggers it may be anything
    return line | {"perdure": facts}


def log_forwarded(line: dict[str, Any]) -> None:
    """Log a line of a child here, in the worker. It is kept with its run by other ways."""
    record = logging.makeLogRecord({**line, "perdure_kept": True})
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


def has_one_form() -> bool:
    """Whether someone wants all lines of this process in one form, whatever the app has set up (`--log-format`)."""
    return any(getattr(handler, "is_the_only_one", False) for handler in logging.getLogger().handlers)


def remove_other_handlers(but: logging.Handler | None = None) -> None:
    """From the root logger, for the sake of one form."""
    root = logging.getLogger()
    for other in [handler for handler in root.handlers if handler is not but and handler is not _handler]:
        root.removeHandler(other)


# -- on and off --------------------------------------------------------------------------------------------------------

_handler = CaptureHandler()
_lock = threading.Lock()
_users = 0


@contextmanager
def capturing(pass_on: PassOn | None = None) -> Generator[None, None, None]:
    """While the block runs, lines know their jobs and are kept. Blocks may overlap; the last one to end is the end.

    `pass_on`: this is a child process, and whoever takes lines that nobody else here shows.
    """
    global _users  # noqa: PLW0603 - one root logger per process, so one count
    with _lock:
        _users += 1
        if _users == 1:
            _handler.pass_on = pass_on
            logging.getLogger().addHandler(_handler)
            logging.setLogRecordFactory(JobRecords(logging.getLogRecordFactory()))
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                logging.getLogger().removeHandler(_handler)
                ours = logging.getLogRecordFactory()
                if isinstance(ours, JobRecords):  # else another one is wrapped around ours, which does no harm
                    logging.setLogRecordFactory(ours.make)
