"""Perdure: durable jobs for Python on one SQLite file, or on PostgreSQL by changing the URL.

All names but the errors are imported on first use: `perdure --help` and probes need few of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perdure.errors import (
    ConfigError,
    DatabaseBusy,
    DatabaseUnavailable,
    FlowNotFound,
    InvalidInput,
    InvalidOption,
    InvalidPayload,
    JobFailed,
    JobNotFound,
    KeyConflict,
    KindError,
    LimitReached,
    LockNotHeld,
    PerdureError,
    ReservationBusy,
    ReservationExpired,
    ScheduleError,
    SchemaError,
    StoreError,
    TemplateError,
    TransactionError,
    TransactionTooLong,
    TransitionRefused,
    WaitTimeout,
)
from perdure.version import __version__

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.config import Retention
    from perdure.flow.planned import Outcome, Planned, each, previous
    from perdure.flow.views import Flow
    from perdure.job.flow import FlowState
    from perdure.job.model import Priority
    from perdure.job.retry import Retry
    from perdure.job.states import RunState, State
    from perdure.job.views import Job, Run
    from perdure.kind import Draft, Kind
    from perdure.limit.rule import Limit, Rate
    from perdure.options import Unique, principal
    from perdure.payload.signature import Secret
    from perdure.worker.context import JobContext, current
    from perdure.worker.signals import Cancel, Done, Fail, RetryAfter, Skip, Snooze

__all__ = [
    "Cancel",
    "ConfigError",
    "DatabaseBusy",
    "DatabaseUnavailable",
    "Done",
    "Draft",
    "Fail",
    "Flow",
    "FlowNotFound",
    "FlowState",
    "InvalidInput",
    "InvalidOption",
    "InvalidPayload",
    "Job",
    "JobContext",
    "JobFailed",
    "JobNotFound",
    "KeyConflict",
    "Kind",
    "KindError",
    "Limit",
    "LimitReached",
    "LockNotHeld",
    "Outcome",
    "Perdure",
    "PerdureError",
    "Planned",
    "Priority",
    "Rate",
    "ReservationBusy",
    "ReservationExpired",
    "Retention",
    "Retry",
    "RetryAfter",
    "Run",
    "RunState",
    "ScheduleError",
    "SchemaError",
    "Secret",
    "Skip",
    "Snooze",
    "State",
    "StoreError",
    "TemplateError",
    "TransactionError",
    "TransactionTooLong",
    "TransitionRefused",
    "Unique",
    "WaitTimeout",
    "__version__",
    "current",
    "each",
    "previous",
    "principal",
]

_HOMES = {
    "Cancel": "perdure.worker.signals",
    "Done": "perdure.worker.signals",
    "Draft": "perdure.kind",
    "Fail": "perdure.worker.signals",
    "Flow": "perdure.flow.views",
    "FlowState": "perdure.job.flow",
    "Job": "perdure.job.views",
    "JobContext": "perdure.worker.context",
    "Kind": "perdure.kind",
    "Limit": "perdure.limit.rule",
    "Outcome": "perdure.flow.planned",
    "Perdure": "perdure.app",
    "Planned": "perdure.flow.planned",
    "Priority": "perdure.job.model",
    "Rate": "perdure.limit.rule",
    "Retention": "perdure.config",
    "Retry": "perdure.job.retry",
    "RetryAfter": "perdure.worker.signals",
    "Run": "perdure.job.views",
    "RunState": "perdure.job.states",
    "Secret": "perdure.payload.signature",
    "Skip": "perdure.worker.signals",
    "Snooze": "perdure.worker.signals",
    "State": "perdure.job.states",
    "Unique": "perdure.options",
    "current": "perdure.worker.context",
    "each": "perdure.flow.planned",
    "previous": "perdure.flow.planned",
    "principal": "perdure.options",
}


if not TYPE_CHECKING:  # else type checkers would accept any name, misspelt ones too

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found


def __dir__() -> list[str]:
    """What is for users. Modules that were imported, and what this one needs, are not in it."""
    return [*__all__, *(name for name in globals() if name.startswith("__") and name not in __all__)]
