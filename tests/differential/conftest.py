"""The servers that are compared with SQLite."""

from __future__ import annotations

from tests.postgres_server import postgres_server

__all__ = ["postgres_server"]
