"""Django on the databases of the tests: the entry of DATABASES for each, and PyMySQL where mysqlclient is missing."""

from __future__ import annotations

from importlib.util import find_spec
from inspect import getsource
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pymysql


def entry(where: str, **options: object) -> dict[str, Any]:
    """For a path, or the URL of a server."""
    parts = urlsplit(where)
    if not parts.scheme:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": where, "OPTIONS": options}
    asked = dict(parse_qsl(parts.query))
    return {
        "ENGINE": f"django.db.backends.{parts.scheme}",
        "NAME": parts.path[1:],
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "HOST": asked.get("host") or asked.get("unix_socket") or parts.hostname or "",
        "PORT": parts.port or "",
    }


def settings_for(url: str) -> str:
    """The lines of a settings module for a server."""
    databases = f"DATABASES = {{'default': {entry(url)!r}}}\n"
    if not url.startswith("mysql:") or find_spec("MySQLdb") is not None:
        return databases
    return f"import pymysql\n\n\n{getsource(pymysql_as_mysqlclient)}\n\npymysql_as_mysqlclient()\n{databases}"


def need_mysqlclient() -> None:
    """Django's driver for MariaDB. It has no wheel for Linux, so PyMySQL may have to stand in for it."""
    if find_spec("MySQLdb") is None:
        pymysql_as_mysqlclient()


def pymysql_as_mysqlclient() -> None:
    """As PyMySQL's documentation has it, for Django."""
    pymysql.version_info = (2, 2, 1, "final", 0)  # the least that Django asks of mysqlclient
    pymysql.install_as_MySQLdb()
