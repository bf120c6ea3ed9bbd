"""A transaction that is given up from another thread."""

from __future__ import annotations

import sqlite3
import threading

from perdure.store.sqlite.transaction import SqliteTransaction


def test_giving_up_one_that_ends_just_now_does_nothing() -> None:
    """Its connection is closed while whoever gives it up waits for the statement under way."""
    transaction = SqliteTransaction(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False))
    answers: list[bool] = []
    asked = threading.Event()

    def give_up() -> None:
        asked.set()
        answers.append(transaction.give_up("too long"))

    thread = threading.Thread(target=give_up)
    with transaction._busy:
        transaction.close()
        thread.start()
        assert asked.wait(60)
        thread.join(0.2)  # long enough for it to interrupt what is closed
    thread.join(60)
    assert answers == [False]
    assert transaction.given_up is None


def test_giving_up_one_that_has_committed_takes_nothing_back() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    transaction, turns_given_away = SqliteTransaction(connection), []
    transaction.let_go = lambda: turns_given_away.append(1)
    connection.execute("BEGIN IMMEDIATE")
    transaction.execute("CREATE TABLE kept (x)")
    transaction.commit("the database")

    assert not transaction.give_up("too long")
    assert (transaction.given_up, turns_given_away) == (None, [])
    assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
    connection.execute("INSERT INTO kept VALUES (1)")
