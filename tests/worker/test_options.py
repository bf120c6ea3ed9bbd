"""`app.worker(…)` refuses what cannot work, by name, before anything is opened."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import ConfigError, InvalidOption, Perdure
from perdure.config import Config
from perdure.worker.options import WorkerOptions


async def coroutine() -> None: ...


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"queues": "mail"}, "queues=['mail']"),
        ({"queues": 5}, "list of names"),
        ({"queues": []}, "queues is empty"),
        ({"queues": {}}, "queues is empty"),
        ({"queues": ["mail", ""]}, "queue is empty"),
        ({"queues": ["mail", 3]}, "queue must be text"),
        ({"queues": {"mail": 0}}, "the concurrency of queue 'mail'"),
        ({"queues": {"mail": "2"}}, "the concurrency of queue 'mail'"),
        ({"queues": {"": 1}}, "queue is empty"),
        ({"concurrency": 0}, "concurrency must be a whole number from 1"),
        ({"concurrency": True}, "concurrency must be"),
        ({"concurrency": 2.5}, "concurrency must be"),
        ({"concurrency": 10**6}, "concurrency must be"),
        ({"order": "random"}, '"strict" or "round_robin"'),
        ({"poll_s": 0}, "poll_s must be seconds"),
        ({"poll_s": "1"}, "poll_s must be seconds"),
        ({"grace_s": -1}, "grace_s must be seconds"),
        ({"grace_s": float("nan")}, "grace_s must be seconds"),
        ({"max_crashes": 0}, "max_crashes must be"),
        ({"before_start": 5}, "before_start must be a function"),
        ({"before_start": [print, 5]}, "before_start must be a function"),
        ({"before_start": coroutine}, "lifespan="),
        ({"after_stop": "print"}, "after_stop must be a function"),
        ({"lifespan": 5}, "lifespan must be a function"),
        ({"exclusive": ""}, "exclusive is empty"),
        ({"exclusive": "x" * 201}, "exclusive has 201 characters"),
        ({"graces": 5}, "did you mean 'grace_s'?"),
        ({"concurency": 5}, "did you mean 'concurrency'?"),
        ({"colour": 5}, "known are queues, concurrency, order"),
    ],
)
def test_an_impossible_option_is_refused_by_name(app: Perdure, path: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        app.worker(**options)

    assert told in refused.value.message
    assert not path.exists()


def test_everything_has_a_default(app: Perdure) -> None:
    options = WorkerOptions.of(None, None, {}, Config())

    assert (options.queues, options.concurrency, options.order) == (None, 10, "strict")
    assert (options.poll_s, options.lease_s, options.grace_s, options.max_crashes) == (
        1.0,
        60.0,
        25.0,
        3,
    )


def test_queues_with_their_own_concurrency_have_it_together_by_default() -> None:
    assert WorkerOptions.of({"a": 2, "b": 20}, None, {}, Config()).concurrency == 22
    assert WorkerOptions.of({"a": 2, "b": 20}, 5, {}, Config()).concurrency == 5


def test_a_queue_named_twice_is_served_once() -> None:
    assert WorkerOptions.of(["b", "a", "b"], None, {}, Config()).queues == ("b", "a")


def test_one_hook_may_stand_for_a_list() -> None:
    assert WorkerOptions.of(None, None, {"before_start": print}, Config()).before_start == (print,)


def test_a_middleware_must_be_callable(app: Perdure) -> None:
    with pytest.raises(InvalidOption, match="a middleware is a function"):
        app.middleware(5)  # type: ignore[type-var]  # what is tested


def test_a_middleware_goes_to_every_worker_and_stays_a_function(app: Perdure) -> None:
    seen: list[str] = []

    @app.middleware
    @contextmanager
    def timed(ctx: Any) -> Any:
        seen.append(f"before {ctx.kind.name}")
        yield
        seen.append("after")

    @app.job
    def send() -> None:
        seen.append("handler")

    send.enqueue()
    app.worker().run(until_idle=True)

    assert seen == ["before send", "handler", "after"]
    assert callable(timed)


def test_modules_named_by_imports_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    (tmp_path / "declared_here.py").write_text("imported = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    app = Perdure(path, imports=["declared_here"])

    app.worker()

    import sys

    assert sys.modules.pop("declared_here").imported


def test_a_module_that_cannot_be_imported_is_named(path: Path) -> None:
    app = Perdure(path, imports=["nowhere.to_be_found"])

    with pytest.raises(ConfigError, match=r"nowhere\.to_be_found.*ModuleNotFoundError") as failed:
        app.worker()

    assert failed.value.code == "imports_failed"
