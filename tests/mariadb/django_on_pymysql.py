"""A program of its own: Django on PyMySQL instead of mysqlclient, which a process decides once. Argument: the URL."""

from __future__ import annotations

import sys
from contextlib import closing

from pymysql.connections import Connection

from perdure import Perdure
from tests.app.doors import DjangoAtomic
from tests.django_databases import pymysql_as_mysqlclient


def main(url: str) -> None:
    """Enqueue one job in a transaction that commits, and one in a transaction that does not."""
    pymysql_as_mysqlclient()
    app = Perdure(url)

    @app.job(queue="mail")
    def send(to: str) -> str:
        return to

    with closing(DjangoAtomic(url)) as door:
        assert isinstance(door.tx.connection, Connection)
        send.options(tx=door.tx).enqueue("committed")
        door.commit()
    with closing(DjangoAtomic(url)) as door:
        send.options(tx=door.tx).enqueue("rolled back")
        door.rollback()
    app.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
