"""`perdure queues`, `nodes` and `kinds`: where jobs wait, who runs them, and what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import Perdure as App
from perdure.clock import Micros
from perdure.ids import NodeId
from perdure.store.rows import NewNode, Process
from tests.cli.terminal import Perdure, refusal, started

URL = {"PERDURE_URL": "shop.db"}
APP = {"PERDURE_APP": "shop:app"}


def test_queues_are_listed_with_what_is_in_them(perdure: Perdure, here: App, folder: Path) -> None:
    here.enqueue("send", {"to": "ann"})
    here.enqueue("resize", {"width": 1}, delay=60)
    here.queues.pause("mail")

    listed = perdure("queues", "--json", cwd=folder, **URL).json()
    table = perdure("queues", cwd=folder, **URL).out

    assert [(queue["name"], queue["paused"], queue["queued"], queue["live"]) for queue in listed] == [
        ("default", False, 0, 1),
        ("mail", True, 1, 1),
    ]
    assert listed[0]["paused_at"] is None
    assert listed[1]["paused_at"].endswith("Z")
    head, _, *rows, caption = table.splitlines()
    assert head.split() == ["queue", "state", "queued", "running", "others"]
    assert [line.split()[:2] for line in rows] == [["default", "open"], ["mail", "paused"]]
    assert [line.split()[-1] for line in rows] == ["1", "0"]
    assert caption.startswith("others: scheduled, paused, ")
    here.cancel_all(queue="default")
    assert "others:" not in perdure("queues", cwd=folder, **URL).out


def test_a_queue_is_paused_and_resumed(perdure: Perdure, here: App, folder: Path) -> None:
    here.enqueue("send", {"to": "ann"})

    paused = perdure("queues", "pause", "mail", cwd=folder, **URL)
    assert paused.out == "queue mail is paused; 1 job queued in it, 0 running\n"
    assert here.queues.list()[0].paused
    assert perdure("queues", "resume", "mail", cwd=folder, **URL).out == "queue mail is open\n"
    assert not here.queues.list()[0].paused


def test_all_queues_are_paused_by_a_star(perdure: Perdure, here: App, folder: Path) -> None:
    here.enqueue("send", {"to": "ann"})

    paused = perdure("queues", "pause", "*", cwd=folder, **URL)
    assert paused.out == "every queue is paused; 1 job queued in them, 0 running\n"
    rows = perdure("queues", cwd=folder, **URL).out.splitlines()[2:]
    assert [row.split()[0] for row in rows if " paused " in row] == ["*", "mail"]
    here.worker(poll_s=0.02).run(until_idle=True)
    assert next(here.jobs()).state == "queued"


def test_a_mistyped_queue_is_refused_with_what_was_meant(perdure: Perdure, here: App, folder: Path) -> None:
    here.enqueue("send", {"to": "ann"})

    line = refusal(perdure("queues", "pause", "mial", cwd=folder, **URL))

    assert "did you mean 'mail'?" in line
    assert "[queue_unknown]" in line
    assert perdure("queues", "pause", "mial", "--new", cwd=folder, **URL).status == 0


def test_nodes_are_listed_with_what_they_do(perdure: Perdure, here: App, folder: Path) -> None:
    here.worker(poll_s=0.02).run(until_idle=True)
    silent = NodeId(here.ids.new())
    long_ago = Micros(here.clock.now() - 120_000_000)
    here.store.register(NewNode(silent, long_ago, Process("far", 7), kinds='{"send": 1, "a,b": 2}'))
    live = NodeId(here.ids.new())
    here.store.register(NewNode(live, here.clock.now(), Process("near", 8), kinds='{"send": 1}'))

    listed = perdure("nodes", "--json", cwd=folder, **URL).json()
    table = perdure("nodes", cwd=folder, COLUMNS="80", **URL).out.splitlines()

    assert [(node["state"], node["host"], node["pid"]) for node in listed[:2]] == [
        ("live", "near", 8),
        ("silent", "far", 7),
    ]
    assert listed[1]["kinds"] == ["send", "a,b v2"]
    assert (listed[2]["state"], listed[2]["stop_reason"]) == ("stopped", "clean_shutdown")
    assert max(map(len, table)) <= 80
    assert [line.split()[1] for line in table[2:]] == ["live", "silent", "stopped"]
    assert len(perdure("nodes", "--limit", "0", "--json", cwd=folder, **URL).json()) == 2


@pytest.mark.parametrize(("lease_s", "state"), [(None, "silent"), (60, "silent"), (600, "live")])
def test_a_node_is_silent_by_its_own_lease(
    perdure: Perdure, here: App, folder: Path, lease_s: int | None, state: str
) -> None:
    lease_us = None if lease_s is None else lease_s * 1_000_000
    heard_of = Micros(here.clock.now() - 120_000_000)
    here.store.register(NewNode(NodeId(here.ids.new()), heard_of, Process("far", 7), lease_us=lease_us))

    [node] = perdure("nodes", "--json", cwd=folder, **URL).json()

    assert (node["state"], node["lease_s"]) == (state, lease_s)


def test_a_node_whose_process_has_ended_is_told_from_the_living(perdure: Perdure, here: App, folder: Path) -> None:
    with started("worker", "--concurrency", "1", cwd=folder, **APP) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "app       shop:app\n"  # it is registered by then
        assert perdure("nodes", "--json", cwd=folder, **URL).json()[0]["state"] == "live"
        worker.kill()
        worker.communicate()

    [node] = perdure("nodes", "--json", cwd=folder, **URL).json()
    assert (node["state"], node["pid"], node["stopped_at"]) == ("gone", worker.pid, None)
    out = perdure("nodes", cwd=folder, COLUMNS="80", **URL).out
    assert out.splitlines()[2].split()[1] == "gone"
    assert "gone: its process has ended" in out.splitlines()[-1]


def test_without_any_worker_it_is_said_how_to_start_one(perdure: Perdure, here: App, folder: Path) -> None:
    here.enqueue("send", {"to": "ann"})

    assert "No worker has run here yet. Start one with: perdure worker" in perdure("nodes", cwd=folder, **URL).out
    assert "No worker is live. " in perdure("nodes", "--limit", "0", cwd=folder, **URL).out


@pytest.fixture
def old_jobs(here: App) -> App:
    """Jobs under an alias, and of a kind that is gone."""
    here.enqueue("resize", {"width": 1})

    @here.job
    def gone() -> None: ...

    gone.enqueue()
    gone.enqueue()
    return here


def test_kinds_of_the_app_are_listed_and_those_only_stored(perdure: Perdure, old_jobs: App, folder: Path) -> None:
    listed = {kind["name"]: kind for kind in perdure("kinds", "--json", cwd=folder, **APP).json()}

    assert list(listed) == ["resize", "send", "gone"]
    assert listed["send"] | {"place": "-"} == {
        "name": "send",
        "aliases": [],
        "version": 1,
        "queue": "mail",
        "max_attempts": 2,
        "timeout_s": 30.0,
        "isolation": "thread",
        "place": "-",
        "declared": True,
        "live": 0,
    }
    assert listed["send"]["place"].startswith(str(folder / "shop.py:"))
    assert (listed["resize"]["isolation"], listed["resize"]["version"], listed["resize"]["live"]) == ("loop", 2, 1)
    assert (listed["gone"]["declared"], listed["gone"]["live"]) == (False, 2)
    table = perdure("kinds", cwd=folder, COLUMNS="80", **APP).out
    assert "shop.py:" in table
    assert "not in this app" in table


def test_without_an_app_the_stored_kinds_are_listed(perdure: Perdure, old_jobs: App, folder: Path) -> None:
    listed = perdure("kinds", "--json", cwd=folder, **URL).json()

    assert [(kind["name"], kind["live"], kind["declared"]) for kind in listed] == [
        ("gone", 2, None),
        ("resize", 1, None),
    ]


def test_kinds_of_an_app_that_has_no_database_yet(perdure: Perdure, folder: Path) -> None:
    assert [kind["name"] for kind in perdure("kinds", "--json", cwd=folder, **APP).json()] == ["resize", "send"]
    assert not (folder / "shop.db").exists()
