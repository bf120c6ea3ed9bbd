"""Log lines for people, on standard error. Used by commands that go on for a while."""

from __future__ import annotations

import logging


def log_on_stderr() -> None:
    """Show what is logged from INFO on, by Perdure and by the handlers. An app that has set up logging keeps it."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(min(root.level, logging.INFO))
