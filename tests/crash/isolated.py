"""The app of a worker process, as a global of a module: children of the worker import it to find `toil`."""

from __future__ import annotations

import os

from tests.crash import handlers

app = handlers.app_on(os.environ[handlers.DATABASE])
toil = app.kinds.get("toil")
