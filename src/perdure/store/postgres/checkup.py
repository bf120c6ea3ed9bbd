"""The condition of a PostgreSQL database, for `perdure db check`. Called by `session`; changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from perdure.store import migrate
from perdure.store.grants import PURPOSES, SEQUENCES, each_need, needs, user_fact
from perdure.store.migrate import Applied
from perdure.store.postgres.statements import NAMING, SCHEMA, table
from perdure.store.rows import Fact, Verdict

Connection = psycopg.Connection[tuple[Any, ...]]

_SORTS = {"r": "table", "i": "index", "v": "view", "S": "sequence"}
_DURABLE = ("fsync", "full_page_writes", "synchronous_commit")


def facts(connection: Connection, where: str, done: Sequence[Applied]) -> list[Fact]:
    """What is known about the database, with verdicts. `done`: the steps that it has recorded."""
    known = migrate.migrations_of("postgres")
    found = [_server(connection, where), migrate.schema_fact(known, done)]
    if done:
        found.append(migrate.objects_fact(known, done, NAMING, _objects(connection)))
        if all(fact.verdict is not Verdict.PROBLEM for fact in found):  # then every table is there to ask about
            found.append(_user(connection))
    return [*found, *_durability(connection)]


def _server(connection: Connection, where: str) -> Fact:
    version = connection.info.server_version // 10_000
    value = f"{where}, version {version}"
    if _one(connection, "SELECT pg_is_in_recovery()"):
        return Fact("server", value, Verdict.WARNING, "a standby: nothing can be written; give the primary's URL")
    if version < 13:
        return Fact("server", value, Verdict.WARNING, "Perdure is tested with 13 and later")
    return Fact("server", value)


def _objects(connection: Connection) -> set[tuple[str, str]]:
    query = "SELECT relkind::text, relname::text FROM pg_class WHERE relnamespace = %s::regnamespace"
    rows = connection.execute(query, (SCHEMA,)).fetchall()
    # an index that could not be built to its end is there, but not used
    broken = {name for (name,) in connection.execute(_INVALID, (SCHEMA,))}
    return {(_SORTS[sort], name) for sort, name in rows if sort in _SORTS and name not in broken}


_INVALID = """
SELECT c.relname::text
FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE c.relnamespace = %s::regnamespace AND NOT i.indisvalid"""


def _user(connection: Connection) -> Fact:
    """What the user of the URL may do."""
    user = _one(connection, "SELECT current_user::text")
    able = [purpose for purpose in PURPOSES if _may(connection, purpose)]
    owner = "pg_has_role(current_user, relowner, 'USAGE')"
    if _one(connection, f"SELECT {owner} FROM pg_class WHERE oid = '{table('schema_version')}'::regclass"):  # noqa: S608
        able.append("upgrade")
    return user_fact(str(user), able)


def _may(connection: Connection, purpose: str) -> bool:
    return all(bool(_one(connection, question)) for question in _questions(purpose))


def _questions(purpose: str) -> Iterator[str]:
    for name, privilege in each_need(needs(purpose)):
        yield f"SELECT has_table_privilege('{table(name)}', '{privilege}')"
    for name, privilege in each_need(SEQUENCES[purpose]):
        yield f"SELECT has_sequence_privilege('{table(name)}', '{privilege}')"


def _durability(connection: Connection) -> Iterator[Fact]:
    for setting in _DURABLE:
        value = _one(connection, f"SELECT current_setting('{setting}')")
        if value != "off":
            yield Fact(setting, str(value))
        elif setting == "synchronous_commit":
            yield Fact(setting, "off", note='Perdure sets it to on in its own transactions, unless durability="normal"')
        else:
            yield Fact(setting, "off", Verdict.WARNING, "a crash of the machine can lose or damage jobs")


def _one(connection: Connection, query: str) -> object:
    row = connection.execute(query.encode()).fetchone()
    return None if row is None else row[0]
