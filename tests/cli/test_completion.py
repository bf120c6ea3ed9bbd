"""What the shell offers while someone types: asked in the way bash does, after `perdure --install-completion`."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import Perdure as App
from tests.cli.terminal import Perdure, process

SHOP = {"PERDURE_APP": "shop:app"}


def offered(perdure: Perdure, folder: Path, line: str, **environment: str) -> list[str]:
    words = line.split(" ")
    asked = {"_PERDURE_COMPLETE": "complete_bash", "COMP_WORDS": f"perdure {line}", "COMP_CWORD": str(len(words))}
    ran = perdure(cwd=folder, **asked, **environment)
    assert (ran.status, ran.err) == (0, "")
    return ran.out.split()


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("jobs --state fa", ["failed"]),
        ("jobs --state failed,pa", ["failed,paused", "failed,parked"]),
        ("jobs --state failed,fa", []),
        ("runs --state failed,l", ["failed,lost"]),
        ("jobs --queue ", ["default", "mail", "night"]),
        ("queues pause ma", ["mail"]),
        ("worker shop:app -q n", ["night"]),
        ("jobs --kind ", ["resize", "send"]),
        ("enqueue s", ["send"]),
        ("jobs --url gone.db --queue ", []),
        ("jobs --app nothing:app --queue ", []),
        ("to", ["top"]),
    ],
)
def test_states_queues_and_kinds(perdure: Perdure, here: App, folder: Path, line: str, offers: list[str]) -> None:
    here.enqueue("send", {"to": "ann"}, queue="night")

    assert offered(perdure, folder, line, **SHOP) == offers


def test_jobs_are_offered_by_the_end_of_their_id_the_newest_first(perdure: Perdure, here: App, folder: Path) -> None:
    first, second = (here.enqueue("send", {"to": to}) for to in ("ann", "bob"))

    assert offered(perdure, folder, "job ", **SHOP) == [second.id.hex[-8:], first.id.hex[-8:]]
    assert offered(perdure, folder, f"cancel {first.id.hex[-8:-4]}", **SHOP) == [first.id.hex[-8:]]
    assert offered(perdure, folder, f"explain {str(first.id)[:-1]}", **SHOP) == [str(first.id)]
    assert offered(perdure, folder, "--url shop.db job ") == [second.id.hex[-8:], first.id.hex[-8:]], (
        "before the command"
    )


def test_the_real_program_offers_them_too_and_an_app_that_prints_disturbs_nothing(here: App, folder: Path) -> None:
    source = (folder / "shop.py").read_text()
    (folder / "shop.py").write_text(source + "\nprint('loaded')\n")
    here.enqueue("send", {"to": "ann"})

    asked = {"_PERDURE_COMPLETE": "complete_bash", "COMP_WORDS": "perdure jobs --kind s", "COMP_CWORD": "3"}
    ran = process(cwd=folder, **asked, **SHOP)
    assert (ran.status, ran.out.split(), ran.err) == (0, ["send"], "")
