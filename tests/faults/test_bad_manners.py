"""Handlers that do what no handler should. The worker goes on, or ends and says so; another one does the rest."""

from __future__ import annotations

import pytest

from tests.faults.scene import Scene, count, program, said

HARMLESS = ("leak_threads", "change_directory", "replace_signal_handlers", "eat_the_descriptors")
FAILING = {
    "exit_the_thread": ("failed", "SystemExit", 1),
    "raise_keyboard_interrupt": ("failed", "KeyboardInterrupt", 1),
    "deep_recursion": ("completed", None, 2),
}


@pytest.mark.parametrize("manner", HARMLESS)
def test_a_worker_does_not_mind(scene: Scene, manner: str) -> None:
    app = scene.app()
    with program("misbehave", scene.path, scene.notes, manner) as process:
        assert said(process) == "exit code 0"
        assert process.wait() == 0
    assert count(app, "completed") == 11


@pytest.mark.parametrize("manner", FAILING)
def test_what_a_handler_raises_fails_its_attempt_and_nothing_else(scene: Scene, manner: str) -> None:
    app = scene.app()
    with program("misbehave", scene.path, scene.notes, manner) as process:
        assert said(process) == "exit code 0"
    (rude,) = app.jobs(kind="rude")
    assert (rude.state, rude.error_type, rude.attempts) == FAILING[manner]
    assert {job.state for job in app.jobs(kind="decent")} == {"completed"}


def test_a_worker_robbed_of_its_descriptors_ends_and_says_so(scene: Scene) -> None:
    """A handler that closes what it does not know closes the database under the worker. Another process goes on."""
    app = scene.app()
    with program("misbehave", scene.path, scene.notes, "close_strangers_descriptors") as process:
        assert said(process) == "exit code 75"
        assert process.wait() == 0
    assert count(app, "completed") < 11
    with program("misbehave", scene.path, scene.notes, "none") as process:
        assert said(process) == "exit code 0"
    assert count(app, "completed") == 21
