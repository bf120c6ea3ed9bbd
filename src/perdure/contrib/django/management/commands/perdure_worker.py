"""`manage.py perdure_worker`: runs the tasks of all installed apps; with DEBUG, anew after each change of the code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from argparse import SUPPRESS
from typing import Any, ClassVar

from django.conf import settings
from django.core.management.base import CommandParser
from django.utils import autoreload

from perdure.contrib.django.backend import app_of
from perdure.contrib.django.management.commands import perdure

_TRY = "--try-code"


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
        changes = Changes()
        if settings.DEBUG and not options["noreload"]:
            changes.watch()
        try:
            super().handle(*args, **options)
        finally:
            if changes.were_seen:
                changes.begin_anew()


class Changes:
    """Django's own watch over the code. A change ends the worker as SIGTERM does: running tasks may finish first."""

    def __init__(self) -> None:
        self.were_seen = False
        self._next = threading.Event()

    def watch(self) -> None:
        autoreload.file_changed.connect(self._stop)
        reloader = autoreload.get_reloader()
        threading.Thread(
            target=reloader.run, args=(threading.main_thread(),), name="perdure-reload", daemon=True
        ).start()

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
