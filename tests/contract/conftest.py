"""Asserts of the suite are explained like those of any test, though it lives in the package."""

from __future__ import annotations

import pytest

from tests.postgres_server import postgres_server

__all__ = ["postgres_server"]

pytest.register_assert_rewrite("perdure.testing.contract")
