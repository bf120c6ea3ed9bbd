"""From a URL to a store. Called by `app` and the CLI; the only place that knows which URL means which database.

A URL as SQLAlchemy has it, with a driver in its scheme (postgresql+asyncpg://…), means the same database: one setting
serves both.

Other schemes come from installed packages, by the entry point group `perdure.stores`: scheme = factory, a callable that
takes the URL and the `StoreSettings` and returns a `Store`.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from perdure.errors import ConfigError
from perdure.store.borrowed import AsyncLoan, AwaitedRunner, BorrowedRunner, Loan
from perdure.store.protocols import Store, StoreFactory, StoreSettings
from perdure.store.store import SqlStore
from perdure.store.transaction import async_connection, driver_connection, unknown

DEFAULTS = StoreSettings()


STORES = "perdure.stores"

_DIALECTS = {
    "sqlite": "sqlite",
    **dict.fromkeys(("postgresql", "postgres"), "postgres"),
    **dict.fromkeys(("mysql", "mariadb"), "mysql"),
}


def open_store(url: str, settings: StoreSettings = DEFAULTS) -> Store:
    """The store at a path or URL. Nothing is opened yet: an unreachable one is noticed on first use."""
    match dialect_of(url):
        case "sqlite":
            return _sqlite(url, settings)
        case "postgres":
            return _postgres(url, settings)
        case "mysql":
            return _mysql(url, settings)
        case _:
            return _factory(_scheme(url))(url, settings)


def database_beside(url: str, suffix: str) -> str:
    """The URL of a database whose name ends in this, on the same server or in the same folder. Made if it is missing;
    for tests that run beside each other."""
    match dialect_of(url):
        case "sqlite":
            path = sqlite_path(url)
            return str(path.with_stem(f"{path.stem}_{suffix}"))
        case "postgres":
            from perdure.store.postgres.session import create_database
        case "mysql":
            from perdure.store.mysql.session import create_database
        case _:
            raise ConfigError(f"{url}: only SQLite, PostgreSQL and MariaDB can be tested so", code="url_unsupported")
    found = _NAMED.fullmatch(url)
    if found is None:
        raise ConfigError(f"{without_password(url)} names no database; add its name", code="url_invalid")
    create_database(url, f"{found[2]}_{suffix}")
    return f"{found[1]}{found[2]}_{suffix}{found[3]}"


_NAMED = re.compile(r"([^:]+://[^/?#]*/)([^/?#]+)(.*)")


def open_borrowed(tx: object) -> SqlStore:
    """A store on the database of the user's connection, every operation of which is a part of his transaction."""
    libraries = _libraries(driver_connection(tx))
    loan: Loan
    if libraries & {"psycopg", "psycopg2"}:
        from perdure.store.postgres.session import PostgresLoan

        loan = PostgresLoan()
    elif libraries & {"pymysql", "MySQLdb"}:
        from perdure.store.mysql.session import MySQLLoan

        loan = MySQLLoan()
    elif "sqlite3" in libraries:
        from perdure.store.sqlite.transaction import SqliteLoan

        loan = SqliteLoan()
    else:
        raise unknown(tx, "a connection of sqlite3, psycopg, psycopg2, PyMySQL or mysqlclient")
    return SqlStore(BorrowedRunner(tx, loan))


async def open_borrowed_async(tx: object) -> SqlStore:
    """The same for an asynchronous connection. Its plain operations are for threads: they wait for this event loop."""
    from asyncio import get_running_loop

    libraries = _libraries(await async_connection(tx))
    loan: AsyncLoan
    if libraries & {"psycopg", "asyncpg"}:
        from perdure.store.postgres.session import AsyncPostgresLoan

        loan = AsyncPostgresLoan(get_running_loop())
    elif libraries & {"aiomysql", "asyncmy"}:
        from perdure.store.mysql.session import AsyncMySQLLoan

        loan = AsyncMySQLLoan(get_running_loop())
    elif "aiosqlite" in libraries:
        from perdure.store.sqlite.transaction import AiosqliteLoan

        loan = AiosqliteLoan(get_running_loop())
    else:
        raise unknown(tx, "a connection of aiosqlite, psycopg, asyncpg, aiomysql or asyncmy")
    return SqlStore(AwaitedRunner(tx, loan))


def _libraries(connection: object) -> set[str]:
    """The libraries that its class comes from."""
    return {base.__module__.split(".")[0] for base in type(connection).__mro__}


def _factory(scheme: str) -> StoreFactory:
    """The factory of the installed package for this scheme."""
    from importlib.metadata import entry_points

    named = [entry for entry in entry_points(group=STORES) if entry.name == scheme]
    if not named:
        raise ConfigError(
            f"{scheme}:// is not a database Perdure knows; give a path, sqlite:///path, postgresql://host/name or"
            f" mysql://host/name, or install a package with a store for {scheme}:// (entry point group {STORES})",
            code="url_unsupported",
        )
    try:
        factory: StoreFactory = named[0].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{scheme}:// is opened by {named[0].value}, which cannot be imported ({error}); repair or reinstall the"
            " package that brings it",
            code="store_unknown",
        ) from error
    return factory


def is_sqlite(url: str) -> bool:
    """Whether a path or URL means an SQLite file."""
    return _scheme(url) == "sqlite"


def dialect_of(url: str) -> str | None:
    """Which of our databases a path or URL means; None: none of them."""
    return _DIALECTS.get(_scheme(url))


def _scheme(url: str) -> str:
    """Without SQLAlchemy's driver, if it is the scheme of one of our databases."""
    if "://" not in url:
        return "sqlite"
    scheme = url.split(":", 1)[0].lower()
    return dialect if (dialect := scheme.split("+")[0]) in _DIALECTS else scheme


def _sqlite(url: str, settings: StoreSettings) -> SqlStore:
    from perdure.store.sqlite.runner import SqliteRunner

    return SqlStore(SqliteRunner(sqlite_path(url), settings))


def sqlite_path(url: str) -> Path:
    """The file of an SQLite URL or path: sqlite:///relative.db, sqlite:////absolute.db, or the path itself."""
    name = url
    if "://" in url:
        parts = _parts(url)
        if parts.netloc:
            raise ConfigError(
                f"{url}: an SQLite URL has three slashes for a relative path (sqlite:///jobs.db) and four for an"
                " absolute one (sqlite:////var/lib/jobs.db)",
                code="url_invalid",
            )
        name = unquote(parts.path[1:])
    if name in ("", ":memory:"):
        raise ConfigError(
            f"{url!r} names no file, and Perdure needs one to keep jobs after the process ends; give a path such as"
            " jobs.db",
            code="url_invalid",
        )
    try:
        return Path(name).expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError(f"{url!r}: {error} Give the whole path instead of ~", code="url_invalid") from error


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"{url!r} is no URL ({error}); give a path, or sqlite:///path", code="url_invalid") from error


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    return re.sub(r"(://[^:/?#]*:).*@", r"\1***@", re.sub(r"(password=)[^&]*", r"\1***", url))


def _postgres(url: str, settings: StoreSettings) -> SqlStore:
    try:
        from perdure.store.postgres.session import PostgresServer
        from perdure.store.server import ServerRunner
    except ImportError as error:
        raise ConfigError(
            f"PostgreSQL needs the psycopg driver ({error}); install it with pip install 'perdure[postgres]'",
            code="driver_missing",
        ) from error
    server = PostgresServer(url, settings)
    return SqlStore(ServerRunner(server, server.bell))


def _mysql(url: str, settings: StoreSettings) -> SqlStore:
    try:
        from perdure.store.mysql.session import MySQLServer
        from perdure.store.server import ServerRunner
    except ImportError as error:
        raise ConfigError(
            f"MariaDB and MySQL need the PyMySQL driver ({error}); install it with pip install 'perdure[mysql]'",
            code="driver_missing",
        ) from error
    return SqlStore(ServerRunner(MySQLServer(url, settings)))
