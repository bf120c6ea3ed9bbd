"""Opens PostgreSQL connections the way Perdure needs them. Used by `pool` and `schema`."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict

from perdure.errors import ConfigError, DatabaseUnavailable

_PORTS = re.compile(r"[\d,]*")
_DEFAULTS: dict[str, Any] = {
    "application_name": "perdure",
    # a server that vanished without a word is noticed within half a minute
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}


class Settings(NamedTuple):
    """What differs between stores: how durable a commit is and how long to wait for a lock."""

    durability: str = "full"
    busy_timeout_s: float = 5.0


class Address(NamedTuple):
    """Where the database is. `shown` is how messages name it: without the password."""

    options: dict[str, Any]
    shown: str


def address_of(url: str) -> Address:
    """The parts of a database URL; what it leaves out gets our defaults."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error:
        given = {}
    if not given or not _PORTS.fullmatch(str(given.get("port", ""))):
        # not libpq's own text, not even as the cause: it quotes what it could not read, and that can be the password
        raise ConfigError(
            "the PostgreSQL URL cannot be read; write postgresql://user:password@host:port/database, and %-escape"
            " characters such as @ : / ? # in user and password",
            code="url_invalid",
        )
    host = given.get("host") or given.get("hostaddr") or "the local server"
    port = f":{given['port']}" if "port" in given else ""
    options = {**_DEFAULTS, **given, "client_encoding": "UTF8"}
    return Address(options, f"PostgreSQL database {given.get('dbname') or 'by default'} on {host}{port}")


def open_connection(address: Address) -> psycopg.Connection[tuple[Any, ...]]:
    """A new connection, in autocommit mode: the session says when a transaction begins."""
    try:
        return psycopg.connect(**address.options, autocommit=True)
    except psycopg.Error as error:
        raise DatabaseUnavailable(
            f"cannot connect to {address.shown}: {_reason(error)}; check that the server runs, and host, port, user and"
            " password of the database URL",
            code="database_unreachable",
        ) from error


def _reason(error: psycopg.Error) -> str:
    return " ".join(str(error).split())
