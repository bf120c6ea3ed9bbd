"""`perdure check` for CI and `perdure health` for probes: 0 if all is well, 1 if not, 2 if it cannot be told."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import Perdure as App
from perdure.clock import Micros
from perdure.ids import NodeId
from perdure.store.rows import NewNode, Process
from perdure.worker.liveness import ProcLiveness
from tests.cli.terminal import Perdure, refusal

BROKEN = """
from perdure import Perdure

app = Perdure("shop.db", imports=["more"])

@app.job
def fine(x: int) -> None: ...

@app.job
def starred(*names: str) -> None: ...

def outer():
    @app.job(isolation="process")
    def hidden() -> None: ...

outer()
"""


def test_an_app_that_fits_its_jobs_is_fine(perdure: Perdure, here: App, folder: Path) -> None:
    here.enqueue("resize", {"width": 1})

    ran = perdure("check", "shop:app", cwd=folder)

    assert (ran.status, ran.out) == (0, "Fine: 2 kinds, every stored job has its code.\n")


def test_without_a_database_only_the_code_is_checked(perdure: Perdure, folder: Path) -> None:
    ran = perdure("check", "--app", "shop", cwd=folder)

    assert ran.status == 0
    assert "only the code" in ran.out
    assert not (folder / "shop.db").exists()


def test_jobs_whose_code_is_gone_or_older_are_found(perdure: Perdure, here: App, folder: Path) -> None:
    @here.job
    def gone() -> None: ...

    gone.enqueue()
    gone.enqueue()
    newer = App(folder / "shop.db", durability="normal")

    @newer.job(version=3)
    def scale() -> None: ...

    scale.enqueue()
    newer.close()

    ran = perdure("check", "shop:app", "--json", cwd=folder)

    assert ran.status == 1
    assert ran.json()["problems"] == [
        {"kind": "gone", "live": 2, "problem": "no kind of that name is declared"},
        {"kind": "scale", "live": 1, "problem": "written as version 3, the code has 2"},
    ]
    table = perdure("check", "shop:app", cwd=folder)
    assert table.status == 1
    assert "2 problems in 2 kinds." in table.out
    assert perdure("check", "shop:app", "--code-only", cwd=folder).status == 0
    here.cancel_all()
    assert perdure("check", "shop:app", cwd=folder).status == 0


def test_kinds_that_cannot_work_are_found(perdure: Perdure, folder: Path) -> None:
    (folder / "broken.py").write_text(BROKEN)
    (folder / "more.py").write_text("from broken import app\n\n@app.job\ndef more(a: object) -> None: ...\n")

    ran = perdure("check", "broken:app", "--json", cwd=folder)

    found = {problem["kind"]: problem["problem"] for problem in ran.json()["problems"]}
    assert ran.status == 1
    assert ran.json()["kinds"] == ["fine", "hidden", "more", "starred"]
    assert "[kind_signature]" in found["starred"]
    assert "[kind_not_importable]" in found["hidden"]
    assert "fine" not in found


def test_imports_that_fail_and_no_app_at_all_are_errors(perdure: Perdure, folder: Path) -> None:
    (folder / "broken.py").write_text(BROKEN)

    assert "[imports_failed]" in refusal(perdure("check", "broken:app", cwd=folder))
    assert "[app_not_found]" in refusal(perdure("check", cwd=folder, PERDURE_URL="shop.db"))
    assert "[usage_error]" in refusal(perdure("check", "broken:app", "--app", "shop", cwd=folder))


def worker_heard_of(app: App, seconds_ago: float, lease_s: int | None = None) -> None:
    now = Micros(app.clock.now() - round(seconds_ago * 1_000_000))
    lease_us = None if lease_s is None else lease_s * 1_000_000
    app.store.register(NewNode(NodeId(app.ids.new()), now, Process("near", 8), kinds="send", lease_us=lease_us))


@pytest.mark.parametrize(("options", "status"), [([], 0), (["--max-beat-age", "45"], 0), (["--max-beat-age", "10"], 1)])
def test_a_worker_heard_of_lately_is_health(
    perdure: Perdure, here: App, folder: Path, options: list[str], status: int
) -> None:
    worker_heard_of(here, 500)
    worker_heard_of(here, 30)

    told = perdure("health", *options, "--url", "shop.db", "--json", cwd=folder)

    assert told.status == status
    health = told.json()
    assert list(health) == ["healthy", "database", "live_nodes", "beat_age_s", "why"]
    assert (health["healthy"], health["database"], health["live_nodes"]) == (status == 0, True, 2)
    assert 29 < health["beat_age_s"] < 300
    sentence = perdure("health", *options, "--url", "shop.db", cwd=folder).out
    assert sentence.startswith("healthy: " if status == 0 else "unhealthy: ")
    assert "2 workers" in sentence


@pytest.mark.parametrize(
    ("lease_s", "options", "status"),
    [
        (3600, [], 0),
        (30, [], 1),
        (None, [], 1),
        (30, ["--max-beat-age", "900"], 0),
        (3600, ["--max-beat-age", "60"], 1),
    ],
)
def test_a_worker_is_heard_of_lately_by_its_own_lease_unless_an_age_is_given(
    perdure: Perdure, here: App, folder: Path, lease_s: int | None, options: list[str], status: int
) -> None:
    worker_heard_of(here, 300, lease_s)

    assert perdure("health", *options, "--url", "shop.db", cwd=folder).status == status


def test_one_worker_that_is_heard_of_within_its_lease_is_enough_for_health(
    perdure: Perdure, here: App, folder: Path
) -> None:
    worker_heard_of(here, 300, lease_s=3600)
    worker_heard_of(here, 200, lease_s=30)

    ran = perdure("health", "--url", "shop.db", "--json", cwd=folder)

    assert (ran.status, ran.json()["live_nodes"]) == (0, 2)


def test_a_worker_whose_process_has_ended_is_no_health(perdure: Perdure, here: App, folder: Path) -> None:
    node = NodeId(here.ids.new())
    here.store.register(NewNode(node, here.clock.now(), ProcLiveness().own()._replace(pid=2**22 - 1)))

    ran = perdure("health", "--app", "shop:app", cwd=folder)

    assert (ran.status, ran.out) == (1, "unhealthy: the database answers, but the process of every worker has ended\n")
    here.store.stop(node, "crash", here.clock.now())


def test_no_worker_is_no_health(perdure: Perdure, here: App, folder: Path) -> None:
    here.worker(poll_s=0.02).run(until_idle=True)

    ran = perdure("health", "--app", "shop:app", cwd=folder)

    assert (ran.status, ran.out) == (1, "unhealthy: the database answers, but no worker is registered\n")


@pytest.mark.damaged
def test_a_database_that_does_not_answer_is_no_health(perdure: Perdure, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database, but long enough to be taken for one" * 20)

    for name in ("missing.db", "text.db"):
        ran = perdure("health", "--url", name, "--json", cwd=tmp_path)
        assert ran.status == 1
        assert ran.json()["database"] is False
        assert "does not answer" in ran.json()["why"]
    assert not (tmp_path / "missing.db").exists()


def test_what_names_no_database_is_an_error_not_ill_health(perdure: Perdure, tmp_path: Path) -> None:
    assert "[url_missing]" in refusal(perdure("health", cwd=tmp_path))
    assert "[url_unsupported]" in refusal(perdure("health", "--url", "gopher://x", cwd=tmp_path))
