"""SIGKILL at every point of a move: never are both databases open, and the same command brings all of it over once."""

from __future__ import annotations

import multiprocessing
import signal
from itertools import count
from pathlib import Path

import pytest

from perdure import Perdure
from perdure.ops.doctor import examine, is_healthy
from tests.databases.conftest import PAIRS, Makers, Rows, compared, copied, fill, rows_of, side
from tests.databases.doomed import move

AT_ONCE = 4
forked = multiprocessing.get_context("forkserver")
forked.set_forkserver_preload(["tests.databases.doomed"])


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_a_move_may_die_anywhere(left: str, right: str, new: Makers, tmp_path: Path, full_size: bool) -> None:
    """At full size at every point; else at every thirty-first."""
    stride = 1 if full_size else 31
    source = new(left)
    fill(source)
    before = rows_of(source)
    passed: list[str] = []
    for first in count(1, stride * AT_ONCE):
        points = range(first, first + stride * AT_ONCE, stride)
        urls = {nth: (new.filled_again(left, source), new(right)) for nth in points}
        exits = killed_at(urls, tmp_path)
        for nth, (one, other) in urls.items():
            passed = max(passed, (tmp_path / f"{nth}.reached").read_text().splitlines(), key=len)
            look(one, other, before, f"killed at {nth}: {passed[-1]}")
        if 0 in exits:
            break
    assert len(passed) > 10
    assert "a page of archive is written" in passed


def killed_at(urls: dict[int, tuple[str, str]], folder: Path) -> list[int | None]:
    doomed = [
        forked.Process(target=move, args=(one, other, nth, folder / f"{nth}.reached"))
        for nth, (one, other) in urls.items()
    ]
    for process in doomed:
        process.start()
    for process in doomed:
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
    return [process.exitcode for process in doomed]


def look(source: str, target: str, before: Rows, when: str) -> None:
    with side(source) as one, side(target) as other:
        closed, unfinished = one.store.closure(), other.store.closure()
        begun = any(other.store.count_rows().values())
    assert closed or unfinished or not begun, f"both are open, {when}"
    assert not begun or closed, f"it began without closing the source, {when}"

    copied(source, target)

    found, wanted = compared(rows_of(target)), compared(before)
    assert {name: len(rows) for name, rows in found.items()} == {name: len(rows) for name, rows in wanted.items()}, when
    assert compared(rows_of(source)) == found, when
    app = Perdure(target)
    assert is_healthy(examine(app.store)), when
    assert [queue.name for queue in app.queues.list() if queue.paused] == ["side"], when
    app.close()
