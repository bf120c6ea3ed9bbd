"""The condition of a MariaDB or MySQL database, for `perdure db check`. Called by `session`; changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pymysql

from perdure.store import migrate
from perdure.store.grants import PURPOSES, each_need, needs_on_mysql, user_fact
from perdure.store.migrate import Applied
from perdure.store.mysql.driver import is_denied
from perdure.store.mysql.statements import Flavour, naming, table
from perdure.store.rows import Fact, Verdict
from perdure.store.tables import tables

_OBJECTS = """
SELECT IF(table_type = 'VIEW', 'view', IF(table_type = 'SEQUENCE', 'sequence', 'table')), table_name
FROM information_schema.tables
WHERE table_schema = DATABASE()
UNION
SELECT 'index', index_name
FROM information_schema.statistics
WHERE table_schema = DATABASE()"""

_DURABLE = {"innodb_flush_log_at_trx_commit": "1", "innodb_doublewrite": "1", "sync_binlog": "1"}


def facts(cursor: Any, flavour: Flavour, where: str, done: Sequence[Applied]) -> list[Fact]:
    """What is known about the database, with verdicts. `done`: the steps that it has recorded."""
    known = migrate.migrations_of("mysql")
    found = [Fact("server", f"{where}, version {_one(cursor, 'SELECT VERSION()')}"), migrate.schema_fact(known, done)]
    if done:
        user = _user(cursor)
        if user.verdict is not Verdict.PROBLEM:  # what a user has no rights for, it does not see
            cursor.execute(_OBJECTS)
            found.append(migrate.objects_fact(known, done, naming(flavour), set(cursor.fetchall())))
        found.append(user)
    return [*found, *_durability(cursor)]


# -- who may do what -------------------------------------------------------------------------------------------------

_CHANGES = ("ALTER", "CREATE", "CREATE VIEW", "DROP", "INDEX")
"""What an upgrade needs, besides the rights of a worker."""

_EVERYWHERE = """
SELECT COUNT(DISTINCT privilege_type)
FROM (
    SELECT grantee, privilege_type
    FROM information_schema.user_privileges
    UNION ALL
    SELECT grantee, privilege_type
    FROM information_schema.schema_privileges
    WHERE DATABASE() LIKE table_schema
) AS p
WHERE grantee = %s AND privilege_type IN %s"""


def _user(cursor: Any) -> Fact:
    """What the user of the URL may do."""
    account = _one(cursor, "SELECT CURRENT_USER()")
    able = [purpose for purpose in PURPOSES if _may(cursor, purpose)]
    user, _, host = account.rpartition("@")
    cursor.execute(_EVERYWHERE, (f"'{user}'@'{host}'", _CHANGES))
    if cursor.fetchone() == (len(_CHANGES),):
        able.append("upgrade")
    return user_fact(account, able, "--dialect mysql ")


def _may(cursor: Any, purpose: str) -> bool:
    return not any(_denied(cursor, _use(name, right)) for name, right in each_need(needs_on_mysql(purpose)))


def _use(name: str, right: str) -> str:
    """A statement that needs this right. To be explained, not run."""
    verb, _, column = right.partition(" ")
    columns = [column.strip("()")] if column else _columns(name)
    changes = ", ".join(f"`{one}` = `{one}`" for one in columns)
    uses = {
        "SELECT": "SELECT 1 FROM {}",
        "INSERT": "INSERT INTO {} () VALUES ()",
        "UPDATE": f"UPDATE {{}} SET {changes} WHERE FALSE",  # noqa: S608
        "DELETE": "DELETE FROM {} WHERE FALSE",
    }
    return uses[verb].format(table(name))


def _columns(name: str) -> Sequence[str]:
    """Those that Perdure writes."""
    known = tables().get(name)
    return known.columns if known else {"position": ["room"], "mutex": ["name"]}.get(name, [])


def _denied(cursor: Any, statement: str) -> bool:
    """Rights are looked at before anything else that may be wrong: that the transaction is read only, say."""
    try:
        cursor.execute(f"EXPLAIN {statement}")
    except pymysql.Error as error:
        return is_denied(error)
    return False


# -- what a crash may cost -------------------------------------------------------------------------------------------


def _durability(cursor: Any) -> Iterator[Fact]:
    has_binlog = _one(cursor, "SELECT @@log_bin") == "1"
    for setting, durable in _DURABLE.items():
        value = {"ON": "1", "OFF": "0"}.get(said := _one(cursor, f"SELECT @@{setting}"), said)
        if value == durable:
            yield Fact(setting, value)
        elif setting != "sync_binlog" or has_binlog:
            yield Fact(setting, value, Verdict.WARNING, "a crash of the machine can lose jobs; set it to 1")


def _one(cursor: Any, query: str) -> str:
    cursor.execute(query)
    return str(cursor.fetchone()[0])
