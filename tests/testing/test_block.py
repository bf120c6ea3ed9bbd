"""What `app.testing()` exchanges, what it leaves alone, and that everything comes back."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from perdure import InvalidOption, Perdure, PerdureError
from perdure.clock import SystemClock
from perdure.testing import Kit


def test_jobs_go_to_a_temporary_file_that_is_gone_afterwards(app: Perdure, own: Path) -> None:
    @app.job
    def send() -> None: ...

    with app.testing():
        send.enqueue()
        file = Path(app.url)
        assert file.exists()
    assert not file.parent.exists()
    assert not own.exists()


EXCHANGED = ("_url", "clock", "ids", "store")


def test_url_clock_ids_and_store_come_back(app: Perdure, own: Path) -> None:
    before = {name: getattr(app, name) for name in EXCHANGED}
    with app.testing():
        inside = {name: getattr(app, name) for name in EXCHANGED}
    assert all(inside[name] is not before[name] for name in EXCHANGED)
    assert {name: getattr(app, name) for name in EXCHANGED} == before
    assert app.url == str(own)


def test_what_was_not_made_before_the_block_is_not_left_from_it(app: Perdure) -> None:
    with app.testing():
        inside = app.clock, app.ids, app.store
    assert not {"clock", "ids", "store"} & vars(app).keys()
    assert all(new is not old for new, old in zip((app.clock, app.ids, app.store), inside, strict=True))


def test_everything_comes_back_after_an_exception(app: Perdure) -> None:
    file = Path()

    def fails() -> None:
        nonlocal file
        with app.testing():
            file = Path(app.url)
            app.store.queues()
            raise RuntimeError("in the block")

    with pytest.raises(RuntimeError, match="in the block"):
        fails()
    assert isinstance(app.clock, SystemClock)
    assert app.kit is None
    assert not file.parent.exists()


def test_a_database_that_is_open_stays_open_and_is_used_again(tmp_path: Path) -> None:
    app = Perdure(tmp_path / "real.db", durability="normal")

    @app.job
    def send() -> None: ...

    job = send.enqueue()
    store = app.store
    with app.testing() as t:
        send.enqueue()
        assert len(t.enqueued()) == 1
        assert app.get(job) is None
    assert app.store is store
    assert [each.id for each in app.jobs()] == [job.id]
    app.close()


def test_perdure_url_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = tmp_path / "real.db"
    monkeypatch.setenv("PERDURE_URL", str(real))
    app = Perdure()

    @app.job
    def send() -> None: ...

    with app.testing() as t:
        send.enqueue()
        t.drain()
    assert not real.exists()
    assert app.url == str(real)


def test_start_up_code_cannot_lead_the_app_to_another_database(app: Perdure, own: Path, tmp_path: Path) -> None:
    with app.testing():
        inside = app.url
        app.url = tmp_path / "configured.db"
        app.store.queues()
        assert app.url == inside
    assert app.url == str(own)
    assert not (tmp_path / "configured.db").exists()


def test_an_app_that_was_closed_in_the_block_opens_the_same_file_again(app: Perdure, t: Kit) -> None:
    @app.job
    def send() -> None: ...

    send.enqueue()
    app.close()
    assert [job.kind for job in t.drain()] == ["send"]


def test_other_threads_see_the_same_database(app: Perdure, t: Kit) -> None:
    @app.job
    def send() -> None: ...

    thread = threading.Thread(target=send.enqueue)
    thread.start()
    thread.join()
    t.assert_enqueued(send)


def test_a_lock_made_before_the_block_is_taken_in_the_temporary_database(app: Perdure) -> None:
    lock = app.lock("report", ttl=60)
    with app.testing() as t, lock:
        assert lock.held
        t.advance(minutes=2)
        assert not lock.held


def test_a_block_inside_itself_is_refused(app: Perdure, t: Kit) -> None:
    with pytest.raises(PerdureError) as refused, app.testing():
        pass
    assert refused.value.code == "testing_nested"
    assert app.kit is t


def test_two_apps_may_be_tested_at_once(app: Perdure, t: Kit) -> None:
    other = Perdure("never-made.db")
    with other.testing() as its:
        assert its.app.url != t.app.url
    assert app.kit is t


def test_a_block_beside_a_running_worker_is_refused(tmp_path: Path) -> None:
    app = Perdure(tmp_path / "real.db", durability="normal")
    with app.worker().running():
        with pytest.raises(PerdureError) as refused, app.testing():
            pass
        assert refused.value.code == "testing_worker"
    with app.testing() as t:
        assert t.drain() == []
    app.close()


def test_a_worker_inside_the_block_is_refused(app: Perdure, t: Kit) -> None:
    with pytest.raises(PerdureError, match=r"t\.drain\(\)") as refused:
        app.worker()
    assert refused.value.code == "testing_worker"


def test_a_worker_that_was_made_before_the_block_does_not_start_inside(tmp_path: Path) -> None:
    app = Perdure(tmp_path / "real.db", durability="normal")
    worker = app.worker()
    with app.testing(), pytest.raises(PerdureError) as refused, worker.running():
        pass
    assert refused.value.code == "testing_worker"
    assert not (tmp_path / "real.db").exists()
    worker.run(until_idle=True)
    app.close()


def test_a_kit_is_of_no_use_after_its_block(app: Perdure) -> None:
    with app.testing() as t:
        pass
    for use in (t.drain, t.enqueued, t.context, t.advance):
        with pytest.raises(PerdureError) as refused:
            use()
        assert refused.value.code == "testing_over"


def test_the_clock_starts_where_it_is_told(app: Perdure) -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    with app.testing(start=start) as t:
        assert t.now == start


@pytest.mark.parametrize("start", ["2030-01-01", datetime(2030, 1, 1), 5])
def test_a_start_that_names_no_instant_is_refused(app: Perdure, start: datetime) -> None:
    with pytest.raises(InvalidOption), app.testing(start=start):
        pass
    assert app.kit is None


def test_the_same_test_gets_the_same_ids(app: Perdure) -> None:
    @app.job
    def send() -> None: ...

    ids = []
    for _ in range(2):
        with app.testing(start=datetime(2030, 1, 1, tzinfo=UTC)):
            ids.append([send.enqueue().id for _ in range(3)])
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 3


def test_more_jobs_than_a_millisecond_has_ids_for(app: Perdure, t: Kit) -> None:
    @app.job
    def send(n: int) -> None: ...

    before = t.now
    send.enqueue_many([{"n": n} for n in range(10_000)])
    assert [job.payload for job in t.enqueued(send)] == [{"n": n} for n in range(10_000)]
    assert t.now == before
