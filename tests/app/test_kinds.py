"""Kinds: names, aliases, versions, options, and what a function may look like."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure import JobContext, KeyConflict, KindError, Perdure, Retry, Unique, principal
from perdure.ids import IdFactory
from tests.app.contents import contents


def stored(app: Perdure, job: Any) -> Any:
    """The arguments of a job as its function would get them now."""
    row = app.store.row(app.existing(job).row.id)
    assert row is not None
    return app.kinds.get(row.kind).load(row.payload, row.secrets, row.kind_version)


# -- names -----------------------------------------------------------------------------------------------------------


def test_a_kind_is_named_after_its_function_and_still_is_one(app: Perdure) -> None:
    @app.job
    def greet(name: str) -> str:
        """Says hello."""
        return f"hello {name}"

    assert (greet.name, getattr(greet, "__name__", None), greet.__doc__) == ("greet", "greet", "Says hello.")
    assert greet("ada") == "hello ada"
    assert greet.enqueue("ada").kind == "greet"


def test_a_kind_can_be_given_a_name(app: Perdure) -> None:
    @app.job(name="mail.send")
    def send() -> None: ...

    assert send.enqueue().kind == app.enqueue("mail.send").kind == "mail.send"
    with pytest.raises(KindError):
        app.enqueue("send")


def test_a_kind_is_found_by_its_old_names(app: Perdure) -> None:
    @app.job(name="new", aliases=["old", "older"])
    def work(x: int) -> None: ...

    assert [app.enqueue(name, {"x": 1}).kind for name in ("new", "old", "older")] == ["new"] * 3
    assert app.kinds.versions() == {"new": 1, "old": 1, "older": 1}


def test_a_key_used_under_an_old_name_still_counts(path: Path) -> None:
    before = Perdure(path)
    first = before.job(name="old")(_work).options(idempotency_key="k").enqueue(1)
    after = Perdure(path)
    renamed = after.job(name="new", aliases=["old"])(_work)
    assert renamed.options(idempotency_key="k").enqueue(1).id == first.id
    with pytest.raises(KeyConflict):
        renamed.options(idempotency_key="k").enqueue(2)
    after.close()


def _work(x: int) -> None: ...


@pytest.fixture(params=["old, then new", "new, then old"])
def releases(request: pytest.FixtureRequest, path: Path) -> Iterator[tuple[Any, Any]]:
    """The same kind in two releases that work side by side, in the order in which they enqueue."""
    apps = Perdure(path), Perdure(path)
    kinds = apps[0].job(name="old")(_work), apps[1].job(name="new", aliases=["old"])(_work)
    yield kinds if request.param == "old, then new" else (kinds[1], kinds[0])
    for app in apps:
        app.close()


def test_a_key_means_one_job_for_two_releases_side_by_side(releases: tuple[Any, Any]) -> None:
    one, other = releases
    first = one.options(idempotency_key="k").enqueue(1)
    repeats = [kind.options(idempotency_key="k").enqueue(1) for kind in (other, one)]
    assert [(job.id, job.deduplicated) for job in repeats] == [(first.id, True)] * 2
    with pytest.raises(KeyConflict):
        other.options(idempotency_key="k").enqueue(2)


@pytest.mark.parametrize("until", ["final", "ever"])
def test_equal_work_is_enqueued_once_by_two_releases_side_by_side(until: Any, releases: tuple[Any, Any]) -> None:
    one, other = (kind.options(unique=Unique(until=until)) for kind in releases)
    first = one.enqueue(1)
    again = other.enqueue(1)
    assert (again.id, again.deduplicated) == (first.id, True)
    assert other.enqueue(2).id == one.enqueue(2).id != first.id


def test_a_kind_that_is_renamed_twice_is_known_by_its_first_name(path: Path) -> None:
    names: list[tuple[str, list[str]]] = [("c", ["b", "a"]), ("a", []), ("b", ["a"])]
    apps = [Perdure(path) for _ in names]
    kinds = [app.job(name=name, aliases=aliases)(_work) for app, (name, aliases) in zip(apps, names, strict=True)]
    assert len({kind.options(unique=Unique()).enqueue(1).id for kind in kinds}) == 1
    assert len({kind.options(idempotency_key="k").enqueue(1).id for kind in kinds}) == 1
    for app in apps:
        app.close()


def test_an_alias_given_twice_is_one(app: Perdure) -> None:
    kind = app.job(name="new", aliases=["old", "new", "old"])(_work)
    first = kind.options(idempotency_key="k").enqueue(1)
    assert (kind.names, kind.options(idempotency_key="k").enqueue(1).id) == (("new", "old"), first.id)


def test_a_kinds_name_lists_what_is_stored_under_its_old_names_too(path: Path) -> None:
    ids = IdFactory()  # ids of two factories say nothing about their order within a millisecond
    before, after = Perdure(path, ids=ids), Perdure(path, ids=ids)
    old, new = before.job(name="old")(_work), after.job(name="new", aliases=["old"])(_work)
    jobs = [kind.enqueue(number).id for number, kind in enumerate([old, new, old, new])]
    before.job(name="another")(_work).enqueue(9)

    assert [job.id for job in after.jobs(kind="new")] == jobs[::-1]
    assert [job.id for job in after.jobs(kind="new", limit=3)] == jobs[:0:-1]
    assert [job.id for job in after.jobs(kind="new", state="queued", queue="default")] == jobs
    assert [job.id for job in after.jobs(kind="old")] == jobs[2::-2]
    assert after.cancel_all(kind="new") == 4
    assert [job.kind for job in after.jobs(state="queued")] == ["another"]
    before.close()
    after.close()


def test_runs_of_a_kind_are_listed_under_all_its_names(path: Path) -> None:
    before, after = Perdure(path), Perdure(path)
    old, new = before.job(name="old")(_work), after.job(name="new", aliases=["old"])(_work)
    jobs = [kind.enqueue(number).id for number, kind in enumerate([old, new, old])]
    after.worker().run(until_idle=True)

    assert {run.job_id for run in after.runs(kind="new")} == set(jobs)
    assert [run.id for run in after.runs(kind="new")] == [run.id for run in after.runs()]
    before.close()
    after.close()


def test_two_functions_of_one_name_are_refused_and_both_places_shown(app: Perdure) -> None:
    @app.job(name="same")
    def first() -> None: ...

    with pytest.raises(KindError) as raised:

        @app.job(name="same")
        def second() -> None: ...

    here = Path(__file__).name
    assert raised.value.code == "kind_duplicate"
    assert raised.value.message.count(here) == 2
    assert app.kinds.get("same") is first


def test_a_refused_kind_leaves_no_alias_behind(app: Perdure) -> None:
    app.job(name="taken")(_work)
    with pytest.raises(KindError):
        app.job(name="fresh", aliases=["taken"])(lambda: None)
    assert app.kinds.find("fresh") is None


def test_declaring_the_same_function_again_is_a_reload(app: Perdure) -> None:
    app.job(name="work")(_work)
    again = app.job(name="work")(_work)
    assert app.kinds.get("work") is again


def test_kinds_of_two_apps_do_not_meet(app: Perdure, tmp_path: Path) -> None:
    app.job(name="work")(_work)
    assert Perdure(tmp_path / "other.db").kinds.find("work") is None


# -- versions --------------------------------------------------------------------------------------------------------


def test_an_old_payload_is_upgraded_step_by_step(path: Path) -> None:
    old = Perdure(path)

    @old.job(name="greet")
    def first(name: str) -> None: ...

    job = first.enqueue("Ada Lovelace")
    new = Perdure(path)

    def split(arguments: dict[str, Any]) -> dict[str, Any]:
        given, family = arguments["name"].split()
        return {"given": given, "family": family}

    def add(arguments: dict[str, Any]) -> dict[str, Any]:
        return {**arguments, "loud": True}

    @new.job(name="greet", version=3, upgrades={1: split, 2: add})
    def third(given: str, family: str, loud: bool) -> None: ...

    assert stored(new, job) == ((), {"given": "Ada", "family": "Lovelace", "loud": True})
    assert stored(new, third.enqueue("Grace", "Hopper", loud=False))[1]["loud"] is False
    new.close()


def test_a_version_without_an_upgrade_takes_the_payload_as_it_is(path: Path) -> None:
    old = Perdure(path)
    job = old.job(name="work")(_work).enqueue(1)
    new = Perdure(path)

    @new.job(name="work", version=2)
    def work(x: int, y: int = 2) -> None: ...

    assert stored(new, job) == ((), {"x": 1})
    new.close()


def test_the_same_key_of_another_version_is_a_repeat_whatever_the_arguments(path: Path) -> None:
    old = Perdure(path)
    first = old.job(name="work")(_work).options(idempotency_key="k").enqueue(1)
    new = Perdure(path)
    again = new.job(name="work", version=2)(_work).options(idempotency_key="k").enqueue(2)
    assert (again.id, again.deduplicated) == (first.id, True)
    new.close()


# -- functions -------------------------------------------------------------------------------------------------------


def test_the_context_is_no_argument(app: Perdure) -> None:
    @app.job
    def work(ctx: JobContext, x: int) -> None: ...

    assert work.enqueue(1).payload == {"x": 1}


def test_any_legal_parameter_name_works(app: Perdure) -> None:
    @app.job
    def odd(self: int, *, cls: int, schema: int, model_config: int, json: int, copy: int, _x: int) -> None: ...

    names = ("self", "cls", "schema", "model_config", "json", "copy", "_x")
    arguments = {name: number for number, name in enumerate(names)}
    job = odd.enqueue_many([arguments])[0]
    assert job.payload == arguments
    assert stored(app, job) == ((), arguments)


def test_a_parameter_name_need_not_be_english(app: Perdure) -> None:
    @app.job
    def grüßen(名前: str) -> None: ...  # noqa: N803, PLC2401 - just that

    assert grüßen.enqueue("ada").payload == {"名前": "ada"}


def test_only_what_was_passed_is_stored(app: Perdure) -> None:
    @app.job
    def work(a: int, b: int = 2, *, c: int = 3) -> None: ...

    assert work.enqueue(1).payload == {"a": 1}
    assert work.enqueue(1, c=9).payload == {"a": 1, "c": 9}


def test_annotations_may_name_what_is_defined_later(app: Perdure) -> None:
    @app.job
    def work(x: Later) -> None: ...

    assert work.enqueue(5).payload == {"x": 5}


Later = int


def test_a_coroutine_function_is_a_kind_too(app: Perdure) -> None:
    @app.job
    async def fetch(url: str) -> int:
        return len(url)

    assert fetch.enqueue("x").payload == {"url": "x"}


# -- options ---------------------------------------------------------------------------------------------------------


def test_options_build_on_each_other(app: Perdure) -> None:
    @app.job(queue="mail", priority=1, retry=5)
    def send() -> None: ...

    job = send.options(priority=2, tags=["x"]).options(tags=["y"], queue="post").enqueue()
    assert (job.queue, job.priority, job.tags, job.max_attempts) == ("post", 2, ("y",), 5)
    assert (send.enqueue().queue, send.enqueue().priority) == ("mail", 1)


def test_the_app_gives_the_queue_where_nobody_else_does(path: Path) -> None:
    app = Perdure(path, queue="ours", name="shop")
    job = app.job(_work).enqueue(1)
    assert (job.queue, job.owner) == ("ours", "shop")
    app.close()


def test_retry_may_be_a_number(app: Perdure) -> None:
    assert app.job(name="a", retry=7)(_work).enqueue(1).max_attempts == 7
    assert app.job(name="b", retry=Retry(max_attempts=9, backoff="none"))(_work).enqueue(1).max_attempts == 9


def test_the_principal_comes_from_the_context_unless_an_option_says_otherwise(send: Any) -> None:
    token = principal.set("ada")
    try:
        jobs = send.enqueue("a"), send.options(principal="grace").enqueue("b")
    finally:
        principal.reset(token)
    assert [job.principal for job in (*jobs, send.enqueue("c"))] == ["ada", "grace", None]


# -- unique ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("until", ["final", "ever"])
def test_equal_work_is_enqueued_once(until: Any, send: Any) -> None:
    once = send.options(unique=Unique(until=until))
    first, again, other = once.enqueue("a"), once.enqueue(to="a"), once.enqueue("b")
    assert (again.id, again.deduplicated) == (first.id, True)
    assert (other.id != first.id, other.deduplicated) == (True, False)


def test_unique_work_may_come_again_after_its_end(app: Perdure, send: Any) -> None:
    once = send.options(unique=Unique())
    first = once.enqueue("a")
    app.cancel(first)
    assert once.enqueue("a").id != first.id


def test_work_that_is_unique_for_ever_never_comes_again(app: Perdure, send: Any) -> None:
    once = send.options(unique=Unique(until="ever"))
    first = once.enqueue("a")
    app.cancel(first)
    assert once.enqueue("a").id == first.id


def test_unique_by_some_arguments(send: Any) -> None:
    once = send.options(unique=Unique(by="to"))
    first, again = once.enqueue("a", subject="x"), once.enqueue("a", subject="y")
    both = send.options(unique=Unique(by=["to", "subject"]))
    assert again.id == first.id
    assert both.enqueue("a", subject="y").id != both.enqueue("a", subject="x").id


def test_unique_work_may_be_a_conflict(send: Any) -> None:
    once = send.options(unique=Unique(conflict="raise"))
    once.enqueue("a")
    with pytest.raises(KeyConflict) as raised:
        once.enqueue("a")
    assert raised.value.code == "business_key_taken"


# -- many ------------------------------------------------------------------------------------------------------------


def test_many_are_enqueued_in_order(app: Perdure, send: Any) -> None:
    jobs = send.enqueue_many({"to": str(n)} for n in range(5))
    assert [job.payload for job in app.jobs(state="queued", queue="default")] == [{"to": str(n)} for n in range(5)]
    assert [job.payload["to"] for job in jobs] == list("01234")


def test_drafts_of_different_kinds_and_options_go_together(app: Perdure, send: Any) -> None:
    work = app.job(name="work")(_work)
    jobs = app.enqueue_many([send.new("a"), work.new(1), send.options(queue="mail", delay=60).new("b")])
    assert [(job.kind, job.queue, str(job.state)) for job in jobs] == [
        ("send", "default", "queued"),
        ("work", "default", "queued"),
        ("send", "mail", "scheduled"),
    ]


def test_a_conflict_among_many_writes_none(app: Perdure, send: Any, path: Path) -> None:
    send.options(business_key="b").enqueue("live")
    before = contents(path)
    with pytest.raises(KeyConflict):
        app.enqueue_many([send.new("a"), send.options(business_key="b").new("x"), send.new("c")])
    assert contents(path) == before


def test_no_drafts_are_no_jobs(app: Perdure, send: Any) -> None:
    assert app.enqueue_many([]) == send.enqueue_many([]) == []


def test_the_transaction_may_come_with_the_drafts(app: Perdure, send: Any, path: Path) -> None:
    app.store.upgrade()
    with closing(sqlite3.connect(path)) as connection:
        app.enqueue_many([send.options(tx=connection).new("a"), send.new("b")])
        connection.rollback()
    assert list(app.jobs()) == []


# -- threads ---------------------------------------------------------------------------------------------------------


def test_neither_importing_nor_enqueueing_starts_a_thread(path: Path) -> None:
    script = """
import sys, threading
from perdure import Perdure
app = Perdure(sys.argv[1])
@app.job
def send(to: str) -> None: ...
job = send.enqueue("a")
app.cancel(job), list(app.jobs()), list(app.runs()), app.queues.list(), app.get(job)
with app.transaction(): send.enqueue("b")
print(threading.active_count())
"""
    fresh = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (fresh.stdout, fresh.stderr) == ("1\n", "")
