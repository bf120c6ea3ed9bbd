"""`manage.py perdure_worker`: runs the tasks of all installed apps; with DEBUG, anew after each change of the code."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from argparse import SUPPRESS
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from django.conf import settings
from django.core.management.base import CommandParser
from django.utils import autoreload

from perdure.contrib.django.backend import TASKS, app_of
from perdure.contrib.django.management.commands import perdure

_TRY = "--try-code"
_FIRST_LOOK_S = 10.0
"""A worker starts all the same if the watch over the code does not."""


class Command(perdure.Command):
    """Its options are those of `perdure worker`, and `--noreload`."""

    help = "Run tasks until a signal says stop."
    requires_system_checks: ClassVar[Any] = "__all__"
    command: ClassVar[tuple[str, ...]] = ("worker",)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--noreload", action="store_true", help="Do not start anew when the code changes.")
        parser.add_argument(_TRY, action="store_true", help=SUPPRESS)

    def handle(self, *args: Any, **options: Any) -> None:
        if options["try_code"]:
            app_of()
            return
        _quieten()
        changes = Changes()
        if settings.DEBUG and not options["noreload"]:
            app_of()  # all modules, so that the first look sees their files
            changes.watch()
        try:
            super().handle(*args, **options)
        finally:
            if changes.were_seen:
                changes.begin_anew()


def _quieten() -> None:
    """Django logs the begin and the end of each task, with the traceback, as the worker does. A project that has set up
    logging keeps these lines."""
    root, own = logging.getLogger(), logging.getLogger(TASKS)
    if not root.handlers and not own.handlers and own.level == logging.NOTSET:
        own.setLevel(logging.WARNING)


class Looks(autoreload.StatReloader):
    """Django's, which compares each look at the files with the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.first = threading.Event()

    def snapshot_files(self) -> Iterator[tuple[Path, float]]:
        yield from super().snapshot_files()
        self.first.set()


class Changes:
    """Django's own watch over the code. A change ends the worker as SIGTERM does: running tasks may finish first."""

    def __init__(self) -> None:
        self.were_seen = False
        self._next = threading.Event()

    def watch(self) -> None:
        """Returns when every file has been looked at: what changes from now on is noticed."""
        autoreload.file_changed.connect(self._stop)
        reloader = autoreload.get_reloader()
        if isinstance(reloader, autoreload.StatReloader):
            reloader = Looks()
        threading.Thread(
            target=reloader.run, args=(threading.main_thread(),), name="perdure-reload", daemon=True
        ).start()
        if isinstance(reloader, Looks):
            reloader.first.wait(_FIRST_LOOK_S)

    def _stop(self, **_: Any) -> bool:
        """True: Django is not to exit by itself."""
        if not self.were_seen:
            self.were_seen = True
            os.kill(os.getpid(), signal.SIGTERM)
        self._next.set()
        return True

    def begin_anew(self) -> None:
        """This program again, with nothing imported. Code that is broken is tried after every change until it is not:
        who has just begun to edit a file does not want to start the worker by hand."""
        program = autoreload.get_child_arguments()
        self._next.clear()
        try:
            while subprocess.run([*program, _TRY], check=False).returncode:  # noqa: S603 - it prints what is wrong
                sys.stderr.write("perdure: waiting for a change of the source files; Ctrl-C ends\n")
                sys.stderr.flush()
                self._next.wait()
                self._next.clear()
        except KeyboardInterrupt:
            return
        os.execv(sys.executable, program)  # noqa: S606 - ourselves
