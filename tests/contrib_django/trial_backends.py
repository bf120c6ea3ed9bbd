"""Perdure's backend with what Django's tests want of Dummy and Immediate: used by `official`."""

from __future__ import annotations

from typing import Any

from perdure.contrib.django import PerdureBackend


class Kept(PerdureBackend):
    """Like Dummy: tasks wait, and can be looked at and cleared away."""

    @property
    def results(self) -> list[Any]:
        return [self.get_result(str(job.id)) for job in self.app.jobs()][::-1]

    def clear(self) -> None:
        self.app.cancel_all()
        for state in ("completed", "failed", "cancelled"):
            self.app.purge(state=state)


class Drained(PerdureBackend):
    """Like Immediate: a task has been run, once, when `enqueue` returns."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task.using(retry=1), args, kwargs)
        with self.app.worker().running():
            self.app.wait(result.id, timeout=60)
        return self.get_result(result.id)
