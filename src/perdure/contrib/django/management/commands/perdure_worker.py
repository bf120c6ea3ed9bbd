"""`manage.py perdure_worker`: runs the tasks of all installed apps; with DEBUG, anew after each change of the code."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any, ClassVar

from django.conf import settings
from django.core.management.base import CommandParser
from django.utils import autoreload

from perdure.contrib.django.management.commands import perdure


class Command(perdure.Command):
    """Its options are those of `perdure worker`, and `--noreload`."""

    help = "Run tasks until a signal says stop."
    requires_system_checks: ClassVar[Any] = "__all__"
    command: ClassVar[tuple[str, ...]] = ("worker",)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--noreload", action="store_true", help="Do not start anew when the code changes.")

    def handle(self, *args: Any, **options: Any) -> None:
        changes = Changes()
        if settings.DEBUG and not options["noreload"]:
            changes.watch()
        try:
            super().handle(*args, **options)
        finally:
            if changes.were_seen:
                os.execv(sys.executable, autoreload.get_child_arguments())  # noqa: S606 - this program again


class Changes:
    """Django's own watch over the code. A change ends the worker as SIGTERM does: running tasks may finish first."""

    def __init__(self) -> None:
        self.were_seen = False

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
        return True
