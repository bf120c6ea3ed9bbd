"""What a database user needs for what it does: read, enqueue, or work. Printed by `perdure db grants`; on a server the
checks of `perdure db check` ask which of them the user has.

Upgrading needs the owner of the tables (on MariaDB and MySQL: the rights to change them), and nobody else can.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from perdure.store.migrate import migrations_of
from perdure.store.rows import Fact, Verdict
from perdure.store.tables import tables

Needs = Mapping[str, str]
"""Privileges by table."""

NEW_JOB = ("job", "ready", "tag", "queue", "edge", "flow", "idempotency_key", "business_key")
"""What an enqueue inserts into: also a flow that is written as a whole."""
NOT_NEW = "batches, at_once=, and after= what is there already need work"
"""Not for who may only enqueue: these change rows of others, and may have to end a flow, or to skip a job, at once."""
ALL = "SELECT, INSERT, UPDATE, DELETE"


def needs(purpose: str) -> Needs:
    """The privileges on each table for `read`, `enqueue` (which reads too) or `work` (which does both)."""
    match purpose:
        case "read":
            found = dict.fromkeys(tables(), "SELECT")
        case "enqueue":
            # an enqueue frees a key whose job is gone; whose it is now, it reads as last committed
            found = {**needs("read"), **dict.fromkeys(NEW_JOB, "SELECT, INSERT")}
            found["business_key"] = "SELECT, INSERT, DELETE"
        case _:
            found = dict.fromkeys(tables(), ALL)
    return {"schema_version": "SELECT", **found}


SEQUENCES = {
    "read": {"position": "SELECT", "asleep": "SELECT"},
    "enqueue": {"position": "SELECT, USAGE", "asleep": "SELECT, UPDATE"},
    "work": {"position": "SELECT, USAGE, UPDATE", "asleep": "SELECT, UPDATE"},
}
"""The same for the sequences of PostgreSQL: places, and which workers sleep."""
PURPOSES = tuple(SEQUENCES)

_VIEW = re.compile(r"\bVIEW \{(\w+)\}")


def needs_on_mysql(purpose: str) -> Needs:
    """The same for MariaDB and MySQL, where nobody sees without a right to it that a table or a view is there. Places
    come from a sequence on MariaDB too, and from a table on MySQL."""
    views = [name for step in migrations_of("mysql") for name in _VIEW.findall(step.text)]
    found = {**needs(purpose), **dict.fromkeys([*views, "mutex", "position"], "SELECT")}
    if purpose == "enqueue":
        # who makes a queue locks a row first: on MySQL by an UPDATE that changes nothing
        found |= {"mutex": "SELECT, UPDATE (name)", "position": "SELECT, INSERT, DELETE"}
    if purpose == "work":
        found |= {"mutex": ALL, "position": ALL}
    return found


def each_need(needs: Needs) -> Iterator[tuple[str, str]]:
    """Every table with every single privilege on it."""
    return ((name, privilege) for name, privileges in needs.items() for privilege in privileges.split(", "))


def user_fact(user: str, able: Sequence[str], dialect: str = "") -> Fact:
    """What `perdure db check` says about the user of the URL, who is able to do these things."""
    if able:
        return Fact("user", f"{user}, who may {', '.join(able)}")
    see = f"see perdure db grants {dialect}--role {user} --for read"
    return Fact("user", f"{user}, who lacks rights", Verdict.PROBLEM, see)


def on_postgres(role: str, purpose: str) -> Iterator[str]:
    """The statements that give the role what it needs. The owner of the tables, or a superuser, runs them."""
    from perdure.store.postgres.statements import SCHEMA, table

    named = '"' + role.replace('"', '""') + '"'
    yield f"GRANT USAGE ON SCHEMA {SCHEMA} TO {named}"
    for name, privileges in needs(purpose).items():
        yield f"GRANT {privileges} ON {table(name)} TO {named}"
    for name, privileges in SEQUENCES[purpose].items():
        yield f"GRANT {privileges} ON SEQUENCE {table(name)} TO {named}"


def on_mysql(account: str, purpose: str) -> Iterator[str]:
    """The same for `user` or `user@host` of MariaDB and MySQL, in the database that is in use when they are run."""
    from perdure.store.mysql.statements import table

    for name, privileges in needs_on_mysql(purpose).items():
        yield f"GRANT {privileges} ON {table(name)} TO {_account(account)}"


def _account(given: str) -> str:
    """Quoted. The last @ begins the host; without one the server takes '%', or a role of that name."""
    user, at, host = given.rpartition("@")
    return "@".join("`" + part.replace("`", "``") + "`" for part in ([user, host] if at else [host]))
