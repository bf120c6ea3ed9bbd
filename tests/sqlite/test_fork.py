"""A process that forks: parent and child both go on, and neither touches what is the other's."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from perdure import DatabaseUnavailable, Perdure, TransactionError
from perdure.store.engine import Call, Op
from tests.app.children import in_child
from tests.app.contents import jobs_in


def whole(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        return bool(connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)])


def recipients(path: Path) -> set[str]:
    return {payload.split('"')[3] for payload in jobs_in(path)}


def test_parent_and_child_both_enqueue(send: Any, path: Path) -> None:
    send.enqueue("before")
    assert in_child(lambda: send.enqueue("child").state, meanwhile=lambda: send.enqueue("beside")) == "queued"
    send.enqueue("after")
    assert recipients(path) == {"before", "child", "beside", "after"}
    assert whole(path)


def test_a_child_sees_what_the_parent_wrote(app: Perdure, send: Any) -> None:
    job = send.enqueue("before")
    assert in_child(lambda: str(app.existing(job).payload)) == "{'to': 'before'}"


def test_a_grandchild_enqueues_too(send: Any, path: Path) -> None:
    send.enqueue("parent")
    answer = in_child(lambda: send.enqueue("child").state + in_child(lambda: send.enqueue("grandchild").state))
    assert answer == "queuedqueued"
    assert recipients(path) == {"parent", "child", "grandchild"}


def test_a_child_that_closes_the_app_takes_nothing_from_the_parent(app: Perdure, send: Any, path: Path) -> None:
    send.enqueue("before")

    def close() -> str:
        app.close()
        return str(send.enqueue("child").state)

    assert in_child(close) == "queued"
    send.enqueue("after")
    assert recipients(path) == {"before", "child", "after"}
    assert whole(path)


def open_files(path: Path) -> set[str]:
    """The descriptors of this process that lead to the database file."""
    fds = (entry for entry in Path("/proc/self/fd").iterdir() if entry.exists() or entry.is_symlink())
    return {fd.name for fd in fds if os.path.realpath(fd) == str(path.resolve())}


def test_no_connection_is_inherited(app: Perdure, send: Any, path: Path) -> None:
    send.enqueue("before")
    app.get(send.enqueue("read"))
    assert open_files(path)
    assert in_child(lambda: str(open_files(path))) == "set()"


def test_a_job_of_the_child_outlives_the_last_connection_of_the_parent(app: Perdure, send: Any, path: Path) -> None:
    """With an inherited connection SQLite takes no locks for the child: the parent would delete the -wal under it."""
    send.enqueue("before")
    closed, told = os.pipe()

    def enqueue_around_the_close() -> str:
        send.enqueue("beside")
        os.read(closed, 1)
        return str(send.enqueue("after").state)

    def close() -> None:
        app.close()
        os.write(told, b"x")

    assert in_child(enqueue_around_the_close, meanwhile=close) == "queued"
    assert recipients(path) == {"before", "beside", "after"}
    assert whole(path)


@contextmanager
def busy(act: Callable[[threading.Event], None]) -> Iterator[None]:
    """Another thread is in the middle of `act`, which ends a moment after the fork has begun."""
    inside = threading.Event()
    thread = threading.Thread(target=act, args=(inside,))
    thread.start()
    assert inside.wait(30)
    yield
    thread.join()


def linger() -> None:
    """Long enough for a fork to come in between; whether it does is the other thread's business."""
    threading.Event().wait(0.3)


def test_a_fork_while_a_thread_leads_a_group(app: Perdure, send: Any, path: Path) -> None:
    send.enqueue("before")
    runner: Any = app.store.runner  # type: ignore[attr-defined]  # beneath the protocol

    def lead(inside: threading.Event) -> None:
        def slow() -> Op[None]:
            yield Call("read_revision")
            inside.set()
            linger()

        runner.write(slow)

    with busy(lead):
        follower = threading.Thread(target=send.enqueue, args=("follower",))
        follower.start()
        assert in_child(lambda: send.enqueue("child").state) == "queued"
        follower.join()
    send.enqueue("after")
    assert recipients(path) == {"before", "child", "follower", "after"}
    assert whole(path)


def test_a_fork_while_a_thread_is_in_a_transaction(app: Perdure, send: Any, path: Path) -> None:
    send.enqueue("before")

    def block(inside: threading.Event) -> None:
        with app.transaction():
            send.enqueue("block")
            inside.set()
            linger()

    with busy(block):
        assert in_child(lambda: send.enqueue("child").state) == "queued"
    assert recipients(path) == {"before", "block", "child"}
    assert whole(path)


def test_forks_while_threads_write(send: Any, path: Path) -> None:
    send.enqueue("before")
    threads = [threading.Thread(target=_enqueue_some, args=(send, name)) for name in "abc"]
    for thread in threads:
        thread.start()
    answers = [in_child(partial(_enqueue_one, send, f"child {n}")) for n in range(10)]
    for thread in threads:
        thread.join()
    assert answers == ["queued"] * 10
    assert len(recipients(path)) == 1 + 3 * 25 + 10
    assert whole(path)


def test_a_child_forked_inside_a_transaction_is_refused_the_file(app: Perdure, send: Any, path: Path) -> None:
    def look() -> str:
        try:
            return str(len(list(app.jobs())))
        except DatabaseUnavailable as error:
            return error.code

    with app.transaction():
        send.enqueue("block")
        assert in_child(look) == "forked_in_use"
    send.enqueue("after")
    assert recipients(path) == {"block", "after"}


def test_a_child_does_not_commit_the_transaction_it_was_forked_in(app: Perdure, send: Any, path: Path) -> None:
    def leave(block: Any) -> str:
        try:
            block.__exit__(None, None, None)
        except TransactionError as error:
            return error.code
        return "committed"

    block = app.transaction()
    with block:
        send.enqueue("block")
        answer = in_child(lambda: leave(block))
        seen_before_the_end = jobs_in(path)
    assert (answer, seen_before_the_end) == ("tx_forked", [])
    assert recipients(path) == {"block"}
    assert whole(path)


def test_a_child_that_fails_inside_the_block_rolls_nothing_back(app: Perdure, send: Any, path: Path) -> None:
    def leave(block: Any) -> str:
        error = ZeroDivisionError()
        return str(block.__exit__(type(error), error, None))

    block = app.transaction()
    with block:
        send.enqueue("first")
        assert in_child(lambda: leave(block)) == "False"
        send.enqueue("second")
    assert recipients(path) == {"first", "second"}


def test_workers_of_a_forking_pool_enqueue_beside_their_parent(send: Any, path: Path) -> None:
    send.enqueue("before")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads is just what is tested
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=_enqueue_some, args=(send, name)) for name in "abcd"]
        for child in children:
            child.start()
    _enqueue_some(send, "parent")
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 4
    assert len(jobs_in(path)) == 1 + 5 * 25
    assert whole(path)


def _enqueue_one(send: Any, name: str) -> str:
    return str(send.enqueue(name).state)


def _enqueue_some(send: Any, name: str) -> None:
    for number in range(25):
        send.enqueue(f"{name} {number}")
