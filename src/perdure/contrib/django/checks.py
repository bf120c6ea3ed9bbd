"""What `manage.py check` finds wrong. The settings are looked at by every command, the databases with `--database` and
by `migrate`. Called by `backend` and `apps`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.migrations.recorder import MigrationRecorder

from perdure.errors import PerdureError

if TYPE_CHECKING:
    from perdure.contrib.django.backend import PerdureBackend


def check_settings(backend: PerdureBackend) -> list[CheckMessage]:
    return list(_settings(backend))


def _settings(backend: PerdureBackend) -> Iterator[CheckMessage]:
    where, home = f"TASKS[{backend.alias!r}]", backend.home
    if not apps.is_installed("perdure.contrib.django"):
        yield Error(
            f"{where} is Perdure's, but its app is not installed.",
            hint="Add 'perdure.contrib.django' to INSTALLED_APPS: it makes the tables and brings the commands.",
            id="perdure.E001",
        )
    if home.alias not in connections:
        yield Error(f"{where} names the database {home.alias!r}, which is not in DATABASES.", id="perdure.E002")
        return
    if (twice := home.named_twice) is not None:
        instead = "" if twice == "default" else f", and name it as DATABASE: {twice!r}"
        yield Error(
            f"{where} names in URL the database that is DATABASES[{twice!r}], too.",
            hint=(
                "So its transactions are not joined, and on SQLite nothing looks after Django's own connections to the"
                f" file. Leave URL out{instead}."
            ),
            id="perdure.E005",
        )
        return
    if not home.is_djangos or home.is_in_memory:
        return
    try:
        _ = home.url
    except ImproperlyConfigured as error:
        yield Error(f"{where}: {error}", id="perdure.E003")
        return
    settings = connections[home.alias].settings_dict
    mode = settings["OPTIONS"].get("transaction_mode")
    if connections[home.alias].vendor == "sqlite" and str(mode).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        yield Error(
            f"{where} keeps jobs in DATABASES[{home.alias!r}], whose transactions begin without the right to write.",
            hint=(
                "A transaction that reads first and then writes fails with 'database is locked' if a worker has written"
                f" meanwhile. Set DATABASES[{home.alias!r}]['OPTIONS']['transaction_mode'] = 'IMMEDIATE'."
            ),
            id="perdure.E004",
        )


def check_databases(databases: Iterable[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Warnings only: `migrate`, which would mend the tables, is stopped by errors."""
    from perdure.contrib.django.backend import backends

    found: list[CheckMessage] = []
    for backend in backends():
        if backend.home.alias in (databases or ()) and not backend.home.is_in_memory:
            found += _database(backend)
    return found


def _database(backend: PerdureBackend) -> list[CheckMessage]:
    home = backend.home
    command = f"manage.py migrate --database {home.alias}" if home.is_djangos else "manage.py perdure db upgrade"
    try:
        backend.app.store.require_current()
        return _unknown_kinds(backend.alias)
    except PerdureError as error:
        if error.code in ("database_missing", "schema_missing") and home.is_djangos and _is_new(home.alias):
            return []  # or the first `migrate` would be told to run itself
        what = f"TASKS[{backend.alias!r}]: {error.message.partition(';')[0]}."
        return [Warning(what, hint=f"Run {command}.", id="perdure.W001")]


def _is_new(alias: str) -> bool:
    """Whether `migrate` has never run there: Django's own tables are missing, too."""
    return not MigrationRecorder(connections[alias]).has_table()


def _unknown_kinds(alias: str) -> list[CheckMessage]:
    from perdure.contrib.django.backend import app_of

    app = app_of(alias)
    parked = app.jobs(state="parked", limit=1000)
    unknown = {job.kind for job in parked if job.park_reason == "unknown_kind" and app.kinds.find(job.kind) is None}
    return [
        Warning(
            f"Jobs of kind {kind!r} are parked: no task of that name is known here.",
            hint="Name its module in OPTIONS['IMPORTS'] of TASKS; a worker that knows it takes them by itself.",
            id="perdure.W002",
        )
        for kind in sorted(unknown)
    ]
