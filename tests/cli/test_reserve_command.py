"""`perdure reserve -- command`: the command runs while no job of the queue does; `perdure reservations` lists them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from perdure import Perdure as App
from tests.cli.terminal import Perdure, process, refusal, started
from tests.worker.patience import eventually

URL = {"PERDURE_URL": "shop.db"}
SAY = (sys.executable, "-c")


def test_a_command_runs_while_its_queue_is_reserved_and_its_status_is_passed_on(
    perdure: Perdure, here: App, folder: Path
) -> None:
    here.enqueue("send", {"to": "ann"})
    look = "import sys, perdure; print([q.reserved for q in perdure.Perdure('shop.db').queues.list()]); sys.exit(7)"

    ran = process("reserve", "--queue", "mail", "--", *SAY, look, cwd=folder, **URL)

    assert (ran.status, ran.out, ran.err) == (7, "[True]\n", "")
    [row] = here.reservations()
    assert (row.queue, row.status) == ("mail", "released")
    assert not here.queues.list()[0].reserved


def test_without_a_queue_everything_is_reserved(perdure: Perdure, here: App, folder: Path) -> None:
    here.enqueue("send", {"to": "ann"})

    ran = process("reserve", *SAY, "pass", cwd=folder, **URL)

    assert (ran.status, ran.err) == (0, "")
    assert [row.queue for row in here.reservations()] == ["*"]


def test_a_busy_queue_runs_nothing(perdure: Perdure, here: App, folder: Path) -> None:
    here.enqueue("send", {"to": "ann"})
    with here.reserve("mail", by="ann"):
        ran = perdure("reserve", "--queue", "mail", "--wait", "0.05", "--", *SAY, "print('ran')", cwd=folder, **URL)

    assert "could not be reserved within 0.05 s: queue 'mail' is reserved by ann until" in refusal(ran)
    assert ran.out == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--queue", "mial", "--", "true"), "did you mean 'mail'?"),
        (("--queue", "mail", "--", "no such command"), "the command 'no such command' could not be started"),
        (("--queue", "mail", "--expires", "0", "--", "true"), "--expires must be seconds, more than 0"),
        (("--queue", "mail"), "COMMAND"),
    ],
)
def test_what_cannot_be_run_is_refused(
    perdure: Perdure, here: App, folder: Path, arguments: tuple[str, ...], says: str
) -> None:
    here.enqueue("send", {"to": "ann"})

    ran = perdure("reserve", *arguments, cwd=folder, **URL)

    assert ran.status != 0
    assert says in ran.err
    assert {row.status for row in here.reservations()} <= {"released"}


WAITS = "import signal; print('on', flush=True); signal.pause()"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_signal_ends_the_command_and_releases_the_queue(
    here: App, folder: Path, number: signal.Signals, status: int
) -> None:
    here.enqueue("send", {"to": "ann"})
    with started("reserve", "--queue", "mail", "--", *SAY, WAITS, cwd=folder, **URL) as going_on:
        assert going_on.stdout is not None
        assert going_on.stdout.readline() == "on\n"
        going_on.send_signal(number)
        assert going_on.wait() == status
    assert [row.status for row in here.reservations()] == ["released"]


def test_ctrl_c_ends_the_command_and_releases_the_queue(here: App, folder: Path) -> None:
    """The terminal sends it to both: the command ends of it, and `perdure` waits for that."""
    here.enqueue("send", {"to": "ann"})
    waits = "import os, signal; signal.signal(2, 0); print(os.getpid(), flush=True); signal.pause()"
    with started("reserve", "--queue", "mail", "--", *SAY, waits, cwd=folder, **URL) as going_on:
        assert going_on.stdout is not None
        command = int(going_on.stdout.readline())
        going_on.send_signal(signal.SIGINT)
        assert here.reservations()[0].status == "active"
        os.kill(command, signal.SIGINT)
        assert going_on.wait() == 128 + signal.SIGINT
    assert [row.status for row in here.reservations()] == ["released"]


def test_it_is_renewed_while_the_command_runs(here: App, folder: Path) -> None:
    here.enqueue("send", {"to": "ann"})
    with started("reserve", "--queue", "mail", "--expires", "1", "--", *SAY, WAITS, cwd=folder, **URL) as going_on:
        assert going_on.stdout is not None
        going_on.stdout.readline()
        first = here.reservations()[0].expires_at
        eventually(lambda: here.reservations()[0].expires_at > first)
        going_on.send_signal(signal.SIGTERM)
        going_on.wait()


def test_a_command_whose_reservation_was_closed_goes_on_and_is_warned_once(here: App, folder: Path) -> None:
    here.enqueue("send", {"to": "ann"})
    with started("reserve", "--queue", "mail", "--expires", "0.1", "--", *SAY, WAITS, cwd=folder, **URL) as going_on:
        assert going_on.stdout is not None
        assert going_on.stderr is not None
        going_on.stdout.readline()
        [row] = here.store.active_reservations()
        here.store.close_reservation(row.id, "expired", here.clock.now())
        assert going_on.stderr.readline().startswith("the command goes on without its reservation: reservation ")
        going_on.send_signal(signal.SIGTERM)
        assert going_on.wait() == 128 + signal.SIGTERM
        assert going_on.stderr.read() == ""


def test_reservations_are_listed_with_who_holds_them(perdure: Perdure, here: App, folder: Path) -> None:
    here.enqueue("send", {"to": "ann"})
    assert perdure("reservations", cwd=folder, **URL).out == "No queue has been reserved yet.\n"
    with here.reserve(by="bob"):
        pass
    with here.reserve("mail", by="ann") as held:
        listed = perdure("reservations", "--json", cwd=folder, **URL).json()
        head, _, *rows = perdure("reservations", cwd=folder, **URL).out.splitlines()
        queues = perdure("queues", cwd=folder, **URL).out
        as_data = perdure("queues", "--json", cwd=folder, **URL).json()

    assert [(row["queue"], row["by"], row["status"]) for row in listed] == [
        ("mail", "ann", "active"),
        ("*", "bob", "released"),
    ]
    assert listed[0]["id"] == str(held.id)
    assert listed[0]["closed_at"] is None
    assert head.split() == ["queue", "status", "reserved", "ends", "by"]
    assert [row.split()[-1] for row in rows] == ["ann", "bob"]
    assert "* (all queues)" in rows[1]
    assert queues.splitlines()[-1] == "reserved: held for direct work; perdure reservations says by whom."
    assert {queue["name"]: queue["reserved"] for queue in as_data} == {"*": False, "mail": True}
    assert "reserved" not in perdure("queues", cwd=folder, **URL).out


def test_while_everything_is_reserved_every_queue_is_shown_so(perdure: Perdure, here: App, folder: Path) -> None:
    here.enqueue("send", {"to": "ann"})
    with here.reserve():
        assert all(queue["reserved"] for queue in perdure("queues", "--json", cwd=folder, **URL).json())
