"""The app of a worker process, as a global of a module: children of the worker import it to find `toil`."""

from __future__ import annotations

import os
from pathlib import Path

from tests.crash import handlers

app = handlers.app_on(Path(os.environ[handlers.DATABASE]))
toil = app.kinds.get("toil")
