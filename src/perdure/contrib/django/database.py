"""Where the jobs of a backend are: in one of Django's databases, or elsewhere. Used by `backend` and `checks`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from perdure.errors import ConfigError
from perdure.store.open import dialect_of, sqlite_path

_OF_DJANGO = ("assume_role", "isolation_level", "pool", "server_side_binding")
"""Options of Django's PostgreSQL backend that it does not hand on to the driver."""
_SQLITE = ("sqlite3", "spatialite")
_PORTS = {"postgres": 5432, "mysql": 3306}
_HERE = ("127.0.0.1", "::1")
_TLS = {"ca": "ssl_ca", "cert": "ssl_cert", "key": "ssl_key"}


class Home:
    """One of Django's databases, by its alias; or, with a URL, a database that Django does not know."""

    def __init__(self, alias: str, url: str | None) -> None:
        self.alias = alias
        self._url = url

    @property
    def is_djangos(self) -> bool:
        return self._url is None

    @property
    def is_in_memory(self) -> bool:
        """Whether it can hold no jobs: Django's test database on SQLite, unless it is given a name."""
        settings = connections[self.alias].settings_dict
        return self.is_djangos and _engine(settings) in _SQLITE and _is_no_file(str(settings["NAME"]))

    @property
    def url(self) -> str:
        """Read anew each time: a test run gives Django's databases other names."""
        return url_of(self.alias, connections[self.alias].settings_dict) if self._url is None else self._url

    @property
    def named_twice(self) -> str | None:
        """The entry of DATABASES that the URL names, too: only without the URL its transactions are joined. None: it
        names none, or there is no URL."""
        if self._url is None:
            return None
        place = _place(self._url)
        return next((alias for alias in connections if place is not None and _place_of(alias) == place), None)

    def open_transaction(self) -> Any:
        """Django's connection, if a transaction is open on it in this thread. None: there is none. Opens nothing."""
        connection: Any = connections[self.alias]
        is_open = connection.in_atomic_block or not connection.autocommit
        return connection if connection.connection is not None and is_open else None

    def __repr__(self) -> str:
        return f"Django's database {self.alias!r}" if self._url is None else "the database of OPTIONS['URL']"


def url_of(alias: str, settings: Mapping[str, Any]) -> str:
    """The database of an entry in DATABASES, as Perdure names it."""
    match _engine(settings):
        case engine if engine in _SQLITE:
            return _sqlite(alias, str(settings["NAME"]))
        case "postgresql" | "postgis":
            return _server("postgresql", settings, _postgres_options(settings))
        case "mysql":
            return _server("mysql", settings, _mysql_options(settings))
        case _:
            raise ImproperlyConfigured(
                f"DATABASES[{alias!r}] is {settings['ENGINE']}, which Perdure cannot keep jobs in; name another"
                " database in OPTIONS of TASKS: DATABASE (one of Django's) or URL"
            )


def _place_of(alias: str) -> tuple[object, ...] | None:
    """The place of an entry in DATABASES. None: it can hold no jobs."""
    try:
        return _place(url_of(alias, connections[alias].settings_dict))
    except ImproperlyConfigured:
        return None


def _place(url: str) -> tuple[object, ...] | None:
    """The same for every way to write down one database, whoever logs in. None: the URL is none of ours, or wrong,
    which is told when it is opened."""
    dialect = dialect_of(url)
    if dialect is None:
        return None
    try:
        if dialect == "sqlite":
            return dialect, sqlite_path(url).resolve()
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        host = query.get("host") or query.get("unix_socket") or parts.hostname or "localhost"
        port = query.get("port") or parts.port or _PORTS[dialect]
    except (ConfigError, ValueError):
        return None
    return dialect, "localhost" if host in _HERE else host, str(port), unquote(parts.path[1:])


def _engine(settings: Mapping[str, Any]) -> str:
    return str(settings["ENGINE"]).rpartition(".")[2]


def _is_no_file(name: str) -> bool:
    return ":memory:" in name or name.startswith("file:")


def _sqlite(alias: str, name: str) -> str:
    if _is_no_file(name):
        raise ImproperlyConfigured(
            f"DATABASES[{alias!r}] is {name!r}, which is no file, and jobs are kept in one; in tests, write with"
            f" task_backends['default'].app.testing(tx=connection), or name a file: DATABASES[{alias!r}]['TEST'] ="
            " {'NAME': BASE_DIR / 'test.sqlite3'}"
        )
    return str(Path(name).absolute())


def _server(scheme: str, settings: Mapping[str, Any], options: Mapping[str, str]) -> str:
    user, password = quote(str(settings["USER"]), safe=""), quote(str(settings["PASSWORD"]), safe="")
    host, port = str(settings["HOST"]), str(settings["PORT"])
    who = f"{user}:{password}@" if password else f"{user}@" if user else ""
    where = "" if host.startswith("/") else f"[{host}]" if ":" in host else host
    query = f"?{urlencode(options, quote_via=quote)}" if options else ""
    return f"{scheme}://{who}{where}{f':{port}' if port else ''}/{quote(str(settings['NAME'] or ''), safe='')}{query}"


def _postgres_options(settings: Mapping[str, Any]) -> dict[str, str]:
    given = {name: str(value) for name, value in settings["OPTIONS"].items() if name not in _OF_DJANGO}
    host = str(settings["HOST"])
    return given | ({"host": host} if host.startswith("/") else {})


def _mysql_options(settings: Mapping[str, Any]) -> dict[str, str]:
    options, host = settings["OPTIONS"], str(settings["HOST"])
    socket = host if host.startswith("/") else options.get("unix_socket")
    tls = {_TLS[name]: str(value) for name, value in options.get("ssl", {}).items() if name in _TLS}
    return tls | ({"unix_socket": str(socket)} if socket else {})
