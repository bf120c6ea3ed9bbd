"""`perdure worker --reload`: the worker begins anew when a source file has changed. Used by `worker`; for development.

Looks at files, twice a second: that needs no library, and some thousand files take a few milliseconds.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

EVERY_S = 0.5
_NOT_SOURCES = ("node_modules", "site-packages", "__pycache__")
_MOST = 10_000

logger = logging.getLogger("perdure.cli")

Seen = dict[str, tuple[int, int]]


class SourceWatch:
    """The Python files below the working directory, and those of modules that were imported from elsewhere."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._look()
        self.has_changed = False

    def changed(self) -> str | None:
        """A file that is new, gone or different since the last time. None: no file is."""
        before, self._seen = self._seen, self._look()
        for path in {**before, **self._seen}:
            if before.get(path) != self._seen.get(path) and (path in before or self._is_here(path)):
                return os.path.relpath(path, self._folder)
        return None

    def wait(self) -> str:
        """Until a file has changed."""
        while (path := self.changed()) is None:
            time.sleep(EVERY_S)
        return path

    def stop_on_change(self, stop: Callable[[], object]) -> None:
        """In a thread of its own, for as long as the process lives: call `stop` once a file has changed."""

        def watch() -> None:
            path = self.wait()
            logger.info("%s has changed; the worker begins anew when its jobs have ended", path)
            self.has_changed = True
            stop()

        threading.Thread(target=watch, name="perdure-reload", daemon=True).start()

    def _look(self) -> Seen:
        seen: Seen = {}
        for path in [*self._below(), *self._imported()]:
            with suppress(OSError):  # it is gone, or not to be read
                found = os.stat(path)  # noqa: PTH116 - thousands of them
                seen[path] = (found.st_mtime_ns, found.st_size)
        return seen

    def _below(self) -> Iterator[str]:
        found = 0
        for folder, folders, files in os.walk(self._folder):
            folders[:] = [
                name
                for name in folders
                if not name.startswith(".") and name not in _NOT_SOURCES and not _is_environment(folder, name)
            ]
            for name in files:
                if name.endswith(".py") and found < _MOST:
                    found += 1
                    yield os.path.join(folder, name)  # noqa: PTH118 - as above

    def _imported(self) -> Iterator[str]:
        installed = tuple({sys.prefix, sys.base_prefix, sys.exec_prefix})
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and not file.startswith(installed) and not self._is_here(file):
                yield file

    def _is_here(self, path: str) -> bool:
        """What is imported from elsewhere later on has not changed."""
        return path.startswith(str(self._folder))


def _is_environment(folder: str, name: str) -> bool:
    return (Path(folder) / name / "pyvenv.cfg").exists()


def begin_anew() -> NoReturn:
    """The same command in the same process, with nothing imported: whatever it has left behind is gone."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - ourselves
