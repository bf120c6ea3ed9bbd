"""Servers and programs that tests need and no wheel brings. `python -m tests.needs` says which are missing here, a line
each, as `make test` does at its end.

A test asks by `need`: where what it needs is missing it is skipped, or fails if PERDURE_TEST_ALL_SERVERS is set, as
`.ci/run` does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from importlib import import_module
from typing import NoReturn

import pytest

MUST_RUN = "PERDURE_TEST_ALL_SERVERS"
GIVEN_MYSQL = "PERDURE_TEST_MYSQL_URL"


def program(name: str) -> str | None:
    """Where it is; also where users other than root do not look."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin:/sbin")


def _of(*programs: str, install: str) -> Callable[[], str | None]:
    def why_not() -> str | None:
        lost = [name for name in programs if program(name) is None]
        return f"there is no {' and no '.join(lost)}; {install}" if lost else None

    return why_not


def _mysqlclient() -> str | None:
    try:
        import_module("MySQLdb.cursors")
    except ImportError as error:
        return f"{error}; pip install mysqlclient, which needs a compiler and libmariadb-dev"
    return None


@cache
def _networks() -> str | None:
    """Tried: a container may have the program and root, and not the right."""
    ip = program("ip")
    if ip is None or os.geteuid() != 0:
        return "they need root and the program ip (Debian: apt-get install iproute2)"
    name = f"perdure-try-{os.getpid()}"
    steps = ("netns", "add", name), ("-n", name, "link", "add", "one", "type", "veth", "peer", "name", "two")
    try:
        for step in steps:
            subprocess.run([ip, *step], check=True, capture_output=True, timeout=30)
    except subprocess.CalledProcessError as refused:
        return str(refused.stderr.decode().strip())
    finally:
        subprocess.run([ip, "netns", "del", name], check=False, capture_output=True, timeout=30)
    return None


class Need(Enum):
    """What there may be or not. The value: how it is called, and why it is missing; None: it is here."""

    MARIADB = (
        "MariaDB",
        _of("mariadbd", "mariadb-install-db", install=f"install mariadb-server, or name a server in {GIVEN_MYSQL}"),
    )
    MARIADB_TOOLS = (
        "backups of MariaDB",
        _of("mariadb-dump", "mariadb", install="install mariadb-client"),
    )
    MYSQLCLIENT = ("mysqlclient", _mysqlclient)
    PGBOUNCER = ("PgBouncer", _of("pgbouncer", install="install pgbouncer"))
    NETWORKS = ("network namespaces", _networks)

    def __init__(self, title: str, why_not: Callable[[], str | None]) -> None:
        self.title = title
        self.why_not = why_not


def need(what: Need) -> None:
    """Go on only if this is here."""
    reason = what.why_not()
    if reason is not None:
        do_without(f"{what.title}: {reason}")


def do_without(reason: str) -> NoReturn:
    """Skip the test, or fail it where nothing may be missing."""
    if os.environ.get(MUST_RUN):
        pytest.fail(reason)
    pytest.skip(reason)


def missing() -> Iterator[str]:
    """What is not tested here, and why. A MariaDB that somebody names is as good as one that is installed."""
    for what in Need:
        reason = None if what is Need.MARIADB and os.environ.get(GIVEN_MYSQL) else what.why_not()
        if reason is not None:
            yield f"{what.title}: {reason}"


if __name__ == "__main__":
    for line in missing():
        print(line)  # noqa: T201 - its purpose
