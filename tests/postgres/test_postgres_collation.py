"""A database whose own order of texts is not that of their bytes."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from perdure.limit.key import key_of
from perdure.store.open import open_store
from perdure.store.rows import LimitRule
from perdure.testing.contract.rig import Rig
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres

VALUES = ["", "A", "B", "a", "b", "é"]
"""In the order of their bytes."""


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    name = "in_words"
    postgres_server.execute(f"DROP DATABASE IF EXISTS {name}")
    try:
        postgres_server.execute(f"CREATE DATABASE {name} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'")
    except psycopg.Error as error:  # before PostgreSQL 15, or built without ICU
        pytest.skip(f"this server knows no other order of texts: {error}")
    return postgres_server.url(name)


def test_the_keys_of_a_limit_are_found_and_shown_in_the_order_of_their_bytes(url: str) -> None:
    with closing(open_store(url)) as store:
        store.upgrade()
        rig = Rig(url, lambda _: store)
        names = ["tenant", "Tenant", "tenant s", "tenants"]
        rig.store.declare_limits([LimitRule(name, "at_once", 1) for name in names], [rig.kind], rig.now)
        for name in ("tenant", "tenants"):
            rig.store.enqueue([rig.new(limit_key=f"{key_of(name, value)}*1") for value in VALUES for _ in (1, 2)])
        while rig.claim(100):
            pass
        rig.store.set_limit("tenant", 1, key_of("tenant", "c"), rig.now)

        keys = [state.key for state in rig.store.limit_keys("tenant", rig.now)]
        assert keys == sorted(key_of("tenant", value) for value in [*VALUES, "c"])
        assert [limit.name for limit in rig.store.limits()] == sorted(names)
        rig.store.set_limit("tenant", 2, None, rig.now)
        rig.settle()
        assert len(rig.claim(100)) == len(VALUES)
