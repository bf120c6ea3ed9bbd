"""Keeps what handlers log with their runs. Switched on by `worker` (and by the children of the process executor).

A handler of the standard `logging` on the root logger: it sees every line that the loggers' levels let through and that
propagates up to the root, and keeps those that are logged inside a run. The lines of `ctx.log` do not need it: they are
kept from INFO on, whatever the levels say (see `context.RunLog`).

Which run a line belongs to is a context variable: asyncio tasks and `asyncio.to_thread` inherit it, a thread that a
handler starts by itself does not. There, use `ctx.log`, which knows its run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager

from perdure.worker.context import current, job_logger


class CaptureHandler(logging.Handler):
    """Keeps lines with the run they were logged in. Never fails, and takes no lock of its own."""

    def createLock(self) -> None:  # noqa: N802 - logging's own name
        self.lock = None

    def _at_fork_reinit(self) -> None:  # logging's own, which expects a lock
        pass

    def handle(self, record: logging.LogRecord) -> bool:
        if self._is_alone(record):
            last, ctx = logging.lastResort, current()
            if last is not None and record.levelno >= last.level:
                last.handle(record if ctx is None else ctx.fit_record(record))
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        ctx = current()
        if ctx is not None and not _is_ours(record.name):
            ctx.keep(record)

    def _is_alone(self, record: logging.LogRecord) -> bool:
        """Without us nobody would hear of it, so that `logging` would show it on stderr. It still has to, unless it is
        Perdure's own: that is silent. (What handlers say to `ctx.log` is not.)"""
        if _is_ours(record.name):
            return False
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


def _is_ours(name: str) -> bool:
    """What the worker says about itself is not what the handler says."""
    return name != job_logger.name and (name == "perdure" or name.startswith("perdure."))


_handler = CaptureHandler()
_lock = threading.Lock()
_users = 0


@contextmanager
def capturing() -> Generator[None, None, None]:
    """While the block runs, lines are kept. Blocks may overlap; the last one to end takes the handler away."""
    global _users  # noqa: PLW0603 - one root logger per process, so one count
    with _lock:
        _users += 1
        if _users == 1:
            logging.getLogger().addHandler(_handler)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                logging.getLogger().removeHandler(_handler)
