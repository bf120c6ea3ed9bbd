"""What Django finds in INSTALLED_APPS: checks, migrate, the commands, the worker."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connections
from django.db.migrations.recorder import MigrationRecorder
from django.test import override_settings

from perdure import Perdure
from perdure.contrib.django.backend import app_of
from perdure.contrib.django.database import Home, url_of
from tests.contrib_django import jobs
from tests.contrib_django.project import Project

BACKEND = "perdure.contrib.django.PerdureBackend"


def found(**databases: Any) -> list[str]:
    return [message.id for message in checks.run_checks(**databases) if message.id.startswith("perdure")]


def sqlite_with(**options: Any) -> Iterator[None]:
    settings = connections["default"].settings_dict
    before = settings["OPTIONS"]
    settings["OPTIONS"] = options
    yield
    settings["OPTIONS"] = before


# -- where the jobs are ------------------------------------------------------------------------------------------------


def entry(engine: str, name: str = "shop", **more: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("USER", "PASSWORD", "HOST", "PORT"), "")
    return {"ENGINE": f"django.db.backends.{engine}", "NAME": name, "OPTIONS": {}, **empty, **more}


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        (entry("sqlite3", "/srv/shop.sqlite3", OPTIONS={"timeout": 20}), "/srv/shop.sqlite3"),
        (entry("postgresql"), "postgresql:///shop"),
        (
            entry("postgresql", USER="a@b", PASSWORD="p/w", HOST="db", PORT=5433, OPTIONS={"sslmode": "require"}),
            "postgresql://a%40b:p%2Fw@db:5433/shop?sslmode=require",
        ),
        (
            entry("postgresql", USER="me", HOST="/run/pg", OPTIONS={"pool": True}),
            "postgresql://me@/shop?host=%2Frun%2Fpg",
        ),
        (entry("postgresql", USER="me", HOST="::1"), "postgresql://me@[::1]/shop"),
        (
            entry("mysql", USER="me", HOST="db", OPTIONS={"ssl": {"ca": "/ca.pem"}, "charset": "utf8mb4"}),
            "mysql://me@db/shop?ssl_ca=%2Fca.pem",
        ),
        (entry("mysql", USER="me", HOST="/run/my.sock"), "mysql://me@/shop?unix_socket=%2Frun%2Fmy.sock"),
    ],
)
def test_a_database_of_django_s_has_a_url(settings: dict[str, Any], url: str) -> None:
    assert url_of("default", settings) == url


@pytest.mark.parametrize(
    "settings", [entry("oracle"), entry("sqlite3", ":memory:"), entry("sqlite3", "file:x?mode=ro")]
)
def test_a_database_that_cannot_hold_jobs_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ImproperlyConfigured, match="'default'"):
        url_of("default", settings)


def test_an_unknown_option_is_refused() -> None:
    with (
        override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"DATBASE": "x"}}}),
        pytest.raises(ImproperlyConfigured, match="DATBASE"),
    ):
        app_of()


# -- checks ------------------------------------------------------------------------------------------------------------


def test_the_project_of_the_example_is_in_order(app: Perdure) -> None:
    assert found(databases=["default"]) == []


@pytest.mark.parametrize("mode", [{}, {"transaction_mode": "DEFERRED"}])
def test_transactions_that_begin_without_the_right_to_write_are_an_error(app: Perdure, mode: dict[str, str]) -> None:
    changed = sqlite_with(**mode)
    next(changed)
    assert found() == ["perdure.E004"]
    next(changed, None)


def test_an_unknown_database_is_an_error(app: Perdure) -> None:
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"DATABASE": "jobs"}}}):
        assert found() == ["perdure.E002"]


def test_a_url_of_a_database_that_django_knows_is_an_error(app: Perdure, tmp_path: Path) -> None:
    file = Path(connections["default"].settings_dict["NAME"])
    (link := tmp_path / "link.db").symlink_to(file)
    for url in (str(file), f"sqlite:///{file}", f"sqlite:///{file.parent}/./{file.name}", str(link)):
        with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"URL": url}}}):
            (error,) = [one for one in checks.run_checks() if one.id == "perdure.E005"]
            assert "DATABASES['default']" in error.msg
            assert str(error.hint).endswith("Leave URL out.")
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"URL": f"{tmp_path}/jobs.db"}}}):
        assert found() == []


@pytest.mark.parametrize(
    ("url", "is_the_same"),
    [
        ("postgresql://someone:secret@localhost/shop?sslmode=require", True),
        ("postgres+psycopg://127.0.0.1:5432/shop", True),
        ("postgresql:///shop?host=localhost&port=5432", True),
        ("postgresql:///shop", True),
        ("postgresql://localhost:5433/shop", False),
        ("postgresql://localhost/jobs", False),
        ("postgresql://db/shop", False),
        ("postgresql://localhost:many/shop", False),
        ("mysql://localhost/shop", False),
        ("oracle://localhost/shop", False),
        ("sqlite:///shop", False),
    ],
)
def test_a_server_s_database_is_known_by_host_port_and_name(app: Perdure, url: str, is_the_same: bool) -> None:
    connections.settings["other"] = connections["default"].settings_dict | entry("postgresql", HOST="localhost")
    try:
        assert Home("default", url).named_twice == ("other" if is_the_same else None)
        assert Home("default", None).named_twice is None
    finally:
        del connections.settings["other"]
        if hasattr(connections._connections, "other"):
            del connections["other"]


def test_an_app_that_is_not_installed_is_an_error(app: Perdure) -> None:
    from django.apps import apps

    installed = [config.name for config in apps.get_app_configs() if config.name != "perdure.contrib.django"]
    apps.set_installed_apps(installed)
    try:
        assert found() == ["perdure.E001"]
    finally:
        apps.unset_installed_apps()


def test_missing_tables_are_a_warning_but_not_in_the_first_migrate(app: Perdure, tmp_path: Path) -> None:
    connections["default"].close()
    connections["default"].settings_dict["NAME"] = str(tmp_path / "empty.db")
    assert found(databases=["default"]) == []
    MigrationRecorder(connections["default"]).ensure_schema()
    assert found(databases=["default"]) == ["perdure.W001"]
    assert found() == []  # without --database no database is asked


def test_parked_jobs_of_unknown_kinds_are_a_warning(app: Perdure) -> None:
    other = Perdure(app.url)

    @other.job(name="orders.gone.task")
    def gone() -> None: ...

    job = gone.enqueue()
    other.close()
    app.worker().run(until_idle=True)
    assert found(databases=["default"]) == ["perdure.W002"]
    app.cancel(job)


# -- migrate -----------------------------------------------------------------------------------------------------------


def tables(alias: str) -> set[str]:
    names = connections[alias].introspection.table_names()
    return {name for name in names if name.startswith("perdure_")}


def test_migrate_makes_the_tables_in_the_database_of_the_jobs_and_in_no_other(app: Perdure, tmp_path: Path) -> None:
    other = connections["default"].settings_dict | {"NAME": str(tmp_path / "other.db"), "OPTIONS": {}}
    connections.settings["other"] = other
    try:
        call_command("migrate", database="other", verbosity=0)
        assert connections["other"].introspection.table_names()
        assert (tables("default") > {"perdure_job", "perdure_ready"}, tables("other")) == (True, set())
        call_command("migrate", verbosity=0)  # a repeat does nothing
    finally:
        connections["other"].close()
        del connections.settings["other"]
        del connections["other"]


def test_migrate_leaves_a_test_database_in_memory_alone(app: Perdure) -> None:
    connections["default"].close()
    connections["default"].settings_dict["NAME"] = ":memory:"
    call_command("migrate", verbosity=0)
    assert tables("default") == set()
    connections["default"].close()


def test_makemigrations_finds_nothing_to_do(app: Perdure) -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


def test_connections_to_the_jobs_do_not_checkpoint_by_themselves(app: Perdure) -> None:
    """On a version of SQLite that has the bug."""
    from perdure.store.sqlite.driver import guarded

    with connections["default"].cursor() as cursor:
        pages = cursor.execute("PRAGMA wal_autocheckpoint").fetchone()[0]
    assert pages == (0 if guarded() else 1000)


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def shop(app: Perdure, tmp_path: Path) -> Iterator[Project]:
    """The same database, for other processes."""
    project = Project(tmp_path)
    yield project
    project.stop()


def test_the_program_is_about_the_project_s_jobs(app: Perdure, shop: Project) -> None:
    jobs.double.enqueue(1)
    listed = json.loads(shop.manage("perdure", "jobs", "--kind", "tests.contrib_django.jobs.double", "--json"))
    assert [job["payload"] for job in listed] == [{"args": [1], "kwargs": {}}]
    assert "orders.tasks.pack" in shop.manage("perdure", "kinds", PERDURE_URL="sqlite:///elsewhere.db")
    assert "Usage: perdure jobs" in shop.manage("perdure", "jobs", "--help")
    assert "no kind is called" in shop.manage("perdure", "enqueue", "nothing", status=2)


def test_a_worker_knows_the_tasks_of_all_apps_and_starts_anew_when_they_change(app: Perdure, shop: Project) -> None:
    shop.environment["DEBUG"] = "1"
    worker = shop.start("perdure_worker", "--concurrency", "2", log="worker.log")
    shop.wait_until_said("worker.log", r"kinds +orders\.tasks\.pack\n.*others")
    shop.edit("orders/tasks.py", "@task\n", "@task\ndef wrap(): ...\n\n\n@task\n")
    shop.wait_until_said("worker.log", r"kinds +orders\.tasks\.pack, orders\.tasks\.wrap\n.*others")
    assert shop.said("worker.log").count("worker ended") == 1  # as after SIGTERM, not killed
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0


def test_a_worker_waits_until_code_that_was_broken_is_mended(app: Perdure, shop: Project) -> None:
    shop.environment["DEBUG"] = "1"
    worker = shop.start("perdure_worker", log="worker.log")
    shop.wait_until_said("worker.log", r"kinds +orders\.tasks\.pack\n.*others")
    for number, (right, wrong) in enumerate([("@task\n", "@taks\n"), ("def pack(", "def pack((")], 1):
        shop.edit("orders/tasks.py", right, wrong)
        shop.wait_until_said("worker.log", "waiting for a change of the source files", number)
        shop.edit("orders/tasks.py", wrong, right)
        shop.wait_until_said("worker.log", r"kinds +orders\.tasks\.pack\n.*others", number + 1)
    said = shop.said("worker.log")
    assert "NameError: name 'taks' is not defined" in said
    assert "SyntaxError" in said
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0


def test_a_task_has_one_line_in_the_log_of_a_worker(app: Perdure, shop: Project) -> None:
    """Django's own say the same, on a console with DEBUG."""
    code = "from orders.models import Order; from orders.tasks import pack; pack.enqueue(17)"
    shop.manage("shell", "--no-imports", "-c", code)
    said = shop.manage("perdure_worker", "--until-idle", "--noreload", DEBUG="1")
    assert re.search("WARNING orders.tasks.pack .* attempt 1 of 3 failed", said)
    assert (said.count("Traceback"), said.count("state=RUNNING")) == (1, 0)


def test_a_project_that_has_set_up_its_logging_keeps_django_s_lines(app: Perdure, shop: Project) -> None:
    settings = shop.place / "shop" / "settings.py"
    settings.write_text(f"{settings.read_text()}\nLOGGING = {LOGGING}\n")
    shop.manage("shell", "--no-imports", "-c", "from orders.tasks import pack; pack.enqueue(17)")
    assert "state=RUNNING" in shop.manage("perdure_worker", "--until-idle", "--noreload")


LOGGING = {
    "version": 1,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "INFO"},
}


def test_a_worker_refuses_to_start_in_a_project_with_errors(app: Perdure, shop: Project) -> None:
    shop.edit("shop/settings.py", '"IMMEDIATE"', '"DEFERRED"')
    said = shop.manage("perdure_worker", "--until-idle", status=1)
    assert "perdure.E004" in said
