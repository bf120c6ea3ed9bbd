"""Django's Tasks on Perdure, for Django 6 and, with the package django-tasks, for Django 5.2. See docs/django.md.

`backend` is what `TASKS` names; `database` finds its database among Django's; `checks`, `apps`, `admin` and the
commands are found by Django when `perdure.contrib.django` is in INSTALLED_APPS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.contrib.django.backend import PerdureBackend, PerdureTask

__all__ = ["PerdureBackend", "PerdureTask"]


def __getattr__(name: str) -> Any:
    """Loaded on first use: Django imports this module before its own settings can be read. `app` is for the command
    line (`--app perdure.contrib.django:app`): the Perdure app behind the tasks."""
    if name not in (*__all__, "app"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from perdure.contrib.django import backend

    return backend.app_of() if name == "app" else getattr(backend, name)
