"""The servers that are compared with SQLite."""

from __future__ import annotations

from tests.mariadb_server import mariadb_server
from tests.postgres_server import postgres_server

__all__ = ["mariadb_server", "postgres_server"]
