"""Asserts of the suite are explained like those of any test, though it lives in the package."""

from __future__ import annotations

import pytest

from tests.mariadb_server import mariadb_server
from tests.postgres_server import postgres_server

__all__ = ["mariadb_server", "postgres_server"]

pytest.register_assert_rewrite("perdure.testing.contract")
