"""Every statement as MariaDB or MySQL gets it, and its names. Used by `session`; `perdure db sql` needs no driver."""

from __future__ import annotations

import re
from enum import Enum
from functools import cache
from pathlib import Path
from typing import NamedTuple

from perdure.store import statements
from perdure.store.engine import Statements
from perdure.store.migrate import Naming

PREFIX = "perdure_"
MARKER = "%s"
_HERE = Path(__file__).parent

_RESERVED = re.compile(r"(?<![:\w`])(key|rank)\b(?!`)")
_PAIRS = re.compile(r"\(([\w.]+(?:, [\w.]+)+)\) ([<>])(=?) \((:\w+(?:, :\w+)+)\)")


class Flavour(Enum):
    """Which of the two a server is. They differ in collations, sequences, and how a shared lock is written."""

    MARIADB = "mariadb"
    MYSQL = "mysql8"

    @property
    def collation(self) -> str:
        """By code points, and without the rule that trailing spaces do not count: as on every other database."""
        return "utf8mb4_nopad_bin" if self is Flavour.MARIADB else "utf8mb4_0900_bin"

    def limits(self, wait_s: int, idle_s: int) -> str:
        """How long a statement waits for the lock of a row or of a table, and a transaction for its next statement.
        MySQL has no limit of the last sort."""
        waits = f"SET SESSION innodb_lock_wait_timeout = {wait_s}, lock_wait_timeout = {wait_s}"
        return f"{waits}, idle_transaction_timeout = {idle_s}" if self is Flavour.MARIADB else waits


def table(name: str) -> str:
    return PREFIX + name


def _id(value: str) -> str:
    """With hyphens; NULL stays NULL."""
    digits = f"LOWER(HEX({value}))"
    for place in (9, 14, 19, 24):
        digits = f"INSERT({digits}, {place}, 0, '-')"
    return digits


def _time(value: str) -> str:
    # in two steps: as microseconds alone it is too much for the server's calendar
    whole = f"TIMESTAMPADD(SECOND, FLOOR(({value}) / 1000000), '1970-01-01')"
    return f"CONCAT(DATE_FORMAT({whole}, '%Y-%m-%dT%H:%i:%s'), '.', LPAD(MOD({value}, 1000000), 6, '0'), 'Z')"


def naming(flavour: Flavour) -> Naming:
    """How a migration is written for this server. Two words of it are no tables."""
    counter = {
        Flavour.MARIADB: "SEQUENCE IF NOT EXISTS {} MINVALUE 100 INCREMENT BY 100",
        Flavour.MYSQL: "TABLE IF NOT EXISTS {} (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, room BIGINT NOT NULL)",
    }
    words = {
        "table_options": f"ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = {flavour.collation}",
        "position_counter": f"{counter[flavour].format(table('position'))} ENGINE = InnoDB",
    }

    def word(name: str) -> str:
        return words.get(name) or table(name)

    return Naming(word, _id, _time)


AROUND = ("SET NAMES utf8mb4", "COMMIT")
"""Around the statements that people apply themselves. Each of them commits by itself here, and may be repeated."""


class Dialect(NamedTuple):
    """The statements of one flavour: for our transactions that write, for those that read, and for the user's own."""

    writing: Statements
    reading: Statements
    borrowed: Statements


_WITHOUT_LOCKS = "\n-- fragment: for_update\n"
_AS_IT_IS_NOW = (
    "read_job",
    "read_idempotency_key",
    "read_business_key",
    "read_last_outcome",
    "these_ends",
    "these_live",
    "these_flows",
    "read_flow",
    "flow_with_key",
)
"""What a user's transaction must not read as it was when that began: by default its isolation is REPEATABLE READ."""


@cache
def dialect(flavour: Flavour) -> Dialect:
    own = own_text(flavour)
    writing = statements.load(own, table, MARKER, written)
    locked = {name: writing[name]._replace(sql=f"{writing[name].sql}\nLOCK IN SHARE MODE") for name in _AS_IT_IS_NOW}
    reading = statements.load(own + _WITHOUT_LOCKS, table, MARKER, written)
    return Dialect(writing, reading, {**writing, **locked})


def own_text(flavour: Flavour) -> str:
    """The overrides of this flavour."""
    files = ("statements.sql", f"{flavour.value}.sql")
    return "\n".join((_HERE / file).read_text("utf-8") for file in files)


def written(sql: str) -> str:
    """A shared statement in these servers' words: reserved names quoted, no order of pairs (no index serves it)."""
    return _RESERVED.sub(r"`\1`", _PAIRS.sub(_one_by_one, sql))


def _one_by_one(pairs: re.Match[str]) -> str:
    """(a, b) > (:x, :y) as (a > :x OR (a = :x AND b > :y)); the first comparison alone gives the range in the index."""
    columns, values = pairs[1].split(", "), pairs[4].split(", ")
    side, equal = pairs[2], pairs[3]
    *before, (last, value) = zip(columns, values, strict=True)
    found = f"{last} {side}{equal} {value}"
    for column, bound in reversed(before):
        found = f"({column} {side} {bound} OR ({column} = {bound} AND {found}))"
    return f"({columns[0]} {side}= {values[0]} AND {found})"


NAMING = naming(Flavour.MARIADB)
OWN = own_text(Flavour.MARIADB)
