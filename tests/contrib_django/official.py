"""A program: Django's own tests of tasks, from its source distribution, with Perdure behind them. Prints what fails.

Arguments: the folder `tests` of that distribution, and a file for the jobs. Tests that are about a backend of Django's
are left out by name. On Django 5.2 the package django-tasks is tested in place of `django.tasks`.
"""

from __future__ import annotations

import logging
import sys
import unittest
from importlib import import_module
from typing import Any

import django
from django.conf import settings

IS_BACKPORT = django.VERSION < (6, 0)
LEFT_OUT = {
    "TaskTestCase": {"test_using_correct_backend", "test_get_backend"},
    "DummyBackendTestCase": {"test_using_correct_backend", "test_refresh_result", "test_refresh_result_async"},
    "ImmediateBackendTestCase": {
        "test_using_correct_backend",
        "test_throws_keyboard_interrupt",
        "test_cannot_get_result",
        "test_cannot_refresh_result",
        "test_cannot_pass_run_after",
    },
}
"""They want what only a backend of Django's has: its class, its limits, its list in memory."""
NOT_IN_THE_BACKPORT = {
    "test_pickle_task",
    "test_pickle_task_result",
    "test_unpickle_arbitrary_string",
    "test_unpickle_non_task_object",
    "test_run_after_in_decorator",
    "test_validate_disallowed_async_task",  # its message has another word
}


def backends(file: str) -> dict[str, Any]:
    options = {"URL": f"sqlite:///{file}"}
    trial = "tests.contrib_django.trial_backends"
    return {
        "default": {"BACKEND": f"{trial}.Kept", "QUEUES": ["default", "queue_1"], "OPTIONS": options},
        "immediate": {"BACKEND": f"{trial}.Drained", "QUEUES": [], "OPTIONS": options},
        "missing": {"BACKEND": "does.not.exist"},
    }


def configure(file: str) -> None:
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=["perdure.contrib.django", *(["django_tasks"] if IS_BACKPORT else [])],
        TASKS=backends(file),
        USE_TZ=True,
    )
    django.setup()
    if IS_BACKPORT:
        pretend_django_6()


def pretend_django_6() -> None:
    """The tests import `django.tasks`, and listen to its logger."""
    for part in ("", ".base", ".exceptions", ".backends", ".backends.base", ".backends.dummy", ".backends.immediate"):
        sys.modules[f"django.tasks{part}"] = import_module(f"django_tasks{part}")
    exceptions: Any = sys.modules["django.tasks.exceptions"]
    exceptions.InvalidTask = exceptions.InvalidTaskError
    exceptions.InvalidTaskBackend = exceptions.InvalidTaskBackendError
    signals: Any = import_module("django_tasks.signals")
    signals.logger = logging.getLogger("django.tasks")


def with_perdure(case: Any, tasks: dict[str, Any]) -> Any:
    """The same tests with other settings, without those that are left out."""
    from django.test import override_settings

    left_out = LEFT_OUT[case.__name__] | (NOT_IN_THE_BACKPORT if IS_BACKPORT else set())
    mine = type(f"{case.__name__}OnPerdure", (case,), dict.fromkeys(left_out & set(dir(case))))
    return override_settings(TASKS=tasks)(mine)


def suite(file: str) -> unittest.TestSuite:
    tasks = backends(file)
    cases = (
        ("tasks.test_tasks", "TaskTestCase", tasks),
        ("tasks.test_dummy_backend", "DummyBackendTestCase", {"default": tasks["default"] | {"QUEUES": []}}),
        ("tasks.test_immediate_backend", "ImmediateBackendTestCase", {"default": tasks["immediate"]}),
    )
    load = unittest.defaultTestLoader.loadTestsFromTestCase
    return unittest.TestSuite(
        load(with_perdure(getattr(import_module(module), name), settings)) for module, name, settings in cases
    )


def main(tests: str, file: str) -> int:
    sys.path.insert(0, tests)
    configure(file)
    from django.test.utils import setup_test_environment

    setup_test_environment()
    done = unittest.TextTestRunner(verbosity=0).run(suite(file))
    return 0 if done.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
