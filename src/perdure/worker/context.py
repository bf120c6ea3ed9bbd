"""`JobContext`: what a handler is given besides its arguments. `kind` knows the annotation; the worker fills it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perdure.job.job import Job


@dataclass(frozen=True, slots=True)
class JobContext:
    """The run a handler finds itself in."""

    job: Job
    attempt: int

    @property
    def params(self) -> dict[str, Any]:
        """The key-values given with `options(params=…)`."""
        return self.job.params
