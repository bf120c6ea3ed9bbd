"""Tables in narrow terminals and in pipes: no column of single letters, and no blanks at the ends of lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import Perdure as App
from tests.cli.terminal import Perdure, process
from tests.unit.patient import Patient

LISTS = [("jobs",), ("runs",), ("nodes",), ("kinds",), ("queues",), ("status",), ("db", "check"), ("doctor",)]


@pytest.fixture
def busy(here: App) -> App:
    """Every list has something in it, with long names and errors."""
    here.enqueue("send", {"to": "nobody"})
    here.enqueue("resize", {"width": 1}, queue="a queue with a rather long name")
    here.worker(poll_s=0.02).run(until_idle=True)
    here.enqueue("resize", {"width": 1}, delay=3_600)
    here.queues.pause("mail")
    return here


def table_of(out: str) -> list[str]:
    """The lines of the first table: its head, and what is below the rule."""
    lines = out.splitlines()
    rule = next(number for number, line in enumerate(lines) if line.startswith("─"))
    return [lines[rule - 1], *lines[rule + 1 :]]


@pytest.mark.parametrize("command", LISTS, ids=" ".join)
@pytest.mark.parametrize("width", ["40", "60", "80"])
def test_a_list_fits_into_the_terminal(
    perdure: Perdure, busy: App, folder: Path, command: tuple[str, ...], width: str
) -> None:
    ran = perdure(*command, cwd=folder, COLUMNS=width, PERDURE_APP="shop:app")

    assert ran.status == 0
    hints = ("  perdure ", "others:", "gone:", "Healthy")  # whole lines, to be copied
    assert [line for line in ran.out.splitlines() if len(line) > int(width) and not line.startswith(hints)] == []


@pytest.mark.parametrize("command", LISTS, ids=" ".join)
def test_a_pipe_gets_no_blanks_at_the_ends_of_lines(
    perdure: Perdure, busy: App, folder: Path, command: tuple[str, ...]
) -> None:
    for columns in ("", "80"):
        ran = perdure(*command, cwd=folder, PERDURE_APP="shop:app", COLUMNS=columns)
        assert ran.out
        assert [line for line in ran.out.splitlines() if line != line.rstrip()] == []


def test_nor_does_a_pipe_of_the_real_program(busy: App, folder: Path) -> None:
    out = process("jobs", cwd=folder, PERDURE_URL="shop.db", COLUMNS="").out

    assert "resize" in out
    assert [line for line in out.splitlines() if line != line.rstrip()] == []


def test_the_least_important_columns_go_first(perdure: Perdure, busy: App, folder: Path) -> None:
    heads = {
        width: table_of(perdure("jobs", cwd=folder, COLUMNS=width, PERDURE_URL="shop.db").out)[0].split()
        for width in ("40", "60", "100")
    }

    assert heads["100"] == ["id", "kind", "queue", "state", "tries", "created", "note"]
    assert "tries" not in heads["60"]
    assert heads["40"] == ["id", "kind", "state", "note"]


def test_no_name_is_broken_into_letters(perdure: Perdure, busy: App, folder: Path) -> None:
    for command in ("jobs", "kinds", "runs"):
        rows = table_of(perdure(command, cwd=folder, COLUMNS="40", PERDURE_APP="shop:app").out)
        assert any("resize" in row for row in rows)
        assert any("send" in row for row in rows)


@pytest.mark.damaged
def test_what_fits_into_no_table_is_printed_one_below_the_other(perdure: Perdure, patient: Patient) -> None:
    patient.suffer("DELETE FROM perdure_outcome")

    ran = perdure("doctor", cwd=patient.path.parent, COLUMNS="60", PERDURE_URL="jobs.db")

    assert ran.status == 1
    names = [line.split("  ")[0] for line in ran.out.splitlines() if line and not line.startswith(" ")]
    assert names[:6] == ["finding", "severity", "count", "what it means", "examples", "repair"]
    assert max(map(len, ran.out.splitlines())) <= 60


def test_status_says_which_columns_it_has_no_room_for(perdure: Perdure, busy: App, folder: Path) -> None:
    narrow = perdure("status", cwd=folder, COLUMNS="40", PERDURE_URL="shop.db").out
    wide = perdure("status", cwd=folder, COLUMNS="80", PERDURE_URL="shop.db").out

    assert "no room for lost, other, running" in narrow
    assert "no room" not in wide
