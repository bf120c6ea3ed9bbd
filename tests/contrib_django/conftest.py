"""The project in examples/django, in this process and as processes of its own."""

from __future__ import annotations

from tests.postgres_server import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]
