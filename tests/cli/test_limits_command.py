"""`perdure limits …` and `perdure queues limit`: what is in use, and numbers by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from perdure import Limit, Rate
from perdure import Perdure as App
from tests.cli.terminal import Perdure, refusal

DATABASE = {"PERDURE_URL": "shop.db"}


@pytest.fixture
def busy(here: App) -> App:
    """Two of tenant acme may run and do, one waits; a rate that nothing has spent yet."""

    @here.job(limit=Limit("tenant", 2, by="tenant"), rate=Rate("api", 100, per=60))
    def report(tenant: str) -> str:
        return tenant

    report.enqueue_many([{"tenant": "acme"}] * 3)
    here.worker(concurrency=1, poll_s=0.02).run(until_idle=True)
    report.enqueue_many([{"tenant": "acme"}] * 3)
    return here


def listed(perdure: Perdure, folder: Path) -> dict[str, Any]:
    return {limit["name"]: limit for limit in perdure("limits", "--json", cwd=folder, **DATABASE).json()}


def test_no_limits_yet(perdure: Perdure, here: App, folder: Path) -> None:
    here.store.upgrade()
    assert perdure("limits", cwd=folder, **DATABASE).out.startswith("No limits: ")
    assert perdure("limits", "--json", cwd=folder, **DATABASE).json() == []


def test_limits_and_rates_are_listed(perdure: Perdure, busy: App, folder: Path) -> None:
    table = perdure("limits", cwd=folder, **DATABASE).out
    head, _, *rows = table.splitlines()
    assert re.split(r"  +", head.strip()) == ["limit", "at most", "state", "kinds"]
    assert [re.split(r"  +", row.strip()) for row in rows] == [
        ["api", "100 in 60 s (sliding)", "open", "report"],
        ["tenant", "2", "open", "report"],
    ]
    found = listed(perdure, folder)
    assert (found["api"]["most"], found["api"]["per_s"]) == (100, 60.0)
    assert (found["tenant"]["most"], found["tenant"]["kinds"]) == (2, ["report"])


def test_a_limit_is_set_and_reset(perdure: Perdure, busy: App, folder: Path) -> None:
    assert perdure("limits", "set", "tenant", "10", cwd=folder, **DATABASE).out == "limit tenant is 10 now\n"
    found = listed(perdure, folder)["tenant"]
    assert (found["most"], found["declared"], found["set_by_hand"]) == (10, 2, True)
    assert "set by hand" in perdure("limits", cwd=folder, **DATABASE).out

    reset = perdure("limits", "reset", "tenant", cwd=folder, **DATABASE).out
    assert reset == "limit tenant is as the code declares it\n"
    assert listed(perdure, folder)["tenant"]["most"] == 2


def test_one_key_of_a_limit_is_set_paused_and_shown(perdure: Perdure, busy: App, folder: Path) -> None:
    set_one = perdure("limits", "set", "tenant", "50", "--key", "acme", cwd=folder, **DATABASE).out
    assert set_one == "limit tenant=acme is 50 now\n"
    [shown] = perdure("limits", "show", "tenant", "--json", cwd=folder, **DATABASE).json()
    assert (shown["key"], shown["most"], shown["set_by_hand"], shown["in_use"]) == ("acme", 50, True, 0)
    table = perdure("limits", "show", "tenant", cwd=folder, **DATABASE).out
    assert [line.split()[:4] for line in table.splitlines()[2:]] == [["acme", "0", "50", "0"]]

    assert "is paused" in perdure("limits", "pause", "tenant", "--key", "acme", cwd=folder, **DATABASE).out
    [shown] = perdure("limits", "show", "tenant", "--json", cwd=folder, **DATABASE).json()
    assert (shown["most"], shown["paused_at"] is not None) == (0, True)
    table = perdure("limits", "show", "tenant", cwd=folder, **DATABASE).out
    assert [line.split()[:4] for line in table.splitlines()[2:]] == [["acme", "0", "paused", "0"]]
    assert "is open" in perdure("limits", "resume", "tenant", "--key", "acme", cwd=folder, **DATABASE).out


def test_blocks_of_code_are_told_from_jobs(perdure: Perdure, busy: App, folder: Path) -> None:
    with busy.limits.hold("tenant", key="acme"):
        [shown] = perdure("limits", "show", "tenant", "--json", cwd=folder, **DATABASE).json()
        assert (shown["in_use"], shown["jobs"], shown["blocks"]) == (1, [], 1)
        assert "1 block of code" in perdure("limits", "show", "tenant", cwd=folder, **DATABASE).out


def test_a_paused_limit_is_seen_and_starts_nothing(perdure: Perdure, busy: App, folder: Path) -> None:
    assert perdure("limits", "pause", "tenant", cwd=folder, **DATABASE).out == "limit tenant is paused\n"
    assert " paused " in perdure("limits", cwd=folder, **DATABASE).out
    busy.worker(poll_s=0.02).run(until_idle=True)
    assert [job.state for job in busy.jobs(state="held")] == ["held"] * 3

    assert perdure("limits", "resume", "tenant", cwd=folder, **DATABASE).out == "limit tenant is open\n"
    busy.worker(poll_s=0.02).run(until_idle=True)
    assert list(busy.jobs(state="held")) == []


def test_a_limit_that_nothing_uses(perdure: Perdure, busy: App, folder: Path) -> None:
    busy.worker(poll_s=0.02).run(until_idle=True)
    shown = perdure("limits", "show", "tenant", cwd=folder, **DATABASE).out
    assert shown == "nothing of limit tenant is in use or waited for\n"


@pytest.mark.parametrize(
    "typed", [("set", "tenat", "3"), ("show", "tenat"), ("reset", "tenat"), ("pause", "tenat"), ("resume", "tenat")]
)
def test_a_mistyped_limit_is_refused(perdure: Perdure, busy: App, folder: Path, typed: tuple[str, ...]) -> None:
    line = refusal(perdure("limits", *typed, cwd=folder, **DATABASE))
    assert "there is no limit 'tenat' (did you mean 'tenant'?); perdure limits set NAME NUMBER --new" in line
    assert line.endswith("[limit_unknown]")
    assert sorted(listed(perdure, folder)) == ["api", "tenant"]


def test_a_limit_that_no_code_has_declared_yet(perdure: Perdure, here: App, folder: Path) -> None:
    here.store.upgrade()
    assert perdure("limits", "set", "gpu", "4", "--new", cwd=folder, **DATABASE).out == "limit gpu is 4 now\n"
    assert listed(perdure, folder)["gpu"]["declared"] is None


@pytest.mark.parametrize("number", ["0", "-1", "many", "1.5", "99999999999999999999"])
def test_a_limit_is_a_whole_number_from_1_on(perdure: Perdure, busy: App, folder: Path, number: str) -> None:
    ran = perdure("limits", "set", "tenant", "--", number, cwd=folder, **DATABASE)
    assert ran.status == 2
    assert "Traceback" not in ran.err
    assert listed(perdure, folder)["tenant"]["most"] == 2


def test_a_queue_is_limited_and_the_limit_is_lifted(perdure: Perdure, here: App, folder: Path) -> None:
    here.enqueue("send", {"to": "ann"})

    limited = perdure("queues", "limit", "mail", "40", cwd=folder, **DATABASE).out
    assert limited == "queue mail: at most 40 jobs at once\n"
    assert perdure("queues", "limit", "*", "1000", cwd=folder, **DATABASE).out == (
        "all queues: at most 1,000 jobs at once\n"
    )
    assert perdure("queues", "limit", "mail", "none", cwd=folder, **DATABASE).out == "queue mail: no limit\n"


@pytest.mark.parametrize("number", ["0", "-3", "many", "²", "99999999999999999999"])
def test_the_limit_of_a_queue_is_a_whole_number_from_1_on(
    perdure: Perdure, here: App, folder: Path, number: str
) -> None:
    here.enqueue("send", {"to": "ann"})
    assert "[concurrency_invalid]" in refusal(perdure("queues", "limit", "mail", "--", number, cwd=folder, **DATABASE))
    assert "did you mean 'mail'?" in refusal(perdure("queues", "limit", "mial", "3", cwd=folder, **DATABASE))


def test_a_full_rate_says_when_it_opens(perdure: Perdure, here: App, folder: Path) -> None:
    @here.job(rate=Rate("mails", 1, per=7200))
    def mail() -> None: ...

    mail.enqueue_many([{}, {}])
    here.worker(poll_s=0.02).run(until_idle=True)
    head, _, row = perdure("limits", "show", "mails", cwd=folder, **DATABASE).out.splitlines()
    assert re.split(r"  +", head.strip()) == ["key", "in use", "at most", "in line", "opens"]
    assert re.match(r"\(all\) +1 +1 +1 +in (2 h|1\d\d min|7\d\d\d s)", row)


def test_limits_of_the_code_that_no_worker_has_declared(perdure: Perdure, here: App, folder: Path) -> None:
    here.store.upgrade()
    (folder / "coming.py").write_text(
        "from perdure import Limit, Perdure\n"
        "app = Perdure('shop.db')\n"
        "@app.job(limit=Limit('tenant', 2, by='tenant'))\n"
        "def report(tenant: str) -> None: ...\n"
    )
    named = {"PERDURE_APP": "coming:app"}
    said = "tenant: in the code; the next worker that starts declares it here."
    assert said in perdure("limits", cwd=folder, **named).out
    assert perdure("limits", "set", "tenant", "9", cwd=folder, **named).out == "limit tenant is 9 now\n"
    assert perdure("limits", "show", "tenant", cwd=folder, **named).out.startswith("nothing of limit tenant")
