"""A machine whose wall clock is wrong: `python -m tests.databases.elsewhere SECONDS_AHEAD ACT URL`.

Nothing else of the machine is: its boot clock is right, and so is the server's wall clock. It says in one line what it
has done.
"""

from __future__ import annotations

import os
import sys
import time

from perdure import Perdure

app = Perdure("never-made.db")


@app.job
def note() -> None: ...


@app.job
def planned() -> None: ...


@app.job(isolation="process")
def log_in_a_child() -> bool:
    """Whether a line of its log has made its process connect to the database."""
    import logging

    logging.getLogger("elsewhere").warning("a line")
    return getattr(app.store, "runner")._pool is not None  # noqa: B009 - beneath the protocol


def set_wall_clock(ahead_s: float) -> None:
    """In this process, which is ours alone: whoever asks the machine for the time is told a wrong one."""
    right, right_ns = time.time, time.time_ns
    vars(time).update(time=lambda: right() + ahead_s, time_ns=lambda: right_ns() + round(ahead_s * 1e9))


def say(what: object) -> None:
    os.write(1, f"{what}\n".encode())


def enqueue(url: str) -> None:
    """The very first that this process does: nothing was asked before."""
    app.url = url
    say(note.options(delay=2).enqueue().id)


def lock(url: str) -> None:
    app.url = url
    say(app.lock("report", ttl=60).acquire())


def work(url: str) -> None:
    """Until its input ends."""
    app.url = url
    with app.worker().running():
        say("ready")
        sys.stdin.read()


if __name__ == "__main__":
    set_wall_clock(float(sys.argv[1]))
    globals()[sys.argv[2]](sys.argv[3])
