"""What happens when Django starts with `perdure.contrib.django` in INSTALLED_APPS. Calls `checks` and `database`."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate


class PerdureConfig(AppConfig):
    """`manage.py migrate` makes and upgrades Perdure's tables in the databases that backends of TASKS name."""

    name = "perdure.contrib.django"
    label = "perdure"
    verbose_name = "Perdure"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from perdure.contrib.django.checks import check_databases

        checks.register(check_databases, checks.Tags.database)
        post_migrate.connect(upgrade_tables, sender=self)
        connection_created.connect(tame_connection, dispatch_uid=self.name)


def upgrade_tables(*, using: str, verbosity: int = 1, **_: Any) -> None:
    """After `migrate` of one database: upgrade our tables if it is where jobs are kept. A repeat does nothing."""
    from perdure.contrib.django.backend import backends

    for backend in backends():
        if backend.home.is_djangos and backend.home.alias == using and not backend.home.is_in_memory:
            done = backend.app.store.upgrade()
            if verbosity >= 2:
                print(f"  Perdure: {done}")  # noqa: T201 - as Django's own receivers of this signal do


def tame_connection(*, connection: Any, **_: Any) -> None:
    """No connection to the file of the jobs may checkpoint by itself, if this SQLite has the bug that damages files so.

    See docs/operations.md. The jobs' own connections do it instead.
    """
    if connection.vendor != "sqlite":
        return
    from perdure.contrib.django.backend import backends

    if any(backend.home.is_djangos and backend.home.alias == connection.alias for backend in backends()):
        from perdure.store.sqlite.driver import tame

        tame(connection.connection)
