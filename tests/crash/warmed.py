"""Imported by the fork server only: what every process would otherwise load by itself, slowly, on first use."""

from __future__ import annotations

import perdure.store.mysql.session
import perdure.store.open
import perdure.store.postgres.session
import perdure.store.sqlite.runner
import perdure.worker.worker  # noqa: F401 - loaded, not used
from tests.crash import handlers, points  # noqa: F401 - as above

_app = handlers.app_on("/nonexistent/never-opened.db")
_codecs = [_app.kinds.get(name).codec for name in _app.kinds.versions()]
